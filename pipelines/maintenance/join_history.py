"""The records of one join key, one after the other, by the meaning of a join (docs/joins.md): what has become of each.

In: the rows of both sides of frame after frame, in position order. Nothing of the join's own stores is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from pipelines.maintenance.inspect import Seen
from pipelines.process.arrivals import Arrived
from pipelines.process.dedup import KEY_COLUMNS
from pipelines.process.join.progress import TimedFrames
from pipelines.process.joining import facts_by
from pipelines.process.program import Program
from pipelines.process.steps.join import IS_RIGHT_COLUMN, Join
from pipelines.process.watermarks import TIME_COLUMN
from pipelines.protocol.bodies import Watermarks
from pipelines.protocol.positions import Position, position_keys
from pipelines.protocol.records import instant

JOINED, UNMATCHED, WAITS, COPY, LATE, NEWEST, REPLACED, KEPT = (
    "joined",
    "unmatched",
    "waits",
    "copy",
    "late",
    "newest",
    "replaced",
    "kept",
)
"""What became of a record of a join key: of a left one the first three, of either the next two, of a right one the others.

By arrival a right record is the newest or replaced; by the records' own times all are kept.
"""


@dataclass
class JoinRecord:
    """A record of a join key, and what became of it.

    `met`: the raw position of the right record that a joined left one has met. `until`: when a left record that waits is unmatched, or when
    the newest right record is joined no more. `joined`: the left records that a right one has met. `time`: its own, if records meet by it;
    then `until` is of these times, too.
    """

    seen: Seen
    side: str
    outcome: str
    met: str | None = None
    until: datetime | None = None
    joined: int = 0
    time: datetime | None = None


class History(Protocol):
    """The records of one key. `scanned`: how many records of all keys were read."""

    scanned: int

    def add(self, config: Program, rows: pa.Table, copies: set[int], frames: Sequence[Arrived]) -> None:
        """Add the rows of the next frames, in position order."""

    def ended(self) -> Iterator[JoinRecord]:
        """Yield all records, as of the last frame that was processed."""


class ByArrival:
    """The records of one key that meet by arrival. `clock_us`: that of the last frame that was processed."""

    def __init__(self, join: Join, key: tuple[Any, Any], clock_us: int) -> None:
        self._join, self._key, self._clock_us = join, key, clock_us
        self._records: list[JoinRecord] = []
        self._waiting: list[tuple[int, JoinRecord]] = []
        self._newest: tuple[int, JoinRecord] | None = None
        self.scanned = 0

    def add(self, config: Program, rows: pa.Table, copies: set[int], frames: Sequence[Arrived]) -> None:
        self.scanned += rows.num_rows
        mine = _of_key(rows, self._key)
        arrived = mine.column("_tf_arrival").cast(pa.int64()).to_pylist()
        for (record, is_right), code, at_us in zip(_records(mine, self._join), position_keys(mine).tolist(), arrived, strict=True):
            self._records.append(record)
            if code not in copies:
                self._take(record, is_right, at_us)

    def _take(self, record: JoinRecord, is_right: bool, at_us: int) -> None:
        if is_right:
            self._release(record, at_us)
        elif self._newest is not None and at_us < self._newest[0] + self._join.windows.right_us:
            _meet(record, self._newest[1])
        else:
            record.outcome = WAITS
            self._waiting.append((at_us, record))

    def _release(self, right: JoinRecord, at_us: int) -> None:
        for since, left in self._waiting:
            if at_us < since + self._join.windows.left_us:
                _meet(left, right)
            else:
                left.outcome = UNMATCHED
        self._waiting = []
        if self._newest is not None:
            self._newest[1].outcome = REPLACED
        right.outcome = NEWEST
        self._newest = at_us, right

    def ended(self) -> Iterator[JoinRecord]:
        windows = self._join.windows
        for since, left in self._waiting:
            left.outcome = WAITS if since + windows.left_us > self._clock_us else UNMATCHED
            left.until = instant(since + windows.left_us)
        if self._newest is not None:
            self._newest[1].until = instant(self._newest[0] + windows.right_us)
        yield from self._records


class ByTime:
    """The records of one key that meet by their own times. `before`: the watermarks before the first frame that is read."""

    def __init__(self, join: Join, key: tuple[Any, Any], before: Watermarks) -> None:
        self._join, self._key, self._watermarks = join, key, before
        self._all: list[JoinRecord] = []
        self._lefts: list[tuple[int, JoinRecord]] = []
        self._rights: list[tuple[int, JoinRecord]] = []
        self.scanned = 0

    def add(self, config: Program, rows: pa.Table, copies: set[int], frames: Sequence[Arrived]) -> None:
        self.scanned += rows.num_rows
        facts = facts_by(config, rows, (frame.message for frame in frames))
        timed = TimedFrames.of_facts(facts, self._watermarks, self._join.lateness_us)
        self._watermarks, mine = timed.last.stored, _of_key(rows, self._key)
        times = mine.column(TIME_COLUMN).to_numpy()
        is_late = timed.is_late(mine.column("_tf_sequence").to_numpy(), times).tolist()
        of_each = zip(_records(mine, self._join), position_keys(mine).tolist(), times.tolist(), is_late, strict=True)
        for (record, is_right), code, time_us, is_too_late in of_each:
            record.time = instant(time_us)
            self._all.append(record)
            if code in copies:
                continue
            record.outcome = LATE if is_too_late else KEPT if is_right else WAITS
            if not is_too_late:
                (self._rights if is_right else self._lefts).append((time_us, record))

    def ended(self) -> Iterator[JoinRecord]:
        windows, watermark_us = self._join.windows, self._watermarks.combined_us
        for time_us, left in self._lefts:
            right, final_us = self._best(time_us)
            if final_us > watermark_us:
                left.until = instant(time_us + windows.left_us)
            elif right is None:
                left.outcome = UNMATCHED
            else:
                _meet(left, right)
        yield from self._all

    def _best(self, time_us: int) -> tuple[JoinRecord | None, int]:
        """Return the right record that a left one of this time meets, as far as is known, and the watermark at which that is final.

        The records are in position order: of those at one time the last before the left one, and the first behind it, are the nearest.
        """
        windows = self._join.windows
        earlier = [one for one in self._rights if one[0] <= time_us]
        later = [one for one in self._rights if one[0] > time_us]
        newest_us = max((at for at, _ in earlier), default=None)
        if newest_us is not None and time_us - newest_us < windows.right_us:
            return [record for at, record in earlier if at == newest_us][-1], time_us + 1
        next_us = min((at for at, _ in later), default=None)
        if next_us is not None and next_us - time_us < windows.left_us:
            return next(record for at, record in later if at == next_us), next_us + 1
        return None, time_us + windows.left_us


def _of_key(rows: pa.Table, key: tuple[Any, Any]) -> pa.Table:
    hi, lo = (rows.column(name).to_numpy() for name in KEY_COLUMNS)
    return rows.take(np.flatnonzero((hi == key[0]) & (lo == key[1])))


def _records(mine: pa.Table, join: Join) -> Iterator[tuple[JoinRecord, bool]]:
    """Yield each row as a record of which nothing is known but that it may be a copy, and whether it is a right one."""
    columns = ["_tf_sequence", "_tf_ordinal", "_tf_arrival", "_tf_topic", "_tf_partition", "_tf_offset", IS_RIGHT_COLUMN]
    for row in mine.select(columns).to_pylist():
        position = str(Position(row["_tf_sequence"], row["_tf_ordinal"], 0))
        seen = Seen(row["_tf_arrival"], position, row["_tf_topic"], row["_tf_partition"], row["_tf_offset"])
        is_right = row[IS_RIGHT_COLUMN]
        yield JoinRecord(seen, (join.right if is_right else join.left).source, COPY), is_right


def _meet(left: JoinRecord, right: JoinRecord) -> None:
    left.outcome, left.met = JOINED, right.seen.position
    right.joined += 1
