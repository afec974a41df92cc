"""Watermarks of event time: the progress of the time field, partition by partition, and the entries that dedup may drop by it.

In: for each raw frame its Kafka partition and the times of its records that reached dedup (`FrameTimes`), and the state before
(`Watermarks`, which the process leg's `done` carries). Out: a watermark per record.

Meaning, in the order of raw. The watermark of a *partition* is the newest time among its earlier records. So partitions that are each in
order never make each other late, and the borders of frames do not matter. The *combined* watermark bounds the entries that may be dropped:
it is the oldest of the partitions' watermarks, at least a window behind the newest time of all, and it never steps back. A partition
without a record among the last IDLE_RECORDS of all does not hold it back. Before its first record a partition counts from its first frame,
which ingest writes at the first start. A record is late if it is older than its partition's watermark minus the allowed lateness, or than
the combined one minus the allowed lateness: its original may have been dropped. Redriven records arrive out of order: they are compared
with the combined watermark alone, and move none.

All of this is a function of the raw log; it depends on no clock.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.key_store.index import Words
from pipelines.protocol.bodies import NEVER, Watermarks
from pipelines.protocol.naming import is_redriven, source_of_subject
from pipelines.protocol.records import HEADER_PARTITION, Message

TIME_COLUMN = "_tf_time"
"""A record's own time, in microseconds since 1970, UTC, if the window is measured on a field."""
BEFORE_COLUMN = "_tf_newest_before"
"""The newest TIME_COLUMN among the earlier records of a record's own raw frame, or NEVER."""
IDLE_RECORDS = 2_000_000
"""A partition without a record among as many no longer holds back the combined watermark.

A range of ingest has at most 500,000 offsets, which tasks may read partition by partition. Between two ranges there may be twice as many.
"""
_NO_PARTITION = -1
PARTITIONS_OF_A_SOURCE = 1 << 20
"""The distance between the numbers of two sources' first partitions; Kafka's brokers hold far fewer."""
Times = npt.NDArray[np.int64]


class Clocks(Protocol):
    """The progress of time at the end of a range, by arrival and by the records' own times; a `done` of the process leg has both."""

    @property
    def clock_us(self) -> int: ...

    @property
    def watermarks(self) -> Watermarks: ...


@dataclass(frozen=True)
class FrameTimes:
    """Facts of the raw frames of a range, in sequence order: partition (-1 if redriven), newest TIME_COLUMN, number of records.

    `before`: the watermarks before the range. `window_us`: the window of dedup.
    """

    sequences: Words
    partitions: Times
    newest: Times
    records: Times
    before: Watermarks
    window_us: int

    @classmethod
    def of(
        cls, records: pa.Table, frames: Iterable[Message], before: Watermarks, window_us: int, sources: Sequence[str] = ()
    ) -> "FrameTimes":
        """Return the times of `frames`; `records` must be all of their records that reached dedup. `sources`: their ids, if several."""
        found = records.group_by("_tf_sequence", use_threads=False).aggregate([(TIME_COLUMN, "max"), (TIME_COLUMN, "count")])
        columns = (found.column(name).to_pylist() for name in ("_tf_sequence", f"{TIME_COLUMN}_max", f"{TIME_COLUMN}_count"))
        timed = {sequence: (newest, count) for sequence, newest, count in zip(*columns, strict=True)}
        rows = ((frame.sequence, partition_of(frame, sources), *timed.get(frame.sequence, (NEVER, 0))) for frame in frames)
        return cls.of_rows(rows, before, window_us)

    @classmethod
    def of_rows(cls, rows: Iterable[tuple[int, int, int, int]], before: Watermarks, window_us: int) -> "FrameTimes":
        """Build the times from (sequence, partition, newest time, records), in any order."""
        ordered = sorted(rows)
        sequences, *facts = (np.array([row[index] for row in ordered], dtype=np.int64) for index in range(4))
        partitions, newest, records = facts
        return cls(sequences.astype(np.uint64), partitions, newest, records, before, window_us)

    def rows(self) -> list[tuple[int, int, int, int]]:
        """Return the inverse of `of_rows`."""
        columns = (self.sequences.tolist(), self.partitions.tolist(), self.newest.tolist(), self.records.tolist())
        return list(zip(*columns, strict=True))

    @property
    def last(self) -> Watermarks:
        """The watermarks after the range: `before` for the next one."""
        return self._walk[2]

    def watermarks(self, records: pa.Table, lateness_us: int) -> Times:
        """Return one watermark per record, NEVER before the first time; the records must be of these frames and have BEFORE_COLUMN."""
        own, combined, _ = self._walk
        frames = np.searchsorted(self.sequences, records.column("_tf_sequence").to_numpy())
        is_own = self.partitions[frames] != _NO_PARTITION
        in_frame = np.where(is_own, records.column(BEFORE_COLUMN).to_numpy(), NEVER)
        newest = np.maximum(np.maximum(own[frames], combined[frames]), in_frame)
        marks: Times = np.where(newest == NEVER, NEVER, newest - lateness_us)
        return marks

    @cached_property
    def _walk(self) -> tuple[Times, Times, Watermarks]:
        """(Its partition's newest time before each frame, the combined watermark before it, the watermarks after the last)."""
        known = sorted({*self.before.partitions, *self.partitions.tolist()} - {_NO_PARTITION})
        index_of = {partition: number for number, partition in enumerate(known)}
        facts = [self.before.partitions.get(partition) for partition in known]
        newest = np.array([NEVER if fact is None else fact[0] for fact in facts], dtype=np.int64)
        seen = np.array([NEVER if fact is None else fact[1] for fact in facts], dtype=np.int64)
        combined, count = self.before.combined_us, self.before.records
        own_before, combined_before = np.full((2, len(self.sequences)), NEVER, dtype=np.int64)
        for number, (partition, newest_us, records) in enumerate(
            zip(self.partitions.tolist(), self.newest.tolist(), self.records.tolist(), strict=True)
        ):
            combined_before[number] = combined
            if partition == _NO_PARTITION:
                continue
            at = index_of[partition]
            own_before[number] = newest[at]
            count += records
            if records or seen[at] == NEVER:
                newest[at], seen[at] = max(newest[at], newest_us), count
            holding = newest[seen >= count - IDLE_RECORDS]
            combined = max(combined, min(int(holding.min()), int(newest.max()) - self.window_us))
        newest_of_all = max(self.before.newest_us, int(self.newest.max(initial=NEVER)))
        partitions = {partition: (int(newest[at]), int(seen[at])) for partition, at in index_of.items() if seen[at] != NEVER}
        return own_before, combined_before, Watermarks(combined, newest_of_all, count, partitions)


def partition_of(frame: Message, sources: Sequence[str] = ()) -> int:
    """Return the partition of a raw frame, -1 if redriven; those of the second of several sources begin at PARTITIONS_OF_A_SOURCE."""
    if is_redriven(frame.subject):
        return _NO_PARTITION
    place = sources.index(source_of_subject(frame.subject)) if len(sources) > 1 else 0
    return place * PARTITIONS_OF_A_SOURCE + int(frame.headers[HEADER_PARTITION])


def with_newest_before(records: pa.Table) -> pa.Table:
    """Append BEFORE_COLUMN to rows with TIME_COLUMN in position order."""
    sequences, times = records.column("_tf_sequence").to_numpy(), records.column(TIME_COLUMN).to_numpy()
    before = np.full(len(times), NEVER, dtype=np.int64)
    firsts = np.flatnonzero(np.diff(sequences, prepend=np.uint64(0))).tolist()
    for first, end in pairwise([*firsts, len(times)]):
        before[first + 1 : end] = np.maximum.accumulate(times[first:end])[:-1]
    return records.append_column(BEFORE_COLUMN, pa.array(before))
