"""The progress of event time at a join: the watermark behind each raw frame, and the records that come too late for it.

In: for each raw frame its partition, the newest time of its records, the offset behind it, and the partitions that it marks as idle; the
state behind the frame before. Out: one watermark per frame.

Meaning, in the order of raw. A partition has come as far as the newest time of its records. The watermark is where the last of the
partitions has come, less the allowed lateness, and never steps back. A mark excludes a partition until its next record; if all are
excluded, the furthest one counts. A mark that was made before frames of the partition that are on raw already means nothing: its writer
was fenced, and did not know of them. There is no watermark before each source has a partition. A record is late if its time is older than
the watermark behind the frame before its own, so the order within a frame does not matter.

All of this is a function of the raw log; it depends on no clock.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.process.watermarks import PARTITIONS_OF_A_SOURCE, TIME_COLUMN, Times, partition_of
from pipelines.protocol.bodies import NEVER, Watermarks
from pipelines.protocol.naming import is_tick
from pipelines.protocol.records import HEADER_LAST, Message
from pipelines.protocol.ticks import idle_of
from pipelines.types.vectors import Mask

NO_PARTITION = -1
"""The partition of a frame without records, and of redriven ones, whose times move no watermark."""
_SOURCES = 2


Fact = tuple[int, int, int, int]
"""Sequence, partition and newest time of a raw frame, and twice the offset behind it; one more than that in a mark."""


@dataclass(frozen=True)
class Progress:
    """The state behind a frame; times in microseconds.

    By partition (`watermarks.partition_of`) the newest time and the offset behind its last frame; the idle ones; and the watermark.
    """

    newest_us: dict[int, int] = field(default_factory=dict)
    idle: frozenset[int] = frozenset()
    watermark_us: int = NEVER
    read: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, stored: Watermarks) -> "Progress":
        """Return the state that a `done` of the process leg holds."""
        facts = stored.partitions.items()
        newest_us, read = ({partition: fact[0] for partition, fact in facts}, {partition: fact[1] >> 1 for partition, fact in facts})
        return cls(newest_us, frozenset(partition for partition, fact in facts if fact[1] & 1), stored.combined_us, read)

    @property
    def stored(self) -> Watermarks:
        """The inverse of `of`: the watermark as the combined one, and by partition its newest time, and its offset as in a `Fact`."""
        partitions = {*self.newest_us, *self.idle}
        facts = {p: (self.newest_us.get(p, NEVER), 2 * self.read.get(p, 0) + (p in self.idle)) for p in sorted(partitions)}
        return Watermarks(self.watermark_us, max(self.newest_us.values(), default=NEVER), 0, facts)


def facts_of(records: pa.Table, frames: Iterable[Message], sources: Sequence[str]) -> Iterator[Fact]:
    """Yield the facts of raw frames, of a tick one for each partition that it marks.

    `records`: all of their records that have reached the join, with `_tf_sequence` and TIME_COLUMN. `sources`: the ids of both sources.
    """
    found = records.group_by("_tf_sequence", use_threads=False).aggregate([(TIME_COLUMN, "max")])
    newest_us = dict(zip(found.column("_tf_sequence").to_pylist(), found.column(f"{TIME_COLUMN}_max").to_pylist(), strict=True))
    for frame in frames:
        partition = NO_PARTITION if is_tick(frame.subject) else partition_of(frame, sources)
        if partition != NO_PARTITION:
            yield frame.sequence, partition, newest_us.get(frame.sequence, NEVER), 2 * (int(frame.headers[HEADER_LAST]) + 1)
            continue
        yield frame.sequence, NO_PARTITION, NEVER, 0
        mark = idle_of(frame) if is_tick(frame.subject) else None
        if mark is not None and mark.source in sources:
            first = sources.index(mark.source) * PARTITIONS_OF_A_SOURCE
            yield from ((frame.sequence, first + int(number), NEVER, 2 * offset + 1) for number, offset in mark.next.items())


@dataclass(frozen=True)
class TimedFrames:
    """All raw frames of a range, in order: sequences, partitions, newest time of each (NEVER without a record), the offset behind each.

    `marks`: by frame, the partitions that it marks, each with the next offset that its writer was to read. `before`: the state behind the
    frame before the range.
    """

    sequences: npt.NDArray[np.uint64]
    partitions: Times
    newest_us: Times
    ends: Times
    marks: Sequence[Mapping[int, int]]
    before: Progress
    lateness_us: int

    @classmethod
    def of_facts(cls, facts: Iterable[Fact], before: Watermarks, lateness_us: int) -> "TimedFrames":
        """Build the frames of a range from their facts, in any order."""
        frames, marks = list[Fact](), dict[int, dict[int, int]]()
        for fact in sorted(facts):
            if fact[3] & 1:
                marks.setdefault(fact[0], {})[fact[1]] = fact[3] >> 1
            else:
                frames.append((*fact[:3], fact[3] >> 1))
        sequences, partitions, newest_us, ends = (np.array([frame[index] for frame in frames], dtype=np.int64) for index in range(4))
        of_frames = [marks.get(frame[0], {}) for frame in frames]
        return cls(sequences.astype(np.uint64), partitions, newest_us, ends, of_frames, Progress.of(before), lateness_us)

    @property
    def start_us(self) -> int:
        """The watermark before the range."""
        return self.before.watermark_us

    @property
    def end_us(self) -> int:
        """The watermark behind the range."""
        return self.last.watermark_us

    @property
    def last(self) -> Progress:
        """The state behind the range: `before` for the next one."""
        return self._walk[1]

    def is_late(self, sequences: npt.NDArray[np.uint64], times_us: Times) -> Mask:
        """Return which records of these frames, given by sequence and own time, are late."""
        behind = np.concatenate([np.array([self.start_us], dtype=np.int64), self._walk[0]])
        is_late: Mask = times_us < behind[np.searchsorted(self.sequences, sequences)]
        return is_late

    def first_passing(self, times_us: Times) -> npt.NDArray[np.uint64]:
        """Return the sequence of the first frame with the watermark at each time or later; each time is in (`start_us`, `end_us`]."""
        return self.sequences[np.searchsorted(self._walk[0], times_us, side="left")]

    @cached_property
    def _walk(self) -> tuple[Times, Progress]:
        """(The watermark behind each frame, the state behind the last)."""
        newest, idle, read, watermark = dict(self.before.newest_us), set(self.before.idle), dict(self.before.read), self.start_us
        behind = np.empty(len(self.sequences), dtype=np.int64)
        frames = zip(self.partitions.tolist(), self.newest_us.tolist(), self.ends.tolist(), self.marks, strict=True)
        for number, (partition, newest_us, end, marks) in enumerate(frames):
            if partition != NO_PARTITION:
                newest[partition] = max(newest.get(partition, NEVER), newest_us)
                read[partition] = end
                if newest_us != NEVER:
                    idle.discard(partition)
            idle |= {marked for marked, offset in marks.items() if offset >= read.get(marked, 0)}
            watermark = max(watermark, _reached(newest, idle, self.lateness_us))
            behind[number] = watermark
        return behind, Progress(newest, frozenset(idle), watermark, read)


def _reached(newest: dict[int, int], idle: set[int], lateness_us: int) -> int:
    """Return the watermark of partitions that have come so far; NEVER without one."""
    known = {*newest, *idle}
    if len({partition // PARTITIONS_OF_A_SOURCE for partition in known}) < _SOURCES:
        return NEVER
    holding = [newest.get(partition, NEVER) for partition in known - idle]
    reached = min(holding) if holding else max(newest.values(), default=NEVER)
    return reached if reached == NEVER else reached - lateness_us
