"""Joins by the records' own times in the protocol's model: histories with marks, fenced legs and late records, and mistakes that are found.

One history of ten of tests/unit/protocol/test_protocol_model.py is of this kind. Its account is played again frame by frame
(`TimedAccount` of tests/support/protocol_join_account.py).
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from support.protocol_chaos import play
from support.protocol_joins import has_timed_join

from pipelines.process.join.progress import Progress, TimedFrames
from pipelines.process.join.timed_stores import TimedJoinStores
from pipelines.process.leg import ProcessLeg
from pipelines.protocol.bodies import NEVER, Watermarks

pytestmark = pytest.mark.crash

HISTORIES = int(os.environ.get("TALLYFLOW_TIMED_HISTORIES", "20"))
SEEDS = 6_000
MAX_CALLS = 8_000
Patch = pytest.MonkeyPatch


def timed(*known: int) -> Iterator[int]:
    """The seed that finds a mistake as things are, if one is known, and all others."""
    return filter(has_timed_join, (*known, *range(SEEDS)))


def test_histories_of_joins_by_time_are_sound() -> None:
    for seed in islice(timed(), HISTORIES):
        play(seed)


def _marks_of_fenced_legs_count(patch: Patch) -> None:
    found = TimedFrames.of_facts

    def trusting(facts: Any, before: Watermarks, lateness_us: int) -> TimedFrames:
        frames = found(facts, before, lateness_us)
        return replace(frames, marks=[dict.fromkeys(marks, 2**40) for marks in frames.marks])

    patch.setattr(TimedFrames, "of_facts", trusting)


def _forgets_who_is_idle(patch: Patch) -> None:
    found = Progress.of
    patch.setattr(Progress, "of", lambda stored: replace(found(stored), idle=frozenset()))


def _forgets_what_was_read(patch: Patch) -> None:
    found = Progress.of
    patch.setattr(Progress, "of", lambda stored: replace(found(stored), read={}))


def _forgets_the_watermark(patch: Patch) -> None:
    found = Progress.of
    patch.setattr(Progress, "of", lambda stored: replace(found(stored), watermark_us=NEVER))


def _late_by_its_own_frame(patch: Patch) -> None:
    found = TimedFrames.is_late
    patch.setattr(TimedFrames, "is_late", lambda frames, sequences, times_us: found(frames, sequences + 1, times_us))


def _times_are_not_kept(patch: Patch) -> None:
    found = ProcessLeg._item
    patch.setattr(ProcessLeg, "_item", lambda leg, plan: found(leg, replace(plan, times=())))


def _only_buckets_with_records(patch: Patch) -> None:
    patch.setattr("pipelines.process.frames.waiting_buckets", lambda config, item: set())
    patch.setattr("pipelines.process.exchange.waiting_buckets", lambda config, item: set())


def _newest_waiting_is_named(patch: Patch) -> None:
    patch.setattr(TimedJoinStores, "oldest_waiting", lambda stores, watermark_us: None)


def _left_out_while_it_waits(patch: Patch) -> None:
    found = TimedJoinStores._is_decided
    patch.setattr(TimedJoinStores, "_is_decided", lambda stores, lefts, ended_us: found(stores, lefts, ended_us + 1_000_000))


MUTANTS: dict[Callable[[Patch], None], int] = {
    _marks_of_fenced_legs_count: 19,
    _forgets_who_is_idle: 257,
    _forgets_what_was_read: 19,
    _forgets_the_watermark: 8,
    _late_by_its_own_frame: 8,
    _times_are_not_kept: 713,
    _only_buckets_with_records: 8,
    _newest_waiting_is_named: 8,
    _left_out_while_it_waits: 91,
}
"""Each mistake with a seed that finds it: the first one, when it was written."""


@pytest.mark.parametrize(("mistake", "known"), MUTANTS.items(), ids=[mistake.__name__.strip("_") for mistake in MUTANTS])
def test_a_mistake_of_a_timed_join_is_found(mistake: Callable[[Patch], None], known: int, monkeypatch: Patch) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in timed(known):
            play(seed, MAX_CALLS)
