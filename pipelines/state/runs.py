"""One run: an immutable Arrow IPC file of entries, sorted by hash, with checksums and an index. Written once, mapped into memory to read.

Columns: SCHEMA; a hash at most once. The batch's metadata holds the CRC-32 of every BLOCK_ROWS rows of every column, and the index. The
digest that the ledger lists covers this metadata: it is checked when a run is opened, a block when it is first touched. 36 bytes per
entry, and 4 of index.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.errors import StateDamagedError
from pipelines.state.index import Index, Rows, Words
from pipelines.state.place import Header, Place

SCHEMA = pa.schema([("hi", pa.uint64()), ("lo", pa.uint64()), ("time", pa.int64()), ("sequence", pa.uint64()), ("ordinal", pa.uint32())])
"""The two halves of the key's hash, and the accepted record: its time (microseconds since 1970, UTC) and its raw position."""
BLOCK_ROWS = 64 * 1024
_FEW = 64
"""So many binary searches take less than the calls for going through the rows of all of them at once."""
_FORMAT = 2
_PARTS = (b"run", b"crc", b"filter", b"first_rows")
_UNREADABLE = (OSError, pa.ArrowException, IndexError, ValueError)
"""What Arrow raises for a file that is no longer one of its own."""
_REMEDY = "nothing was written; stop the pipeline and rebuild the store from the raw stream with `tallyflow rebuild-state`"


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

    @classmethod
    def empty(cls, rows: int) -> "Entries":
        """Room for so many entries."""
        return cls(*(np.empty(rows, dtype=field.type.to_pandas_dtype()) for field in SCHEMA))

    def take(self, rows: npt.NDArray[Any] | slice) -> "Entries":
        """The entries at `rows` (positions, a mask, or a slice, which copies nothing)."""
        return Entries(*(column[rows] for column in self.columns()))


def join(parts: list[Entries]) -> Entries:
    """All entries of `parts`, one after the other; at least one part."""
    return Entries(*(np.concatenate(columns) for columns in zip(*(part.columns() for part in parts), strict=True)))


def by_hash(hi: Words, lo: Words) -> Rows:
    """An order by (`hi`, `lo`) that keeps the order of equal hashes.

    The place is put into the low bits of `hi`, which uniform hashes do not miss, and plain numbers are sorted: 10 ns instead of the 70 ns
    of a stable sort of places (62,500 hashes).
    """
    places = np.uint64(len(hi).bit_length())
    packed = np.sort((hi >> places << places) | np.arange(len(hi), dtype=np.uint64))
    order = (packed & ((np.uint64(1) << places) - np.uint64(1))).view(np.int64)
    ordered = hi[order]
    return _told_apart(order if (ordered[1:] >= ordered[:-1]).all() else np.argsort(hi, kind="stable"), hi, lo)


def by_hash_of_sorted(hi: Words, lo: Words) -> Rows:
    """`by_hash` for sorted parts that lie behind each other, which a stable sort only has to merge."""
    return _told_apart(np.argsort(hi, kind="stable"), hi, lo)


def _told_apart(order: Rows, hi: Words, lo: Words) -> Rows:
    """Different hashes of one `hi`, which are as good as never there, sorted by `lo` as well."""
    is_tie = hi[order[1:]] == hi[order[:-1]]
    if is_tie.any() and (lo[order[1:]] != lo[order[:-1]])[is_tie].any():
        return np.lexsort((lo, hi))
    return order


class RunFacts(NamedTuple):
    """What a `done` lists of a live run. `newest` is the latest time in it: when that has expired, all of it has."""

    name: str
    rows: int
    newest: int
    digest: str


def write_run(place: Place, name: str, entries: Entries) -> RunFacts:
    """Writes the entries (sorted, not empty) as a new file; durable on return. Raises FileExistsError when the name is taken."""
    return Run.write(place, name, entries).facts


def _header(entries: Entries, index: Index) -> Header:
    facts = {"format": _FORMAT, "rows": len(entries), "block_rows": BLOCK_ROWS}
    checksums = np.array([zlib.crc32(block.data) for column in entries.columns() for block in _blocks(column)], dtype=np.uint32)
    contents = (json.dumps(facts, sort_keys=True).encode(), checksums.tobytes(), index.filter.tobytes(), index.first_rows.tobytes())
    return dict(zip(_PARTS, contents, strict=True))


def _blocks(column: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    return (column[start : start + BLOCK_ROWS] for start in range(0, len(column), BLOCK_ROWS))


def _digest(header: Header) -> str:
    found = blake2b(digest_size=16)
    for name in _PARTS:
        found.update(header[name])
    return found.hexdigest()


class Run:
    """An open run. Not safe for several threads."""

    def __init__(self, where: str, facts: RunFacts, entries: Entries, index: Index, crc: npt.NDArray[np.uint32] | None) -> None:
        """`crc`: the checksums of blocks by column, to be compared at first touch; None where there is nothing to be doubted."""
        self.facts, self.entries = facts, entries
        self._where, self._index = where, index
        self._crc = crc if crc is not None else np.zeros((len(SCHEMA), 0), dtype=np.uint32)
        self._unchecked = self._crc.shape[1]
        self._is_checked = np.zeros(self._unchecked, dtype=bool)

    @classmethod
    def write(cls, place: Place, name: str, entries: Entries) -> "Run":
        """Writes the entries (sorted, not empty) as a new file, durable on return, and reads them from memory."""
        index = Index.of(entries.hi)
        header = _header(entries, index)
        place.write(name, pa.record_batch([pa.array(column) for column in entries.columns()], schema=SCHEMA), header)
        facts = RunFacts(name, len(entries), int(entries.time.max()), _digest(header))
        return cls(f"{place.path}/{name}", facts, entries, index, None)

    @classmethod
    def open(cls, place: Place, facts: RunFacts, is_own: bool = False) -> "Run":
        """Maps the file. Raises StateDamagedError when it is missing, or is not the one that was listed.

        `is_own`: this process has just written it, so its blocks need not be read once more to be believed.
        """
        where = f"{place.path}/{facts.name}"
        try:
            batch, header = place.read(facts.name)
            # The batch's own header has no checksum: a flipped bit there may invent nulls or hide the batch.
            is_ours = header.keys() >= {*_PARTS} and _digest(header) == facts.digest
            entries = Entries(*(column.to_numpy() for column in batch.columns)) if batch.schema.equals(SCHEMA) else None
        except _UNREADABLE as error:
            raise StateDamagedError(f"opening state run {where}: {error}; {_REMEDY}") from error
        if not is_ours or entries is None or len(entries) != facts.rows:
            raise StateDamagedError(f"opening state run {where}: it is not the file that the ledger lists; {_REMEDY}")
        index = Index(np.frombuffer(header[b"filter"], dtype=np.uint8), np.frombuffer(header[b"first_rows"], dtype=np.uint32))
        crc = np.frombuffer(header[b"crc"], dtype=np.uint32).reshape(len(SCHEMA), -1)
        return cls(where, facts, entries, index, None if is_own else crc)

    def find(self, hi: Words, lo: Words) -> tuple[Rows, Rows]:
        """(positions in the arguments, rows of this run) of the hashes that are here. `hi` is best sorted: it reads memory in order."""
        at = self._index.may_hold(hi)
        wanted = hi[at]
        row = self._rows_to_look_at(wanted)
        last = len(self.entries) - 1
        found_at, found_rows = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        # Row by row through the few that are possible. Different keys with the same `hi` lie side by side.
        while len(at):
            if self._unchecked:
                self._check(np.minimum(row, last))
            here = self.entries.hi.take(row, mode="clip")
            is_open = here < wanted
            (equal,) = (here == wanted).nonzero()
            if len(equal):
                is_same = self.entries.lo.take(row[equal], mode="clip") == lo[at[equal]]
                is_open[equal] = ~is_same
                found_at.append(at[equal[is_same]])
                found_rows.append(row[equal[is_same]])
            is_open &= row < last
            (still,) = is_open.nonzero()
            at, wanted, row = at[still], wanted[still], row[still] + 1
        return np.concatenate(found_at), np.concatenate(found_rows)

    def _rows_to_look_at(self, hi: Words) -> Rows:
        """Where each hash is searched from: the first row of its slot, or, of few hashes, the row itself: unchecked blocks may mislead."""
        if self._unchecked or len(hi) > _FEW:
            return self._index.first_row(hi)
        return np.searchsorted(self.entries.hi, hi)

    def checked_entries(self) -> Entries:
        """All entries, every block checked."""
        if self._unchecked:
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
