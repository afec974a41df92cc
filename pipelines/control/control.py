"""The runners of a pipeline on this host, from outside: finding, asking and stopping them, and what was last wanted of the pipeline.

A runner that is up has `status.json` in its own directory. One that was launched detached and is still on its way is known by
`launched.json` in the pipeline's directory. `desired.json` beside it says whether the pipeline is meant to run: written by those who start
and stop it on purpose, read by those who would start a dead one again. A runner that ends because its legs have halted leaves a
`halted-<leg>.json` for each; the next start takes it away, and one from before the host was started again is not believed.
"""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock

from pipelines.control.processes import POLL_SECONDS, ProcessIdentity, host_mark, start_mark
from pipelines.errors import HaltError
from pipelines.private import private_directory, write_whole
from pipelines.protocol.naming import LEGS

if TYPE_CHECKING:
    # Who looks at a runner needs it, the runner itself does not: 30 ms of CPU for each.
    import httpx

STATUS_FILE = "status.json"
DESIRED_FILE = "desired.json"
LAUNCHED_FILE = "launched.json"
_LOCK_FILE = "control.lock"
HALTED_FILE = "halted-{leg}.json"


@dataclass(frozen=True)
class Desired:
    """What was last wanted of a pipeline on this host: that these legs run here, or that none does."""

    state: Literal["running", "stopped"]
    legs: tuple[str, ...] = LEGS


@dataclass(frozen=True)
class Launched:
    """The last runner that was launched detached, and where its words go."""

    pid: int
    mark: str
    legs: tuple[str, ...]
    log: str

    @property
    def process(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.mark)


@dataclass(frozen=True)
class Halt:
    """Why the last runner of a leg, the process with this start `mark`, has ended: the leg's own words. `at`: UTC, ISO 8601.

    `file` is the `run_digest` of the pipeline file that it ran, `host` the mark of the host's start.
    """

    message: str
    mark: str
    at: str
    file: str
    host: str


def read_desired(directory: Path) -> Desired | None:
    """None where nobody has said: a pipeline that is only ever run by hand."""
    found = _read(directory / DESIRED_FILE, "state", "legs")
    return Desired(found["state"], tuple(found["legs"])) if found else None


def write_desired(directory: Path, desired: Desired | None) -> None:
    """None takes back what was said."""
    if desired is None:
        (directory / DESIRED_FILE).unlink(missing_ok=True)
    else:
        _write(directory / DESIRED_FILE, asdict(desired))


@contextmanager
def controlled(directory: Path) -> Iterator[None]:
    """Of those who start and stop a pipeline on this host one at a time decides, and notes what it has decided. Brief: nobody waits for a
    runner in it.
    """
    private_directory(directory)
    with FileLock(directory / _LOCK_FILE):
        yield


def note_stop(directory: Path, legs: Sequence[str]) -> None:
    """Notes that these legs are not meant to run; the others stay as they were wanted."""
    if not directory.is_dir():
        return
    with controlled(directory):
        before = read_desired(directory)
        left = tuple(leg for leg in before.legs if leg not in legs) if before and before.state == "running" else ()
        write_desired(directory, Desired("running", left) if left else Desired("stopped"))


def read_launched(directory: Path) -> Launched | None:
    found = _read(directory / LAUNCHED_FILE, "pid", "mark", "legs", "log")
    return Launched(found["pid"], found["mark"], tuple(found["legs"]), found["log"]) if found else None


def write_launched(directory: Path, launched: Launched) -> None:
    _write(directory / LAUNCHED_FILE, asdict(launched))


def note_halt(directory: Path, leg: str, message: str, file: str) -> None:
    """Leaves behind why this process ends and the leg is not to be started again by itself."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    _write(directory / HALTED_FILE.format(leg=leg), asdict(Halt(message, start_mark(os.getpid()) or "", at, file, host_mark())))


def read_halts(directory: Path) -> dict[str, Halt]:
    """By leg, the halts that no start and no boot has come after, in the order of the legs."""
    names = [field.name for field in fields(Halt)]
    found = {leg: _read(directory / HALTED_FILE.format(leg=leg), *names) for leg in LEGS}
    halts = {leg: Halt(*(one[name] for name in names)) for leg, one in found.items() if one}
    return {leg: halt for leg, halt in halts.items() if halt.host == host_mark()}


def by_halt(halts: Mapping[str, Halt]) -> dict[Halt, str]:
    """The legs of each halt, as people read them: those of one runner that could not start have ended at the same."""
    return {halt: ", ".join(leg for leg, one in halts.items() if one == halt) for halt in halts.values()}


def forget_halts(directory: Path, legs: Sequence[str]) -> None:
    """For a start of these legs: whatever becomes of it, the halt before it tells nothing any more."""
    for leg in legs:
        (directory / HALTED_FILE.format(leg=leg)).unlink(missing_ok=True)


def _read(path: Path, *names: str) -> dict[str, Any] | None:
    """None where there is no such file, a host that lost its power has left half of one, or another release has written it without one of
    `names`. Raises HaltError where this user may not read it.
    """
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    except OSError as error:
        raise HaltError(f"reading {path}: {error.strerror}; let this user read and write what lies below {path.parent}") from error
    return found if isinstance(found, dict) and found.keys() >= {*names} else None


def _write(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all, whoever writes beside us, also where the host loses its power."""
    private_directory(path.parent)
    write_whole(path, json.dumps(content), is_durable=True)


def find_runners(directory: Path) -> list[dict[str, Any]]:
    """`{pid, mark, port, legs, directory}` of each live runner that keeps its state in a pipeline's directory, in the order of the legs."""
    found = []
    for path in directory.glob(f"*/{STATUS_FILE}"):
        one = _read(path, "pid", "mark", "port", "legs")
        if one and one["legs"] and ProcessIdentity(one["pid"], one["mark"]).is_running():
            found.append({**one, "directory": path.parent})
    return sorted(found, key=lambda one: LEGS.index(one["legs"][0]))


def stage_config_version(runner: dict[str, Any]) -> str | None:
    """The version of the stage configuration that a runner of `find_runners` plans with; None while it has not chosen one."""
    run = _read(runner["directory"] / "run.json", "stage_config")
    return str(run["stage_config"]) if run else None


def file_version(runners: Sequence[dict[str, Any]]) -> str | None:
    """The version of the file's configuration that all of these runners were started with; None where they differ, or do not tell."""
    versions = {str((_read(runner["directory"] / "run.json") or {}).get("file_version", "")) for runner in runners}
    return versions.pop() or None if len(versions) == 1 else None


@cache
def _client() -> "httpx.Client":
    import httpx

    # Never through a proxy, and made once: a client of its own for each question reads the certificates of the system each time.
    return httpx.Client(trust_env=False)


def ask(runner: dict[str, Any], timeout: timedelta) -> dict[str, Any] | None:
    """What a runner says of itself at `/status`; None if it does not answer in time."""
    answer = _get(runner, "status", timeout)
    found: dict[str, Any] | None = answer.json() if answer is not None and answer.is_success else None
    return found


def ask_patiently(runner: dict[str, Any], timeout: timedelta) -> tuple[dict[str, Any] | None, bool]:
    """(what `ask` gives, whether the runner answers at all), in one timeout.

    `/status` asks Kafka for the lag and is slow while Kafka is away; `/healthz` is not.
    """
    with ThreadPoolExecutor(2, "ask") as pool:
        status, health = pool.submit(ask, runner, timeout), pool.submit(_get, runner, "healthz", timeout)
        return status.result(), status.result() is not None or health.result() is not None


def _get(runner: dict[str, Any], path: str, timeout: timedelta) -> "httpx.Response | None":
    import httpx

    try:
        return _client().get(f"http://127.0.0.1:{runner['port']}/{path}", timeout=timeout.total_seconds())
    except httpx.HTTPError:
        return None


def together(snapshots: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One snapshot out of those of all runners of a pipeline; `uptime_seconds` is that of the one that started last."""
    legs = {name: leg for one in snapshots for name, leg in one["legs"].items()}
    return {
        "pipeline": snapshots[0]["pipeline"],
        "ready": all(one["ready"] for one in snapshots),
        "healthy": all(one["healthy"] for one in snapshots),
        "at": snapshots[0]["at"],
        "uptime_seconds": min(one["uptime_seconds"] for one in snapshots),
        "legs": {name: legs[name] for name in LEGS if name in legs},
        "lag": {partition: count for one in snapshots for partition, count in one["lag"].items()},
        **next(({"ledger_table": one["ledger_table"]} for one in snapshots if "ledger_table" in one), {}),
        "streams": {role: facts for one in snapshots for role, facts in one["streams"].items()},
        "purge_failure": "; ".join(one["purge_failure"] for one in snapshots if one["purge_failure"]),
    }


def processes(directory: Path, legs: Sequence[str] = LEGS) -> list[ProcessIdentity]:
    """The live processes that run one of the legs here, or are about to, each once."""
    wanted = {*legs}
    found = [ProcessIdentity(one["pid"], one["mark"]) for one in find_runners(directory) if not wanted.isdisjoint(one["legs"])]
    launched = read_launched(directory)
    if launched and not wanted.isdisjoint(launched.legs) and launched.process not in found and launched.process.is_running():
        found.append(launched.process)
    return found


def stop_runners(directory: Path, legs: Sequence[str], patience: timedelta) -> tuple[int, list[ProcessIdentity]]:
    """Sends SIGTERM to the runners of these legs and waits for their ends: (how many there were, those that have not ended in time).

    A runner of several legs is stopped whole. Batches in work are finished first.
    """
    told = processes(directory, legs)
    for process in told:
        process.send(signal.SIGTERM)
    deadline = time.monotonic() + patience.total_seconds()
    while left := [process for process in told if process.is_running()]:
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    return len(told), left
