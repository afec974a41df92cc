"""Ticks: raw frames without records, which let the windows of a join end while no record arrives.

What ends a window is the arrival of the next frame, as NATS dates it, so that a replay ends it at the same place. The process leg appends
a tick when the window of the oldest left record that waits has ended by NATS's clock and no frame has arrived since: at most one in
TICK_SECONDS, and none while nothing waits.
"""

import time
from collections.abc import Callable

from pipelines.connectors.nats.client import JetStream
from pipelines.engine.inputs import NO_HOLD, Hold, Offset, StreamInput
from pipelines.process.arrivals import microseconds
from pipelines.protocol.naming import Names
from pipelines.protocol.ticks import append_tick
from pipelines.protocol.topology import LegId

TICK_SECONDS = 1.0
_LOOK_SECONDS = 30.0
"""Longest time between two looks at NATS's clock."""


class TickedInput(StreamInput):
    """The raw frames, and ticks among them. `next_end_us`: returns when the oldest open window of the join ends, None without one."""

    def __init__(
        self,
        log: JetStream,
        names: Names,
        leg: LegId,
        upstream: tuple[LegId, ...],
        next_end_us: Callable[[], int | None],
        clock: Callable[[], float] = time.monotonic,
        hold: Hold = NO_HOLD,
        is_behind: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(log, names, leg, upstream, hold, clock, is_behind=is_behind)
        self._next_end_us, self._look_at = next_end_us, clock()
        self._seen_end_us: int | None = None

    def _available(self, start: Offset) -> Offset:
        end = super()._available(start)
        if end == start and self._held_until is None:
            self._tick_if_due()
        return end

    def _tick_if_due(self) -> None:
        end_us = self._next_end_us()
        if end_us is None or (end_us == self._seen_end_us and self._clock() < self._look_at):
            return
        left_seconds = (end_us - microseconds(self._log.clock(self._names.stream("raw")))) / 1e6
        self._seen_end_us, self._look_at = end_us, self._clock() + min(_LOOK_SECONDS, max(TICK_SECONDS, left_seconds))
        if left_seconds <= 0:
            append_tick(self._log, self._names)
