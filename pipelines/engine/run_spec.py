"""The facts on which every process of one run must agree: a small file in the run's directory, written before the first leg starts.

It holds the pipeline file's own text, with `${...}` and file references unresolved, so that a secret that is only referenced is neither on
disk nor in Spark's plans: each process resolves those from its own environment. Variables outside of secrets travel along. Of an edit while
it runs only the settings take effect (`config.settings`), which the runner sends to its processes; anything else waits for the next start.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from socket import gethostname

from pipelines.config import PipelineConfig, parse
from pipelines.config.settings import with_settings
from pipelines.config.variables import variables_of
from pipelines.errors import ConfigurationError, HaltError
from pipelines.private import write_whole
from pipelines.protocol.naming import Names

RUN_FILE = "run.json"
"""Name of the file in the directory of a start."""


@dataclass(frozen=True)
class RunSpec:
    """One start of a runner. `identities` by the ids of its sources; new plans name the version `stage_config`.

    `targets`: the offsets at which the run ends, by source and partition, None for a run without an end. `state_storage` is the directory
    or URI of the key stores. `accepted_config`: the version whose plans pass the rejection limit, empty for none. `resolved`: the
    `resolved_digest` of the driver's configuration, empty for any. `variables`: those that hold no secret, as the driver has them, empty
    if they are not set. `file_version`: the version of the file's configuration (`config.version_of`), to detect a later change of the
    file. `settings`: those that the runner has sent since, empty for the text's own. `codes`: `config.codes_of` then.
    """

    config_text: str
    config_name: str
    stream_ids: dict[str, str]
    identities: dict[str, str]
    stage_config: str
    state_storage: str
    accepted_config: str = ""
    file_version: str = ""
    resolved: str = ""
    targets: dict[str, dict[str, int]] | None = None
    variables: dict[str, str] = field(default_factory=dict)
    settings: str = ""
    codes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def beside(cls, config_text: str, config: PipelineConfig, state_storage: str = "") -> "RunSpec":
        """Return the run of work beside the stream, which plans nothing. `config`: the text as this process has resolved it."""
        name = f"pipeline {config.pipeline_id}"
        return cls(config_text, name, {}, {}, "", state_storage, resolved=resolved_digest(config))

    def save(self, path: Path) -> None:
        write_whole(path, self.text())

    def text(self) -> str:
        """Return the text that `read_run` reads."""
        return json.dumps(asdict(self), indent=1)

    @property
    def config(self) -> PipelineConfig:
        """The configuration as this process resolves it. Raise HaltError if the driver has resolved it differently."""
        return self.resolve(os.environ)

    def resolve(self, environment: Mapping[str, str]) -> PipelineConfig:
        """Resolve the configuration with the environment of a process; see `config`."""
        here = f"in process {os.getpid()} of {gethostname()}"
        try:
            config = parse(self.config_text, name=self.config_name, environment={**environment, **self.variables})
        except ConfigurationError as error:
            if not self.resolved:
                raise
            raise HaltError(f"resolving {here}: {error}\n{self._remedy}") from None
        if self.resolved and resolved_digest(config) != self.resolved:
            raise HaltError(
                f"resolving {self.config_name}: {here} the pipeline file means another configuration than in the driver, so nothing was "
                f"done. {self._remedy}"
            )
        return with_settings(config, self.settings) if self.settings else config

    @property
    def _remedy(self) -> str:
        own = sorted({"NATS_URL", *variables_of(self.config_text)} - self.variables.keys())
        return f"Give every worker the files that the pipeline file refers to, and the driver's values of {', '.join(own)}"

    @property
    def names(self) -> Names:
        return Names(self.config.pipeline_id)


def resolved_digest(config: PipelineConfig) -> str:
    """Return 16 hex digits of the resolved meaning of a file without its secrets: the pipeline and its servers."""
    canonical = json.dumps(config.model_dump(mode="json"), sort_keys=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def read_run(text: str) -> RunSpec:
    """Parse a text of `RunSpec.text`. Raise HaltError for any other text."""
    try:
        return RunSpec(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        raise HaltError(
            "reading the run file of this start: it is damaged, or another release has written it; start the pipeline again"
        ) from None
