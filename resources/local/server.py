"""One local server: its life as a detached process, the same for all three kinds.

Kept per server in `<home>/servers/<name>/`: `pid.json` (the process, its settings, whether it was ever ready), the server's own
configuration, `data/` and its logs. `pid.json` is only a hint: every question about a process is answered by the kernel, and a server whose
`pid.json` is missing is found by the marks in its environment.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Literal, Protocol

from pipelines.control.processes import POLL_SECONDS, ProcessIdentity, spawn
from pipelines.private import private_directory, write_whole
from resources.local.errors import LocalServerError
from resources.local.ports import HOST, is_free, port_holder
from resources.local.processes import HOME_MARK, NAME_MARK, find_marked

_LOGGER = logging.getLogger(__name__)

Progress = Callable[[str, str], None]
"""Called with (server, its present activity), from any of the threads that start servers; returns at once."""

State = Literal["healthy", "starting", "unhealthy", "dead", "stopped"]
"""States of a server.

- healthy: runs and answers.
- starting: runs, has not answered yet.
- unhealthy: runs, answered once, does not answer now.
- dead: ended although it was not stopped.
- stopped: was stopped, or never started.
"""

# Kafka re-reads its last segments after kill -9, NATS its streams: seconds per gigabyte on a slow disk.
START_TIMEOUT = timedelta(minutes=3)
PORT_PATIENCE = timedelta(seconds=20)
PROBE_TIMEOUT = timedelta(seconds=5)
LOG_TAIL_LINES = 20


class NotReadyError(Exception):
    """A server does not answer as it should (yet); the message holds the question and the answer."""


@dataclass(frozen=True)
class Patience:
    """Time limits of a server: to answer after its start; to answer when it once was ready, before `up` restarts it; to end."""

    start: timedelta = START_TIMEOUT
    hung: timedelta = timedelta(seconds=15)
    stop: timedelta = timedelta(seconds=30)


@dataclass(frozen=True)
class Endpoint:
    """The place of one server: its directory (absolute), its loopback port, the environment of its start and its password."""

    directory: Path
    port: int
    environment: Mapping[str, str]
    password: str = field(repr=False)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"


class ServerKind(Protocol):
    """The differences between Kafka, NATS and ClickHouse."""

    @property
    def name(self) -> str: ...

    def settings(self, endpoint: Endpoint) -> str:
        """Return the settings whose change needs a restart of a running server; they hold no secret in clear."""

    def prepare(self, endpoint: Endpoint, progress: Callable[[str], None]) -> Sequence[str]:
        """Prepare the server's files and return its command line. May repeat after a crash at any point."""

    def probe(self, endpoint: Endpoint, timeout: timedelta) -> str:
        """Return the version that the server itself reports over its own protocol; raise NotReadyError."""

    def logs(self, directory: Path) -> Sequence[Path]:
        """Return the files to read if it fails, the most helpful last."""


@dataclass(frozen=True)
class ServerStatus:
    """One server as `status` shows it; pid, since and rss_bytes are None without a process, version without an answer."""

    name: str
    state: State
    address: str
    pid: int | None = None
    version: str | None = None
    since: datetime | None = None
    rss_bytes: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class _Record:
    pid: int
    start: str
    settings_sha256: str
    was_ready: bool

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.start)


def _environment(home: Path, name: str, more: Mapping[str, str]) -> dict[str, str]:
    """Return our environment with `more`, the marks, and the path of this package.

    A server runs in another directory, and the package may not be installed.
    """
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **more, HOME_MARK: str(home), NAME_MARK: name, "PYTHONPATH": os.pathsep.join(paths)}


class LocalServer:
    """Starts, stops, kills and inspects one server. Safe against other processes that do the same to the same home."""

    def __init__(
        self,
        kind: ServerKind,
        home: Path,
        port: int,
        password: str,
        lock: Callable[[], AbstractContextManager[object]],
        patience: Patience = Patience(),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Create without starting. `environment`: variables beside our own."""
        self.kind = kind
        self.name = kind.name
        self._home = home
        self._lock = lock
        self._patience = patience
        directory = home / "servers" / kind.name
        self.endpoint = Endpoint(directory, port, _environment(home, kind.name, environment or {}), password)
        self._record_path = directory / "pid.json"

    def start(self, timeout: timedelta = START_TIMEOUT) -> None:
        """Start this server alone, like `up`. Raise LocalServerError."""
        with self._lock():
            self.ensure(timeout, lambda _server, _text: None, Event())

    def stop(self) -> None:
        """End it with SIGTERM, and SIGKILL when its patience ends; wait until it has ended, with all processes that it started."""
        with self._lock():
            self.end(lambda _server, _text: None)

    def kill(self) -> None:
        """End it with SIGKILL, as the kernel's memory killer would; wait until it has ended. For fault tests."""
        record = self._read_record()
        if record is not None:
            record.identity.kill()

    @property
    def pid(self) -> int | None:
        """The pid of the living process, or None."""
        record = self._read_record()
        return record.pid if record is not None and record.identity.is_running() else None

    def status(self) -> ServerStatus:
        """Ask the kernel for the process and the server for its version; this takes up to 5 s if it does not answer."""
        bare = ServerStatus(self.name, "stopped", self.endpoint.address)
        record = self._read_record()
        if record is None:
            return bare
        if not record.identity.is_running():
            return replace(bare, state="dead", detail=f"process {record.pid} ended by itself or was killed; run `tallyflow up`")
        running = replace(bare, pid=record.pid, since=record.identity.since, rss_bytes=record.identity.rss_bytes())
        try:
            return replace(running, state="healthy", version=self.kind.probe(self.endpoint, PROBE_TIMEOUT))
        except NotReadyError as error:
            return replace(running, state="unhealthy" if record.was_ready else "starting", detail=str(error))

    def ensure(self, timeout: timedelta, progress: Progress, cancelled: Event) -> None:
        """Leave a healthy server alone, start any other; return when it answers. The caller holds the lock.

        Raise LocalServerError with the tail of the log if it ends or does not answer within `timeout`; it is not left running then.
        """
        record = self._read_record()
        if record is not None and record.identity.is_running():
            if self._keep(record, timeout, progress, cancelled):
                return
            record.identity.stop(self._patience.stop)
        for stray in find_marked(self._home, self.name):
            progress(self.name, f"stopping process {stray.pid}, left over from an earlier start")
            stray.stop(self._patience.stop)
        self._await_port(cancelled)
        self._launch(timeout, progress, cancelled)

    def end(self, progress: Progress) -> None:
        """End the server and all other processes with its marks; none of them runs afterwards. The caller holds the lock."""
        record = self._read_record()
        if record is not None and record.identity.is_running():
            progress(self.name, "stopping")
            record.identity.stop(self._patience.stop)
        for stray in find_marked(self._home, self.name):
            progress(self.name, f"stopping process {stray.pid}")
            stray.stop(self._patience.stop)
        self._record_path.unlink(missing_ok=True)
        progress(self.name, "stopped")

    def _keep(self, record: _Record, timeout: timedelta, progress: Progress, cancelled: Event) -> bool:
        """Return whether the running server can stay: same settings, and it answers (a young one has the whole time-out for this)."""
        if record.settings_sha256 != self._settings_sha256():
            progress(self.name, "restarting with changed settings")
            return False
        patience = self._patience.hung if record.was_ready else timeout
        fault = self._await_answer(record.identity, patience, progress, cancelled)
        if fault is not None:
            progress(self.name, f"restarting: {fault}")
            return False
        self._write_record(replace(record, was_ready=True))
        return True

    def _await_port(self, cancelled: Event) -> None:
        """Return when the port is free.

        A killed process of many threads seems to have ended, yet holds its port until its last thread ends.
        """
        deadline = time.monotonic() + PORT_PATIENCE.total_seconds()
        while not is_free(self.endpoint.port):
            holder = port_holder(self.endpoint.port)
            if holder is not None or time.monotonic() > deadline or cancelled.wait(POLL_SECONDS):
                raise LocalServerError(
                    f"starting {self.name} on {self.endpoint.address}: the port is taken by {holder or 'another process'}; stop that "
                    "process, or run `tallyflow up --new-ports` to move to a free port (then export the addresses again)"
                )

    def _launch(self, timeout: timedelta, progress: Progress, cancelled: Event) -> None:
        private_directory(self.endpoint.directory)
        command = self.kind.prepare(self.endpoint, lambda text: progress(self.name, text))
        progress(self.name, "starting")
        try:
            identity = spawn(command, self.endpoint.environment, self.endpoint.directory, self.endpoint.directory / "console.log")
        except OSError as error:
            raise LocalServerError(f"starting {self.name}: {error}") from error
        record = _Record(identity.pid, identity.start, self._settings_sha256(), was_ready=False)
        self._write_record(record)
        fault = self._await_answer(identity, timeout, progress, cancelled)
        if fault is not None:
            identity.stop(self._patience.stop)
            self._record_path.unlink(missing_ok=True)
            raise LocalServerError(f"starting {self.name} on {self.endpoint.address}: {fault}\n{self.log_tail()}")
        self._write_record(replace(record, was_ready=True))

    def _await_answer(self, identity: ProcessIdentity, patience: timedelta, progress: Progress, cancelled: Event) -> str | None:
        """Return None as soon as the server answers; else the reason: it ended, or did not answer within `patience`."""
        began = time.monotonic()
        while True:
            try:
                version = self.kind.probe(self.endpoint, timedelta(seconds=1))
            except NotReadyError as error:
                reason = str(error)
            else:
                if identity.is_running():
                    progress(self.name, f"ready on {self.endpoint.address} ({version})")
                    return None
                reason = "another process answers in its place"
            if not identity.is_running():
                return f"process {identity.pid} ended ({reason})"
            waited = time.monotonic() - began
            if waited > patience.total_seconds():
                return f"no answer within {patience.total_seconds():.0f} s ({reason})"
            if cancelled.wait(POLL_SECONDS):
                raise LocalServerError(f"starting {self.name}: interrupted; the process is left running, `tallyflow down` stops it")
            progress(self.name, f"waiting for an answer, {waited:.0f} s")

    def log_tail(self) -> str:
        """Return the last lines of each of its logs, under the path of the file."""
        parts = []
        for path in self.kind.logs(self.endpoint.directory):
            lines = path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:] if path.is_file() else []
            if lines:
                parts.append(f"{path}, last {len(lines)} lines:\n" + "\n".join(f"  {line}" for line in lines))
        return "\n".join(parts) or f"its logs in {self.endpoint.directory} are empty"

    def _settings_sha256(self) -> str:
        return hashlib.sha256(self.kind.settings(self.endpoint).encode()).hexdigest()

    def _read_record(self) -> _Record | None:
        try:
            return _Record(**json.loads(self._record_path.read_text()))
        except FileNotFoundError:
            detached = find_marked(self._home, self.name)
        except (ValueError, TypeError):
            _LOGGER.warning("%s is damaged: looking for the process by its marks", self._record_path)
            detached = find_marked(self._home, self.name)
        # With unknown settings `up` restarts it; until then it is shown and can be stopped.
        return _Record(detached[0].pid, detached[0].start, settings_sha256="", was_ready=False) if detached else None

    def _write_record(self, record: _Record) -> None:
        write_whole(self._record_path, json.dumps(asdict(record)) + "\n")
