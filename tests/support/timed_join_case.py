"""Random histories of a join by event time, the model of its meaning record by record, and the same history through the kernel."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa

from pipelines.key_store.storage import Storage
from pipelines.process.join.progress import NO_PARTITION, Progress, TimedFrames
from pipelines.process.join.rows import Joined
from pipelines.process.join.sides import Side, Windows
from pipelines.process.join.stores import Listings
from pipelines.process.join.timed_outcomes import join_by_time
from pipelines.process.join.timed_stores import TimedJoinStores
from pipelines.process.watermarks import PARTITIONS_OF_A_SOURCE, TIME_COLUMN
from pipelines.protocol.bodies import NEVER
from pipelines.protocol.positions import first_position, last_position
from support.join_case import KEYS_APART, LEFT_FIELDS, RIGHT_FIELDS, Row, rows_of, side_rows

LEFT, RIGHT = 0, PARTITIONS_OF_A_SOURCE
"""The first partitions of the two sources."""
STORED_LEFT = pa.schema([*LEFT_FIELDS, ("_tf_arrival", pa.timestamp("us", "UTC"))])


@dataclass(frozen=True)
class Frame:
    """A raw frame of a partition, NO_PARTITION for a tick, with records (key, time), and the partitions that it marks as idle."""

    partition: int
    records: tuple[tuple[int, int], ...] = ()
    idle: frozenset[int] = frozenset()

    @property
    def is_right(self) -> bool:
        return self.partition >= RIGHT

    @property
    def newest(self) -> int:
        return max((time for _, time in self.records), default=NEVER)


@dataclass(frozen=True)
class History:
    """Frames of sequences 1, 2, ..., cut into ranges before the frames with these numbers."""

    windows: Windows
    frames: tuple[Frame, ...]
    cuts: tuple[int, ...] = ()
    lateness: int = 0

    @classmethod
    def random(cls, seed: int) -> "History":
        draw = Random(seed)
        keys, time, frames = draw.randint(1, 4), 0, [Frame(LEFT), Frame(RIGHT)]
        partitions = [LEFT, RIGHT, *draw.sample([LEFT + 1, RIGHT + 1], draw.randint(0, 2))]
        jitter = draw.choice((0, 2, 6))
        for _ in range(draw.randint(1, 30)):
            if draw.random() < 0.15:
                frames.append(Frame(NO_PARTITION, idle=frozenset(draw.sample(partitions, draw.randint(0, len(partitions))))))
                continue
            time += draw.choice((0, 0, 1, 1, 2, 3, 5, 9))
            count = draw.choice((0, 1, 1, 2, 3, 6))
            records = tuple((draw.randrange(keys), time - draw.randint(0, jitter)) for _ in range(count))
            frames.append(Frame(draw.choice(partitions), records))
        cuts, at, longest = [], 0, draw.choice((1, 3, 8))
        while at < len(frames):
            at += draw.randint(1, longest)
            cuts.append(at)
        windows = Windows(draw.randint(1, draw.choice((12, 40))), draw.randint(1, 12))
        return cls(windows, tuple(frames), tuple(cuts), draw.choice((0, 1, 4)))

    @classmethod
    def together(cls, histories: Sequence["History"]) -> "History":
        """The frames of all in the order of their times; no two histories have a key in common.

        The windows, the lateness and the places of the cuts are those of the first one.
        """
        first, every = histories[0], []
        for number, history in enumerate(histories):
            # A frame without records stays behind the one before it.
            times = accumulate((frame.newest for frame in history.frames), max)
            every += [(time, number, at, frame) for at, (time, frame) in enumerate(zip(times, history.frames, strict=True))]
        frames, cuts = [], []
        for _, number, at, frame in sorted(every, key=lambda one: one[0]):
            if number == 0 and at in first.cuts:
                cuts.append(len(frames))
            frames.append(replace(frame, records=tuple((key + KEYS_APART * number, time) for key, time in frame.records)))
        return cls(first.windows, tuple(frames), tuple(cuts), first.lateness)

    def ranges(self) -> list[tuple[int, int]]:
        """The ranges as (first number, number behind the last) of frames, from 0 on."""
        borders = sorted({0, len(self.frames), *(cut for cut in self.cuts if 0 < cut < len(self.frames))})
        return list(pairwise(borders))


@dataclass
class Answer:
    rows: list[Row] = field(default_factory=list)
    waiting: int = 0
    kept: int = 0
    late: int = 0
    watermarks: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Seen:
    """A record that was not late."""

    position: int
    key: int
    time: int


def model(history: History) -> Answer:
    """The meaning of a join by event time, frame after frame."""
    answer, rights, waiting = Answer(), defaultdict[int, list[Seen]](list), list[Seen]()
    newest, idle, watermark = dict[int, int](), set[int](), NEVER
    for sequence, frame in enumerate(history.frames, 1):
        for ordinal, (key, time) in enumerate(frame.records):
            if time < watermark:
                answer.late += 1
            else:
                (rights[key] if frame.is_right else waiting).append(Seen(first_position(sequence) + ordinal, key, time))
                answer.kept += frame.is_right
        if frame.partition != NO_PARTITION:
            newest[frame.partition] = max(newest.get(frame.partition, NEVER), frame.newest)
            idle -= {frame.partition} if frame.records else set()
        idle |= frame.idle
        watermark = max(watermark, reached(newest, idle, history.lateness))
        answer.watermarks.append(watermark)
        emit, still = 0, []
        for left in sorted(waiting, key=lambda one: one.position):
            right, final = best(left, rights[left.key], history.windows)
            if final <= watermark:
                answer.rows.append(Row(left.position, right, last_position(sequence), emit))
                emit += 1
            else:
                still.append(left)
        waiting = still
    answer.waiting = len(waiting)
    return answer


def reached(newest: dict[int, int], idle: set[int], lateness: int) -> int:
    known = {*newest, *idle}
    if not (any(one < RIGHT for one in known) and any(one >= RIGHT for one in known)):
        return NEVER
    times = [newest.get(one, NEVER) for one in known if one not in idle]
    oldest = min(times) if times else max(newest.values(), default=NEVER)
    return NEVER if oldest == NEVER else oldest - lateness


def best(left: Seen, mine: Sequence[Seen], windows: Windows) -> tuple[int | None, int]:
    """(The right record of its key that the left one meets as far as is known, the watermark at which nothing better may come)."""
    earlier = max((one for one in mine if one.time <= left.time), key=lambda one: (one.time, one.position), default=None)
    if earlier is not None and left.time - earlier.time < windows.right_us:
        return earlier.position, left.time + 1
    later = min((one for one in mine if one.time > left.time), key=lambda one: (one.time, one.position), default=None)
    if later is not None and later.time - left.time < windows.left_us:
        return later.position, later.time + 1
    return None, left.time + windows.left_us


class TimedJoinCase:
    """The stores of one bucket below a directory, and what the last `done` lists."""

    def __init__(self, directory: Path, windows: Windows, lateness: int = 0) -> None:
        self.directory, self.windows, self.lateness = directory, windows, lateness
        self.listings: Listings = ([], [])
        self.progress = Progress()
        self.late = 0
        self.restart()

    def restart(self) -> None:
        """Another process opens the stores."""
        places = (Storage.local(self.directory / name) for name in ("join-right", "join-left"))
        self.stores = TimedJoinStores(*places, (RIGHT_FIELDS, STORED_LEFT), self.windows)

    def timed(self, frames: Sequence[Frame], first: int) -> TimedFrames:
        """The frames of sequences `first`, ... as the join sees their times."""
        sequences = np.arange(first, first + len(frames), dtype=np.uint64)
        partitions, newest = (np.array([getattr(one, name) for one in frames], dtype=np.int64) for name in ("partition", "newest"))
        marks = [dict.fromkeys(frame.idle, 0) for frame in frames]
        return TimedFrames(sequences, partitions, newest, np.zeros_like(newest), marks, self.progress, self.lateness)

    def sides(self, frames: Sequence[Frame], first: int) -> tuple[Side, Side, TimedFrames, int]:
        """What the frames of sequences `first`, ... bring without late records, and how many of these there are."""
        timed = self.timed(frames, first)
        sides, late = [], 0
        for is_right, fields in ((False, STORED_LEFT), (True, RIGHT_FIELDS)):
            records = [
                (first_position(sequence) + ordinal, key, time)
                for sequence, frame in enumerate(frames, first)
                if frame.is_right == is_right
                for ordinal, (key, time) in enumerate(frame.records)
            ]
            rows = side_rows(records, is_right)
            times = np.array([time for *_, time in records], dtype=np.int64)
            is_late = timed.is_late(rows.column("_tf_sequence").to_numpy(), times)
            rows = rows.append_column(TIME_COLUMN, pa.array(times)).filter(pa.array(~is_late))
            sides.append(Side.of(rows, fields, TIME_COLUMN))
            late += int(is_late.sum())
        return sides[0], sides[1], timed, late

    def attempt(self, frames: Sequence[Frame], first: int, has_turn: bool = True) -> tuple[Joined, list[Row], Listings]:
        """Join the frames over the listed segments, and write the new ones, which nobody lists."""
        lefts, rights, timed, _ = self.sides(frames, first)
        return self._joined(lefts, rights, timed, has_turn)

    def run(self, frames: Sequence[Frame], first: int, has_turn: bool = True) -> tuple[Joined, list[Row]]:
        """Join the frames, and list what was written."""
        lefts, rights, timed, late = self.sides(frames, first)
        joined, rows, self.listings = self._joined(lefts, rights, timed, has_turn)
        self.progress, self.late = timed.last, self.late + late
        return joined, rows

    def _joined(self, lefts: Side, rights: Side, timed: TimedFrames, has_turn: bool) -> tuple[Joined, list[Row], Listings]:
        self.stores.open(*self.listings)
        joined = join_by_time(lefts, rights, timed, self.stores)
        rows = [row for part in joined.slices(with_unmatched=True) for row in rows_of(part.rows)]
        span = (int(timed.sequences[0]) - 1, int(timed.sequences[-1]))
        return joined, rows, self.stores.add(joined.new_rights, joined.new_lefts, span, self.progress.watermark_us, has_turn)


def play(history: History, directory: Path, draw: Random) -> Answer:
    """The history through the kernel, with restarts, second attempts, and merges at any time; as `model` answers."""
    case, answer = TimedJoinCase(directory, history.windows, history.lateness), Answer()
    counts: Counter[str] = Counter()
    for start, end in history.ranges():
        if draw.random() < 0.2:
            case.restart()
        frames = history.frames[start:end]
        if draw.random() < 0.2:
            case.attempt(frames, start + 1, has_turn=draw.random() < 0.5)
        answer.watermarks += [case.timed(frames[: number + 1], start + 1).end_us for number in range(len(frames))]
        joined, rows = case.run(frames, start + 1, has_turn=draw.random() < 0.7)
        answer.rows += rows
        counts.update(vars(joined.counts))
        check_floor(joined, answer.rows, history, end)
    answer.waiting, answer.kept, answer.late = counts["waiting"], counts["kept"], case.late
    assert counts["joined"] == sum(row.right is not None for row in answer.rows)
    assert counts["joined"] + counts["unmatched"] == len(answer.rows)
    return answer


def check_floor(joined: Joined, rows: Sequence[Row], history: History, end: int) -> None:
    """No left record that waits behind the first `end` frames is before the oldest one that is named."""
    so_far = model(History(history.windows, history.frames[:end], lateness=history.lateness))
    assert len(rows) == len(so_far.rows)
    if so_far.waiting:
        decided, watermarks = {row.left for row in so_far.rows}, [NEVER, *so_far.watermarks]
        waiting = [
            first_position(sequence) + ordinal
            for sequence, frame in enumerate(history.frames[:end], 1)
            if not frame.is_right
            for ordinal, (_, time) in enumerate(frame.records)
            if time >= watermarks[sequence - 1] and first_position(sequence) + ordinal not in decided
        ]
        assert len(waiting) == so_far.waiting
        assert joined.oldest_waiting is not None
        assert joined.oldest_waiting[0] <= min(waiting)
