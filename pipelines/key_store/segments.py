"""A segment: an immutable Arrow IPC file of entries, sorted by hash, with checksums and an index, memory-mapped for reading.

The file has one row of binary values, SCHEMA: the columns of the entries (a hash at most once) and the two columns of the index. The row's
metadata holds the CRC-32 of every BLOCK_ROWS rows of every column, and of the index. The digest in the ledger covers this metadata: opening
a segment checks the digest and the index, the first touch of a block checks the block. An entry takes 36 bytes, and 3 bytes of index.
"""

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.errors import StateDamagedError
from pipelines.key_store.index import Index, Rows, Sought, Words
from pipelines.key_store.storage import Header, Storage

_ENTRY: dict[str, type[np.generic]] = {"hi": np.uint64, "lo": np.uint64, "time": np.int64, "sequence": np.uint64, "ordinal": np.uint32}
"""The two halves of the key's hash, and the accepted record: its time (microseconds since 1970, UTC) and its raw position."""
_INDEX: dict[str, type[np.generic]] = {"filter": np.uint64, "first_rows": np.uint32}
_COLUMNS = _ENTRY | _INDEX
SCHEMA = pa.schema([(name, pa.large_binary()) for name in _COLUMNS])
BLOCK_ROWS = 64 * 1024
_LOOKED_AT_ONCE = 8
"""Rows to compare with a hash in one step: a slot has four on average, and one slot in fifty has more than eight."""
_NEXT_ROWS = np.arange(_LOOKED_AT_ONCE, dtype=np.int64)
_FORMAT = 3
_PARTS = (b"run", b"crc")
_UNREADABLE = (OSError, pa.ArrowException, IndexError, ValueError)
"""Errors of Arrow for a file that is not valid any more."""
_REMEDY = "nothing was written; stop the pipeline and rebuild the store from the raw stream with `tallyflow rebuild-state`"


@dataclass(frozen=True)
class Entries:
    """Entries as columns, sorted by (`hi`, `lo`) wherever they enter or leave a segment."""

    hi: Words
    lo: Words
    time: npt.NDArray[np.int64]
    sequence: Words
    ordinal: npt.NDArray[np.uint32]

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
        return Entries(*(column[rows] for column in self.columns()))


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


def _header(entries: Entries, index: Index) -> Header:
    facts = {"format": _FORMAT, "rows": len(entries), "block_rows": BLOCK_ROWS, "index_crc": _index_crc(index)}
    checksums = np.array([zlib.crc32(block.data) for column in entries.columns() for block in _blocks(column)], dtype=np.uint32)
    return dict(zip(_PARTS, (json.dumps(facts, sort_keys=True).encode(), checksums.tobytes()), strict=True))


def _index_crc(index: Index) -> list[int]:
    return [zlib.crc32(index.filter.data), zlib.crc32(index.first_rows.data)]


def _one_row(columns: Iterable[npt.NDArray[Any]]) -> pa.RecordBatch:
    """Build the record batch without copying.

    Readers of Arrow need the offsets; `_columns` does not.
    """
    buffers = [[None, pa.py_buffer(np.array([0, column.nbytes])), pa.py_buffer(column)] for column in columns]
    return pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.large_binary(), 1, each) for each in buffers], schema=SCHEMA)


def _columns(batch: pa.RecordBatch) -> list[npt.NDArray[Any]]:
    """Return the columns that were given to `_one_row`. Raise ValueError for a column whose length does not fit its kind."""
    contents = [column.buffers()[2] or b"" for column in batch.columns]
    return [np.frombuffer(content, dtype=kind) for content, kind in zip(contents, _COLUMNS.values(), strict=True)]


def _blocks(column: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    return (column[start : start + BLOCK_ROWS] for start in range(0, len(column), BLOCK_ROWS))


def _digest(header: Header) -> str:
    found = blake2b(digest_size=16)
    for name in _PARTS:
        found.update(header[name])
    return found.hexdigest()


class Run:
    """An open segment. Not thread-safe."""

    def __init__(self, where: str, facts: RunFacts, entries: Entries, index: Index, crc: npt.NDArray[np.uint32] | None) -> None:
        """Open over given columns. `crc`: the checksums of blocks by column, compared at first touch; None to trust the columns."""
        self.facts, self.entries = facts, entries
        self._where, self._index = where, index
        self._crc = crc if crc is not None else np.zeros((len(_ENTRY), 0), dtype=np.uint32)
        self._unchecked = self._crc.shape[1]
        self._is_checked = np.zeros(self._unchecked, dtype=bool)

    @classmethod
    def write(cls, storage: Storage, name: str, entries: Entries) -> "Run":
        """Write the entries (sorted, not empty) as a new file, durable on return, and read them from memory."""
        index = Index.of(entries.hi, entries.lo)
        header = _header(entries, index)
        storage.write(name, _one_row([*entries.columns(), index.filter, index.first_rows]), header)
        facts = RunFacts(name, len(entries), int(entries.time.max()), _digest(header))
        return cls(f"{storage.path}/{name}", facts, entries, index, None)

    @classmethod
    def open(cls, storage: Storage, facts: RunFacts, is_own: bool = False) -> "Run":
        """Map the file. Raise StateDamagedError if it is missing, or is not the listed one.

        `is_own`: this process has just written the file, so its blocks need no check.
        """
        where = f"{storage.path}/{facts.name}"
        try:
            batch, header = storage.read(facts.name)
            found_format = json.loads(header.get(b"run", b"{}")).get("format")
            if found_format not in (None, _FORMAT):
                wrong = f"it is of format {found_format}, and this release reads {_FORMAT}"
                raise StateDamagedError(f"opening state run {where}: {wrong}; {_REMEDY}")
            # The batch's own header has no checksum: a flipped bit there may invent nulls or hide the batch.
            is_ours = header.keys() >= {*_PARTS} and _digest(header) == facts.digest and batch.schema.equals(SCHEMA)
            columns = _columns(batch) if is_ours else []
        except _UNREADABLE as error:
            raise StateDamagedError(f"opening state run {where}: {error}; {_REMEDY}") from error
        slots = Index.slots(facts.rows)
        if [len(column) for column in columns] != [facts.rows] * len(_ENTRY) + [slots, slots]:
            raise StateDamagedError(f"opening state run {where}: it is not the file that the ledger lists; {_REMEDY}")
        entries, index = Entries(*columns[: len(_ENTRY)]), Index(*columns[len(_ENTRY) :])
        if not is_own and _index_crc(index) != json.loads(header[b"run"])["index_crc"]:
            raise StateDamagedError(f"opening state run {where}: its index is damaged; {_REMEDY}")
        crc = np.frombuffer(header[b"crc"], dtype=np.uint32).reshape(len(_ENTRY), -1)
        return cls(where, facts, entries, index, None if is_own else crc)

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
            if self._unchecked:
                self._check(np.minimum(rows, last))
            here = self.entries.hi.take(rows, mode="clip")
            which, step = (here == hi[:, np.newaxis]).nonzero()
            row = first[which] + step
            is_same = (row <= last) & (self.entries.lo.take(row, mode="clip") == sought.lo[at[which]])
            found_at.append(at[which[is_same]])
            found_rows.append(row[is_same])
            (still,) = ((here[:, -1] <= hi) & (rows[:, -1] < last)).nonzero()
            at, first = at[still], first[still] + _LOOKED_AT_ONCE
        return np.concatenate(found_at), np.concatenate(found_rows)

    def checked_entries(self) -> Entries:
        """Return all entries, every block checked."""
        if self._unchecked:
            self._check(np.arange(0, len(self.entries), BLOCK_ROWS, dtype=np.int64))
        return self.entries

    def _check(self, rows: Rows) -> None:
        """Compare the checksum of every block that `rows` touch for the first time. Raise StateDamagedError for a damaged one."""
        is_touched = np.zeros(len(self._is_checked), dtype=bool)
        is_touched[rows // BLOCK_ROWS] = True
        for block in np.flatnonzero(is_touched & ~self._is_checked):
            piece = slice(int(block) * BLOCK_ROWS, (int(block) + 1) * BLOCK_ROWS)
            if not np.array_equal([zlib.crc32(column[piece].data) for column in self.entries.columns()], self._crc[:, block]):
                raise StateDamagedError(f"reading state run {self._where}: rows {piece.start} to {piece.stop} are damaged; {_REMEDY}")
            self._is_checked[block] = True
        self._unchecked = int(np.count_nonzero(~self._is_checked))
