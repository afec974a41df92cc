"""Edits of the pipeline file that a run takes up while it works: those of its settings, and no others.

In: the text of the edited file. Out: its settings, for the runner's own threads and for the processes of the legs. Kept: the run file of
this start, which has the text under which the pipeline works, so a kill leaves the earlier text or the new one.
"""

import os
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pipelines.config import PipelineConfig, codes_of, parse, version_of
from pipelines.config.base import Effect
from pipelines.config.differences import differences
from pipelines.config.settings import settings_digest, settings_of, with_settings
from pipelines.config.variables import open_variables
from pipelines.engine.run_spec import RUN_FILE, RunSpec, resolved_digest
from pipelines.errors import HaltError
from pipelines.host import remedy

if TYPE_CHECKING:
    from pipelines.runner.runner import Runner


class Reloads:
    """The reloads of one run, whose legs are started. Thread-safe."""

    def __init__(self, runner: "Runner", run: RunSpec) -> None:
        self._runner, self._run, self._lock = runner, run, threading.Lock()
        self.digest = settings_digest(settings_of(runner.config))
        """The digest of the settings of the file as it is in force."""
        self.at: datetime | None = None
        """The time of the last reload (UTC), None before the first."""

    @property
    def text(self) -> str:
        """The text of the file as it is in force."""
        return self._run.config_text

    def reload(self, text: str) -> None:
        """Take an edited file. The legs take its settings behind their batches.

        Raise ConfigurationError with every fault of the file, HaltError if it needs more than a reload; nothing was changed then.
        """
        with self._lock:
            environment = {**os.environ, **self._run.variables}
            before, after = (parse(one, name="the edited file", environment=environment) for one in (self.text, text))
            found = list(differences(before, after))
            self._check([one.path for one in found if one.effect == Effect.RESTART])
            settings = settings_of(after)
            config = with_settings(self._runner.config, settings)
            run = replace(
                self._run,
                config_text=text,
                file_version=version_of(config),
                resolved=resolved_digest(after),
                variables=open_variables(text, environment),
            )
            # First: whoever reads it must not take the settings for an edit that is still to be applied.
            self._save(run)
            self._run = run
            self.digest, self.at = settings_digest(settings), datetime.now(UTC)
            self._give(config, settings)
            named = ", ".join(one.path for one in found) or "the same settings"
            self._runner.announce(f"reloaded: {named}; each leg works under the new settings behind its batch")

    def _save(self, run: RunSpec) -> None:
        path = self._runner.own_directory / RUN_FILE
        try:
            run.save(path)
        except OSError as error:
            to_do = remedy(error) or "let this user write there"
            raise HaltError(f"reloading: writing {path}: {error.strerror}; {to_do}, and reload again. It runs as before") from error

    def _give(self, config: PipelineConfig, settings: str) -> None:
        """Let the threads of the runner, and the legs, go on under other settings."""
        runner = self._runner
        assert runner.coordinator is not None
        runner.config = config
        if runner.retention is not None:
            runner.retention.keep(config.resources.nats.stream.max_age, runner.dead_letter_retention())
        if runner.lookups is not None:
            runner.lookups.take_settings(config)
        runner.coordinator.take_settings(settings, config.lanes - 1)

    def _check(self, fixed: list[str]) -> None:
        """Raise HaltError for fields that a running pipeline does not take up, or for functions with other code than at the start."""
        doing = f"reloading pipeline {self._runner.config.pipeline_id}"
        if fixed:
            raise HaltError(
                f"{doing}: {', '.join(fixed)} cannot change while it runs. It runs as before; `tallyflow diff FILE` shows what the edit "
                "needs, and `tallyflow apply FILE` does it"
            )
        if codes_of(self._runner.config) != self._run.codes:
            raise HaltError(
                f"{doing}: the code of its functions is not that of its start. It runs as before; stop it and start it, which takes the "
                "code and the settings"
            )


def reload(runner: "Runner", text: str) -> str:
    """Take an edited file into a run; return the digest of its settings. Raise as `Reloads.reload` does."""
    if runner.reloads is None:
        raise HaltError(f"reloading pipeline {runner.config.pipeline_id}: its runner is still starting; ask again when it is ready")
    runner.reloads.reload(text)
    return runner.reloads.digest
