"""The audit's verdict: is every position in exactly one place, from one seam to the next? Pure: positions in, faults out.

Raw positions are numbered in their order, and each place (out, dead letters, duplicates, table) is one byte per record: how often it holds
the position. So 100 million records take 0.6 GB, in whatever order the places are read. Counts stop at 255.

A record gives at most one row; so (sequence, ordinal) is its position everywhere.

What may have been purged is not judged: raw sequences up to `Limits.floor`. A position may be judged before the legs behind it have passed
it: then it may be there or not, but never twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pipelines.key_store.index import Rows, Words

Counts = npt.NDArray[np.uint8]
_ORDINAL_BITS = np.uint64(20)
"""As `records.position_keys`."""
MISSING, DOUBLED, EXTRA = "missing", "doubled", "extra"
RAW_TO_OUT, OUT_TO_TABLE, LETTERS_TO_RAW = "raw -> out", "out -> table", "dead letters -> raw"


def encoded(sequences: npt.NDArray[np.integer], ordinals: npt.NDArray[np.integer]) -> Words:
    """Raw positions as single integers that sort like them."""
    codes: Words = (sequences.astype(np.uint64) << _ORDINAL_BITS) | ordinals.astype(np.uint64)
    return codes


def decoded(code: int) -> tuple[int, int]:
    return int(code) >> 20, int(code) & (1 << 20) - 1


class RawFrames:
    """The raw records that an audit is about, numbered from 0 in the order of their positions. `sequences` ascend."""

    def __init__(self, sequences: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> None:
        self.sequences, self._rows = sequences, rows
        self._first = np.concatenate([[0], np.cumsum(rows)])

    def __len__(self) -> int:
        return int(self._first[-1])

    @property
    def first_sequence(self) -> int:
        """That of the first frame; 1 where there is none."""
        return int(self.sequences[0]) if len(self.sequences) else 1

    def numbers(self, codes: Words) -> Rows:
        """The number of each position; -1 where no raw record is."""
        if not len(self.sequences):
            return np.full(len(codes), -1, dtype=np.int64)
        sequences = (codes >> _ORDINAL_BITS).astype(np.int64)
        ordinals = (codes & np.uint64((1 << 20) - 1)).astype(np.int64)
        frame = np.minimum(np.searchsorted(self.sequences, sequences), len(self.sequences) - 1)
        is_there = (self.sequences[frame] == sequences) & (ordinals < self._rows[frame])
        return np.where(is_there, self._first[frame] + ordinals, -1)

    def codes(self, numbers: Rows) -> Words:
        frame = np.searchsorted(self._first, numbers, side="right") - 1
        return encoded(self.sequences[frame], numbers - self._first[frame])

    def up_to(self, sequence: int) -> int:
        """How many records stand in frames up to `sequence`, inclusive."""
        return int(self._first[np.searchsorted(self.sequences, sequence, side="right")])


class Place:
    """How often one place holds each raw record. To be filled first, then asked."""

    def __init__(self, raw: RawFrames) -> None:
        self._raw = raw
        self.counts: Counts = np.zeros(len(raw), dtype=np.uint8)
        self._strangers: list[Words] = []
        self.rows = 0

    def add(self, codes: Words) -> None:
        numbers = self._raw.numbers(codes)
        self.rows += len(codes)
        is_known = numbers >= 0
        if not is_known.all():
            self._strangers.append(codes[~is_known])
            numbers = numbers[is_known]
        _count(self.counts, numbers)

    @cached_property
    def strangers(self) -> Words:
        """The positions that it holds and raw does not, as often as it holds them."""
        return np.sort(np.concatenate([np.zeros(0, dtype=np.uint64), *self._strangers]))


def _count(counts: Counts, numbers: Rows) -> None:
    if len(numbers) > 1 and not (np.diff(numbers) > 0).all():
        numbers, times = np.unique(numbers, return_counts=True)
        counts[numbers] = np.minimum(counts[numbers] + times, 255)
    else:
        counts[numbers] += (counts[numbers] < 255).astype(np.uint8)


@dataclass(frozen=True)
class Limits:
    """Raw sequences. Up to `floor` (inclusive) something may have been purged; `process_to` is the end of the process leg's last `done`.

    Raw was read up to `read_to`; when all else had been read it ended at `newest`: what lies between came in meanwhile and is not judged.
    """

    floor: int
    process_to: int
    read_to: int
    newest: int


@dataclass(frozen=True)
class Account:
    """The places of the raw records. `confirmed`: of `out`, the rows that the sink has confirmed. `refused`: the sink's dead letters.
    `entered`: dead letters that have entered raw again, at another position.

    `table` is None where the table has no position columns.
    """

    raw: RawFrames
    out: Place
    confirmed: Place
    letters: Place
    duplicates: Place
    refused: Place
    entered: Place
    table: Place | None

    def is_accepted(self, codes: Words) -> npt.NDArray[np.bool_]:
        """Which of these raw records stand on out."""
        accepted: npt.NDArray[np.bool_] = self.out.counts[self.raw.numbers(codes)] > 0
        return accepted

    def told(self, code: int) -> str:
        """How often each place holds a position."""
        number = int(self.raw.numbers(np.array([code], dtype=np.uint64))[0])
        named = {"out": self.out, "dead letters": self.letters, "duplicates": self.duplicates}
        named |= {"table": self.table} if self.table else {}
        named |= {"dead letters of the sink": self.refused, "entered again": self.entered}
        counts = {name: int(place.counts[number]) if number >= 0 else _times(place.strangers, code) for name, place in named.items()}
        held = [f"{name} {count}" for name, count in counts.items() if count]
        return ", ".join([*([] if number >= 0 else ["no raw record"]), *(held or ["nowhere"])])


def _times(codes: Words, code: int) -> int:
    return int(np.searchsorted(codes, code, side="right") - np.searchsorted(codes, code))


@dataclass(frozen=True)
class Fault:
    """Positions at which one seam is wrong in one way: raw positions, ascending, each once."""

    seam: str
    kind: str
    codes: Words = field(repr=False)


def judge(account: Account, limits: Limits) -> Iterator[Fault]:
    """The faults, also those without a position. A raw record that is in no place is MISSING, be it a copy that dedup has dropped: who can
    prove that takes it out.
    """
    first, last = account.raw.up_to(limits.floor), account.raw.up_to(limits.process_to)
    yield from _process_faults(account, limits, first, last)
    if account.table is not None:
        yield from _sink_faults(account, account.table, limits, first)
    yield from _letter_faults(account, limits, first)


def _process_faults(account: Account, limits: Limits, first: int, last: int) -> Iterator[Fault]:
    places = (account.out, account.letters, account.duplicates)
    total = np.zeros(len(account.raw), dtype=np.uint16)
    for place in places:
        total += place.counts
    yield Fault(RAW_TO_OUT, MISSING, account.raw.codes(np.flatnonzero(total[first:last] == 0) + first))
    yield Fault(RAW_TO_OUT, DOUBLED, account.raw.codes(np.flatnonzero(total > 1)))
    strangers = np.unique(np.concatenate([place.strangers for place in places]))
    yield Fault(RAW_TO_OUT, EXTRA, strangers[_is_judged(strangers, limits)])


def _sink_faults(account: Account, table: Place, limits: Limits, first: int) -> Iterator[Fault]:
    total = table.counts.astype(np.uint16) + account.refused.counts
    is_wanted = account.confirmed.counts[first:] > 0
    yield Fault(OUT_TO_TABLE, MISSING, account.raw.codes(np.flatnonzero(is_wanted & (total[first:] == 0)) + first))
    yield Fault(OUT_TO_TABLE, DOUBLED, account.raw.codes(np.flatnonzero((total > 1) & (account.out.counts > 0))))
    unexplained = account.raw.codes(np.flatnonzero((account.out.counts[first:] == 0) & (total[first:] > 0)) + first)
    strangers = np.unique(np.concatenate([table.strangers, account.refused.strangers]))
    yield Fault(OUT_TO_TABLE, EXTRA, np.union1d(unexplained, strangers[_is_judged(strangers, limits)]))


def _letter_faults(account: Account, limits: Limits, first: int) -> Iterator[Fault]:
    entered, strangers = account.entered.counts, account.entered.strangers
    is_letter = (account.letters.counts > 0) | (account.refused.counts > 0)
    yield Fault(
        LETTERS_TO_RAW, DOUBLED, np.union1d(account.raw.codes(np.flatnonzero(entered > 1)), strangers[:-1][strangers[1:] == strangers[:-1]])
    )
    unexplained = account.raw.codes(np.flatnonzero((entered[first:] > 0) & ~is_letter[first:]) + first)
    yield Fault(LETTERS_TO_RAW, EXTRA, np.union1d(unexplained, strangers[_is_judged(strangers, limits)]))


def _is_judged(codes: Words, limits: Limits) -> npt.NDArray[np.bool_]:
    sequences = (codes >> _ORDINAL_BITS).astype(np.int64)
    is_new = (sequences > limits.read_to) & (sequences <= limits.newest)
    # Sequences begin at 1: a 0 is of no record, purged or not.
    judged: npt.NDArray[np.bool_] = (sequences == 0) | ((sequences > limits.floor) & ~is_new)
    return judged


class Offsets:
    """The offsets of one Kafka partition from `start` to `end`, exclusive: a byte each for Kafka and for raw. Others are not judged."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, max(start, end)
        self._kafka: Counts = np.zeros(self.end - self.start, dtype=np.uint8)
        self._raw: Counts = np.zeros(self.end - self.start, dtype=np.uint8)

    def add_kafka(self, offsets: npt.NDArray[np.int64]) -> None:
        self._kafka[self._inside(offsets)] = 1

    def add_raw(self, offsets: npt.NDArray[np.int64]) -> None:
        _count(self._raw, self._inside(offsets))

    def _inside(self, offsets: npt.NDArray[np.int64]) -> Rows:
        inside: Rows = offsets[(offsets >= self.start) & (offsets < self.end)] - self.start
        return inside

    def faults(self, kafka_from: int) -> dict[str, npt.NDArray[np.int64]]:
        """Offsets by kind. Kafka holds offsets from `kafka_from` on: below it only doubled ones can be told."""
        held = max(0, kafka_from - self.start)
        missing = np.flatnonzero((self._kafka[held:] > 0) & (self._raw[held:] == 0)) + held
        extra = np.flatnonzero((self._kafka[held:] == 0) & (self._raw[held:] > 0)) + held
        found = {MISSING: missing, DOUBLED: np.flatnonzero(self._raw > 1), EXTRA: extra}
        return {kind: places + self.start for kind, places in found.items()}
