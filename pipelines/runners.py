"""The runners of a pipeline on this host, from outside: finding, asking and stopping them, and what was last wanted of the pipeline.

A runner that is up has `status.json` in its own directory. One that was launched detached and is still on its way is known by
`launched.json` in the pipeline's directory. `desired.json` beside it says whether the pipeline is meant to run: written by those who start
and stop it on purpose, read by those who would start a dead one again.
"""

import json
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal

import httpx

from pipelines.naming import LEGS
from pipelines.processes import POLL_SECONDS, ProcessIdentity

STATUS_FILE = "status.json"
DESIRED_FILE = "desired.json"
LAUNCHED_FILE = "launched.json"


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


def read_desired(directory: Path) -> Desired | None:
    """None where nobody has said: a pipeline that is only ever run by hand."""
    found = _read(directory / DESIRED_FILE)
    return Desired(found["state"], tuple(found["legs"])) if found else None


def write_desired(directory: Path, desired: Desired) -> None:
    _write(directory / DESIRED_FILE, asdict(desired))


def note_stop(directory: Path, legs: Sequence[str]) -> None:
    """Notes that these legs are not meant to run; the others stay as they were wanted."""
    before = read_desired(directory)
    left = tuple(leg for leg in before.legs if leg not in legs) if before and before.state == "running" else ()
    if directory.is_dir():
        write_desired(directory, Desired("running", left) if left else Desired("stopped"))


def read_launched(directory: Path) -> Launched | None:
    found = _read(directory / LAUNCHED_FILE)
    return Launched(**{**found, "legs": tuple(found["legs"])}) if found else None


def write_launched(directory: Path, launched: Launched) -> None:
    _write(directory / LAUNCHED_FILE, asdict(launched))


def _read(path: Path) -> dict[str, Any] | None:
    """None where there is no such file, or a host that lost its power has left half of one."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content))
    partial.replace(path)


def find_runners(directory: Path) -> list[dict[str, Any]]:
    """`{pid, mark, port, legs, directory}` of each live runner that keeps its state in a pipeline's directory, in the order of the legs."""
    found = []
    for path in directory.glob(f"*/{STATUS_FILE}"):
        one = _read(path)
        if one and ProcessIdentity(one["pid"], one.get("mark", "")).is_running():
            found.append({**one, "directory": path.parent})
    return sorted(found, key=lambda one: LEGS.index(one["legs"][0]))


def stage_config_version(runner: dict[str, Any]) -> str | None:
    """The version of the stage configuration that a runner of `find_runners` plans with; None while it has not chosen one."""
    run = _read(runner["directory"] / "run.json")
    return str(run["stage_config"]) if run else None


@cache
def _client() -> httpx.Client:
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


def _get(runner: dict[str, Any], path: str, timeout: timedelta) -> httpx.Response | None:
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
