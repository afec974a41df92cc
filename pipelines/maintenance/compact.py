"""Compaction of the dedup store: all live segments of each bucket become one, without the keys whose window has ended.

No bucket needs another: their work is done here, one after the other, or as Spark tasks. Beside a running process leg the new segments are
offered on the ledger, and the leg lists them with its next batch if their inputs are still listed. Without a running leg, compaction takes
the leg's lease and lists them itself. A compaction that is killed leaves files that no `done` lists.
"""

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
from pydantic import AwareDatetime

from pipelines.engine.connections import Connections
from pipelines.engine.execute import ItemT, ReportT, Work, run_here
from pipelines.errors import FencedError, InvariantError
from pipelines.key_store.segment_file import BLOCK_ROWS
from pipelines.key_store.segments import Run, RunFacts
from pipelines.key_store.store import KeyedStore
from pipelines.maintenance.inspect import KeyState
from pipelines.process.buckets import dedup_store, listed, live_runs
from pipelines.protocol.bodies import ProcessDone, ProcessPlan, ProcessState
from pipelines.protocol.codec import Count, Form, Long, to_text
from pipelines.protocol.failpoints import RUNNER_PID_VARIABLE, reach
from pipelines.protocol.ledger import Chain
from pipelines.protocol.records import instant
from pipelines.protocol.run_lists import Listing, Lists, Offer, Offers, RunLists, digest_of_names

ADOPTION_SECONDS = 30.0
_LOOK_SECONDS = 0.2


class Share(Protocol):
    """Does the work of all buckets: `execute.run_here` with its connections, or `execute.Tasks.run`."""

    def __call__(self, work: Work[ItemT, ReportT], items: Sequence[ItemT], /) -> list[ReportT]: ...


@dataclass(frozen=True)
class Extent(Form):
    """The size of live segments. `oldest`: the earliest time of an entry; None if there is none."""

    entries: Count
    bytes: Count
    runs: Count
    oldest: AwareDatetime | None


@dataclass(frozen=True)
class Compacted:
    """One bucket before and after. `live_keys`: distinct keys whose window is open; each was looked up in the new segment and found.

    `outcome`: unchanged, listed (by the compaction or the running leg), offered (the leg lists it with its next batch), or overtaken (the
    leg merged the segments meanwhile: nothing was lost, nothing gained).
    """

    bucket: int
    before: Extent
    after: Extent
    live_keys: int
    outcome: str


@dataclass(frozen=True)
class BucketRuns(Form):
    """The live segments of a bucket, to be merged without `expired` entries, as of the range that ends at `to`."""

    bucket: Count
    runs: Listing
    expired: Long
    to: Count


@dataclass(frozen=True)
class MergedRuns(Form):
    """A bucket's segments before and after, and the number of its live keys, each of which was found in the new segments."""

    bucket: Count
    inputs: Listing
    output: Listing
    before: Extent
    after: Extent
    live_keys: Count

    @property
    def is_changed(self) -> bool:
        return self.output != self.inputs

    def compacted(self, outcome: str) -> Compacted:
        return Compacted(self.bucket, self.before, self.after, self.live_keys, outcome)


def compact(state: KeyState, adoption_seconds: float = ADOPTION_SECONDS, share: Share | None = None) -> list[Compacted]:
    """Compact every bucket; return one report per bucket. Safe to kill, and to repeat. Without `share` it runs in this process.

    Raise HaltError before the first record, StateDamagedError for a damaged segment, InvariantError if a live key is missing in the new
    segment (then nothing was listed).
    """
    os.environ.setdefault(RUNNER_PID_VARIABLE, str(os.getpid()))
    share = share or partial(run_here, state.connections)
    with ExitStack() as held:
        try:
            chain, found = held.enter_context(state.held())
        except FencedError:
            return _offered(state, adoption_seconds, share)
        return _listed(state, chain, found, share)


def _listed(state: KeyState, chain: Chain[ProcessPlan, ProcessDone], found: ProcessState, share: Share) -> list[Compacted]:
    """List the new segments in our own `done` and delete the old ones: no leg runs, and we hold its lease."""
    merged = _merge_all(state, found, share)
    reach("compact.after-runs")
    changed = [one for one in merged if one.is_changed]
    if changed:
        done, runs = state.last(found), {str(one.bucket): one.output for one in changed}
        lists = RunLists(state.connections.log, state.names)
        for one in changed:
            state.check_written(one.bucket, one.output)
        chain.restate(replace(done, runs=lists.write(done.runs, {**lists.of(done.runs), **runs})))
        for one in changed:
            _delete(state, one.bucket, one.inputs, kept=one.output)
    return [one.compacted("listed" if one.is_changed else "unchanged") for one in merged]


def _offered(state: KeyState, adoption_seconds: float, share: Share) -> list[Compacted]:
    """Offer the new segments to the running leg, which lists them if their inputs are still listed when its next batch ends."""
    merged = state.settled(lambda found: _merge_all(state, found, share))
    reach("compact.after-runs")
    offers = {str(one.bucket): Offer(len(one.inputs), digest_of_names(one.inputs), one.output) for one in merged if one.is_changed}
    if not offers:
        return [one.compacted("unchanged") for one in merged]
    log, subject = state.connections.log, state.names.compaction()
    last = log.last(state.names.stream("ledger"), subject)
    log.publish(subject, to_text(Offers(offers)).encode(), {}, last.sequence if last else 0)
    deadline = time.monotonic() + adoption_seconds
    outcomes = state.settled(lambda found: _outcomes(state.lists(found), merged))
    while "offered" in outcomes and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        outcomes = state.settled(lambda found: _outcomes(state.lists(found), merged))
    return [_summary(state, one, outcome) for one, outcome in zip(merged, outcomes, strict=True)]


def _outcomes(runs: Lists, merged: list[MergedRuns]) -> list[str]:
    def outcome(one: MergedRuns) -> str:
        if not one.is_changed:
            return "unchanged"
        names = _names(runs.get(str(one.bucket), []))
        if one.output and _names(one.output) <= names:
            return "listed"
        return "offered" if _names(one.inputs) <= names else "listed" if not one.output else "overtaken"

    return [outcome(one) for one in merged]


def _names(runs: Listing) -> set[str]:
    return {name for name, *_ in runs}


def _summary(state: KeyState, one: MergedRuns, outcome: str) -> Compacted:
    if outcome == "overtaken":
        _delete(state, one.bucket, one.output, kept=one.inputs)
    return one.compacted(outcome)


def _delete(state: KeyState, bucket: int, runs: Listing, kept: Listing) -> None:
    for name in _names(runs) - _names(kept):
        dedup_store(state.connections, bucket).storage.delete(name)


def _merge_all(state: KeyState, found: ProcessState, share: Share) -> list[MergedRuns]:
    done, lists = state.last(found), state.lists(found)
    expired = state.stage_config(found).dedup.expired_us(done)
    items = [BucketRuns(bucket, lists.get(str(bucket), []), expired, done.to) for bucket in range(done.buckets)]
    return share(MERGE, items)


def _merge(connections: Connections, item: BucketRuns) -> MergedRuns:
    """Merge one bucket into its new segment, and prove that no live key was lost."""
    store = dedup_store(connections, item.bucket)
    store.open(live_runs({str(item.bucket): item.runs}, str(item.bucket)))
    before = tuple(store.live)
    after = tuple(store.compact(item.expired, item.to))
    live_keys = _prove(store, after, item.expired)
    return MergedRuns(item.bucket, listed(before), listed(after), _extent(store, before), _extent(store, after), live_keys)


MERGE = Work(_merge, BucketRuns, MergedRuns)


def _prove(store: KeyedStore, after: tuple[RunFacts, ...], expired: int) -> int:
    """Look up every key of the live segments in the new ones, where a live key must give the same answer; return the number of live keys.

    Raise InvariantError for a missing key.
    """
    new = KeyedStore(store.storage)
    new.open(after)
    for facts, entries in zip(store.live, store.checked(), strict=True):
        for start in range(0, len(entries), BLOCK_ROWS):
            part = entries.take(np.arange(start, min(start + BLOCK_ROWS, len(entries))))
            known, found = store.find(part.hi, part.lo), new.find(part.hi, part.lo)
            is_same = found.is_found & (found.sequence == known.sequence) & (found.ordinal == known.ordinal)
            if (~is_same & (known.time > expired)).any():
                raise InvariantError(
                    f"compacting {store.storage.path}: a live key of {facts.name} is not in the new run; nothing was listed"
                )
    return sum(int((entries.time > expired).sum()) for entries in new.checked())


def _extent(store: KeyedStore, runs: tuple[RunFacts, ...]) -> Extent:
    oldest = min((instant(int(Run.open(store.storage, facts).entries.time.min())) for facts in runs), default=None)
    return Extent(sum(facts.rows for facts in runs), sum(store.storage.size(facts.name) for facts in runs), len(runs), oldest)
