"""The live segments of one bucket: lookup, and one new segment per batch, merged with older small ones.

The ledger's `done` lists the live segments, oldest first; the store reads these and nothing else, writes segments under new names, and
returns what the next `done` should list. Nothing is deleted here: a segment that no `done` lists does not exist.

Cost of an added key: FAN segments of one tier are merged into one, tiers are FAN times apart, so an entry is rewritten at most
log_FAN(live keys / keys per batch) times. Cost of a lookup: a few generations of the bucket filter, whatever the number of segments; for a
key that is present, and for segments not covered yet, also the filters of (FAN - 1) * log_FAN(...) segments, and a search in one or two.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from pipelines.errors import StateDamagedError
from pipelines.key_store.bucket_filter import BucketFilter
from pipelines.key_store.index import Sought, Words
from pipelines.key_store.segments import Entries, Run, RunFacts, by_hash, write_run
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
    """The newest entry of each requested hash: `is_found`, and zeros where it is False."""

    is_found: Mask
    time: npt.NDArray[np.int64]
    sequence: Words
    ordinal: npt.NDArray[np.uint32]


@dataclass(frozen=True)
class _Added:
    """The last written segment, the `live` listing and the arguments of that call, and the listing that it returned."""

    live: tuple[RunFacts, ...]
    content: tuple[object, ...]
    run: Run
    listing: list[RunFacts]


class KeyedStore:
    """One bucket's keys. Keeps its segments open from batch to batch. Not thread-safe."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
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
                run = Run.open(self.storage, facts)
                run.checked_entries()
                return run
            except StateDamagedError:
                self.storage.discard_copy(facts.name)
        return Run.open(self.storage, facts)

    def checked(self) -> Iterator[Entries]:
        """Return the entries of each live segment, oldest first, every block checked."""
        return (self._open[facts].checked_entries() for facts in self.live)

    def find(self, hi: Words, lo: Words) -> Found:
        """Find the newest entry of each hash; `hi` is best sorted. Raise StateDamagedError if a touched block is damaged."""
        count = len(hi)
        found = Found(
            np.zeros(count, dtype=bool), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.uint64), np.zeros(count, dtype=np.uint32)
        )
        everything = Sought.of(hi, lo)
        self.bucket_filter.read([self._open[facts] for facts in self.live], count, self._rows())
        possible = self.bucket_filter.may_hold(everything)
        few = everything.take(possible)
        # Newest first: an entry in a newer segment wins, and is not looked up in older ones.
        for facts in reversed(self.live):
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
            entries = merge([*(self._open[facts].checked_entries() for facts in merged), new], None if rest else expired)
        if not len(entries):
            return rest
        start = min([span[0], *(int(facts.name.split("-", 1)[0]) for facts in merged)])
        written = Run.write(self.storage, run_name((start, span[1]), span[1]), entries)
        # A small segment is soon merged again and is read from memory until then; a large one is mapped, so that it can leave memory.
        is_small = len(entries) <= _SMALLEST_TIER_ROWS
        run = written if is_small else Run.open(self.storage, written.facts, is_own=True)
        self.bucket_filter.add(written.facts, new.hi, new.lo, merged, self._rows())
        self._added = _Added(self.live, content, run, [*rest, written.facts])
        return self._added.listing

    def compact(self, expired: int, made_for: int) -> list[RunFacts]:
        """Merge all live segments into one without expired entries; return the new listing.

        Writes nothing if nothing is gained.
        """
        live = self._not_expired(expired)
        together = merge([self._open[facts].checked_entries() for facts in live], expired) if live else None
        if together is None or not len(together):
            return []
        if len(live) == 1 and len(together) == live[0].rows:
            return live
        spans = [facts.name.split(".", 1)[0].split("-") for facts in live]
        return [write_run(self.storage, run_name((int(spans[0][0]), int(spans[-1][1])), made_for), together)]

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
    merged = Entries.empty(rows)
    end = 0
    for piece in range(pieces):
        slices = [part.take(slice(cut[piece], cut[piece + 1])) for part, cut in zip(parts, cuts, strict=True)]
        end += _merge_piece(slices, expired, merged, end)
    return merged.take(slice(0, end))


def _merge_piece(parts: list[Entries], expired: int | None, into: Entries, at: int) -> int:
    """Merge the parts into `into` from `at` on; return how many entries were written."""
    hi, lo, time, *_ = together = [np.concatenate(columns) for columns in zip(*(part.columns() for part in parts), strict=True)]
    order = by_hash(hi, lo)
    is_last = np.ones(len(order), dtype=bool)
    ordered = hi[order]
    (equal,) = (ordered[1:] == ordered[:-1]).nonzero()
    is_last[equal] = lo[order[equal]] != lo[order[equal + 1]]
    if expired is not None:
        is_last &= time[order] > expired
    if not is_last.all():
        order = order[is_last]
    for column, values in zip(into.columns(), together, strict=True):
        np.take(values, order, out=column[at : at + len(order)], mode="clip")
    return len(order)
