"""The partitions of a source from which nothing comes: marks on raw, so that a join by event time does not wait for them.

In: after each look at the source the offsets that were read and the ends. Out: a tick that names every partition that has brought nothing
new for `idle_after`. What the mark means is decided by its place on raw (`process.join.progress`); the clock only decides when it is
written. A mark is written once, again after a restart, and again after new records.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from pipelines.engine.inputs import Offset
from pipelines.errors import RetryableError

Mark = Callable[[dict[str, int]], bool]
"""Writes a mark of partitions with their next offsets; returns False if another writer was faster."""


class IdlePartitions:
    """The quiet partitions of one source. For one thread."""

    def __init__(self, idle_after: timedelta, mark: Mark, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._mark, self._clock = idle_after.total_seconds(), mark, clock
        self._quiet_since: dict[str, float] = {}
        self._marked: set[str] = set()

    def look(self, start: Offset, ends: Offset, unknown: frozenset[int]) -> None:
        """Mark the partitions that have become idle. `unknown`: those whose end nobody has told: they may have new records."""
        now = self._clock()
        quiet = {p for p, end in ends.items() if end <= start.get(p, 0) and int(p) not in unknown}
        self._quiet_since = {p: self._quiet_since.get(p, now) for p in quiet}
        self._marked &= quiet
        due = {p: start.get(p, 0) for p, since in self._quiet_since.items() if now - since >= self._seconds and p not in self._marked}
        # If NATS is away, or raw is full, the next look tries again.
        with suppress(RetryableError):
            if due and self._mark(due):
                self._marked |= due.keys()
