"""Rebuild of the stores of a join: its right records, the left ones that wait, and the keys of a dedup of either side.

Raw has all of it, and its order decides what has met what, so the replay is the join itself without its rows. Behind a purge the replay
begins with the newest `done` from which on every left record that may wait has its right ones on raw: that is the left window, and before
it the time that a right record is stored. Left records that the replay takes for waiting although their right one is purged have ended by
now.

Which records a dedup has accepted no output shows, so with one the replay begins with the first record.
"""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from pipelines.errors import DataLossError, InvariantError
from pipelines.maintenance.inspect import KeyState
from pipelines.maintenance.rebuilding import Rebuilding, Rebuilt
from pipelines.maintenance.replay import Start
from pipelines.process.arrivals import Arrived
from pipelines.process.buckets import dedup_store, key_owners, listed, live_runs, shares
from pipelines.process.dedup import Deduplicated
from pipelines.process.join.progress import Fact, TimedFrames
from pipelines.process.join.sides import Frames, before
from pipelines.process.joining import facts_by, frames_of, join_stores, watermarks_behind
from pipelines.process.program import Program
from pipelines.process.side_copies import copies_found_by, without_copies
from pipelines.process.stage_config import config_of
from pipelines.process.steps.dedup import Dedup
from pipelines.process.steps.join import KEPT, UNMATCHED
from pipelines.protocol.bodies import ProcessDone
from pipelines.protocol.naming import LEFT_STORE, RIGHT_STORE, listed_as
from pipelines.protocol.outcomes import DUPLICATE, WAITING
from pipelines.protocol.positions import RawPositions
from pipelines.protocol.purge import Purged
from pipelines.protocol.records import joined

_JOINED, _ALONE, _LATE = "join.joined", "join.unmatched", "rejected.join.late"


class JoinRebuilding(Rebuilding):
    """Rebuilds all stores of a join, bucket by bucket."""

    def __init__(self, state: KeyState, done: ProcessDone, end: int) -> None:
        super().__init__(state, done, end)
        self._is_whole = True
        self._found: Counter[str] = Counter()
        self._late = 0

    def _begin_behind(self, purged: Purged) -> None:
        config, stream = config_of(self._connections, self._done.config), self._state.names.stream("raw")
        assert config.join is not None
        of_rights = "both windows" if config.join.is_timed else "the longer window"
        lost = f"rebuilding the key store: {stream} was purged up to sequence {purged.below}"
        if config.side_dedups:
            raise DataLossError(
                f"{lost}, and only the records before show what a dedup beside the join has accepted. Restore the key store or the streams "
                "from a backup, or delete the pipeline and start it anew"
            )
        join = config.join
        ended_us = before(join.clock_us(self._done), join.windows.left_us + join.kept_us)
        ended = [done for done in self._entries() if isinstance(done, ProcessDone) and join.newest_us(done) <= ended_us]
        if not ended or ended[-1].to < purged.below:
            raise DataLossError(
                f"{lost} and no longer holds all records of the left window and of {of_rights} before it. Restore the key store or the "
                "streams from a backup, or delete the pipeline and start it anew. To prevent this, set resources.nats.stream.max_age "
                "longer than the two, and max_bytes large enough"
            )
        self._at, self._totals_before, self._is_whole = Start.behind(ended[-1]), dict(ended[-1].totals), False

    def _replay(self, frames: Sequence[Arrived], config: Program) -> None:
        last = frames[-1]
        assert config.join is not None
        rows = joined(self._made(config, frames))
        of_range = frames_of(
            config.join, self._at.sequence, self._at, [frame.arrival_us for frame in frames], self._facts(config, rows, frames)
        )
        behind = Start(last.message.sequence, watermarks_behind(of_range) or self._at.watermarks, last.arrival_us)
        copies = self._copies(config, rows, behind)
        if config.side_dedups:
            self._found[DUPLICATE.total] += len(copies)
        by_bucket = dict(shares(rows, key_owners(rows, self._done.buckets)))
        for bucket in range(self._done.buckets):
            share = by_bucket.get(bucket)
            self._join(config, bucket, without_copies(share, copies) if share is not None else None, of_range)
        self._at = behind

    def _facts(self, config: Program, rows: pa.Table, frames: Sequence[Arrived]) -> list[Fact]:
        """Return the facts of frames, as their plan has kept them, if it has: records that it does not try have no time."""
        found = facts_by(config, rows, (frame.message for frame in frames))
        return [fact if fact[3] & 1 else self._times.get(fact[0], fact) for fact in found]

    def _copies(self, config: Program, rows: pa.Table, behind: Start) -> RawPositions:
        """Return the positions of the copies on each side; write the keys that are accepted."""

        def first_of_keys(place: str, step: Dedup, keys: pa.Table) -> Deduplicated:
            name, _, bucket = place.rpartition("/")
            store = dedup_store(self._connections, int(bucket), name)
            store.open(live_runs(self.runs, place))
            firsts, _ = step.first_of_keys(keys, store, None)
            span = (self._at.sequence, behind.sequence)
            self._list(place, listed(store.add(firsts.entries, span, step.expired_us(self._at), has_turn=True)))
            return firsts

        return copies_found_by(first_of_keys, rows, config, self._done.buckets)

    def _join(self, config: Program, bucket: int, rows: pa.Table | None, frames: Frames | TimedFrames) -> None:
        assert config.join is not None
        stores = join_stores(self._connections, config.join, bucket)
        keys = [listed_as(store, bucket) for store in (RIGHT_STORE, LEFT_STORE)]
        stores.open(*(live_runs(self.runs, key) for key in keys))
        if rows is not None and isinstance(frames, TimedFrames):
            rows, late = config.join.without_late(rows, frames)
            self._late += late.num_rows
        made = config.join.joined(rows, frames, stores)
        span = (self._at.sequence, int(frames.sequences[-1]))
        listings = stores.add(made.new_rights, made.new_lefts, span, frames.start_us, has_turn=True)
        for key, runs in zip(keys, listings, strict=True):
            self._list(key, listed(runs))
        counts = made.counts
        self._found.update({_JOINED: counts.joined, _ALONE: counts.unmatched, KEPT.total: counts.kept, WAITING.total: counts.waiting})

    def result(self) -> Rebuilt:
        totals = self._done.totals
        counted = {name: self._counted(name) for name in ("rows_in", KEPT.total, DUPLICATE.total)}
        counted[WAITING.total] = WAITING.count(totals)
        if self._late or self._counted(_LATE):
            counted[_LATE], self._found[_LATE] = self._counted(_LATE), self._late
        if self._is_whole:
            counted |= {name: self._counted(name) for name in (_JOINED, _ALONE)}
        found = {"rows_in": self._counts["rows_in"], **self._found}
        if differing := [name for name, count in counted.items() if found.get(name, 0) != count]:
            listed_counts = ", ".join(f"{name} {found.get(name, 0):,} instead of {counted[name]:,}" for name in differing)
            raise InvariantError(
                f"rebuilding the key store: the replay counted otherwise than the ledger: {listed_counts}. No segment was listed; report "
                "this with the log"
            )
        labels = {"joined": _JOINED, UNMATCHED.label: _ALONE, KEPT.label: KEPT.total, WAITING.label: WAITING.total}
        outcomes = {label: found.get(name, 0) for label, name in labels.items()}
        if DUPLICATE.total in found:
            outcomes[DUPLICATE.label] = found[DUPLICATE.total]
        if self._late:
            outcomes["late"] = self._late
        return Rebuilt(found["rows_in"], *self._stored(), outcomes)
