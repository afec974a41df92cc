"""Every entry of each key, in the order of the records' own times: both stores of a join by event time.

A segment is in the order of (time, position) and indexed by a permutation by hash, as that of waiting records (`waiting`). The times of
two segments may overlap. Nothing is marked: an entry stays until its time has expired, or a merge leaves it out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from pipelines.key_store.index import Rows, Sought, Words
from pipelines.key_store.segments import Entries
from pipelines.key_store.storage import Storage
from pipelines.key_store.store import KeyedStore, taken
from pipelines.key_store.waiting import WaitingRun
from pipelines.types.vectors import Mask

IsNeedless = Callable[[Entries, int], Mask]
"""Returns which entries are needed no more, of some that have not expired at a time, in microseconds."""
Stored = list[tuple[int, Rows, Entries]]
"""Rows of segments, ascending: (number of the segment, its rows, all of its entries)."""


class TimedStore(KeyedStore):
    """One bucket's entries in time order. Not thread-safe."""

    kind = WaitingRun

    def __init__(self, storage: Storage, fields: pa.Schema, is_needless: IsNeedless | None = None) -> None:
        """Open the store of a directory. `is_needless`: the entries that a merge leaves out beside the expired ones, None for none."""
        super().__init__(storage, fields)
        self._is_needless = is_needless

    def timed_runs(self) -> Iterator[tuple[int, WaitingRun]]:
        """Yield the live segments with their numbers, oldest first."""
        return ((number, run) for number, run in enumerate(self.opened()) if isinstance(run, WaitingRun))

    def of_times(self, spans: Sequence[tuple[int, int]]) -> Stored:
        """Return the entries whose time is in one of `spans`, each (after, to] in microseconds.

        Raise StateDamagedError if a touched block is damaged.
        """
        found: Stored = []
        for number, run in self.timed_runs():
            slices = [run.between(after, to) for after, to in spans if run.facts.newest > after]
            rows, end = [], 0
            for one in sorted(slices, key=lambda one: one.start):
                rows.append(np.arange(max(one.start, end), max(one.stop, end), dtype=np.int64))
                end = max(one.stop, end)
            if any(map(len, rows)):
                found.append((number, np.concatenate(rows), run.entries))
        return found

    def of_keys(self, hi: Words, lo: Words, after: int) -> Stored:
        """Return the entries of these hashes, distinct and sorted, whose time is later than `after`.

        Raise StateDamagedError if a touched block is damaged.
        """
        runs = [(number, run) for number, run in self.timed_runs() if run.facts.newest > after]
        if not runs or not len(hi):
            return []
        sought = Sought.of(hi, lo)
        self.bucket_filter.read([run for _, run in runs], len(hi), sum(run.facts.rows for _, run in runs))
        possible = self.bucket_filter.may_hold(sought)
        found: Stored = []
        for number, run in runs:
            asked = sought.take(possible) if run.facts in self.bucket_filter else sought
            _, rows = run.find(asked)
            rows = np.sort(rows[run.entries.time[rows] > after])
            if len(rows):
                found.append((number, rows, run.entries))
        return found

    def is_live(self, entries: Entries, expired: int) -> Mask:
        """Return which entries of this store have not expired and are still needed."""
        is_open: Mask = entries.time > expired
        if self._is_needless is not None:
            (rows,) = is_open.nonzero()
            is_open[rows] &= ~self._is_needless(entries.take(rows), expired)
        return is_open

    def merged(self, parts: Sequence[Entries], expired: int, has_older: bool) -> Entries:
        """Merge the parts by time, without the expired entries."""
        together = in_time_order([part.take(slice(int(np.searchsorted(part.time, expired, side="right")), None)) for part in parts])
        if self._is_needless is None:
            return together
        return together.take(~self._is_needless(together, expired))


def in_time_order(parts: Sequence[Entries]) -> Entries:
    """Return the entries of several stores, at least one, as one store keeps them."""
    together = Entries(*(np.concatenate(columns) for columns in zip(*(part.columns() for part in parts), strict=True)))
    order, payloads = by_time(together), [part.payload for part in parts if part.payload is not None]
    return replace(together.take(order), payload=taken(payloads, order) if payloads else None)


def by_time(entries: Entries) -> Rows:
    """Return the order of (time, position)."""
    return np.lexsort((entries.ordinal, entries.sequence, entries.time))
