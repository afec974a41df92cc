"""The live segments of one bucket: lookup, and one new segment per batch, merged with older small ones.

The ledger's `done` lists the live segments, oldest first; the store reads these and nothing else, writes segments under new names, and
returns what the next `done` should list. Nothing is deleted here: a segment that no `done` lists does not exist.

Cost of an added key: FAN segments of one tier are merged into one, tiers are FAN times apart, so an entry is rewritten at most
log_FAN(live keys / keys per batch) times. Cost of a lookup: a few generations of the bucket filter, whatever the number of segments; for a
key that is present, and for segments not covered yet, also the filters of (FAN - 1) * log_FAN(...) segments, and a search in one or two.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.errors import StateDamagedError
from pipelines.key_store.bucket_filter import BucketFilter
from pipelines.key_store.index import Rows, Sought, Words
from pipelines.key_store.segments import Entries, Run, RunFacts, by_hash
from pipelines.key_store.storage import Storage
from pipelines.types.vectors import Mask

FAN, SMALL_FAN = 16, 8
"""Segments of one tier that are merged into one.

In the smallest tier another segment soon costs more than rewriting it.
"""
RUNS_PER_BUCKET = FAN + SMALL_FAN
"""Segments of a bucket, with a margin over the average of 17 to 19 (measured); only one with some hundred million keys has more."""
_SMALLEST_TIER_ROWS = 16 * 1024
_PIECE_ROWS = 128 * 1024
_WORTH_LEAVING_OUT = 16
"""Found hashes are removed from the lookup once they are more than one in this many."""


@dataclass(frozen=True)
class Found:
    """The newest entry of each requested hash: `is_found`, and zeros where it is False.

    `run`: the number of its segment in `live`; `row`: its row there.
    """

    is_found: Mask
    time: npt.NDArray[np.int64]
    sequence: Words
    ordinal: npt.NDArray[np.uint32]
    run: Rows
    row: Rows

    @classmethod
    def nothing(cls, count: int) -> "Found":
        """Return the answer for this many hashes of which none is found."""
        kinds = (bool, np.int64, np.uint64, np.uint32, np.int64, np.int64)
        return cls(*(np.zeros(count, dtype=kind) for kind in kinds))


@dataclass(frozen=True)
class _Added:
    """The last written segment, the `live` listing and the arguments of that call, and the listing that it returned."""

    live: tuple[RunFacts, ...]
    content: tuple[object, ...]
    run: Run
    listing: list[RunFacts]


class KeyedStore:
    """One bucket's keys. Keeps its segments open from batch to batch. Not thread-safe.

    `fields`: the schema of the payload's fields, None for a store without payload.
    """

    kind: type[Run] = Run

    def __init__(self, storage: Storage, fields: pa.Schema | None = None) -> None:
        self.storage, self.fields = storage, fields
        self._open: dict[RunFacts, Run] = {}
        self._added: _Added | None = None
        self.bucket_filter = BucketFilter()
        self.live: tuple[RunFacts, ...] = ()
        """The segments that are read, oldest first."""

    def open(self, listed: Sequence[RunFacts]) -> None:
        """Read these segments from now on, as the last `done` lists them. Raise StateDamagedError for a missing or foreign one."""
        known = self._open if self._added is None else {**self._open, self._added.run.facts: self._added.run}
        self._open = {facts: known.get(facts) or self._opened(facts) for facts in listed}
        if self._added is not None and self._added.live != tuple(listed):
            self._added = None
        self.live = tuple(listed)
        self.bucket_filter.keep([*listed, self._added.run.facts] if self._added else listed)

    def _opened(self, facts: RunFacts) -> Run:
        """Open a segment; a copy of this host that is damaged is fetched again."""
        if self.storage.has_copy(facts.name):
            try:
                run = self.kind.open(self.storage, facts, fields=self.fields)
                run.checked_entries()
                return run
            except StateDamagedError:
                self.storage.discard_copy(facts.name)
        return self.kind.open(self.storage, facts, fields=self.fields)

    def opened(self) -> list[Run]:
        """Return the live segments, oldest first."""
        return [self._open[facts] for facts in self.live]

    def checked(self) -> Iterator[Entries]:
        """Return the entries of each live segment, oldest first, every block checked."""
        return (run.checked_entries() for run in self.opened())

    def find(self, hi: Words, lo: Words) -> Found:
        """Find the newest entry of each hash; `hi` is best sorted. Raise StateDamagedError if a touched block is damaged."""
        found = Found.nothing(len(hi))
        everything = Sought.of(hi, lo)
        self.bucket_filter.read(self.opened(), len(hi), self._rows())
        possible = self.bucket_filter.may_hold(everything)
        few = everything.take(possible)
        # Newest first: an entry in a newer segment wins, and is not looked up in older ones.
        for number, facts in reversed([*enumerate(self.live)]):
            run, is_covered = self._open[facts], facts in self.bucket_filter
            if is_covered and not len(possible):
                continue
            at, rows = run.find(few if is_covered else everything)
            if not len(at):
                continue
            at = possible[at] if is_covered else at
            is_new = ~found.is_found[at]
            at, rows = at[is_new], rows[is_new]
            entries = run.entries
            found.is_found[at] = True
            found.time[at], found.sequence[at], found.ordinal[at] = entries.time[rows], entries.sequence[rows], entries.ordinal[rows]
            found.run[at], found.row[at] = number, rows
            if _WORTH_LEAVING_OUT * len(at) > len(possible):
                (open_,) = (~found.is_found[possible]).nonzero()
                possible, few = possible[open_], few.take(open_)
        return found

    def add(self, entries: Entries, span: tuple[int, int], expired: int, has_turn: bool) -> list[RunFacts]:
        """Write `entries` (sorted, a hash once), merged with the newest segments as needed, as one segment; return the new listing.

        `span`: the range of raw sequences that the entries come from, (exclusive, inclusive]. `expired`: entries of this time or earlier
        have expired by the clock of the last `done`; they are dropped with the oldest segments, or when these are merged. Younger segments
        keep theirs: such an entry may hide one of the same key and a later time in an older segment, which must not reappear.
        `has_turn`: see `merged_runs`.
        The store itself reads the old listing until `open`. A repeated call on the same listing with the same entries, as by another
        attempt at the range, returns the same listing and writes nothing, unless the segment was deleted meanwhile: another start deletes
        segments that no `done` lists, while this process may still live.
        """
        live = self._not_expired(expired)
        if not len(entries):
            return live
        content = (span, expired, has_turn, *(zlib.crc32(np.ascontiguousarray(each).data) for each in (entries.sequence, entries.ordinal)))
        if self._added is not None and self._added.content == content and self.storage.size(self._added.run.facts.name):
            return self._added.listing
        taken = merged_runs([facts.rows for facts in live], len(entries), has_turn)
        rest, merged = live[: len(live) - taken], live[len(live) - taken :]
        new = entries
        if merged:
            entries = self.merged([*(self._open[facts].checked_entries() for facts in merged), new], expired, has_older=bool(rest))
        if not len(entries):
            return rest
        start = min([span[0], *(int(facts.name.split("-", 1)[0]) for facts in merged)])
        written = self.kind.write(self.storage, run_name((start, span[1]), span[1]), entries, self.fields)
        # A small segment is soon merged again and is read from memory until then; a large one is mapped, so that it can leave memory.
        is_small = len(entries) <= _SMALLEST_TIER_ROWS
        run = written if is_small else self.kind.open(self.storage, written.facts, is_own=True, fields=self.fields)
        self.bucket_filter.add(written.facts, *self.kind.hashes_of(new), merged, self._rows())
        self._added = _Added(self.live, content, run, [*rest, written.facts])
        return self._added.listing

    def compact(self, expired: int, made_for: int) -> list[RunFacts]:
        """Merge all live segments into one without expired entries; return the new listing.

        Writes nothing if nothing is gained.
        """
        live = self._not_expired(expired)
        together = self.merged([self._open[facts].checked_entries() for facts in live], expired, has_older=False) if live else None
        if together is None or not len(together):
            return []
        if len(live) == 1 and len(together) == live[0].rows:
            return live
        spans = [facts.name.split(".", 1)[0].split("-") for facts in live]
        name = run_name((int(spans[0][0]), int(spans[-1][1])), made_for)
        return [self.kind.write(self.storage, name, together, self.fields).facts]

    def merged(self, parts: Sequence[Entries], expired: int, has_older: bool) -> Entries:
        """Merge sets of entries, older ones first, as this store keeps them. `has_older`: there are older segments than these."""
        return merge(parts, None if has_older else expired)

    def _rows(self) -> int:
        return sum(facts.rows for facts in self.live)

    def _not_expired(self, expired: int) -> list[RunFacts]:
        """Return the live segments without the oldest ones that have expired as a whole."""
        first = next((number for number, facts in enumerate(self.live) if facts.newest > expired), len(self.live))
        return list(self.live[first:])


def run_name(span: tuple[int, int], made_for: int) -> str:
    """Return a new name `<from>-<to>.<made for>.<unique>`: the raw sequences covered, and the end of the range written for."""
    return f"{span[0]}-{span[1]}.{made_for}.{uuid4().hex[:12]}.arrow"


def made_for(name: str) -> int:
    """Return the end of the range that a segment was written for."""
    return int(name.split(".")[1])


def bucket_with_turn(to: int, buckets: int) -> int:
    """Return the bucket that merges in the batch that ends at sequence `to`.

    Buckets fill alike, and would otherwise all merge in one batch.
    """
    return zlib.crc32(to.to_bytes(8, "little")) % buckets


def merged_runs(rows: Sequence[int], new_rows: int, has_turn: bool) -> int:
    """Return how many of the newest segments to merge new entries with: up to the last tier that is full.

    `rows`: entries per segment, oldest first. A tier is full with FAN segments (the smallest with SMALL_FAN) if its bucket has the turn,
    with twice as many if not.
    """
    taken, end, total = 0, 0, new_rows
    while end < len(rows):
        tier = max(_tier(total), _tier(rows[-1 - end]))
        members, start = int(_tier(total) == tier), end
        while end < len(rows) and _tier(rows[-1 - end]) <= tier:
            end += 1
        members += end - start
        total += sum(rows[len(rows) - end : len(rows) - start])
        full = SMALL_FAN if tier == 0 else FAN
        if members >= (full if has_turn else 2 * full):
            taken = end
    return taken


def _tier(rows: int) -> int:
    tier = 0
    while rows > _SMALLEST_TIER_ROWS:
        rows //= FAN
        tier += 1
    return tier


def merge(parts: Sequence[Entries], expired: int | None) -> Entries:
    """Merge several sets of entries, older ones first, into one sorted set: the newest of each hash, without expired ones.

    Entries of time `expired` or earlier are dropped. Works piece by piece of the range of hashes, so that everything but the result fits
    into the processor's cache.
    """
    rows = sum(len(part) for part in parts)
    pieces = max(1, rows // _PIECE_ROWS)
    borders = np.arange(1, pieces, dtype=np.uint64) * np.uint64((2**64 - 1) // pieces)
    cuts = [[0, *np.searchsorted(part.hi, borders).tolist(), len(part)] for part in parts]
    payloads = [part.payload for part in parts if part.payload is not None]
    merged, places = Entries.empty(rows), np.empty(rows if payloads else 0, dtype=np.int64)
    # With a payload, the place of a row among all rows moves with it: the payload is taken once, from there.
    columns = [(*part.columns(), *own) for part, own in zip(parts, _places(parts) if payloads else [()] * len(parts), strict=True)]
    into = [*merged.columns(), *([places] if payloads else [])]
    end = 0
    for piece in range(pieces):
        slices = [[column[cut[piece] : cut[piece + 1]] for column in each] for each, cut in zip(columns, cuts, strict=True)]
        end += _merge_piece(slices, expired, into, end)
    entries = merged.take(slice(0, end))
    return replace(entries, payload=taken(payloads, places[:end])) if payloads else entries


def _places(parts: Sequence[Entries]) -> list[tuple[Rows]]:
    """Return, by part, the place of each row among the rows of all parts."""
    starts = accumulate((len(part) for part in parts), initial=0)
    return [(np.arange(start, start + len(part), dtype=np.int64),) for start, part in zip(starts, parts, strict=False)]


def taken(payloads: Sequence[pa.RecordBatch], places: Rows) -> pa.RecordBatch:
    """Return rows by their places among the rows of all payloads; a column at a time, to need the room of one more."""
    indices = pa.array(places)
    columns = (pa.concat_arrays([payload.column(number) for payload in payloads]) for number in range(payloads[0].num_columns))
    return pa.RecordBatch.from_arrays([column.take(indices) for column in columns], schema=payloads[0].schema)


def _merge_piece(parts: Sequence[Sequence[npt.NDArray[Any]]], expired: int | None, into: Sequence[npt.NDArray[Any]], at: int) -> int:
    """Merge the columns of the parts into `into` from `at` on; return how many entries were written."""
    hi, lo, time, *_ = together = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    order = by_hash(hi, lo)
    is_last = np.ones(len(order), dtype=bool)
    ordered = hi[order]
    (equal,) = (ordered[1:] == ordered[:-1]).nonzero()
    is_last[equal] = lo[order[equal]] != lo[order[equal + 1]]
    if expired is not None:
        is_last &= time[order] > expired
    if not is_last.all():
        order = order[is_last]
    for column, values in zip(into, together, strict=True):
        np.take(values, order, out=column[at : at + len(order)], mode="clip")
    return len(order)
