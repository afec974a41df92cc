"""Joins in the protocol's model: histories in which two sources meet by key, and mistakes of a join, its ticks and floors, that are found.

One history of four of tests/unit/protocol/test_protocol_model.py has a join. Its account is played again record by record, from the frames
of raw alone (tests/support/protocol_join_account.py); tests/support/protocol_joins.py says what such a history is made of.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from support.protocol_chaos import play
from support.protocol_joins import SECOND_US, UNMATCHED, JoinOfHistory, Unmatched, has_join, small_portions
from support.protocol_outside import NAMES, ModelLog, Topic
from support.protocol_stages import POISON, VENOM, stored_rows
from support.protocol_strikes import History, arrange, at_every_publish, before_every_call
from support.protocol_world import OTHERS, World

import pipelines.process.join.outcomes
import pipelines.process.joining
import pipelines.process.ticks
import pipelines.protocol.purge
import pipelines.protocol.ticks
from pipelines.errors import HaltError, UndecidedError
from pipelines.key_store.segments import RunFacts
from pipelines.key_store.store import Found, KeyedStore
from pipelines.process.join.sides import Frames, Windows
from pipelines.process.join.stores import JoinStores
from pipelines.process.leg import ProcessLeg
from pipelines.process.ticks import TickedInput
from pipelines.protocol.bodies import ProcessDone
from pipelines.protocol.ledger import ChainState, read_chain
from pipelines.protocol.naming import Names

pytestmark = pytest.mark.crash

SEEDS = 2_000
MAX_CALLS = 8_000
"""A leg that waits for what is gone never ends; no sound history of these has taken half as many."""
Patch = pytest.MonkeyPatch


def joins(known: int) -> Iterator[int]:
    """The seed that finds a mistake as things are, and all others: one of them finds it when histories have changed."""
    return iter([known, *(seed for seed in range(SEEDS) if has_join(seed))])


# -- literal histories --------------------------------------------------------------------------------------------------------

ROUNDS: tuple[tuple[tuple[bytes, ...], tuple[bytes, ...]], ...] = (
    ((b"good/1/0", b"fine/1/1", b"bad/1/2", b"good/2/3"), (b"good/2/4", b"bad/1/5")),
    ((b"good/1/6", VENOM + b"/2/7", b"worn/1/8", b"good"), (b"good/1/9", b"good/1/10")),
    ((b"odd/1/11", b"fine/1/12", POISON + b"/1/13", b"good/3/14", b"fine/3/15"), ()),
    ((b"good/1/16",), (b"fine/4/17",)),
)
"""(left records, right records) of each second."""


@contextmanager
def literal_world(unmatched: Unmatched = "emit", max_age: timedelta | None = None) -> Iterator[World]:
    """Two sources without a record; the table refuses some rows."""
    world = World(4)
    world.join = JoinOfHistory("orders", "others", 2 * SECOND_US, 3 * SECOND_US, 0, Random(4))
    world.has_two_sources, world.window_us, world.config = True, 0, world.join.configuration("bad", unmatched=unmatched)
    world.max_age, world.log.max_bytes = max_age, {}
    world.topic, world.others = Topic(world, {0: 0, 1: 7}), Topic(world, {OTHERS: 3})
    world.begins_at_latest = world.expires = False
    world.table.refused, world.chunk_rows = b"fine", [2]
    try:
        with small_portions():
            yield world
    finally:
        for actor in world.actors():
            actor.kill()


def produce(world: World, lefts: Iterable[bytes], rights: Iterable[bytes]) -> None:
    for number, value in enumerate(lefts):
        world.topic.produce(number % 2, value, gap=0)
    for value in rights:
        world.others.produce(OTHERS, value, gap=1)


def literal_history(
    prepare: Callable[[World], None], unmatched: Unmatched = "emit", max_age: timedelta | None = None
) -> tuple[int, int, World]:
    """One runner, with what `prepare` arranged; then the end of every history, where all windows are over.

    Returns how many calls the runner made, how many of them published, and the world.
    """
    with literal_world(unmatched, max_age) as world:
        first = world.start()
        before = world.calls, world.log.publishes
        prepare(world)
        for records in ROUNDS:
            produce(world, *records)
            world.drain(first)
            world.clock.advance(timedelta(seconds=1))
        made = world.calls - before[0], world.log.publishes - before[1]
        world.clock.advance(timedelta(seconds=5))
        world.settle()
    return *made, world


def nothing(world: World) -> None:
    """Arrange nothing."""


def test_a_join_that_nobody_disturbs_has_its_rows_and_letters() -> None:
    world = literal_history(nothing)[2]
    rows = {value for _, _, value in world.table.rows}
    assert b"good/2/3 not bad with good/2/4 not bad" in rows
    # The first two rounds are read by one leg after the other; who waits meets the next right record of its key.
    assert b"good/1/0 not bad with good/1/9 not bad" in rows
    assert b"good/3/14 not bad alone" in rows
    letters = [row for message in world.log.everything(NAMES.stream("dlq")) for row in stored_rows(message.payload).to_pylist()]
    assert {(row["value"].split(b"/")[0], row["stage"], row["code"]) for row in letters} == {
        (b"bad", "parse", "invalid_json"),
        (b"good", "join", "null_key"),
        (b"worn", "transform", "worn"),
        (b"fine", "sink", "refused"),
        (POISON, "parse", "internal_error"),
        (VENOM, "transform", "internal_error"),
    }
    assert any(".=tick." in message.subject for message in world.log.everything(NAMES.stream("raw")))


@pytest.mark.parametrize("unmatched", UNMATCHED)
def test_some_calls_of_a_joining_runner_may_be_its_last(unmatched: Unmatched) -> None:
    calls = literal_history(nothing, unmatched)[0]
    assert calls > 100
    for call in range(1, calls, 37):
        literal_history(partial(arrange, call, "kill"), unmatched)


def test_a_joining_runner_may_stop_before_every_call() -> None:
    """In turn one that keeps everything and one that purges at once."""
    histories = []
    for max_age, unmatched in product((None, timedelta(0)), UNMATCHED):
        calls, *_ = literal_history(nothing, unmatched, max_age)
        histories.append(History(f"{unmatched}, {max_age}", calls, partial(literal_history, unmatched=unmatched, max_age=max_age)))
    before_every_call(*histories)


def test_every_single_publish_of_a_join_may_fail() -> None:
    _, publishes, _ = literal_history(nothing)
    at_every_publish(History("", publishes, literal_history))


# -- faults that the model has found --------------------------------------------------------------------------------------------


def test_a_record_that_ends_a_step_behind_a_join_is_decided() -> None:
    """What was joined passes the steps in portions: rows of earlier ones are written when a later one ends a step."""
    for seed in (66, 110, 260):
        play(seed)


def test_a_step_that_ends_only_now_and_then_halts_a_join(monkeypatch: Patch) -> None:
    """The first attempt has written the row of the record on which the second one ends."""
    with literal_world() as world, monkeypatch.context() as patch:
        patch.setattr("support.protocol_stages.end_at", lambda value, table: None)
        produce(world, [VENOM + b"/1/0"], [b"good/1/1"])
        runner = world.start()
        world.finish(runner.actors[:1])
        while not world.log.messages(NAMES.stream("out")):
            for actor in world.actors():
                actor.step(1)
        runner.kill()
        patch.undo()
        second = world.start()
        world.drain(second)
        (halt,) = [actor.error for actor in second.actors if actor.error is not None]
        assert isinstance(halt, HaltError)
        assert "(raw position" in str(halt) and "an earlier attempt has passed it" in str(halt)


def asks_for_the_whole_plan(self: UndecidedError, message: str, records: Sequence[Sequence[Any]], is_unwritten: bool = False) -> None:
    Exception.__init__(self, message)
    self.records, self.is_unwritten = [list(record) for record in records], False


def test_a_plan_that_takes_such_a_record_for_written_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(UndecidedError, "__init__", asks_for_the_whole_plan)
    with pytest.raises(AssertionError, match="an earlier attempt has passed it"):
        for seed in joins(66):
            play(seed)


# -- mistakes -----------------------------------------------------------------------------------------------------------------


def _left_edge_inclusive(patch: Patch) -> None:
    found = pipelines.process.join.outcomes.released_in_time
    patch.setattr(pipelines.process.join.outcomes, "released_in_time", lambda lefts, rights, window: found(lefts, rights, window + 1))


def _right_edge_inclusive(patch: Patch) -> None:
    made = JoinStores.__init__

    def with_one_more(self: JoinStores, *of: Any) -> None:
        made(self, *of)
        self.windows = Windows(self.windows.left_us, self.windows.right_us + 1)

    patch.setattr(JoinStores, "__init__", with_one_more)


def _ended_with_the_range(patch: Patch) -> None:
    patch.setattr(pipelines.process.join.outcomes, "released_in_time", lambda lefts, rights, window: np.ones(len(lefts), dtype=bool))


def _caused_by_the_end_of_the_range(patch: Patch) -> None:
    patch.setattr(Frames, "first_from", lambda self, times: np.full(len(times), self.sequences[-1]))


def _newest_right_of_the_range_only(patch: Patch) -> None:
    patch.setattr(KeyedStore, "find", lambda self, hi, lo: Found.nothing(len(hi)))


def _consumed_twice(patch: Patch) -> None:
    patch.setattr(pipelines.process.join.outcomes, "is_consumed", lambda lefts, newest: np.zeros(len(lefts), dtype=bool))


def _kept_for_its_own_window(patch: Patch) -> None:
    patch.setattr(Windows, "kept_us", property(lambda windows: windows.right_us))


def _ordered_by_left(patch: Patch) -> None:
    def in_order(decision: Any, at: Any, cause: Any, is_decided: Any) -> Any:
        (decided,) = is_decided.nonzero()
        return decided[np.argsort(decision.every.positions[at[decided]], kind="stable")]

    patch.setattr("pipelines.process.join.outcomes._Decision._in_order", in_order)


def _floor_without_the_waiting(patch: Patch) -> None:
    def forgetful(log: Any, names: Names, kind: Any) -> ChainState[Any, Any]:
        state = read_chain(log, names, kind)
        if state.done is None or not isinstance(state.done.body, ProcessDone):
            return state
        return replace(state, done=replace(state.done, body=replace(state.done.body, waiting=None)))

    patch.setattr(pipelines.protocol.purge, "read_chain", forgetful)


def _floor_without_the_oldest_of_a_frame(patch: Patch) -> None:
    patch.setattr(pipelines.protocol.purge, "HEADER_OLDEST", "Tf-None")


def _newest_waiting_is_named(patch: Patch) -> None:
    """A `done` that names the oldest of what the last plan has stored, and not of what waits."""
    patch.setattr(JoinStores, "oldest_waiting", lambda self, after_us: None)


def _reads_what_no_done_lists(patch: Patch) -> None:
    added, opened = JoinStores.add, JoinStores.open

    def remembering(self: Any, *of: Any) -> Any:
        self.newest = added(self, *of)
        return self.newest

    def open_newest(self: Any, rights: Sequence[RunFacts], lefts: Sequence[RunFacts]) -> None:
        opened(self, *getattr(self, "newest", (rights, lefts)))

    patch.setattr(JoinStores, "add", remembering)
    patch.setattr(JoinStores, "open", open_newest)


def _only_buckets_with_records(patch: Patch) -> None:
    patch.setattr("pipelines.process.frames.waiting_buckets", lambda config, item: set())
    patch.setattr("pipelines.process.exchange.waiting_buckets", lambda config, item: set())


def _no_tick(patch: Patch) -> None:
    patch.setattr(TickedInput, "_tick_if_due", lambda self: None)


def _a_tick_at_every_look(patch: Patch) -> None:
    patch.setattr(TickedInput, "_tick_if_due", lambda self: pipelines.process.ticks.append_tick(self._log, self._names))


def _a_tick_before_the_end(patch: Patch) -> None:
    """It ends no window, so that the next look appends another one."""
    end_us = ProcessLeg._next_end_us
    patch.setattr(ProcessLeg, "_next_end_us", lambda self: None if (found := end_us(self)) is None else found - SECOND_US)


MUTANTS: dict[Callable[[Patch], None], int] = {
    _left_edge_inclusive: 26,
    _right_edge_inclusive: 358,
    _ended_with_the_range: 26,
    _caused_by_the_end_of_the_range: 26,
    _newest_right_of_the_range_only: 17,
    _consumed_twice: 17,
    _kept_for_its_own_window: 5159,
    _ordered_by_left: 745,
    _floor_without_the_waiting: 25,
    _floor_without_the_oldest_of_a_frame: 56,
    _newest_waiting_is_named: 25,
    _reads_what_no_done_lists: 78,
    _only_buckets_with_records: 25,
    _no_tick: 33,
    _a_tick_at_every_look: 2,
    _a_tick_before_the_end: 60,
}
"""Each mistake with a seed that finds it: the first one, when it was written."""


@pytest.mark.parametrize(("mistake", "known"), MUTANTS.items(), ids=[mistake.__name__.strip("_") for mistake in MUTANTS])
def test_a_mistake_of_a_join_is_found(mistake: Callable[[Patch], None], known: int, monkeypatch: Patch) -> None:
    mistake(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in joins(known):
            play(seed, MAX_CALLS)


def test_without_a_mistake_these_histories_are_sound() -> None:
    for seed in sorted({*MUTANTS.values()}):
        assert play(seed, MAX_CALLS).calls < MAX_CALLS // 2


def appends_whatever_is_there(log: ModelLog, names: Names) -> None:
    log.store(names.tick(), pipelines.protocol.ticks._TICK, pipelines.protocol.ticks._HEADERS, None)


def test_ticks_too_many_change_no_account(monkeypatch: Patch) -> None:
    """A tick without compare-and-set, of a leg that was fenced too, and when no window has ended, only shows what time it was."""
    looks, due = iter(range(10**6)), TickedInput._tick_if_due
    monkeypatch.setattr(pipelines.process.ticks, "append_tick", appends_whatever_is_there)

    def often(self: TickedInput) -> None:
        appends_whatever_is_there(self._log, self._names) if next(looks) % 5 == 0 else due(self)

    monkeypatch.setattr(TickedInput, "_tick_if_due", often)
    for seed in filter(has_join, range(60)):
        play(seed)
