"""The inputs of legs: how far a leg may read now, waited for without polling where the system announces it.

An offset is {part: position}: of a source {partition: next offset}, of a stream {"sequence": last sequence}.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Event

from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sources import Asked, Source
from pipelines.errors import DataLossError, RetryableError
from pipelines.protocol.ledger import DONE_MARK, read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.outcomes import written_for
from pipelines.protocol.topology import LegId

Offset = dict[str, int]
MAX_OFFSETS_PER_BATCH = 500_000
MAX_FRAMES_PER_BATCH = 128
IDLE_SECONDS = 0.5
"""A stream is looked at so often without an announcement: an announcement may be lost while the client reconnects."""
LINGER_SECONDS = 0.125
"""Interval between the batches of a trickling source: a batch has fixed costs in every leg, however few its rows are."""
FEW_OFFSETS = 20_000
"""A batch of fewer offsets is followed by a pause of LINGER_SECONDS."""
Looked = Callable[[Offset, Offset, frozenset[int]], None]
"""Takes what a look at a source has told: the offsets that were read, the ends, and the partitions of which no end is known."""
_LOOK_EVERY_SECONDS = 5.0
_AHEAD_SECONDS = 0.5
"""Limit of a wait for a first record; a stop waits for it."""
_OUTAGE_PAUSE_SECONDS = 0.25
_ASK_SILENT_EVERY_SECONDS = 0.5


class Input(ABC):
    """What a leg reads. For one thread, but for `wake`."""

    limit: int
    """Limit of a batch, in positions."""

    def __init__(self) -> None:
        self._woken = Event()
        self.on_turn: Callable[[], None] = lambda: None
        """Called on the leg's thread before each look: no batch is at work."""

    def wake(self) -> None:
        """End a wait early: there is news, or the leg is to stop. For any thread."""
        self._woken.set()

    def next(self, start: Offset, stop: Event) -> Offset:
        """Wait for new positions; return the end of the next batch, at most `limit` beyond `start`; `start` itself after a stop.

        A system that is away has no new positions.
        """
        while not stop.is_set():
            self._woken.clear()
            self.on_turn()
            try:
                end = admit(start, self._available(start), self.limit)
                if end != start:
                    return end
                pause = self._pause()
            except RetryableError:
                pause = _OUTAGE_PAUSE_SECONDS
            if not stop.is_set():
                self._woken.wait(pause)
        return start

    @abstractmethod
    def _available(self, start: Offset) -> Offset:
        """Return the newest end that may be planned now."""

    @abstractmethod
    def _pause(self) -> float:
        """Return the seconds until the next look, unless something wakes the input."""


def admit(start: Offset, available: Offset, limit: int | None) -> Offset:
    """Return `available`, or at most `limit` positions beyond `start`, shared among the parts by the positions waiting in each.

    An end before `start` is passed on: positions have disappeared, and the leg reports the cause.
    """
    waiting = {part: max(0, end - start.get(part, 0)) for part, end in available.items()}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(available)
    share = {part: -(-count * limit // total) for part, count in waiting.items()}
    return {part: min(end, start.get(part, 0) + min(waiting[part], share[part])) for part, end in available.items()}


class SourceInput(Input):
    """The offsets that a source has sent. New partitions join from offset 0 within 5 s.

    A reader that keeps up is sent new records at once: what was read ahead is the next batch. Behind a backlog, and every 5 s, the source
    is asked for its ends. After a batch of under FEW_OFFSETS the next one waits until LINGER_SECONDS have passed, so that few large
    batches replace many small ones. The first record after a quiet time is not delayed. `until`: nothing at or beyond these offsets, and
    no other partition; once they are reached no record is waited for, so that a stop is not delayed.
    """

    is_divided = False
    """Whether lanes have read a part of the last batch: then this process does not read all partitions ahead."""

    limit = MAX_OFFSETS_PER_BATCH

    def __init__(
        self,
        source: Source,
        until: Mapping[int, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        looked: Looked = lambda start, ends, unknown: None,
    ) -> None:
        super().__init__()
        self._looked = looked
        self._source, self._until, self._clock = source, until, clock
        self._partitions: tuple[int, ...] = ()
        self._silent: set[int] = set()
        self._asked_silent: Asked | None = None
        self._ask_silent_at = 0.0
        self._looked_at = -_LOOK_EVERY_SECONDS
        self._linger_until = 0.0
        self._pause_seconds = 0.0
        """Mostly none: reading ahead has waited."""

    def next(self, start: Offset, stop: Event) -> Offset:
        if (linger := self._linger_until - self._clock()) > 0:
            stop.wait(linger)
        end = super().next(start, stop)
        if end != start:
            is_small = sum(end.values()) - sum(start.values()) < FEW_OFFSETS
            self._linger_until = self._clock() + LINGER_SECONDS if is_small else 0.0
        return end

    def _available(self, start: Offset) -> Offset:
        self._pause_seconds = 0.0
        ends = self._ahead(start)
        if ends is None:
            ends = self._ends(start)
            self.is_divided &= any(end > start.get(part, 0) for part, end in ends.items())
        self._looked(start, ends, frozenset(self._silent))
        if self._until is None:
            return ends
        return {part: min(end, self._until[int(part)]) for part, end in ends.items() if int(part) in self._until}

    def _ahead(self, start: Offset) -> Offset | None:
        """Return the end of what was read ahead; None if it is time to ask for the source's ends, or if they are further on."""
        if self._is_look_due or self.is_divided:
            return None
        starts = {partition: start.get(str(partition), 0) for partition in self._partitions}
        if self._until is not None and all(starts.get(partition, 0) >= end for partition, end in self._until.items()):
            self._pause_seconds = _LOOK_EVERY_SECONDS - (self._clock() - self._looked_at)
            return {str(partition): at for partition, at in starts.items()}
        try:
            read = self._source.ahead(starts, _AHEAD_SECONDS)
        except DataLossError:
            # The leg reports what is lost, or skips it, by the ends.
            self._source.discard()
            self._pause_seconds = _OUTAGE_PAUSE_SECONDS
            return None
        return {str(partition): end for partition, end in read.ends.items()} if read.is_all else None

    @property
    def _is_look_due(self) -> bool:
        return self._clock() - self._looked_at >= _LOOK_EVERY_SECONDS

    def _ends(self, start: Offset) -> Offset:
        """Return the end of each partition; for a partition without a leader its `start`, so that the others continue."""
        now, is_look = self._clock(), self._is_look_due
        if is_look:
            self._partitions = self._source.facts().partitions
        asked = [p for p in self._partitions if p not in self._silent]
        ends: dict[int, int] = {}
        if asked:
            ends, lost = self._source.known_ends(asked)
            self._silent |= set(lost)
        ends |= self._ends_heard_since()
        if is_look:
            self._looked_at = now
        return {str(p): ends.get(p, start.get(str(p), 0)) for p in sorted(self._partitions)}

    def _ends_heard_since(self) -> dict[int, int]:
        """Return the ends of silent partitions that have answered meanwhile. They are asked repeatedly, without waiting for the answers."""
        found: dict[int, int] = {}
        if self._asked_silent is not None and all(future.done() for future in self._asked_silent.values()):
            with suppress(RetryableError):
                found, _ = self._source.heard(self._asked_silent)
            self._silent -= set(found)
            self._asked_silent = None
        if self._silent and self._asked_silent is None and self._clock() >= self._ask_silent_at:
            self._ask_silent_at = self._clock() + _ASK_SILENT_EVERY_SECONDS
            self._asked_silent = self._source.ask_ends(sorted(self._silent))
        return found

    def _pause(self) -> float:
        return self._pause_seconds


@dataclass(frozen=True)
class Hold:
    """The least interval between two batches: `seconds`, or `behind_seconds` while a backlog is read, unless `rows` or `frames` wait.

    The first rows after a quiet time are not held.
    """

    rows: float = math.inf
    seconds: float = 0.0
    behind_seconds: float = 0.0
    frames: float = math.inf


NO_HOLD = Hold()


class StreamInput(Input):
    """The end of the stream that a leg reads. Each `done` of the legs upstream wakes it; it also looks every half second."""

    limit = MAX_FRAMES_PER_BATCH

    def __init__(
        self,
        log: JetStream,
        names: Names,
        leg: LegId,
        upstream: tuple[LegId, ...],
        hold: Hold,
        clock: Callable[[], float] = time.monotonic,
        when_idle: Callable[[], bool] = lambda: False,
        is_behind: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create without looking. `when_idle`: called while nothing waits; returns True if it has more to do.

        `is_behind`: tells whether a source's backlog is read.
        """
        super().__init__()
        self._when_idle, self._has_more = when_idle, False
        self._log, self._names, self._leg, self._upstream, self.hold, self._clock = log, names, leg, upstream, hold, clock
        self._is_behind = is_behind
        self._held_until: float | None = None
        """Set while rows wait for the end of the interval."""
        self._last_at: float | None = None
        """The time of the last batch, from which the hold counts, whatever it was then."""
        self._subscribed = 0

    def _available(self, start: Offset) -> Offset:
        self._subscribe()
        self._held_until = None
        state = self._log.state(self._names.stream(str(self._leg.reads)))
        last = max(start["sequence"], state.last_sequence if state else 0)
        if last == start["sequence"]:
            self._has_more = self._when_idle()
            return start
        next_at = self._next_at()
        if self._clock() < next_at and not self._is_full(last - start["sequence"]):
            self._held_until = next_at
            return start
        self._last_at = self._clock()
        return {"sequence": last}

    def _next_at(self) -> float:
        """Return when the interval ends in which rows are held."""
        now = self._clock()
        if self._last_at is None:
            return now
        least, most = self.hold.seconds, max(self.hold.seconds, self.hold.behind_seconds)
        # A question takes a request: it is asked only if it matters.
        is_longer = self._last_at + least <= now < self._last_at + most and self._is_behind()
        return self._last_at + (most if is_longer else least)

    def _is_full(self, frames: int) -> bool:
        return frames >= self.hold.frames or (self.hold.rows < math.inf and self._rows_waiting() >= self.hold.rows)

    def _subscribe(self) -> None:
        for leg in self._upstream[self._subscribed :]:
            self._log.on_message(self._names.chain(leg), self.wake, DONE_MARK)
            self._subscribed += 1

    def _rows_waiting(self) -> int:
        """Return the rows that the legs upstream have written and this one has not confirmed, by the totals of each last `done`."""

        def totals(leg: LegId) -> Mapping[str, int]:
            return read_chain(self._log, self._names, leg.chain).totals

        written = sum(written_for(self._leg, leg.kind, totals(leg)) for leg in self._upstream)
        return written - totals(self._leg).get(self._leg.counted_in, 0)

    def _pause(self) -> float:
        if self._has_more:
            return 0.0
        return IDLE_SECONDS if self._held_until is None else max(0.001, self._held_until - self._clock())
