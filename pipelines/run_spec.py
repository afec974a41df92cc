"""What every process of one run must agree on: a small file in the run's directory, written before the first leg starts.

It holds the pipeline file's own text, with `${...}` and file references unresolved, so that a secret that is only referred to lies
neither on disk nor in Spark's plans; each process resolves them from its own environment. An edit of the pipeline file while it runs
changes nothing until the next start.
"""

import json
import os
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from pipelines.config import PipelineConfig, parse
from pipelines.errors import HaltError
from pipelines.naming import Names


@dataclass(frozen=True)
class RunSpec:
    """One start of a runner. `epochs` are those of its legs, `stage_config` is the version that new plans name.

    Ranges of at most `driver_offsets` Kafka offsets, or `driver_frames` raw frames, are done in the driver, larger ones in tasks.
    `state_place` is the directory or URI of the key stores.
    `accepted_config`: the version whose plans the circuit breaker lets pass, empty for none.
    `file_version`: that of the file's configuration (`config.version_of`), for those who ask whether the file was changed since.
    """

    config_text: str
    config_name: str
    epochs: dict[str, int]
    stream_ids: dict[str, str]
    topic_id: str
    stage_config: str
    driver_offsets: int
    driver_frames: int
    state_place: str
    accepted_config: str = ""
    file_version: str = ""

    @classmethod
    def beside(cls, config_text: str, pipeline_id: str, state_place: str = "") -> "RunSpec":
        """For work beside the stream, which plans nothing."""
        return cls(config_text, f"pipeline {pipeline_id}", {}, {}, "", "", 0, 0, state_place)

    def save(self, path: Path) -> None:
        partial = path.with_suffix(".partial")
        partial.touch(mode=0o600)
        partial.write_text(self.text())
        partial.replace(path)

    def text(self) -> str:
        """What `read_run` reads."""
        return json.dumps(asdict(self), indent=1)

    @property
    def config(self) -> PipelineConfig:
        return parse(self.config_text, name=self.config_name, environment=os.environ)

    @property
    def names(self) -> Names:
        return Names(self.config.pipeline_id)


@lru_cache(maxsize=8)
def load_run(path: str) -> RunSpec:
    """Reads the file once per process; a new start writes a new path."""
    return read_run(Path(path).read_text())


def read_run(text: str) -> RunSpec:
    """Inverse of `RunSpec.text`. Raises HaltError for any other text."""
    try:
        return RunSpec(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        raise HaltError(
            "reading the run file of this start: it is damaged, or another release has written it; start the pipeline again"
        ) from None
