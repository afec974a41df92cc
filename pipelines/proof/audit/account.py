"""The audit's decision: is every position in exactly one place, from one hop to the next? Pure: positions in, faults out.

Raw positions are numbered in their order, and each place (out, dead letters, duplicates, table) is one byte per record: the number of times
that it holds the position. So 100 million records take 0.6 GB, in whatever order the places are read. Counts stop at 255.

(sequence, ordinal) is the position of a record everywhere. Where a function makes several rows of a record, a place holds it once, however
many of its rows it has; `several_rows` compares those.

Raw sequences up to `Limits.floor` are not compared: their outcomes may be purged. A position may be read before the legs after it have
passed it: then it may be there or not, but never twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pipelines.proof.report import Kind
from pipelines.protocol.positions import NO_POSITIONS, RawPositions, ordinals_of, packed, sequences_of

Counts = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
MISSING: Kind = "missing"
DOUBLED: Kind = "doubled"
EXTRA: Kind = "extra"
KAFKA_TO_RAW, RAW_TO_OUT, OUT_TO_TABLE, DEAD_LETTERS_TO_RAW = "Kafka -> raw", "raw -> out", "out -> table", "dead letters -> raw"


class RawFrames:
    """The raw records of an audit, numbered from 0 in the order of their positions. `sequences` ascend."""

    def __init__(self, sequences: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> None:
        self.sequences, self._rows = sequences, rows
        self._first = np.concatenate([[0], np.cumsum(rows)])

    def __len__(self) -> int:
        return int(self._first[-1])

    @property
    def first_sequence(self) -> int:
        """Return the sequence of the first frame; 1 if there is none."""
        return int(self.sequences[0]) if len(self.sequences) else 1

    def numbers(self, codes: RawPositions) -> Numbers:
        """Return the number of each position; -1 where no raw record is."""
        if not len(self.sequences):
            return np.full(len(codes), -1, dtype=np.int64)
        sequences, ordinals = sequences_of(codes), ordinals_of(codes)
        frame = np.minimum(np.searchsorted(self.sequences, sequences), len(self.sequences) - 1)
        is_there = (self.sequences[frame] == sequences) & (ordinals < self._rows[frame])
        return np.where(is_there, self._first[frame] + ordinals, -1)

    def codes(self, numbers: Numbers) -> RawPositions:
        """Return the position of each number: the inverse of `numbers`."""
        frame = np.searchsorted(self._first, numbers, side="right") - 1
        return packed(self.sequences[frame], numbers - self._first[frame])

    def up_to(self, sequence: int) -> int:
        """Count the records of the frames up to `sequence`, inclusive."""
        return int(self._first[np.searchsorted(self.sequences, sequence, side="right")])


@dataclass(frozen=True)
class RowsOf:
    """The rows of each raw record in one place: their counts, and sums over the hashes of their numbers."""

    counts: npt.NDArray[np.uint32]
    sums: npt.NDArray[np.uint64]

    @classmethod
    def none(cls, records: int) -> "RowsOf":
        return cls(np.zeros(records, dtype=np.uint32), np.zeros(records, dtype=np.uint64))

    def plus(self, other: "RowsOf") -> "RowsOf":
        return RowsOf(self.counts + other.counts, self.sums + other.sums)

    def add(self, records: Numbers, emits: npt.NDArray[np.uint32]) -> None:
        """Add a row of each of these records, by its number among those of the record."""
        np.add.at(self.counts, records, 1)
        np.add.at(self.sums, records, _hashes(emits))


def _hashes(emits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Return 64 bits for each number that sums of few others do not meet (the finalizer of SplitMix64)."""
    mixed = (emits.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


class Tallied:
    """The number of times that one place holds each raw record. Fill it by `add` before reading it.

    `has_several`: a record may have several rows; then a place holds it once, and `rows_of` has its rows.
    """

    def __init__(self, raw: RawFrames, has_several: bool = False) -> None:
        self._raw, self.has_several = raw, has_several
        self.counts: Counts = np.zeros(len(raw), dtype=np.uint8)
        self.rows_of = RowsOf.none(len(raw) if has_several else 0)
        self._strangers: list[RawPositions] = []
        self.rows = 0

    def add(self, codes: RawPositions, emits: npt.NDArray[np.uint32] | None = None) -> None:
        """Count one more of each of these positions, which may repeat. `emits`: the numbers of the rows, if a record may have several."""
        numbers = self._raw.numbers(codes)
        self.rows += len(codes)
        is_raw = numbers >= 0
        if not is_raw.all():
            self._strangers.append(codes[~is_raw])
            numbers = numbers[is_raw]
        if not self.has_several:
            _count(self.counts, numbers)
            return
        self.counts[numbers] = 1
        self.rows_of.add(numbers, np.zeros(len(numbers), dtype=np.uint32) if emits is None else emits[is_raw])

    @property
    def times(self) -> npt.NDArray[np.uint32]:
        """The number of rows of each record that this place holds; of one that has no more than one, whether it holds it."""
        return self.rows_of.counts if self.has_several else (self.counts > 0).astype(np.uint32)

    @cached_property
    def strangers(self) -> RawPositions:
        """Return the positions that this place holds and raw does not, sorted, as often as it holds them."""
        return np.sort(np.concatenate([NO_POSITIONS, *self._strangers]))


def _count(counts: Counts, numbers: Numbers) -> None:
    if len(numbers) > 1 and not (np.diff(numbers) > 0).all():
        numbers, times = np.unique(numbers, return_counts=True)
        counts[numbers] = np.minimum(counts[numbers] + times, 255)
    else:
        counts[numbers] += (counts[numbers] < 255).astype(np.uint8)


@dataclass(frozen=True)
class Limits:
    """Raw sequences. Up to `floor` (inclusive) messages may have been purged; `process_to` is the end of the process leg's last `done`.

    Raw was read up to `read_to`. It ended at `newest` when everything else had been read: frames between the two arrived meanwhile and are
    not compared.
    """

    floor: int
    process_to: int
    read_to: int
    newest: int


@dataclass(frozen=True)
class Account:
    """The places of the raw records.

    `confirmed`: the rows of `out` that the sink has confirmed. `then_dropped`: records that dedup has accepted, and that a later step has
    dropped, as the streams say; that is no place, for verification must find the same. `refused`: the sink's dead letters. `entered`: dead
    letters that were redriven, at another position. `table` is None if the table has no position columns. `diverted`: the rows that
    ClickHouse has refused and that the sink has written for its fallback; None without one.
    """

    raw: RawFrames
    out: Tallied
    confirmed: Tallied
    dead_letters: Tallied
    duplicates: Tallied
    then_dropped: Tallied
    refused: Tallied
    entered: Tallied
    table: Tallied | None
    diverted: Tallied | None = None

    def accepted(self, first: int, last: int) -> RawPositions:
        """Return the positions of the accepted records, on out or then dropped, of the raw frames from `first` to `last`, inclusive."""
        start, end = self.raw.up_to(first - 1), self.raw.up_to(last)
        return self.raw.codes(np.flatnonzero(self.out.counts[start:end] | self.then_dropped.counts[start:end]) + start)

    def describe(self, code: int) -> str:
        """Return how often each place holds a position, as text."""
        number = int(self.raw.numbers(np.array([code], dtype=np.uint64))[0])
        tallied = {"out": self.out, "dead letters": self.dead_letters, "duplicates": self.duplicates, "then dropped": self.then_dropped}
        tallied |= {"table": self.table} if self.table else {}
        tallied |= {"dead letters of the sink": self.refused, "entered again": self.entered}
        tallied |= {"refused into the fallback": self.diverted} if self.diverted else {}
        counts = {name: int(one.counts[number]) if number >= 0 else _times(one.strangers, code) for name, one in tallied.items()}
        held = [f"{name} {count}" for name, count in counts.items() if count]
        return ", ".join([*([] if number >= 0 else ["no raw record"]), *(held or ["nowhere"])])


def _times(codes: RawPositions, code: int) -> int:
    return int(np.searchsorted(codes, code, side="right") - np.searchsorted(codes, code))


def faults_at(hop: str, kind: Kind, raw: RawFrames, is_wrong: npt.NDArray[np.bool_]) -> "Fault":
    """Return the fault of the raw records at which a hop is wrong."""
    return Fault(hop, kind, raw.codes(np.flatnonzero(is_wrong)))


@dataclass(frozen=True)
class Fault:
    """Raw positions at which one hop is wrong in one way, ascending, each once."""

    hop: str
    kind: Kind
    codes: RawPositions = field(repr=False)


def compare(account: Account, limits: Limits) -> Iterator[Fault]:
    """Yield a fault per kind of the hops before and behind out, also where it has no position.

    A raw record that is in no place is MISSING, even a copy that dedup has dropped: a verification that proves the copy takes it out.
    """
    first, last = account.raw.up_to(limits.floor), account.raw.up_to(limits.process_to)
    yield from _process_faults(account, limits, first, last)
    if account.table is not None:
        yield from _sink_faults(account, account.table, limits, first)


def _process_faults(account: Account, limits: Limits, first: int, last: int) -> Iterator[Fault]:
    tallied = (account.out, account.dead_letters, account.duplicates)
    total = np.zeros(len(account.raw), dtype=np.uint16)
    for one in tallied:
        total += one.counts
    yield Fault(RAW_TO_OUT, MISSING, account.raw.codes(np.flatnonzero(total[first:last] == 0) + first))
    total += account.then_dropped.counts
    yield Fault(RAW_TO_OUT, DOUBLED, account.raw.codes(np.flatnonzero(total > 1)))
    strangers = np.unique(np.concatenate([one.strangers for one in (*tallied, account.then_dropped)]))
    yield Fault(RAW_TO_OUT, EXTRA, strangers[_is_compared(strangers, limits)])


def _sink_faults(account: Account, table: Tallied, limits: Limits, first: int) -> Iterator[Fault]:
    places = [table, account.refused, *([account.diverted] if account.diverted else [])]
    total = np.zeros(len(account.raw), dtype=np.uint16)
    for one in places:
        total += one.counts
    is_confirmed = account.confirmed.counts[first:] > 0
    if not table.has_several:
        yield Fault(OUT_TO_TABLE, MISSING, account.raw.codes(np.flatnonzero(is_confirmed & (total[first:] == 0)) + first))
        yield Fault(OUT_TO_TABLE, DOUBLED, account.raw.codes(np.flatnonzero((total > 1) & (account.out.counts > 0))))
    unexplained = account.raw.codes(np.flatnonzero((account.out.counts[first:] == 0) & (total[first:] > 0)) + first)
    strangers = np.unique(np.concatenate([one.strangers for one in places]))
    yield Fault(OUT_TO_TABLE, EXTRA, np.union1d(unexplained, strangers[_is_compared(strangers, limits)]))


def dead_letter_faults(accounts: Sequence[Account], limits: Limits) -> Iterator[Fault]:
    """Yield a fault per kind of the hop from dead letters back to raw. `accounts`: of all sinks, whose dead letters differ.

    A record may enter again once for each sink that has refused its row, and for each row of several that one has refused.
    """
    account = accounts[0]
    entered, strangers, first = account.entered.counts, account.entered.strangers, account.raw.up_to(limits.floor)
    refusals = np.sum([one.refused.times for one in accounts], axis=0)
    yield Fault(
        DEAD_LETTERS_TO_RAW,
        DOUBLED,
        np.union1d(account.raw.codes(np.flatnonzero(entered > np.maximum(1, refusals))), strangers[:-1][strangers[1:] == strangers[:-1]]),
    )
    unexplained = account.raw.codes(
        np.flatnonzero((entered[first:] > 0) & (account.dead_letters.counts[first:] == 0) & (refusals[first:] == 0)) + first
    )
    yield Fault(DEAD_LETTERS_TO_RAW, EXTRA, np.union1d(unexplained, strangers[_is_compared(strangers, limits)]))


def _is_compared(codes: RawPositions, limits: Limits) -> npt.NDArray[np.bool_]:
    sequences = sequences_of(codes)
    is_new = (sequences > limits.read_to) & (sequences <= limits.newest)
    # Sequences begin at 1: a 0 belongs to no record, purged or not.
    is_compared: npt.NDArray[np.bool_] = (sequences == 0) | ((sequences > limits.floor) & ~is_new)
    return is_compared


class Offsets:
    """The offsets of one Kafka partition from `start` to `end`, exclusive: a byte each for Kafka and for raw. Others are ignored."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, max(start, end)
        self._kafka: Counts = np.zeros(self.end - self.start, dtype=np.uint8)
        self._raw: Counts = np.zeros(self.end - self.start, dtype=np.uint8)

    def add_kafka(self, offsets: npt.NDArray[np.int64]) -> None:
        self._kafka[self._inside(offsets)] = 1

    def add_raw(self, offsets: npt.NDArray[np.int64]) -> None:
        _count(self._raw, self._inside(offsets))

    def _inside(self, offsets: npt.NDArray[np.int64]) -> Numbers:
        inside: Numbers = offsets[(offsets >= self.start) & (offsets < self.end)] - self.start
        return inside

    def faults(self, kafka_from: int) -> dict[Kind, npt.NDArray[np.int64]]:
        """Return offsets by kind. Kafka holds offsets from `kafka_from` on: below it only doubled ones are found."""
        held = max(0, kafka_from - self.start)
        missing = np.flatnonzero((self._kafka[held:] > 0) & (self._raw[held:] == 0)) + held
        extra = np.flatnonzero((self._kafka[held:] == 0) & (self._raw[held:] > 0)) + held
        by_kind = {MISSING: missing, DOUBLED: np.flatnonzero(self._raw > 1), EXTRA: extra}
        return {kind: offsets + self.start for kind, offsets in by_kind.items()}
