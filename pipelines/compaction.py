"""Compaction of the dedup store: all live runs of each bucket become one, without the keys whose window is over.

Beside a running process leg the new runs are offered on the ledger, and the leg lists them with its next batch if their inputs are still
listed. Without one, compaction takes the leg's lease and lists them itself. A compaction that is killed leaves files that nobody lists.
"""

import json
import os
import time
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np

from pipelines.errors import FencedError, InvariantError
from pipelines.failpoints import RUNNER_PID_VARIABLE, reach
from pipelines.key_state import KeyState
from pipelines.lease import Lease
from pipelines.ledger import Chain, ChainState
from pipelines.legs.buckets import listed
from pipelines.records import instant
from pipelines.state.runs import BLOCK_ROWS, Run, RunFacts
from pipelines.state.store import KeyedStore

ADOPTION_SECONDS = 30.0
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Extent:
    """What live runs hold. `oldest`: the earliest time of an entry; None when there is none."""

    entries: int
    bytes: int
    runs: int
    oldest: datetime | None


@dataclass(frozen=True)
class Compacted:
    """One bucket before and after. `live_keys`: distinct keys whose window is not over; each was looked up in the new run and found.

    `outcome`: unchanged, listed (by the compaction or the running leg), offered (the leg lists it with its next batch), or
    overtaken (the leg merged the runs meanwhile: nothing was lost, nothing gained).
    """

    bucket: int
    before: Extent
    after: Extent
    live_keys: int
    outcome: str


@dataclass(frozen=True)
class _Merged:
    inputs: tuple[RunFacts, ...]
    output: tuple[RunFacts, ...]
    report: Compacted


def compact(state: KeyState, adoption_seconds: float = ADOPTION_SECONDS) -> list[Compacted]:
    """Compacts every bucket; one report per bucket. Safe to kill, and to repeat.

    Raises HaltError before the first record, StateDamagedError for a damaged run, InvariantError when a live key is not in the new run
    (then nothing was listed).
    """
    os.environ.setdefault(RUNNER_PID_VARIABLE, str(os.getpid()))
    lease = Lease(state.connections.log, state.names, state.directory, "process")
    try:
        epoch = lease.acquire()
    except FencedError:
        return _offered(state, adoption_seconds)
    try:
        return _listed(state, epoch)
    finally:
        lease.release()


def _listed(state: KeyState, epoch: int) -> list[Compacted]:
    """No leg runs, we hold its lease: our `done` lists the new runs, and the old ones go."""
    chain = Chain(state.connections.log, state.names.stream("ledger"), state.names.chain("process"), epoch)
    found = chain.open()
    merged = _merge_all(state, found)
    reach("compact.after-runs")
    changed = [one for one in merged if one.report.outcome != "unchanged"]
    if changed:
        assert found.done is not None
        runs = {str(one.report.bucket): listed(one.output) for one in changed}
        chain.restate(runs={**found.done.body["runs"], **runs})
        for one in changed:
            _delete(state, one.report.bucket, one.inputs, kept=one.output)
    return [one.report for one in merged]


def _offered(state: KeyState, adoption_seconds: float) -> list[Compacted]:
    """A leg runs: it lists the new runs, if what they were made of is still listed when its next batch ends."""
    merged = state.settled(lambda found: _merge_all(state, found))
    reach("compact.after-runs")
    offers = {str(one.report.bucket): [[f.name for f in one.inputs], listed(one.output)] for one in merged if one.output != one.inputs}
    if not offers:
        return [one.report for one in merged]
    log, subject = state.connections.log, state.names.compaction()
    last = log.last(state.names.stream("ledger"), subject)
    log.publish(subject, json.dumps({"buckets": offers}).encode(), {}, last.sequence if last else 0)
    deadline = time.monotonic() + adoption_seconds
    outcomes = _outcomes(state.chain(), merged)
    while "offered" in outcomes and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        outcomes = _outcomes(state.chain(), merged)
    return [_told(state, one, outcome) for one, outcome in zip(merged, outcomes, strict=True)]


def _outcomes(found: ChainState, merged: list[_Merged]) -> list[str]:
    runs: dict[str, Any] = found.done.body["runs"] if found.done else {}

    def outcome(one: _Merged) -> str:
        if one.report.outcome == "unchanged":
            return "unchanged"
        names = {entry[0] for entry in runs.get(str(one.report.bucket), [])}
        if one.output and {facts.name for facts in one.output} <= names:
            return "listed"
        return "offered" if {facts.name for facts in one.inputs} <= names else "listed" if not one.output else "overtaken"

    return [outcome(one) for one in merged]


def _told(state: KeyState, one: _Merged, outcome: str) -> Compacted:
    if outcome == "overtaken":
        _delete(state, one.report.bucket, one.output, kept=one.inputs)
    return replace(one.report, outcome=outcome)


def _delete(state: KeyState, bucket: int, runs: tuple[RunFacts, ...], kept: tuple[RunFacts, ...]) -> None:
    for facts in runs:
        if facts not in kept:
            state.connections.dedup_store(bucket).place.delete(facts.name)


def _merge_all(state: KeyState, found: ChainState) -> list[_Merged]:
    config = state.stage_config(found)
    assert found.done is not None
    expired = config.dedup_expired_us(found.done.body)
    return [_merge(state.store(found, bucket), bucket, expired, found.done.body["to"]) for bucket in range(config.buckets)]


def _merge(store: KeyedStore, bucket: int, expired: int, to: int) -> _Merged:
    before = tuple(store.live)
    after = tuple(store.compact(expired, to))
    live_keys = _prove(store, after, expired)
    outcome = "unchanged" if after == before else "listed"
    return _Merged(before, after, Compacted(bucket, _extent(store, before), _extent(store, after), live_keys, outcome))


def _prove(store: KeyedStore, after: tuple[RunFacts, ...], expired: int) -> int:
    """Looks up every key of the live runs in the new ones: the answer must be the same unless it is over; the number of live keys.

    Raises InvariantError for a key that is not there.
    """
    new = KeyedStore(store.place)
    new.open(after)
    for facts, entries in zip(store.live, store.checked(), strict=True):
        for start in range(0, len(entries), BLOCK_ROWS):
            part = entries.take(np.arange(start, min(start + BLOCK_ROWS, len(entries))))
            known, found = store.find(part.hi, part.lo), new.find(part.hi, part.lo)
            is_same = found.is_found & (found.sequence == known.sequence) & (found.ordinal == known.ordinal)
            if (~is_same & (known.time > expired)).any():
                raise InvariantError(f"compacting {store.place.path}: a live key of {facts.name} is not in the new run; nothing was listed")
    return sum(int((entries.time > expired).sum()) for entries in new.checked())


def _extent(store: KeyedStore, runs: tuple[RunFacts, ...]) -> Extent:
    if not runs:
        return Extent(0, 0, 0, None)
    oldest = min(int(Run.open(store.place, facts).entries.time.min()) for facts in runs)
    return Extent(sum(facts.rows for facts in runs), sum(store.place.size(facts.name) for facts in runs), len(runs), instant(oldest))
