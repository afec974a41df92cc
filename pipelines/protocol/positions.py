"""Positions: the place of a record on raw, which is its identity; as a tuple, as text, and packed into one number.

`Position` belongs to a row of out or a dead letter: raw sequence, ordinal in the frame, and its number among the rows of one record. As
text it is in headers of frames and on the ledger (`Position.parse`); users write it without the last part (`record_position`). Packed into
a uint64 (`packed`) it is a key that sorts as records do; a record has one, whatever its number of rows.
"""

import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence, Sized
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ORDINAL_BITS = 20
"""Bits of the ordinal in a packed position; the sequence takes the bits above.

The packing is exact while a frame has under 2^20 rows, which its size guarantees, and sequences stay under 2^44.
"""
_ORDINAL_MASK = (1 << ORDINAL_BITS) - 1
MAX_ORDINAL = 2**32 - 1
"""Largest ordinal, and largest number of a row: a position with it comes after every other position of its sequence."""
_SEQUENCE_AND_ORDINAL = re.compile(r"([0-9]{1,15})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?")

SEQUENCE_AND_ORDINAL = ("_tf_sequence", "_tf_ordinal")
"""The columns of a record's position."""
CAUSE_COLUMNS = ("_tf_cause_sequence", "_tf_cause_ordinal", "_tf_cause_emit")
"""The position of the record that made a row of a join appear, and the number of the row among those of its cause in the bucket.

Such rows stand on their subjects in the order of their causes, and headers of frames name causes.
"""
RawPositions = npt.NDArray[np.uint64]
"""Packed positions."""
NO_POSITIONS: RawPositions = np.zeros(0, dtype=np.uint64)


_PLACE = np.dtype([("position", np.uint64), ("emit", np.uint32)])
Places = npt.NDArray[np.void]
"""Places of rows: the packed position of the record, and the number among its rows."""
NO_PLACES: Places = np.zeros(0, dtype=_PLACE)


class Position(NamedTuple):
    """Position of an out row or a dead letter; compares in stream order."""

    sequence: int
    ordinal: int
    emit: int = 0

    def __str__(self) -> str:
        return f"{self.sequence}.{self.ordinal}.{self.emit}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        """Parse the text of a position. Raise ValueError if it is malformed."""
        sequence, ordinal, emit = map(int, text.split("."))
        return cls(sequence, ordinal, emit)

    @classmethod
    def end_of(cls, sequence: int) -> "Position":
        """Return the last position that a frame of this sequence could produce."""
        return cls(sequence, MAX_ORDINAL, MAX_ORDINAL)

    @classmethod
    def end_of_causes(cls, sequence: int) -> "Position":
        """Return the last cause that a record of a frame of this sequence could be; the end of a window at the next frame is behind it."""
        return cls(sequence, _ORDINAL_MASK - 1, MAX_ORDINAL)


class SourcePartition(NamedTuple):
    """A partition of a source; offsets are positions within one. Sorts by the source, then by the number."""

    source: str
    partition: int

    def __str__(self) -> str:
        return f"{self.source}/{self.partition}"

    def among(self, sources: Sized) -> str:
        """Return the partition as reports name it: its number alone if the pipeline has one source, else with the source."""
        return str(self) if len(sources) > 1 else str(self.partition)


def record_position(text: str) -> Position:
    """Parse a raw position as users write it: 17.3, or that of a row of it, 17.3.0. Raise ValueError if it is malformed."""
    found = _SEQUENCE_AND_ORDINAL.fullmatch(text)
    if found is None:
        raise ValueError(f"position {text[:80]!r} is not a sequence and an ordinal, such as 17.3")
    return Position(int(found[1]), int(found[2]), int(found[3] or 0))


def packed(sequences: Any, ordinals: Any) -> RawPositions:
    """Pack sequences and ordinals, arrays or one of them a number, into keys."""
    keys: RawPositions = (np.asarray(sequences).astype(np.uint64) << np.uint64(ORDINAL_BITS)) | np.asarray(ordinals).astype(np.uint64)
    return keys


def sequences_of(keys: RawPositions) -> npt.NDArray[np.int64]:
    """Return the sequences of keys as signed numbers, to subtract and to index with."""
    return (keys >> np.uint64(ORDINAL_BITS)).astype(np.int64)


def ordinals_of(keys: RawPositions) -> npt.NDArray[np.int64]:
    """Return the ordinals of keys as signed numbers, to subtract and to index with."""
    return (keys & np.uint64(_ORDINAL_MASK)).astype(np.int64)


def unpacked(key: int) -> tuple[int, int]:
    """Return the sequence and the ordinal of one key."""
    return int(key) >> ORDINAL_BITS, int(key) & _ORDINAL_MASK


def position_text(key: int) -> str:
    """Return one key in the notation of `record_position`."""
    return "{}.{}".format(*unpacked(key))


def first_position(sequence: int) -> int:
    """Return the key of the first record of a frame."""
    return sequence << ORDINAL_BITS


def last_position(sequence: int) -> int:
    """Return the greatest key that a record of a frame can have."""
    return first_position(sequence) | _ORDINAL_MASK


def packed_record(text: str) -> int:
    """Return the key of a position in the notation of `record_position`."""
    position = record_position(text)
    return first_position(position.sequence) | position.ordinal


def encoded(keys: RawPositions) -> str:
    """Return ascending keys as text for the ledger: their differences, packed. Neighbours take a bit or two each."""
    return b64encode(zlib.compress(np.diff(keys, prepend=np.uint64(0)).astype("<u8").tobytes())).decode() if len(keys) else ""


def decoded(text: str) -> RawPositions:
    """Return the keys that `encoded` has written. Raise ValueError, or zlib.error, for anything else."""
    differences = np.frombuffer(zlib.decompress(b64decode(text)), "<u8") if text else NO_POSITIONS
    keys: RawPositions = np.cumsum(differences, dtype=np.uint64)
    return keys


def position_keys(table: pa.Table) -> RawPositions:
    """Return the key of each row of a table with `_tf_sequence` and `_tf_ordinal`."""
    return packed(table.column("_tf_sequence").to_numpy(), table.column("_tf_ordinal").to_numpy())


def row_places(rows: pa.Table) -> Places:
    """Return the places of rows with `position`, the packed one of their record, and `emit`."""
    places = np.empty(rows.num_rows, dtype=_PLACE)
    for name in ("position", "emit"):
        places[name] = rows.column(name).to_numpy()
    return places


def is_first_row(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Return for each row whether it is the first one of its record; the rows of a record are neighbors."""
    keys = position_keys(table)
    is_first = np.ones(len(keys), dtype=bool)
    is_first[1:] = keys[1:] != keys[:-1]
    return is_first


def first_rows(table: pa.Table) -> pa.Table:
    """Return the first row of each record, whose rows are neighbors; the table itself if no record has several."""
    is_first = is_first_row(table)
    return table if is_first.all() else table.filter(pa.array(is_first))


def rows_of_same(rows: pa.Table, records: pa.Table) -> pa.Table:
    """Return those of `rows` that belong to a record of which `records` has a row."""
    return rows.filter(pa.array(np.isin(position_keys(rows), position_keys(records))))


def in_position_order(table: pa.Table) -> pa.Table:
    """Return the rows sorted by (sequence, ordinal), those of a record as they are; the table itself if it is."""
    keys = position_keys(table)
    if (keys[1:] >= keys[:-1]).all():
        return table
    return table.take(pa.array(np.argsort(keys, kind="stable")))


def _places(table: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray | None]:
    """Return the columns by which the rows are sorted: of their causes, or else of their positions; the last may be missing."""
    if CAUSE_COLUMNS[0] in table.column_names:
        sequence, ordinal, emit = (table.column(name) for name in CAUSE_COLUMNS)
        return sequence, ordinal, emit
    sequence, ordinal = (table.column(name) for name in SEQUENCE_AND_ORDINAL)
    return sequence, ordinal, table.column("_tf_emit") if "_tf_emit" in table.column_names else None


def beyond(table: pa.Table, last: Position | None) -> pa.Table:
    """Return the rows of a table in the order of its positions after `last` (exclusive); all of them if `last` is None."""
    if last is None or table.num_rows == 0 or last < first_and_last(table)[0]:
        return table
    sequence, ordinal, emit = _places(table)
    if emit is None:
        emit = pa.repeat(pa.scalar(0, pa.uint32()), table.num_rows)
    same_record = pc.and_(pc.equal(sequence, last.sequence), pc.equal(ordinal, last.ordinal))
    later_record = pc.or_(
        pc.greater(sequence, last.sequence),
        pc.and_(pc.equal(sequence, last.sequence), pc.greater(ordinal, last.ordinal)),
    )
    return table.filter(pc.or_(later_record, pc.and_(same_record, pc.greater(emit, last.emit))))


def first_and_last(table: pa.Table) -> tuple[Position, Position]:
    """Return the positions of the first and the last row of a non-empty table in their order; of rows of a join those of their causes."""
    sequence, ordinal, emit = _places(table)

    def at(row: int) -> Position:
        return Position(sequence[row].as_py(), ordinal[row].as_py(), 0 if emit is None else emit[row].as_py())

    return at(0), at(table.num_rows - 1)


def differences(arrivals_us: Sequence[int]) -> list[int]:
    """Encode the arrivals of neighboring frames for a `done`: the first, then the difference of each frame from the one before it."""
    return [*arrivals_us[:1], *(after - before for before, after in pairwise(arrivals_us))]


def from_differences(found: Iterable[int]) -> list[int]:
    """Return the inverse of `differences`."""
    return list(accumulate(found))
