"""Logs of runners: one file per start below the pipeline's directory, a limited number of them, each of limited size.

`run-*.log` is the log that a runner writes itself, with all that Spark and Python print. `runner-*.log` is what a runner that was launched
detached shows its starter: the same events, without Spark.
"""

import json
import re
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from uuid import uuid4

KEPT_LOGS = 5
MAX_LOG_BYTES = 8 * 1024 * 1024
_TAIL_BYTES = 16 * 1024
_OF_JAVA = re.compile(r"(WARNING: |NOTE: |Picked up |OpenJDK |Using Spark's default |Setting default log level |To adjust logging level )")
"""Lines that every JVM, and Spark, print at their starts: never the reason why a runner has ended."""
_EVENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) (.*)")


def event_lines(at: datetime, level: str, message: str) -> str:
    """Return an event as lines of a log, each with its time (UTC) and level."""
    head = f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z {level.upper()}"
    return "".join(f"{head} {line}\n" for line in message.splitlines() or [""])


def event_json(at: datetime, level: str, message: str, facts: dict[str, object]) -> str:
    """Return an event as one line of JSON."""
    head = {"at": at.astimezone(UTC).isoformat(timespec="milliseconds"), "level": level}
    return json.dumps({**head, "message": message, **facts}) + "\n"


def new_log(directory: Path, kind: Literal["run", "runner"] = "runner", in_use: Collection[Path] = ()) -> Path:
    """Return a new file below the pipeline's directory; of the files of earlier starts the newest few are kept, and those `in_use`."""
    logs = directory / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for old in logs_of(directory, kind)[KEPT_LOGS - 1 :]:
        if old not in in_use:
            old.unlink(missing_ok=True)
    return logs / f"{kind}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid4().hex[:8]}.log"


def logs_of(directory: Path, kind: Literal["run", "runner"]) -> list[Path]:
    """Return the logs of a pipeline's directory, the one that was written last first."""
    return sorted((directory / "logs").glob(f"{kind}-*.log"), key=_modified, reverse=True)


def bound_log(log: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Cut a log that has become too large to its end.

    The runner appends, so it may continue to write; a line of that moment may be lost.
    """
    if log.exists() and log.stat().st_size > max_bytes:
        end = _tail(log)
        log.write_text(f"(earlier lines were cut at {max_bytes:,} bytes)\n{end}")


def last_message(log: Path, with_progress: bool = False) -> str:
    """Return the last message of ours in a log, with the faults that it lists; empty if there is none.

    `with_progress`: also that a step is done, for a runner that is starting; it is no reason why a runner has ended.
    """
    lines = [_told(line) for line in _tail(log).splitlines() if line.strip() and not _OF_JAVA.match(line)]
    kept = [text for level, text in lines if with_progress or level != "INFO"]
    return "\n".join(reversed([*_message(kept)]))


def _told(line: str) -> tuple[str, str]:
    """Return the level and the message of an event; a line that is none has no level."""
    if found := _EVENT.fullmatch(line):
        return found[1], found[2]
    if line.startswith('{"at": '):
        try:
            event = json.loads(line)
        except ValueError:
            return "", line
        return str(event.get("level", "")).upper(), str(event.get("message", line))
    return "", line


def _message(lines: list[str]) -> Iterator[str]:
    """Yield the last line, and the lines before it back to the first that is no fault of a list."""
    for line in reversed(lines):
        yield line
        if not line.startswith("  - "):
            return


def _tail(log: Path) -> str:
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return file.read().decode("utf-8", "replace")


def _modified(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0
