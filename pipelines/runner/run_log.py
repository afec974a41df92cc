"""The log of one run: a file below the pipeline's directory, with the events of the run and all that Spark and Python print.

Events before `open` are held: a start that is refused leaves nothing on this host.
"""

import os
import sys
import traceback
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import TextIO

from pipelines.control.runner_log import bound_log, event_lines, new_log
from pipelines.runner.events import Event

_STDOUT, _STDERR = 1, 2


class RunLog:
    """The log. Thread-safe; `path` is None until it is open."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._file: TextIO | None = None
        self._held: list[str] = []
        self._lock = Lock()

    def open(self, directory: Path, in_use: Collection[Path] = ()) -> None:
        """Open the log below the pipeline's `directory`, and write what was held; `in_use`: logs of other runners, which stay."""
        self.path = new_log(directory, "run", in_use)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        with self._lock:
            self._file = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
            self._file.writelines(self._held)
            self._held.clear()

    def take_output(self) -> None:
        """Let this process, and those that it starts from now on, print into the log instead of on the terminal."""
        assert self._file is not None
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor in (_STDOUT, _STDERR):
            os.dup2(self._file.fileno(), descriptor)

    def take(self, event: Event) -> None:
        """Write an event, with its time."""
        self._write(event_lines(datetime.now(UTC), event.level, event.message))

    def take_traceback(self, error: BaseException) -> None:
        """Write the traceback of an error."""
        self._write("".join(traceback.format_exception(error)))

    def bound(self) -> None:
        """Cut the log to its end once it has become too large."""
        if self.path is not None:
            bound_log(self.path)

    def _write(self, text: str) -> None:
        with self._lock:
            if self._file is None:
                self._held.append(text)
            else:
                self._file.write(text)
