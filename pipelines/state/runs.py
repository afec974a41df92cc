"""One run: an immutable Arrow IPC file of entries, sorted by hash, with checksums and an index. Written once, mapped into memory to read.

Columns: SCHEMA; a hash at most once. The schema's metadata holds the CRC-32 of every BLOCK_ROWS rows of every column, and an index: for
each prefix of `hi` the first row with that prefix or a higher one. The digest that the ledger lists covers this metadata: it is checked
when a run is opened, a block when it is first touched. 36 bytes per entry, half a byte of index.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.errors import StateDamagedError
from pipelines.state.place import Place

SCHEMA = pa.schema([("hi", pa.uint64()), ("lo", pa.uint64()), ("time", pa.int64()), ("sequence", pa.uint64()), ("ordinal", pa.uint32())])
"""The two halves of the key's hash, and the accepted record: its time (microseconds since 1970, UTC) and its raw position."""
BLOCK_ROWS = 64 * 1024
_ROWS_PER_PREFIX = 8
_FORMAT = 1
_UNREADABLE = (OSError, pa.ArrowException, IndexError, UnicodeDecodeError)
"""What Arrow raises for a file that is no longer one of its own."""
_REMEDY = "nothing was written; stop the pipeline and rebuild the store from the raw stream with `tallyflow rebuild-state`"

Rows = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Entries:
    """Entries as columns, those of SCHEMA. Sorted by (`hi`, `lo`) wherever they enter or leave a run."""

    hi: Words
    lo: Words
    time: npt.NDArray[np.int64]
    sequence: Words
    ordinal: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.hi)

    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        return self.hi, self.lo, self.time, self.sequence, self.ordinal

    def take(self, rows: npt.NDArray[Any]) -> "Entries":
        """The entries at `rows` (positions, or a mask)."""
        return Entries(*(column[rows] for column in self.columns()))


def join(parts: list[Entries]) -> Entries:
    """All entries of `parts`, one after the other; at least one part."""
    return Entries(*(np.concatenate(columns) for columns in zip(*(part.columns() for part in parts), strict=True)))


def by_hash(hi: Words, lo: Words) -> Rows:
    """An order by (`hi`, `lo`) that keeps the order of equal hashes. Different hashes of one `hi` are as good as never there.

    Sorted parts behind each other are what this sort is made for: it merges them (measured: 11 ns per entry of three parts).
    """
    order: Rows = np.argsort(hi, kind="stable")
    is_tie = hi[order[1:]] == hi[order[:-1]]
    if is_tie.any() and (lo[order[1:]] != lo[order[:-1]])[is_tie].any():
        order = np.lexsort((lo, hi))
    return order


@dataclass(frozen=True)
class RunFacts:
    """What a `done` lists of a live run. `newest` is the latest time in it: when that has expired, all of it has."""

    name: str
    rows: int
    newest: int
    digest: str


def write_run(place: Place, name: str, entries: Entries) -> RunFacts:
    """Writes the entries (sorted, not empty) as a new file; durable on return. Raises FileExistsError when the name is taken."""
    header = _header(entries)
    table = pa.Table.from_arrays([pa.array(column) for column in entries.columns()], schema=SCHEMA.with_metadata(header))
    place.write(name, table)
    return RunFacts(name, len(entries), int(entries.time.max()), _digest(header))


def _header(entries: Entries) -> dict[bytes, bytes]:
    prefix_bits = max(0, (len(entries) // _ROWS_PER_PREFIX).bit_length() - 1)
    boundaries = np.arange(2**prefix_bits, dtype=np.uint64)
    if prefix_bits:
        boundaries <<= np.uint64(64 - prefix_bits)
    index = np.append(np.searchsorted(entries.hi, boundaries), len(entries)).astype(np.uint32)
    blocks = [zlib.crc32(block.data) for column in entries.columns() for block in _blocks(column)]
    facts = {"format": _FORMAT, "rows": len(entries), "prefix_bits": prefix_bits, "block_rows": BLOCK_ROWS}
    checksums = np.array(blocks, dtype=np.uint32)
    return {b"run": json.dumps(facts, sort_keys=True).encode(), b"crc": checksums.tobytes(), b"index": index.tobytes()}


def _blocks(column: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    return (column[start : start + BLOCK_ROWS] for start in range(0, len(column), BLOCK_ROWS))


def _digest(header: dict[bytes, bytes]) -> str:
    found = blake2b(digest_size=16)
    for name in (b"run", b"crc", b"index"):
        found.update(header[name])
    return found.hexdigest()


class Run:
    """An open run. Not safe for several threads."""

    def __init__(self, place: Place, facts: RunFacts) -> None:
        """Maps the file. Raises StateDamagedError when it is missing, or is not the one that was listed."""
        self.facts = facts
        self._where = f"{place.path}/{facts.name}"
        try:
            table = place.read(facts.name)
        except _UNREADABLE as error:
            raise StateDamagedError(f"opening state run {self._where}: {error}; {_REMEDY}") from error
        header = dict(table.schema.metadata or {})
        is_ours = {b"run", b"crc", b"index"} <= header.keys() and _digest(header) == facts.digest
        if not is_ours or table.num_rows != facts.rows or not table.schema.equals(SCHEMA):
            raise StateDamagedError(f"opening state run {self._where}: it is not the file that the ledger lists; {_REMEDY}")
        try:
            self.entries = Entries(*(table.column(name).chunk(0).to_numpy() for name in SCHEMA.names))
        except _UNREADABLE as error:
            # The batch's own header has no checksum: a flipped bit there may invent nulls or hide the batch.
            raise StateDamagedError(f"opening state run {self._where}: {error}; {_REMEDY}") from error
        self._prefix_bits = int(json.loads(header[b"run"])["prefix_bits"])
        self._index = np.frombuffer(header[b"index"], dtype=np.uint32)
        self._crc = np.frombuffer(header[b"crc"], dtype=np.uint32).reshape(len(SCHEMA), -1)
        self._unchecked = self._crc.shape[1]
        self._is_checked = np.zeros(self._unchecked, dtype=bool)

    def find(self, hi: Words, lo: Words) -> tuple[Rows, Rows]:
        """(positions in the arguments, rows of this run) of the hashes that are here. `hi` is best sorted: it reads memory in order."""
        if not self._prefix_bits:
            begin, end = np.zeros(len(hi), dtype=np.int64), np.full(len(hi), len(self.entries), dtype=np.int64)
        else:
            prefix = (hi >> np.uint64(64 - self._prefix_bits)).astype(np.int64)
            begin, end = self._index[prefix].astype(np.int64), self._index[prefix + 1].astype(np.int64)
        wanted = np.flatnonzero(begin < end)
        row = self._first_not_below(begin[wanted], end[wanted], hi[wanted])
        return self._same(wanted, row, hi[wanted], lo[wanted])

    def _first_not_below(self, begin: Rows, end: Rows, hi: Words) -> Rows:
        """Binary search of all at once: the first row in [begin, end) whose `hi` is not below the wanted one, or `end`."""
        if self._unchecked:
            self._check(begin)
            self._check(end - 1)
        for _ in range(int(np.max(end - begin, initial=0)).bit_length()):
            middle = (begin + end) >> 1
            is_open = begin < end
            is_below = (self.entries.hi[np.minimum(middle, len(self.entries) - 1)] < hi) & is_open
            begin = np.where(is_below, middle + 1, begin)
            end = np.where(is_open & ~is_below, middle, end)
        return begin

    def _same(self, wanted: Rows, row: Rows, hi: Words, lo: Words) -> tuple[Rows, Rows]:
        """Which of them are the wanted hash. Different keys with the same `hi` lie side by side and are walked."""
        found_at: list[Rows] = []
        found_rows: list[Rows] = []
        while len(row):
            is_inside = row < len(self.entries)
            is_inside[is_inside] = self.entries.hi[row[is_inside]] == hi[is_inside]
            wanted, row, hi, lo = wanted[is_inside], row[is_inside], hi[is_inside], lo[is_inside]
            if self._unchecked:
                self._check(row)
            is_same = self.entries.lo[row] == lo
            found_at.append(wanted[is_same])
            found_rows.append(row[is_same])
            wanted, row, hi, lo = wanted[~is_same], row[~is_same] + 1, hi[~is_same], lo[~is_same]
        nothing = np.zeros(0, dtype=np.int64)
        return np.concatenate([nothing, *found_at]), np.concatenate([nothing, *found_rows])

    def checked_entries(self) -> Entries:
        """All entries, every block checked."""
        self._check(np.arange(0, len(self.entries), BLOCK_ROWS, dtype=np.int64))
        return self.entries

    def _check(self, rows: Rows) -> None:
        """Compares the checksum of every block that `rows` touch for the first time. Raises StateDamagedError for a damaged one."""
        is_touched = np.zeros(len(self._is_checked), dtype=bool)
        is_touched[rows // BLOCK_ROWS] = True
        for block in np.flatnonzero(is_touched & ~self._is_checked):
            piece = slice(int(block) * BLOCK_ROWS, (int(block) + 1) * BLOCK_ROWS)
            if not np.array_equal([zlib.crc32(column[piece].data) for column in self.entries.columns()], self._crc[:, block]):
                raise StateDamagedError(f"reading state run {self._where}: rows {piece.start} to {piece.stop} are damaged; {_REMEDY}")
            self._is_checked[block] = True
        self._unchecked = int(np.count_nonzero(~self._is_checked))
