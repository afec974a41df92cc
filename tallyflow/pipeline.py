"""One pipeline file in Python. Reads share the code of the commands; a run is a process of its own, as in a shell."""

import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipelines.config import PipelineConfig, load
from pipelines.config.load import read_text
from pipelines.config.source_ids import chosen_source
from pipelines.control.control import ask_all
from pipelines.control.reload import reload_runners
from pipelines.errors import TallyflowError
from pipelines.home import default_home
from pipelines.preview.declared import declared_program
from pipelines.preview.given import Given, frames_of
from pipelines.preview.run import preview
from pipelines.preview.tables import with_tables
from pipelines.proof.ask import audit_of, tally_of, verification_of
from pipelines.protocol.naming import Names
from resources.local_servers import NatsUse, use_local_servers
from tallyflow.results import Preview, Proof, Run, Status, Tally

_LOGGER = logging.getLogger("tallyflow")
Value = bytes | str | Mapping[str, Any] | None
"""A record's value: bytes or text as Kafka would hold it, what JSON is made of, or None, as of a record that deletes."""


@dataclass(frozen=True)
class Message:
    """A record with what Kafka keeps beside its value: a key, and headers by name."""

    value: Value
    key: bytes | str | None = None
    headers: Mapping[str, bytes | str | None] = field(default_factory=dict)


class RunFailedError(TallyflowError):
    """A run ended with a fault; the message is the run's own, and says what to do. What was written stays accounted for."""


class Pipeline:
    """One pipeline of this host, by its file.

    The file is read again by each method, with the environment of this process, and with local servers where it names none, as the
    commands do. Every method raises ConfigurationError for a file that is not sound, RetryableError while a server is away, HaltError with
    what to do for all else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = load(path, offline=True).pipeline_id

    @classmethod
    def load(cls, path: str | Path) -> "Pipeline":
        """Return the pipeline of a file. Connects to nothing. Raise ConfigurationError with every fault."""
        return cls(Path(path))

    def __repr__(self) -> str:
        return f"Pipeline({self.id!r}, {str(self.path)!r})"

    def preview(self, records: Iterable[Value | Message], source: str | None = None) -> Preview:
        """Return what would become of some records, without a server but those of look-up tables; dedup knows no earlier record.

        `source`: the id of the source that they come from, of a pipeline with several.
        """
        config = load(self.path, offline=True)
        source_id, now = chosen_source(config, source).source_id, datetime.now(UTC)
        program = with_tables(declared_program(config), config)
        return Preview.of(preview(program, frames_of([_given(record, now, source_id) for record in records], config.sources)))

    def run(self, *, until_caught_up: bool = True, drain: bool = False, legs: Iterable[str] = (), connect: timedelta | None = None) -> Run:
        """Run the pipeline in a process of its own and wait until it ends; an interrupt stops it first, batches in work being finished.

        `until_caught_up`: it ends once every record now in Kafka is in ClickHouse. `drain`: once every record that ingest has read is.
        With neither it ends at `tallyflow stop`. `connect`: how long it waits for servers at its start. Raise RunFailedError.
        """
        ends = ["--drain"] if drain else ["--until-caught-up"] if until_caught_up else []
        wait = ["--connect-timeout", str(connect.total_seconds())] if connect is not None else []
        options = [*ends, *wait, *(word for leg in legs for word in ("--leg", leg))]
        began = time.monotonic()
        code, lines = _run([sys.executable, "-m", "pipelines.cli", "run", str(self.path), "--log-format", "json", *options])
        if code:
            raise RunFailedError("\n".join(lines[-3:]) or f"running {self.path}: the process ended with the code {code}")
        return Run(timedelta(seconds=time.monotonic() - began), tuple(lines))

    def status(self) -> Status | None:
        """Return the state of the running pipeline; None if it does not run on this host."""
        config = self._config("address")
        found = ask_all(Names(config.pipeline_id).directory(default_home()))
        return Status.of(found) if found is not None else None

    def reload(self, patience: timedelta = timedelta(minutes=1)) -> dict[str, str]:
        """Let the running pipeline take the settings of its edited file; nothing stops. Wait until every leg works under them.

        Return the legs that do not within `patience`, with what each waits for: they do behind their batch. Raise HaltError if nothing
        runs on this host, or if the edit needs more than that.
        """
        text = read_text(self.path)
        directory = Names(load(self.path, offline=True, text=text).pipeline_id).directory(default_home())
        return {str(leg): why for leg, why in reload_runners(directory, text, patience).items()}

    def tally(self, since: datetime | None = None) -> Tally:
        """Return what each leg counted, of work done since an aware instant, if it is given."""
        config = self._config("resume")
        return Tally.of(config.pipeline_id, tally_of(config, since))

    def audit(self, examples: int = 20) -> Proof:
        """Recount every record from Kafka, the streams and the table. `examples`: how many faults of each kind are named."""
        return Proof.of(audit_of(self._config("resume"), examples))

    def verify(
        self, since: datetime | None = None, until: datetime | None = None, *, with_kafka: bool = False, examples: int = 10
    ) -> Proof:
        """Recompute the table's rows from the raw records that arrived from `since` on and before `until` (aware), and compare them.

        `with_kafka`: compares the bytes of the raw records with Kafka's, too.
        """
        return Proof.of(verification_of(self._config("resume"), since, until, examples, with_kafka))

    def _config(self, use: NatsUse) -> PipelineConfig:
        for line in use_local_servers(read_text(self.path), use):
            _LOGGER.info(line)
        return load(self.path)


def _given(record: Value | Message, at: datetime, source: str) -> Given:
    message = record if isinstance(record, Message) else Message(record)
    value = json.dumps(message.value) if isinstance(message.value, Mapping) else message.value
    headers = tuple((name.encode(), _bytes(content)) for name, content in message.headers.items())
    return Given(_bytes(value), at, _bytes(message.key), headers or None, source=source)


def _bytes(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _run(command: list[str]) -> tuple[int, list[str]]:
    """Return the exit code of a run, and what it reported; an interrupt is passed on as a stop, and raised when the run has ended."""
    # In a session of its own: a notebook's interrupt, or Ctrl-C, reaches this process only.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True) as process:  # noqa: S603
        assert process.stdout is not None
        lines = []
        try:
            for line in process.stdout:
                lines.append(_message(line.rstrip("\n")))
                _LOGGER.info(lines[-1])
        except BaseException:
            process.terminate()
            process.wait()
            raise
    return process.returncode, lines


def _message(line: str) -> str:
    """Return the message of a line of JSON, as `run --log-format json` writes it; any other line as it is."""
    try:
        event = json.loads(line)
    except ValueError:
        return line
    return str(event["message"]) if isinstance(event, dict) and "message" in event else line
