"""The runners of a pipeline on this host, from outside: find, query and stop them, and keep the pipeline's desired state.

A running runner has `status.json` in its own directory. A runner that was launched detached and is still starting is known by
`launched.json` in the pipeline's directory. `desired.json` beside it holds whether the pipeline should run: deliberate starts and stops
write it, and automatic restarts of a dead runner read it. A runner that ends because its legs have halted leaves a `halted-<leg>.json` for
each. The next start removes these files, and a file from before the last start of the host is ignored.
"""

import json
import os
import signal
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock

from pipelines.control.processes import POLL_SECONDS, ProcessIdentity, host_mark, start_mark
from pipelines.control.runner_log import last_message
from pipelines.errors import HaltError
from pipelines.private import private_directory, write_whole
from pipelines.protocol.topology import LegId, data_place, in_data_order, is_token

if TYPE_CHECKING:
    # Only observers of a runner need it, the runner itself does not: 30 ms of CPU for each.
    import httpx

STATUS_FILE = "status.json"
DESIRED_FILE = "desired.json"
LAUNCHED_FILE = "launched.json"
_LOCK_FILE = "control.lock"
_HALTED_FILE = "halted-{}.json"
ANSWER_WITHIN = timedelta(seconds=10)


@dataclass(frozen=True)
class Desired:
    """The desired state of a pipeline on this host: `legs` run here; none does if it is `stopped`."""

    state: Literal["running", "stopped"]
    legs: tuple[LegId, ...] = ()


@dataclass(frozen=True)
class Launched:
    """The last runner that was launched detached, and the file of its output."""

    pid: int
    mark: str
    legs: tuple[LegId, ...]
    log: str

    @property
    def process(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.mark)


@dataclass(frozen=True)
class Halt:
    """The reason why the last runner of a leg, the process with this start `mark`, has ended, in the leg's own words.

    `at`: UTC, ISO 8601. `file` is the `run_digest` of its pipeline file, `host` the mark of the host's start.
    """

    message: str
    mark: str
    at: str
    file: str
    host: str


def read_desired(directory: Path) -> Desired | None:
    """Read the desired state; None if it was never set, as for a pipeline that is only ever run by hand."""
    content = _read(directory / DESIRED_FILE, "state", "legs")
    return Desired(content["state"], _legs(content) if content["state"] == "running" else ()) if content else None


def write_desired(directory: Path, desired: Desired | None) -> None:
    """Write the desired state; None removes it."""
    if desired is None:
        (directory / DESIRED_FILE).unlink(missing_ok=True)
    else:
        _write(directory / DESIRED_FILE, asdict(desired))


@contextmanager
def controlled(directory: Path) -> Iterator[None]:
    """Hold the lock under which starts and stops of a pipeline on this host are decided, and noted, one at a time.

    Hold it briefly: never wait for a runner inside it.
    """
    private_directory(directory)
    with FileLock(directory / _LOCK_FILE):
        yield


def note_stop(directory: Path, legs: Collection[str] | None = None) -> None:
    """Note that these legs, or all, should not run; the desired state of the others stays."""
    if not directory.is_dir():
        return
    with controlled(directory):
        before = read_desired(directory)
        left = tuple(leg for leg in before.legs if leg not in legs) if before and legs is not None else ()
        write_desired(directory, Desired("running", left) if left else Desired("stopped"))


def read_launched(directory: Path) -> Launched | None:
    content = _read(directory / LAUNCHED_FILE, "pid", "mark", "legs", "log")
    return Launched(content["pid"], content["mark"], _legs(content), content["log"]) if content else None


def write_launched(directory: Path, launched: Launched) -> None:
    _write(directory / LAUNCHED_FILE, asdict(launched))


def _halted_file(directory: Path, leg: str) -> Path:
    return directory / _HALTED_FILE.format(LegId.parse(leg).token)


def note_halt(directory: Path, leg: str, message: str, file: str, at: datetime) -> None:
    """Note why this process ends, and that the leg must not be restarted automatically; legs that end at one halt share its instant."""
    halt = Halt(message, start_mark(os.getpid()) or "", at.isoformat(timespec="seconds"), file, host_mark())
    _write(_halted_file(directory, leg), asdict(halt))


def read_halts(directory: Path) -> dict[LegId, Halt]:
    """Return the halts by leg, in the order of the data, without halts from before the last start or boot."""
    names = [field.name for field in fields(Halt)]
    before, after = _HALTED_FILE.format("*").split("*")
    tokens = [path.name.removeprefix(before).removesuffix(after) for path in directory.glob(_HALTED_FILE.format("*"))]
    legs = in_data_order(LegId.of_token(token) for token in tokens if is_token(token))
    contents = {leg: _read(_halted_file(directory, leg), *names) for leg in legs}
    halts = {leg: Halt(*(content[name] for name in names)) for leg, content in contents.items() if content}
    return {leg: halt for leg, halt in halts.items() if halt.host == host_mark()}


def by_halt(halts: Mapping[LegId, Halt]) -> dict[Halt, str]:
    """Return the legs of each halt, in words: the legs of one runner that could not start have ended at the same halt."""
    return {halt: ", ".join(leg for leg, one in halts.items() if one == halt) for halt in halts.values()}


def forget_halts(directory: Path, legs: Sequence[str]) -> None:
    """Remove the halts of these legs before a start: whatever its outcome, they no longer apply."""
    for leg in legs:
        _halted_file(directory, leg).unlink(missing_ok=True)


def _read(path: Path, *names: str) -> dict[str, Any] | None:
    """Read a JSON file; None if it is missing, incomplete, or lacks one of `names`.

    A host that lost its power leaves an incomplete file; another release may have written one without these names. Raise HaltError if this
    user may not read it.
    """
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    except OSError as error:
        raise HaltError(f"reading {path}: {error.strerror}; let this user read and write what lies below {path.parent}") from error
    return content if isinstance(content, dict) and content.keys() >= {*names} else None


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write a file whole or not at all, even beside other writers and even if the host loses its power."""
    private_directory(path.parent)
    write_whole(path, json.dumps(content), is_durable=True)


def find_runners(directory: Path) -> list[dict[str, Any]]:
    """Return `{pid, mark, port, legs, directory}` of each live runner in a pipeline's directory, in the order of the data."""
    runners = []
    for path in directory.glob(f"*/{STATUS_FILE}"):
        status = _read(path, "pid", "mark", "port", "legs")
        if status and status["legs"] and ProcessIdentity(status["pid"], status["mark"]).is_running():
            runners.append({**status, "legs": [*_legs(status)], "directory": path.parent})
    return sorted(runners, key=lambda status: data_place(status["legs"][0]))


def _legs(content: dict[str, Any]) -> tuple[LegId, ...]:
    return tuple(map(LegId.parse, content["legs"]))


def stage_config_version(runner: dict[str, Any]) -> str | None:
    """Return the version of the stage configuration with which a runner of `find_runners` plans; None before it has chosen one."""
    run = _read(runner["directory"] / "run.json", "stage_config")
    return str(run["stage_config"]) if run else None


def file_version(runners: Sequence[dict[str, Any]]) -> str | None:
    """Return the version of the file's configuration with which all of these runners were started; None if it differs or is unknown."""
    versions = {str((_read(runner["directory"] / "run.json") or {}).get("file_version", "")) for runner in runners}
    return versions.pop() or None if len(versions) == 1 else None


@cache
def http_client() -> "httpx.Client":
    """Return the client of this process for runners on this host."""
    import httpx

    # Without a proxy, and made once: a new client for each request would read the system's certificates each time.
    return httpx.Client(trust_env=False)


def ask(runner: dict[str, Any], timeout: timedelta) -> dict[str, Any] | None:
    """Return a runner's answer at `/status`; None if it does not answer in time."""
    answer = _get(runner, "status", timeout)
    status: dict[str, Any] | None = answer.json() if answer is not None and answer.is_success else None
    return status


def ask_patiently(runner: dict[str, Any], timeout: timedelta) -> tuple[dict[str, Any] | None, bool]:
    """Return (the answer of `ask`, whether the runner answers at all), in one timeout.

    `/status` asks Kafka for the lag and is slow while Kafka is away; `/healthz` is not.
    """
    with ThreadPoolExecutor(2, "ask") as pool:
        status, health = pool.submit(ask, runner, timeout), pool.submit(_get, runner, "healthz", timeout)
        return status.result(), status.result() is not None or health.result() is not None


def _get(runner: dict[str, Any], path: str, timeout: timedelta) -> "httpx.Response | None":
    import httpx

    try:
        return http_client().get(f"http://127.0.0.1:{runner['port']}/{path}", timeout=timeout.total_seconds())
    except httpx.HTTPError:
        return None


def together(snapshots: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combine the snapshots of all runners of a pipeline; `uptime_seconds` belongs to the runner that started last."""
    legs = {name: leg for snapshot in snapshots for name, leg in snapshot["legs"].items()}
    ledger_tables = {leg: copied for snapshot in snapshots for leg, copied in snapshot.get("ledger_tables", {}).items()}
    lookup_tables = {table: facts for snapshot in snapshots for table, facts in snapshot.get("lookup_tables", {}).items()}
    return {
        "pipeline": snapshots[0]["pipeline"],
        "ready": all(snapshot["ready"] for snapshot in snapshots),
        "healthy": all(snapshot["healthy"] for snapshot in snapshots),
        "at": snapshots[0]["at"],
        "uptime_seconds": min(snapshot["uptime_seconds"] for snapshot in snapshots),
        "legs": {leg: legs[leg] for leg in in_data_order(map(LegId.parse, legs))},
        "settings": _settings_together([one for snapshot in snapshots if (one := snapshot.get("settings"))]),
        "lanes": {name: max(snapshot["lanes"][name] for snapshot in snapshots) for name in ("wanted", "working")},
        "lag": {partition: count for snapshot in snapshots for partition, count in snapshot["lag"].items()},
        **({"ledger_tables": ledger_tables} if ledger_tables else {}),
        **({"lookup_tables": lookup_tables} if lookup_tables else {}),
        "streams": {role: facts for snapshot in snapshots for role, facts in snapshot["streams"].items()},
        "purge_failure": "; ".join(snapshot["purge_failure"] for snapshot in snapshots if snapshot["purge_failure"]),
    }


def _settings_together(settings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the settings of all runners: no digest if they differ, and the time of the last reload."""
    digests, times = {one["digest"] for one in settings}, [one["reloaded_at"] for one in settings if one["reloaded_at"]]
    return {"digest": digests.pop() if len(digests) == 1 else "", "reloaded_at": max(times, default=None)}


def ask_all(directory: Path) -> dict[str, Any] | None:
    """Return the status of all runners of a pipeline together; None without one. Raise HaltError for a runner that does not answer."""
    runners = find_runners(directory)
    answers = [answer for runner in runners if (answer := ask(runner, ANSWER_WITHIN)) is not None]
    if len(answers) < len(find_runners(directory)):
        seconds = ANSWER_WITHIN.total_seconds()
        raise HaltError(f"asking the runner of {directory.name}: no answer within {seconds:.0f} s; ask again, or stop and start it")
    return together(answers) if answers else None


def processes(directory: Path, legs: Collection[str] | None = None) -> list[ProcessIdentity]:
    """Return the live processes that run one of the legs here, or any leg, or are about to, each once."""

    def runs_one(running: Iterable[LegId]) -> bool:
        return legs is None or any(leg in legs for leg in running)

    running = [ProcessIdentity(runner["pid"], runner["mark"]) for runner in find_runners(directory) if runs_one(runner["legs"])]
    launched = read_launched(directory)
    if launched and runs_one(launched.legs) and launched.process not in running and launched.process.is_running():
        running.append(launched.process)
    return running


def stop_runners(directory: Path, legs: Collection[str] | None, patience: timedelta) -> tuple[int, list[ProcessIdentity]]:
    """Send SIGTERM to the runners of these legs, or to all, and wait for their ends; return (their number, the ones still alive).

    A runner of several legs is stopped as a whole. It finishes batches in work first.
    """
    signaled = processes(directory, legs)
    for process in signaled:
        process.send(signal.SIGTERM)
    deadline = time.monotonic() + patience.total_seconds()
    while left := [process for process in signaled if process.is_running()]:
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    return len(signaled), left


def last_words(directory: Path, left: Collection[ProcessIdentity]) -> str:
    """Return which processes are left of a stop, and the last message in the log of each."""
    logs = {runner["pid"]: str(runner.get("log") or "") for runner in find_runners(directory)}
    said = {process.pid: last_message(Path(log)) if (log := logs.get(process.pid)) else "" for process in left}
    return ", ".join(f"process {pid} ({words})" if words else f"process {pid}" for pid, words in said.items())
