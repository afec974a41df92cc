"""The two stores of a bucket's join: the newest right record of each key, and the left records that had to wait."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipelines.key_store.index import Rows, Sought, Words
from pipelines.key_store.segments import Entries, RunFacts, by_hash
from pipelines.key_store.storage import Storage
from pipelines.key_store.store import Found, KeyedStore
from pipelines.key_store.waiting import WaitingStore
from pipelines.process.join.sides import Windows, before
from pipelines.protocol.positions import RawPositions, packed
from pipelines.types.vectors import Mask

Listings = tuple[list[RunFacts], list[RunFacts]]
"""The live segments of the right and of the left store, oldest first."""


class JoinStores:
    """One bucket's stores. `fields`: the schemas of the stored fields, (of the right side, of the left side). Not thread-safe."""

    def __init__(self, right: Storage, left: Storage, fields: tuple[pa.Schema, pa.Schema], windows: Windows) -> None:
        self.windows = windows
        self.rights = KeyedStore(right, fields[0])
        self.lefts = WaitingStore(left, fields[1], self._is_consumed)

    def open(self, rights: Sequence[RunFacts], lefts: Sequence[RunFacts]) -> None:
        """Read these segments from now on, as the last `done` lists them. Raise StateDamagedError for a missing or foreign one."""
        self.rights.open(rights)
        self.lefts.open(lefts)

    def add(self, rights: Entries, lefts: Entries, span: tuple[int, int], clock_us: int, has_turn: bool) -> Listings:
        """Write the entries of a range, as `KeyedStore.add` does; return what the next `done` lists.

        `clock_us`: the clock of the last `done`. The stores themselves read the old listings until `open`.
        """
        kept_lefts = self.lefts.add(lefts, span, before(clock_us, self.windows.left_us), has_turn)
        return self.rights.add(rights, span, before(clock_us, self.windows.kept_us), has_turn), kept_lefts

    def listings(self) -> Listings:
        """Return the segments that are read, as `open` was given them."""
        return [*self.rights.live], [*self.lefts.live]

    def oldest_waiting(self, after_us: int) -> tuple[int, int] | None:
        """Return (position, arrival) of the first stored left record later than `after_us`, which may be consumed; None without one."""
        for run in self.lefts.waiting_runs():
            if run.facts.newest > after_us:
                row = run.between(after_us, run.facts.newest).start
                return int(packed(run.entries.sequence[row], run.entries.ordinal[row])), int(run.entries.time[row])
        return None

    def candidates(self, rights: tuple[Words, Words], after_us: int, to_us: int) -> "Candidates":
        """Return the stored left records that a range may decide: those of times in (`after_us`, `to_us`], and later ones of these keys.

        `rights`: the distinct hashes of the range's right records, sorted.
        """
        runs = [run for run in self.lefts.waiting_runs() if run.facts.newest > after_us]
        if not runs:
            return Candidates.none()
        sought = Sought.of(*rights)
        newest = self.rights.find(*rights).sequence if len(rights[0]) else np.zeros(0, dtype=np.uint64)
        self.lefts.bucket_filter.read(runs, len(newest), sum(run.facts.rows for run in runs))
        possible = self.lefts.bucket_filter.may_hold(sought)
        found = []
        for number, run in enumerate(self.lefts.waiting_runs()):
            if run.facts.newest <= after_us:
                continue
            expired = run.between(after_us, to_us)
            asked = possible if run.facts in self.lefts.bucket_filter else np.arange(len(newest))
            # The newest right record of a key has consumed all left ones before it.
            asked = asked[newest[asked] <= run.last_sequence]
            _, rows = run.find(sought.take(asked))
            rows = np.sort(rows[rows >= expired.stop])
            found.append((number, np.append(np.arange(expired.start, expired.stop, dtype=np.int64), rows), run.entries))
        return Candidates.of(found)

    def _is_consumed(self, entries: Entries) -> Mask:
        """Return which left entries are before the newest right record of their key."""
        consumed = np.zeros(len(entries), dtype=bool)
        order = by_hash(entries.hi, entries.lo)
        found = self.rights.find(entries.hi[order], entries.lo[order])
        consumed[order] = is_consumed(packed(entries.sequence, entries.ordinal)[order], found)
        return consumed


def is_consumed(lefts: RawPositions, newest: Found) -> Mask:
    """Return which stored left records have met a right one: those before the newest right record of their key."""
    return newest.is_found & (packed(newest.sequence, newest.ordinal) > lefts)


class Candidates:
    """Stored left records in position order: number and row of the segment, hash, packed position, and time."""

    def __init__(self, run: Rows, row: Rows, entries: Entries) -> None:
        self.run, self.row = run, row
        self.hi, self.lo, self.times_us = entries.hi, entries.lo, entries.time
        self.positions = packed(entries.sequence, entries.ordinal)

    def __len__(self) -> int:
        return len(self.run)

    @classmethod
    def none(cls) -> "Candidates":
        nothing = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing, Entries.empty(0))

    @classmethod
    def of(cls, found: Sequence[tuple[int, Rows, Entries]]) -> "Candidates":
        """Join the rows of several segments, oldest first: their numbers, the rows, ascending, and all their entries."""
        run = np.concatenate([np.full(len(rows), number, dtype=np.int64) for number, rows, _ in found])
        columns = [[column[rows] for column in entries.columns()] for _, rows, entries in found]
        return cls(
            run, np.concatenate([rows for _, rows, _ in found]), Entries(*(np.concatenate(each) for each in zip(*columns, strict=True)))
        )
