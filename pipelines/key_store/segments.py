"""A segment: entries sorted by hash in a file (`segment_file`), with an index, memory-mapped for reading.

Columns of the file: those of the entries, of the payload if the entries have one (`payload`), and the two of the index. An entry takes
36 bytes, and 3 bytes of index.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.key_store.index import Index, Rows, Sought, Words
from pipelines.key_store.payload import from_buffers, piece_names, stored_schema, to_pieces, to_text
from pipelines.key_store.segment_file import Blocks, Column, Layout, Piece, not_listed, open_file, write_file
from pipelines.key_store.storage import Storage

_ENTRY: dict[str, type[np.generic]] = {"hi": np.uint64, "lo": np.uint64, "time": np.int64, "sequence": np.uint64, "ordinal": np.uint32}
"""The two halves of the key's hash, and the accepted record: its time (microseconds since 1970, UTC) and its raw position."""
_INDEX: dict[str, type[np.generic]] = {"filter": np.uint64, "first_rows": np.uint32}
_LOOKED_AT_ONCE = 8
"""Rows to compare with a hash in one step: a slot has four on average, and one slot in fifty has more than eight."""
_NEXT_ROWS = np.arange(_LOOKED_AT_ONCE, dtype=np.int64)
_FORMAT, _PAYLOAD_FORMAT = 3, 4


@dataclass(frozen=True)
class Entries:
    """Entries as columns, sorted by (`hi`, `lo`) wherever they enter or leave a segment of unique keys.

    `payload`: the stored columns of each entry, None in a store without.
    """

    hi: Words
    lo: Words
    time: npt.NDArray[np.int64]
    sequence: Words
    ordinal: npt.NDArray[np.uint32]
    payload: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.hi)

    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        return self.hi, self.lo, self.time, self.sequence, self.ordinal

    @classmethod
    def empty(cls, rows: int) -> "Entries":
        """Allocate room for this many entries."""
        return cls(*(np.empty(rows, dtype=kind) for kind in _ENTRY.values()))

    def take(self, rows: npt.NDArray[Any] | slice) -> "Entries":
        """Return the entries at `rows` (positions, a mask, or a slice, which copies nothing)."""
        return replace(Entries(*(column[rows] for column in self.columns())), payload=self._payload_of(rows))

    def _payload_of(self, rows: npt.NDArray[Any] | slice) -> pa.RecordBatch | None:
        if self.payload is None:
            return None
        if isinstance(rows, slice):
            start, end, _ = rows.indices(len(self))
            return self.payload.slice(start, max(0, end - start))
        return self.payload.filter(pa.array(rows)) if rows.dtype == np.bool_ else self.payload.take(pa.array(rows))


def by_hash(hi: Words, lo: Words) -> Rows:
    """Return an order by (`hi`, `lo`) that keeps the order of equal hashes.

    The place replaces the low bits of `hi`, which uniform hashes do not need, and plain numbers are sorted: 10 ns instead of the 70 ns of
    a stable sort of places (62,500 hashes).
    """
    bits = np.uint64(len(hi).bit_length())
    packed = np.sort((hi >> bits << bits) | np.arange(len(hi), dtype=np.uint64))
    order = (packed & ((np.uint64(1) << bits) - np.uint64(1))).view(np.int64)
    ordered = hi[order]
    if not (ordered[1:] >= ordered[:-1]).all():
        order = np.argsort(hi, kind="stable")
        ordered = hi[order]
    # Different hashes with one `hi`, which almost never occur, are sorted by `lo` as well.
    is_tie = ordered[1:] == ordered[:-1]
    if is_tie.any() and (lo[order[1:]] != lo[order[:-1]])[is_tie].any():
        return np.lexsort((lo, hi))
    return order


class RunFacts(NamedTuple):
    """The facts of a live segment in a `done`. `newest` is its latest time: when that has expired, the whole segment has."""

    name: str
    rows: int
    newest: int
    digest: str


def write_run(storage: Storage, name: str, entries: Entries) -> RunFacts:
    """Write the entries (sorted, not empty) as a new file; durable on return. Raise FileExistsError if the name is taken."""
    return Run.write(storage, name, entries).facts


class Run:
    """An open segment of unique keys. Not thread-safe."""

    index_kinds = _INDEX

    def __init__(self, where: str, facts: RunFacts, entries: Entries, index: Sequence[Column], blocks: Sequence[Blocks]) -> None:
        """Open over given columns. `blocks`: those of the entries and of the payload."""
        self.facts, self.entries = facts, entries
        self._index, self._own_index = Index(*index[: len(_INDEX)]), index[len(_INDEX) :]
        self._blocks, self._payload_blocks = blocks

    @staticmethod
    def indexed(entries: Entries) -> list[Column]:
        """Return the columns of `index_kinds`."""
        index = Index.of(entries.hi, entries.lo)
        return [index.filter, index.first_rows]

    @staticmethod
    def index_rows(rows: int) -> list[int]:
        """Return the lengths of the columns of `index_kinds` in a segment of this many rows."""
        return [Index.slots(rows)] * len(_INDEX)

    @staticmethod
    def hashes_of(entries: Entries) -> tuple[Words, Words]:
        """Return the hashes of entries as they enter or leave a segment of this kind, sorted."""
        return entries.hi, entries.lo

    @classmethod
    def layout(cls, fields: pa.Schema | None) -> Layout:
        """Return the layout of the file. `fields`: the schema of the payload's fields, None without one."""
        index = tuple(cls.index_kinds)
        if fields is None:
            return Layout(_FORMAT, tuple(_ENTRY), index, {})
        # The fields are part of what is stored: a segment with others must not be read as if it had these.
        return Layout(_PAYLOAD_FORMAT, (*_ENTRY, *piece_names(stored_schema(fields))), index, {b"fields": to_text(fields)})

    @classmethod
    def write(cls, storage: Storage, name: str, entries: Entries, fields: pa.Schema | None = None) -> Self:
        """Write the entries (in the order of this kind, not empty) as a new file, durable on return, and read them from memory."""
        index = cls.indexed(entries)
        pieces = [*(Piece.of(column) for column in entries.columns()), *(to_pieces(entries.payload) if entries.payload is not None else ())]
        digest = write_file(storage, name, cls.layout(fields), len(entries), [*pieces, *index])
        facts = RunFacts(name, len(entries), int(entries.time.max()), digest)
        where = f"{storage.path}/{name}"
        return cls(where, facts, entries, index, [Blocks(where, (), None)] * 2)

    @classmethod
    def open(cls, storage: Storage, facts: RunFacts, is_own: bool = False, fields: pa.Schema | None = None) -> Self:
        """Map the file. Raise StateDamagedError if it is missing, is not the listed one, or has other fields.

        `is_own`: this process has just written the file, so its blocks need no check.
        """
        where = f"{storage.path}/{facts.name}"
        file = open_file(storage, facts.name, facts.digest, cls.layout(fields), facts.rows, is_own)
        kinds = _ENTRY | cls.index_kinds
        try:
            columns = [np.frombuffer(file.contents[name] or b"", dtype=kind) for name, kind in kinds.items()]
            if [len(column) for column in columns] != [facts.rows] * len(_ENTRY) + cls.index_rows(facts.rows):
                raise not_listed(where)
            payload, pieces = None, list[Piece]()
            if fields is not None:
                schema = stored_schema(fields)
                payload, pieces = from_buffers(schema, facts.rows, [file.contents[name] for name in piece_names(schema)])
        except ValueError as error:
            raise not_listed(where) from error
        entries = replace(Entries(*columns[: len(_ENTRY)]), payload=payload)
        guard = partial(Blocks, where)
        own = guard([Piece.of(column) for column in entries.columns()], None if is_own else file.crc[: len(_ENTRY)])
        return cls(where, facts, entries, columns[len(_ENTRY) :], [own, guard(pieces, None if is_own else file.crc[len(_ENTRY) :])])

    def find(self, sought: Sought) -> tuple[Rows, Rows]:
        """Find the hashes of `sought` in this segment; return (places in `sought`, rows of this segment)."""
        at = self._index.may_hold(sought)
        if not len(at):
            return at, at
        found_at, found_rows = [], []
        last = len(self.entries) - 1
        first = self._index.first_row(sought, at)
        # Some rows at once through the possible slots. Different keys with the same `hi` are adjacent.
        while len(at):
            hi, rows = sought.hi[at], first[:, np.newaxis] + _NEXT_ROWS
            if self._blocks.unchecked:
                self._blocks.check(np.minimum(rows, last))
            here = self.entries.hi.take(rows, mode="clip")
            which, step = (here == hi[:, np.newaxis]).nonzero()
            row = first[which] + step
            is_same = (row <= last) & (self.entries.lo.take(row, mode="clip") == sought.lo[at[which]])
            found_at.append(at[which[is_same]])
            found_rows.append(row[is_same])
            (still,) = ((here[:, -1] <= hi) & (rows[:, -1] < last)).nonzero()
            at, first = at[still], first[still] + _LOOKED_AT_ONCE
        return np.concatenate(found_at), np.concatenate(found_rows)

    def checked_hashes(self) -> tuple[Words, Words]:
        """Return the hashes of all entries, sorted, every block of the entries checked."""
        self._blocks.check_all()
        return self.hashes_of(self.entries)

    def checked_entries(self) -> Entries:
        """Return all entries, every block checked."""
        self._blocks.check_all()
        self._payload_blocks.check_all()
        return self.entries

    def payload_rows(self, rows: Rows) -> pa.RecordBatch:
        """Return the stored columns of these rows. Raise StateDamagedError if a touched block is damaged."""
        assert self.entries.payload is not None
        self._payload_blocks.check(rows)
        return self.entries.payload.take(pa.array(rows))
