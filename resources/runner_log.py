"""The output of runners that were launched detached: one file per start, a limited number of them, each of limited size."""

import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

KEPT_LOGS = 5
MAX_LOG_BYTES = 8 * 1024 * 1024
_TAIL_BYTES = 16 * 1024
_OF_JAVA = re.compile(r"(WARNING: |NOTE: |Picked up |OpenJDK |Using Spark's default |Setting default log level |To adjust logging level )")
"""Lines that every JVM, and Spark, print at their starts: never the reason why a runner has ended."""


def new_log(directory: Path) -> Path:
    """Return a new file below the pipeline's directory; of the files of earlier starts the newest few are kept."""
    logs = directory / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for old in sorted(logs.glob("runner-*.log"), key=_modified, reverse=True)[KEPT_LOGS - 1 :]:
        old.unlink(missing_ok=True)
    return logs / f"runner-{uuid4().hex[:12]}.log"


def bound_log(log: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Cut a log that has become too large to its end.

    The runner appends, so it may continue to write; a line of that moment may be lost.
    """
    if log.exists() and log.stat().st_size > max_bytes:
        end = _tail(log)
        log.write_text(f"(earlier lines were cut at {max_bytes:,} bytes)\n{end}")


def last_message(log: Path) -> str:
    """Return the last message of ours in a log, with the faults that it lists; empty if there is none."""
    lines = [line for line in _tail(log).splitlines() if line.strip() and not _OF_JAVA.match(line)]
    return "\n".join(reversed([*_message(lines)]))


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
