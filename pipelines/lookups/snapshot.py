"""A snapshot of a look-up table: its rows at one moment, sorted by the hash of their key, with typed columns.

In: the rows of a table. Out: for the keys of records, a row of each, or none. A null never matches. With a range the rows of a key do not
overlap, so at most one matches. Every snapshot of a table is refused that could answer in two ways.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.key_store.index import Index, Rows, Sought, Words
from pipelines.key_store.keys import hash_keys
from pipelines.key_store.payload import NO_ROW
from pipelines.key_store.segment_file import Blocks
from pipelines.key_store.segments import Entries, Run, RunFacts
from pipelines.lookups.columns import Numbers, order_numbers, read_as
from pipelines.lookups.spec import TableSpec
from pipelines.types.engine import Engine
from pipelines.types.vectors import Mask, one_chunk, to_mask

HI, LO = "_tf_hi", "_tf_lo"
_SHOWN = 5
"""Keys that a message names."""
_ENDS = 2**64
_CACHED_NUMBERS = 32 * 1024
"""So many numbers stay in the processor's cache while they are searched."""
_BLOCK = 16
"""Numbers whose first one is looked at before them: of five million, these first ones take 2.5 MB. A power of two."""


def snapshot_of(spec: TableSpec, rows: pa.Table, engine: Engine) -> pa.RecordBatch:
    """Return the snapshot of a table's rows: the hash of the key, the key, and the columns by name, sorted by the hash and the range.

    Rows with a null in the key can match nothing and are left out. Raise ValueError, with the keys, for a key that is there twice, for
    ranges that overlap or end before they begin, and with the column for a value that does not fit its type.
    """
    if missing := [name for name in spec.names if name not in rows.column_names]:
        raise ValueError(f"there is no column {missing[0]!r}; there are {', '.join(rows.column_names[:50]) or 'none'}")
    key = {f"key.{number}": read_as(rows.column(column.name), column.name, column.arrow) for number, column in enumerate(spec.key)}
    hashes = _hashed(engine, list(key.values()), rows.num_rows)
    if spec.between is not None:
        for name, column in (("from", spec.between.begin), ("to", spec.between.end)):
            key[name] = read_as(rows.column(column), column, spec.key_schema.field(name).type)
    values = {f"value.{column.name}": read_as(rows.column(column.name), column.name, column.arrow) for column in spec.columns}
    hi, lo, is_null = hashes
    columns = {HI: pa.array(hi), LO: pa.array(lo), **key, **values}
    begins = order_numbers(key["from"], -_ENDS) if spec.between else np.zeros(len(hi), dtype=np.int64)
    order = np.lexsort((begins, lo, hi))
    order = order[~is_null[order]]
    found = pa.RecordBatch.from_arrays([column.take(pa.array(order)) for column in columns.values()], names=list(columns))
    _check(spec, found)
    return found


def _hashed(engine: Engine, key: Sequence[pa.Array], rows: int) -> tuple[Words, Words, Mask]:
    """Return the hashes of keys and which of them hold a null; those of a key without columns are alike."""
    if not key:
        return np.zeros(rows, dtype=np.uint64), np.zeros(rows, dtype=np.uint64), np.zeros(rows, dtype=bool)
    found = hash_keys(engine, key)
    return found.hi, found.lo, found.is_null


def _check(spec: TableSpec, found: pa.RecordBatch) -> None:
    """Raise ValueError unless at most one row matches a record."""
    hi, lo = (found.column(name).to_numpy() for name in (HI, LO))
    follows = np.flatnonzero((hi[1:] == hi[:-1]) & (lo[1:] == lo[:-1])) + 1
    if spec.between is None:
        if len(follows):
            raise ValueError(f"{_counted(len(follows), 'row repeats', 'rows repeat')} a key: {_keys(found, spec, follows)}")
        return
    begins, ends = _ends(found)
    includes = spec.between.includes_end
    turned = np.flatnonzero(begins > ends if includes else begins >= ends)
    if len(turned):
        raise ValueError(f"{_counted(len(turned), 'range ends', 'ranges end')} before beginning: {_keys(found, spec, turned)}")
    over = follows[begins[follows] <= ends[follows - 1]] if includes else follows[begins[follows] < ends[follows - 1]]
    if len(over):
        touch = "" if not includes else "; both ends belong to a range, unless `includes_end` is false"
        raise ValueError(f"{_counted(len(over), 'range overlaps', 'ranges overlap')} the one before: {_keys(found, spec, over)}{touch}")


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _keys(found: pa.RecordBatch, spec: TableSpec, rows: npt.NDArray[np.int64]) -> str:
    shown = found.select(spec.key_schema.names).take(pa.array(rows[:_SHOWN])).to_pylist()
    listed = ", ".join("(" + ", ".join(repr(value)[:80] if value is not None else "open" for value in row.values()) + ")" for row in shown)
    return listed + (", ..." if len(rows) > _SHOWN else "")


def _ends(found: pa.RecordBatch) -> tuple[Numbers, Numbers]:
    return order_numbers(found.column("from"), -_ENDS), order_numbers(found.column("to"), _ENDS)


class Snapshot:
    """A snapshot to look up in. Read only; for many threads."""

    def __init__(self, spec: TableSpec, rows: pa.RecordBatch) -> None:
        self.spec, self.rows = spec, rows
        self._keys = _Keys.of(rows)
        self._ranges = _Ranges.of(rows, self._keys, spec.between.includes_end) if spec.between else None

    def find(self, engine: Engine, key: Sequence[pa.ChunkedArray], at: pa.ChunkedArray | None) -> Rows:
        """Return the row of each record, NO_ROW for none. `key`: fields in the order of the spec's; `at`: the field of the range."""
        count = len(at) if at is not None else len(key[0])
        keys = self._keys.find(*_hashed(engine, list(map(one_chunk, key)), count)) if key else np.zeros(count, dtype=np.int64)
        if self._ranges is None or at is None:
            return keys
        return self._ranges.find(keys, one_chunk(at).cast(self.spec.key_schema.field("from").type))

    def take(self, column: str, rows: Rows) -> pa.Array:
        """Return the values of a column in these rows, null for NO_ROW."""
        is_none = rows == NO_ROW
        return self.rows.column(f"value.{column}").take(pa.array(rows, mask=is_none) if is_none.any() else pa.array(rows))


@dataclass(frozen=True)
class _Keys:
    """The distinct keys of a snapshot, in their order, and the first row of each."""

    run: Run | None
    first_rows: Rows

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> "_Keys":
        hi, lo = (rows.column(name).to_numpy() for name in (HI, LO))
        if not len(hi):
            return cls(None, np.zeros(0, dtype=np.int64))
        is_first = np.append(True, (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1]))
        first_rows = np.flatnonzero(is_first)
        if len(first_rows) < len(hi):
            hi, lo = hi[first_rows], lo[first_rows]
        index, none = Index.of(hi, lo), np.zeros(0, dtype=np.int64)
        entries = Entries(hi, lo, none, none.view(np.uint64), none.astype(np.uint32))
        return cls(Run("", RunFacts("", len(hi), 0, ""), entries, [index.filter, index.first_rows], [Blocks("", (), None)] * 2), first_rows)

    def find(self, hi: Words, lo: Words, is_null: Mask) -> Rows:
        """Return the number of each key, NO_ROW for none."""
        found = np.full(len(hi), NO_ROW, dtype=np.int64)
        if self.run is not None:
            at, key = self.run.find(Sought.of(hi, lo))
            found[at] = key
        found[is_null] = NO_ROW
        return found


@dataclass(frozen=True)
class _Ascending:
    """Ascending numbers to search. `first_of_blocks`: the first of each _BLOCK of them; `padded`: all, then a block of the largest."""

    first_of_blocks: Numbers
    padded: Numbers

    @classmethod
    def of(cls, numbers: Numbers) -> "_Ascending":
        return cls(numbers[::_BLOCK].copy(), np.append(numbers, np.full(_BLOCK, np.iinfo(numbers.dtype).max, numbers.dtype)))

    def __len__(self) -> int:
        return len(self.padded) - _BLOCK

    def last_up_to(self, numbers: Numbers) -> Rows:
        """Return the place of the last one that is not more than each number, -1 for none."""
        if len(self) < _CACHED_NUMBERS:
            return np.searchsorted(self.padded[: len(self)], numbers, side="right") - 1
        # In order, so that neighbors look at the same lines of memory: a third of the time with five million.
        order = np.argsort(numbers)
        ordered = numbers[order]
        at = np.maximum(np.searchsorted(self.first_of_blocks, ordered, side="right") - 1, 0) * _BLOCK
        # Steps of all at once, so that cache misses overlap.
        half = _BLOCK // 2
        while half:
            at += (self.padded[at + half] <= ordered) * half
            half //= 2
        found = np.empty(len(numbers), dtype=np.int64)
        # The padding equals a number that is the largest of its type.
        found[order] = np.where(ordered < self.padded[0], -1, np.minimum(at, len(self) - 1))
        return found


@dataclass(frozen=True)
class _Ranges:
    """The ranges of all keys. `beginnings`: the distinct ones; `ends`: by row, inclusive, the largest number for an open one.

    `places`: the ranges as one ascending column, by the number of the key, then by that of the beginning among all; None with one key,
    whose ranges have each a beginning of their own.
    """

    beginnings: _Ascending
    ends: Numbers
    places: _Ascending | None
    key_of: Rows

    @classmethod
    def of(cls, rows: pa.RecordBatch, keys: _Keys, includes_end: bool) -> "_Ranges":
        begins, ends = _ends(rows)
        is_open = to_mask(pc.is_null(rows.column("to")))
        last = np.where(is_open, np.iinfo(ends.dtype).max, ends if includes_end else ends - ends.dtype.type(1))
        if len(keys.first_rows) == 1:
            return cls(_Ascending.of(begins), last, None, np.zeros(0, dtype=np.int64))
        ordered = np.sort(begins)
        beginnings: Numbers = ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered
        key_of = np.searchsorted(keys.first_rows, np.arange(len(begins)), side="right") - 1
        places = key_of * len(beginnings) + np.searchsorted(beginnings, begins)
        return cls(_Ascending.of(beginnings), last, _Ascending.of(places), key_of)

    def find(self, keys: Rows, at: pa.Array) -> Rows:
        """Return the row of each record by the number of its key."""
        if not len(self.ends):
            return np.full(len(keys), NO_ROW, dtype=np.int64)
        numbers = order_numbers(at)
        row = begun = self.beginnings.last_up_to(numbers)
        if self.places is not None:
            row = self.places.last_up_to(keys * len(self.beginnings) + begun)
        is_found = (begun >= 0) & (row >= 0) & (keys != NO_ROW) & (numbers <= self.ends[row])
        if self.places is not None:
            is_found &= self.key_of[row] == keys
        if at.null_count:
            is_found &= to_mask(pc.is_valid(at))
        return np.where(is_found, row, NO_ROW)
