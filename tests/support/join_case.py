"""Random histories of a join, the model of its meaning record by record, and the same history through the kernel, cut at random."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa

from pipelines.key_store.storage import Storage
from pipelines.maintenance.kept_entries import check_kept
from pipelines.process.dedup import KEY_COLUMNS
from pipelines.process.join.rows import Joined, join
from pipelines.process.join.sides import Frames, Side, Windows, before
from pipelines.process.join.stores import JoinStores, Listings
from pipelines.protocol.bodies import NEVER
from pipelines.protocol.positions import first_position, last_position
from pipelines.protocol.records import INSTANT

LEFT_FIELDS = pa.schema([("left_text", pa.string()), ("left_number", pa.int64()), ("_tf_topic", pa.dictionary(pa.int32(), pa.string()))])
RIGHT_FIELDS = pa.schema([("right_text", pa.string()), ("right_flag", pa.bool_()), ("right_bytes", pa.binary())])
KEYS_APART = 10
"""More keys than a random history has."""


@dataclass(frozen=True)
class Frame:
    """A raw frame at `arrival` with records (is right, key); a tick has none."""

    arrival: int
    records: tuple[tuple[bool, int], ...] = ()


@dataclass(frozen=True)
class Row:
    """A row of the join: positions are packed, the right one None if there is none."""

    left: int
    right: int | None
    cause: int
    emit: int


@dataclass
class Answer:
    rows: list[Row] = field(default_factory=list)
    waiting: int = 0
    kept: int = 0
    replaced: int = 0

    def counts(self) -> Counter[str]:
        joined = sum(row.right is not None for row in self.rows)
        return Counter(joined=joined, unmatched=len(self.rows) - joined, waiting=self.waiting, kept=self.kept, replaced=self.replaced)


@dataclass(frozen=True)
class History:
    """Frames of sequences 1, 2, ..., cut into ranges before the frames with these numbers."""

    windows: Windows
    frames: tuple[Frame, ...]
    cuts: tuple[int, ...] = ()

    @classmethod
    def random(cls, seed: int) -> "History":
        draw = Random(seed)
        keys, arrival, frames, rights = draw.randint(1, 4), 0, [], draw.choice((0.1, 0.25, 0.5))
        for _ in range(draw.randint(1, 24)):
            arrival += draw.choice((0, 0, 1, 1, 2, 3, 5, 9))
            records = ((draw.random() < rights, draw.randrange(keys)) for _ in range(draw.choice((0, 0, 1, 1, 2, 3, 6))))
            frames.append(Frame(arrival, tuple(records)))
        cuts, at, longest = [], 0, draw.choice((1, 3, 8))
        while at < len(frames):
            at += draw.randint(1, longest)
            cuts.append(at)
        windows = Windows(draw.randint(1, draw.choice((12, 40))), draw.randint(1, 12))
        return cls(windows, tuple(frames), tuple(cuts))

    @classmethod
    def together(cls, histories: Sequence["History"], windows: Windows | None = None) -> "History":
        """The frames of all in the order of their arrivals; no two histories have a key in common.

        It is cut where the first one is, and has its windows unless `windows` are given.
        """
        frames, cuts = [], []
        every = ((number, at, frame) for number, history in enumerate(histories) for at, frame in enumerate(history.frames))
        for number, at, frame in sorted(every, key=lambda one: one[2].arrival):
            if number == 0 and at in histories[0].cuts:
                cuts.append(len(frames))
            apart = KEYS_APART * number
            frames.append(replace(frame, records=tuple((is_right, key + apart) for is_right, key in frame.records)))
        return cls(windows or histories[0].windows, tuple(frames), tuple(cuts))

    def ranges(self) -> list[tuple[int, int]]:
        """The ranges as (first number, number behind the last) of frames, from 0 on."""
        borders = sorted({0, len(self.frames), *(cut for cut in self.cuts if 0 < cut < len(self.frames))})
        return list(pairwise(borders))


def model(history: History) -> Answer:
    """The meaning of a join, record after record."""
    windows, answer = history.windows, Answer()
    newest: dict[int, tuple[int, int]] = {}
    waiting: dict[int, list[tuple[int, int]]] = {}
    for sequence, frame in enumerate(history.frames, 1):
        over = sorted(one for lefts in waiting.values() for one in lefts if one[1] + windows.left_us <= frame.arrival)
        answer.rows += [Row(position, None, last_position(sequence - 1), emit) for emit, (position, _) in enumerate(over)]
        waiting = {key: [one for one in lefts if one not in over] for key, lefts in waiting.items()}
        for ordinal, (is_right, key) in enumerate(frame.records):
            position = first_position(sequence) + ordinal
            if is_right:
                answer.rows += [Row(left, position, position, emit) for emit, (left, _) in enumerate(waiting.pop(key, []))]
                answer.kept += 1
                answer.replaced += key in newest and frame.arrival < newest[key][1] + windows.right_us
                newest[key] = position, frame.arrival
            elif key in newest and frame.arrival < newest[key][1] + windows.right_us:
                answer.rows.append(Row(position, newest[key][0], position, 0))
            else:
                waiting.setdefault(key, []).append((position, frame.arrival))
    answer.waiting = sum(map(len, waiting.values()))
    return answer


def left_text(position: int) -> str | None:
    """The text of a left record: null for some, of several lengths for the others."""
    return None if position % 7 == 3 else "l" * (position % 5) + str(position)


def right_text(position: int) -> str | None:
    return None if position % 5 == 2 else f"right {position}"


def side_rows(records: Sequence[tuple[int, int, int]], is_right: bool) -> pa.Table:
    """The rows of one side: (packed position, key, arrival) each."""
    positions = [position for position, _, _ in records]
    # Keys are spread over the range of hashes, or all would share a slot of each index; two keys have one upper half.
    hashes = [(key // 2 * 0x9E3779B97F4A7C15 % 2**64, key) for _, key, _ in records]
    columns = dict(zip(KEY_COLUMNS, (pa.array([half[at] for half in hashes], pa.uint64()) for at in (0, 1)), strict=True))
    columns["_tf_sequence"] = pa.array([position >> 20 for position in positions], pa.uint64())
    columns["_tf_ordinal"] = pa.array([position & 0xFFFFF for position in positions], pa.uint32())
    columns["_tf_arrival"] = pa.array([arrival for *_, arrival in records], pa.int64()).cast(INSTANT)
    if is_right:
        columns["right_text"] = pa.array([right_text(position) for position in positions], pa.string())
        columns["right_flag"] = pa.array([None if position % 3 == 0 else position % 2 == 0 for position in positions], pa.bool_())
        columns["right_bytes"] = pa.array([str(position).encode() for position in positions], pa.binary())
    else:
        columns["left_text"] = pa.array([left_text(position) for position in positions], pa.string())
        columns["left_number"] = pa.array(positions, pa.int64())
        columns["_tf_topic"] = pa.array(["lefts"] * len(positions), pa.string()).dictionary_encode()
    return pa.table(columns)


class JoinCase:
    """The stores of one bucket below a directory, and what the last `done` lists."""

    def __init__(self, directory: Path, windows: Windows) -> None:
        self.directory, self.windows = directory, windows
        self.listings: Listings = ([], [])
        self.clock_us = NEVER
        self.restart()

    def restart(self) -> None:
        """Another process opens the stores."""
        places = (Storage.local(self.directory / name) for name in ("join-right", "join-left"))
        self.stores = JoinStores(*places, (RIGHT_FIELDS, LEFT_FIELDS), self.windows)

    def sides(self, frames: Sequence[Frame], first: int) -> tuple[Side, Side, Frames]:
        """What the frames of sequences `first`, ... bring."""
        records: tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]] = ([], [])
        for sequence, frame in enumerate(frames, first):
            for ordinal, (is_right, key) in enumerate(frame.records):
                records[is_right].append((first_position(sequence) + ordinal, key, frame.arrival))
        arrivals = np.array([frame.arrival for frame in frames], dtype=np.int64)
        sequences = np.arange(first, first + len(frames), dtype=np.uint64)
        left, right = side_rows(records[False], is_right=False), side_rows(records[True], is_right=True)
        return Side.of(left, LEFT_FIELDS), Side.of(right, RIGHT_FIELDS), Frames(sequences, arrivals, self.clock_us)

    def attempt(self, frames: Sequence[Frame], first: int, has_turn: bool = True) -> tuple[Joined, list[Row], Listings]:
        """Join the frames over the listed segments, and write the new ones, which nobody lists."""
        lefts, rights, found = self.sides(frames, first)
        self.stores.open(*self.listings)
        joined = join(lefts, rights, found, self.stores)
        rows = [row for part in joined.slices(with_unmatched=True) for row in rows_of(part.rows)]
        span = (first - 1, first - 1 + len(frames))
        return joined, rows, self.stores.add(joined.new_rights, joined.new_lefts, span, self.clock_us, has_turn)

    def run(self, frames: Sequence[Frame], first: int, has_turn: bool = True) -> tuple[Joined, list[Row]]:
        """Join the frames, and list what was written."""
        joined, rows, self.listings = self.attempt(frames, first, has_turn)
        self.clock_us = frames[-1].arrival
        return joined, rows

    def compact(self, draw: Random) -> None:
        """Compact both stores, and list one of the new listings, or both."""
        self.stores.open(*self.listings)
        made = []
        for store, window_us in ((self.stores.rights, self.windows.kept_us), (self.stores.lefts, self.windows.left_us)):
            expired = before(self.clock_us, window_us)
            after = store.compact(expired, made_for=0)
            check_kept(store, after, expired)
            made.append(after)
        rights, lefts = (after if draw.random() < 0.7 else old for old, after in zip(self.listings, made, strict=True))
        self.listings = (rights, lefts)


def rows_of(table: pa.Table) -> list[Row]:
    """The rows of a slice; their fields must be those of their records."""
    rows = []
    for row in table.to_pylist():
        left = row["_tf_sequence"] << 20 | row["_tf_ordinal"]
        right = None if row["_tf_right_sequence"] is None else row["_tf_right_sequence"] << 20 | row["_tf_right_ordinal"]
        assert (row["left_text"], row["left_number"], row["_tf_topic"]) == (left_text(left), left, "lefts")
        assert row["right_text"] == (None if right is None else right_text(right))
        assert row["right_bytes"] == (None if right is None else str(right).encode())
        cause = row["_tf_cause_sequence"] << 20 | row["_tf_cause_ordinal"]
        rows.append(Row(left, right, cause, row["_tf_cause_emit"]))
    return rows


def play(history: History, directory: Path, draw: Random, compactions: Random | None = None) -> Answer:
    """The history through the kernel, with restarts, second attempts, and merges at any time; with `compactions` before some ranges."""
    case, answer = JoinCase(directory, history.windows), Answer()
    counts: Counter[str] = Counter()
    for start, end in history.ranges():
        if compactions is not None and compactions.random() < 0.5:
            case.compact(compactions)
        if draw.random() < 0.2:
            case.restart()
        if draw.random() < 0.2:
            case.attempt(history.frames[start:end], start + 1, has_turn=draw.random() < 0.5)
        joined, rows = case.run(history.frames[start:end], start + 1, has_turn=draw.random() < 0.7)
        answer.rows += rows
        counts.update(vars(joined.counts))
    answer.waiting, answer.kept, answer.replaced = counts["waiting"], counts["kept"], counts["replaced"]
    assert answer.counts() == counts
    return answer
