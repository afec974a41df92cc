"""Compaction of the key stores: all live segments of each bucket become one, without the entries whose window has ended.

Of a join's left records those that a right one has released go, too. No bucket needs another: their work is done here, one after the
other, or as Spark tasks. Beside a running process leg the new segments are offered on the ledger, and the leg lists them with its next
batch if their inputs are still listed. Without a running leg, compaction takes the leg's lease and lists them itself. A compaction that is
killed leaves files that no `done` lists.

The stores of a bucket may be listed one without the other: a right record goes when the left ones that it has released have expired.
"""

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from pydantic import AwareDatetime

from pipelines.engine.connections import Connections
from pipelines.engine.execute import ItemT, ReportT, Work, run_here
from pipelines.errors import FencedError, StateDamagedError
from pipelines.key_store.segments import Run
from pipelines.key_store.store import KeyedStore
from pipelines.maintenance.inspect import KeyState
from pipelines.maintenance.kept_entries import check_kept
from pipelines.maintenance.stores import beside, expired_us, opened_store
from pipelines.process.buckets import listed, live_runs
from pipelines.process.stage_config import config_of
from pipelines.protocol.bodies import ProcessDone, ProcessPlan, ProcessState
from pipelines.protocol.codec import Count, Form, Long, StorePlace, Text, Version, to_text
from pipelines.protocol.failpoints import RUNNER_PID_VARIABLE, reach
from pipelines.protocol.ledger import Chain
from pipelines.protocol.naming import listed_as
from pipelines.protocol.records import instant
from pipelines.protocol.run_lists import Listing, Lists, Offer, Offers, RunLists, digest_of_names

ADOPTION_SECONDS = 30.0
ATTEMPTS = 5
"""How often a bucket is begun beside a running leg that replaces its segments before they are open."""
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
    """One bucket of a store before and after. `live_keys`: the entries whose window is open, a key once; of left records those that wait.

    Each was looked up in the new segment and found, with the fields that are stored beside it.

    `outcome`: unchanged, listed (by the compaction or the running leg), offered (the leg lists it with its next batch), or overtaken (the
    leg merged the segments meanwhile: nothing was lost, nothing gained; no live keys were looked up if it did so ATTEMPTS times).
    """

    store: str
    bucket: int
    before: Extent
    after: Extent
    live_keys: int
    outcome: str


@dataclass(frozen=True)
class StoreRuns(Form):
    """A bucket of a store: the live segments to read for it, those to be merged among them, as of the range that ends at `to`.

    Entries of time `expired` or earlier have expired. `config`: the version whose steps keep the store.
    """

    store: Text
    bucket: Count
    runs: dict[StorePlace, Listing]
    expired: Long
    to: Count
    config: Version

    @property
    def place(self) -> str:
        return listed_as(self.store, self.bucket)


@dataclass(frozen=True)
class MergedRuns(Form):
    """A store's bucket, its segments before and after, and the number of its live keys, each of which was found in the new segments.

    `missing`: the segment that was gone before it was open, in words; then nothing was merged.
    """

    store: Text
    bucket: Count
    inputs: Listing
    output: Listing
    before: Extent
    after: Extent
    live_keys: Count
    missing: Text = ""

    @property
    def place(self) -> str:
        return listed_as(self.store, self.bucket)

    @property
    def is_changed(self) -> bool:
        return self.output != self.inputs

    @property
    def without_offer(self) -> str:
        """The outcome of a bucket for which nothing is offered."""
        return "overtaken" if self.missing else "unchanged"

    def compacted(self, outcome: str) -> Compacted:
        return Compacted(self.store, self.bucket, self.before, self.after, self.live_keys, outcome)


def compact(state: KeyState, adoption_seconds: float = ADOPTION_SECONDS, share: Share | None = None) -> list[Compacted]:
    """Compact every store, bucket by bucket; return a report for each. Safe to kill, and to repeat. Without `share` it runs here.

    Raise HaltError before the first record, StateDamagedError for a damaged segment, InvariantError if a live entry is missing in the new
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
    merged = share(MERGE, [*_to_merge(state, found).values()])
    reach("compact.after-runs")
    changed = [one for one in merged if one.is_changed]
    if changed:
        done, runs = state.last(found), {one.place: one.output for one in changed}
        lists = RunLists(state.connections.log, state.names)
        for one in changed:
            state.check_written(one.place, one.output)
        chain.restate(replace(done, runs=lists.write(done.runs, {**lists.of(done.runs), **runs})))
        for one in changed:
            _delete(state, one.place, one.inputs, kept=one.output)
    return [one.compacted("listed" if one.is_changed else "unchanged") for one in merged]


def _offered(state: KeyState, adoption_seconds: float, share: Share) -> list[Compacted]:
    """Offer the new segments to the running leg, which lists them if their inputs are still listed when its next batch ends."""
    merged = _merged_beside(state, share)
    reach("compact.after-runs")
    offers = {one.place: Offer(len(one.inputs), digest_of_names(one.inputs), one.output) for one in merged if one.is_changed}
    if not offers:
        return [one.compacted(one.without_offer) for one in merged]
    log, subject = state.connections.log, state.names.compaction()
    last = log.last(state.names.stream("ledger"), subject)
    log.publish(subject, to_text(Offers(offers)).encode(), {}, last.sequence if last else 0)
    deadline = time.monotonic() + adoption_seconds
    outcomes = state.settled(lambda found: _outcomes(state.lists(found), merged))
    while "offered" in outcomes and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        outcomes = state.settled(lambda found: _outcomes(state.lists(found), merged))
    return [_summary(state, one, outcome) for one, outcome in zip(merged, outcomes, strict=True)]


def _merged_beside(state: KeyState, share: Share) -> list[MergedRuns]:
    """Merge each bucket as it is listed now, and one whose segments the leg has replaced meanwhile as it is listed then, ATTEMPTS times.

    Raise StateDamagedError if a segment is missing that is listed still.
    """
    merged: dict[str, MergedRuns] = {}
    left = state.settled(partial(_to_merge, state))
    for _ in range(ATTEMPTS):
        merged |= {one.place: one for one in share(MERGE_BESIDE, [*left.values()])}
        missing = {place: merged[place].missing for place in left if merged[place].missing}
        if not missing:
            break
        newest = state.settled(partial(_to_merge, state))
        for place, words in missing.items():
            if place in newest and newest[place].runs == left[place].runs:
                raise StateDamagedError(words)
        left = {place: newest[place] for place in missing if place in newest}
    return [*merged.values()]


def _outcomes(runs: Lists, merged: list[MergedRuns]) -> list[str]:
    def outcome(one: MergedRuns) -> str:
        if not one.is_changed:
            return one.without_offer
        names = _names(runs.get(one.place, []))
        if one.output and _names(one.output) <= names:
            return "listed"
        return "offered" if _names(one.inputs) <= names else "listed" if not one.output else "overtaken"

    return [outcome(one) for one in merged]


def _names(runs: Listing) -> set[str]:
    return {name for name, *_ in runs}


def _summary(state: KeyState, one: MergedRuns, outcome: str) -> Compacted:
    if outcome == "overtaken":
        _delete(state, one.place, one.output, kept=one.inputs)
    return one.compacted(outcome)


def _delete(state: KeyState, place: str, runs: Listing, kept: Listing) -> None:
    for name in _names(runs) - _names(kept):
        state.connections.segments(place).delete(name)


def _to_merge(state: KeyState, found: ProcessState) -> dict[str, StoreRuns]:
    """Return each store's buckets, as they are listed, by the place of their segments."""
    done, lists, config = state.last(found), state.lists(found), state.stage_config(found)
    items = []
    for store in config.stores:
        expired = expired_us(config, store, done)
        for bucket in range(done.buckets):
            places = [listed_as(one, bucket) for one in beside(store)]
            items.append(StoreRuns(store, bucket, {place: lists.get(place, []) for place in places}, expired, done.to, done.config))
    return {item.place: item for item in items}


def _merge(connections: Connections, item: StoreRuns) -> MergedRuns:
    """Merge one bucket of a store into its new segment, and prove that no live entry was lost."""
    store = opened_store(connections, config_of(connections, item.config), item.store, item.bucket, item.runs)
    # What is open stays readable when a leg deletes it.
    before, extent = tuple(store.live), _extent(store, store.opened())
    after = tuple(store.compact(item.expired, item.to))
    live_keys = check_kept(store, after, item.expired)
    written = [store.kind.open(store.storage, one, fields=store.fields) for one in after if one not in before]
    new = [run for run in (*store.opened(), *written) if run.facts in after]
    return MergedRuns(item.store, item.bucket, listed(before), listed(after), extent, _extent(store, new), live_keys)


def _merge_beside(connections: Connections, item: StoreRuns) -> MergedRuns:
    """Merge as `_merge`; the report tells of a segment that is missing, which a running leg may have replaced."""
    try:
        return _merge(connections, item)
    except StateDamagedError as error:
        runs = item.runs[item.place]
        stored = sum(connections.segments(item.place).size(name) for name in _names(runs))
        extent = Extent(sum(facts.rows for facts in live_runs(item.runs, item.place)), stored, len(runs), None)
        return MergedRuns(item.store, item.bucket, runs, runs, extent, extent, 0, str(error))


MERGE = Work(_merge, StoreRuns, MergedRuns)
MERGE_BESIDE = Work(_merge_beside, StoreRuns, MergedRuns)


def _extent(store: KeyedStore, runs: Sequence[Run]) -> Extent:
    oldest = min((instant(int(run.entries.time.min())) for run in runs), default=None)
    return Extent(sum(run.facts.rows for run in runs), sum(store.storage.size(run.facts.name) for run in runs), len(runs), oldest)
