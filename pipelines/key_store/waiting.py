"""The left records of a join that had to wait, in position order, which is that of their arrivals.

A segment is never changed, and a record that has met its right one stays until its window has ended: a stored left record still waits if
its position is after that of the newest right record of its key. So what has expired is the front of the oldest segments, and a merge
appends segments. The index is over a permutation by hash, `order`: 4 bytes per row more.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from pipelines.key_store.index import Index, Rows, Sought, Words
from pipelines.key_store.segments import Entries, Run, by_hash
from pipelines.key_store.storage import Storage
from pipelines.key_store.store import KeyedStore
from pipelines.types.vectors import Mask

IsConsumed = Callable[[Entries], Mask]
"""Returns which entries have met a right record."""


class WaitingRun(Run):
    """An open segment in position order; a key may have many entries. Not thread-safe."""

    index_kinds = Run.index_kinds | {"order": np.uint32}

    @staticmethod
    def indexed(entries: Entries) -> list[np.ndarray]:
        order = by_hash(entries.hi, entries.lo)
        index = Index.of(entries.hi[order], entries.lo[order])
        return [index.filter, index.first_rows, order.astype(np.uint32)]

    @staticmethod
    def index_rows(rows: int) -> list[int]:
        return [*Run.index_rows(rows), rows]

    @staticmethod
    def hashes_of(entries: Entries) -> tuple[Words, Words]:
        order = by_hash(entries.hi, entries.lo)
        return entries.hi[order], entries.lo[order]

    @property
    def last_sequence(self) -> int:
        """The sequence of the last raw frame that the segment covers."""
        return int(self.facts.name.split(".", 1)[0].split("-")[1])

    def find(self, sought: Sought) -> tuple[Rows, Rows]:
        """Find all entries of the hashes of `sought`; return (places in `sought`, rows of this segment)."""
        at = self._index.may_hold(sought)
        start, end = self._index.row_range(sought, at, len(self.entries))
        counts = end - start
        # All rows of the slots: a slot has four keys on average, however many rows a key has.
        at, places = np.repeat(at, counts), np.arange(counts.sum()) + np.repeat(start - (np.cumsum(counts) - counts), counts)
        rows = self._own_index[0].take(places).astype(np.int64)
        self._blocks.check(rows)
        is_same = (self.entries.hi.take(rows) == sought.hi.take(at)) & (self.entries.lo.take(rows) == sought.lo.take(at))
        return at[is_same], rows[is_same]

    def between(self, after: int, to: int) -> slice:
        """Return the rows whose time is in (`after`, `to`]. Raise StateDamagedError if a touched block is damaged."""
        times = self.entries.time
        start, end = np.searchsorted(times, (after, to), side="right").tolist()
        edges = np.array([row for row in (start - 1, start, end - 1, end) if 0 <= row < len(times)], dtype=np.int64)
        self._blocks.check(np.append(edges, np.arange(start, end, dtype=np.int64)))
        # The search reads a few times before their blocks are checked.
        if not all((times[row] > after) == (row >= start) and (times[row] > to) == (row >= end) for row in edges.tolist()):
            self._blocks.check_all()
        return slice(start, end)


class WaitingStore(KeyedStore):
    """One bucket's waiting left records. Not thread-safe."""

    kind = WaitingRun

    def __init__(self, storage: Storage, fields: pa.Schema, is_consumed: IsConsumed) -> None:
        """Open the store of a directory. `is_consumed`: which entries a merge may leave out, as of the listed segments."""
        super().__init__(storage, fields)
        self.is_consumed = is_consumed

    def waiting_runs(self) -> Iterator[WaitingRun]:
        """Yield the live segments, oldest first."""
        return (run for run in self.opened() if isinstance(run, WaitingRun))

    def is_live(self, entries: Entries, expired: int) -> Mask:
        """Return which entries of this store have not expired and still wait."""
        is_open: Mask = entries.time > expired
        return is_open & ~self.is_consumed(entries)

    def merged(self, parts: Sequence[Entries], expired: int, has_older: bool) -> Entries:
        """Append the parts, without the expired and the consumed entries."""
        rests = [part.take(slice(int(np.searchsorted(part.time, expired, side="right")), None)) for part in parts]
        together = Entries(*(np.concatenate(columns) for columns in zip(*(rest.columns() for rest in rests), strict=True)))
        payloads = [rest.payload for rest in rests if rest.payload is not None]
        is_consumed = self.is_consumed(together)
        kept = [payload.filter(pa.array(~own)) for payload, own in zip(payloads, _split(is_consumed, payloads), strict=True)]
        return replace(together.take(~is_consumed), payload=_appended(kept))


def in_position_order(parts: Sequence[Entries]) -> Entries:
    """Return the entries of several stores, at least one, as one store keeps them."""
    together = Entries(*(np.concatenate(columns) for columns in zip(*(part.columns() for part in parts), strict=True)))
    payload = _appended([part.payload for part in parts if part.payload is not None])
    return replace(together, payload=payload).take(np.lexsort((together.ordinal, together.sequence)))


def _split(mask: Mask, payloads: Sequence[pa.RecordBatch]) -> list[Mask]:
    return np.split(mask, np.cumsum([payload.num_rows for payload in payloads])[:-1])


def _appended(payloads: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return all rows as one batch, put together a column at a time."""
    columns = [pa.concat_arrays([payload.column(number) for payload in payloads]) for number in range(payloads[0].num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=payloads[0].schema)
