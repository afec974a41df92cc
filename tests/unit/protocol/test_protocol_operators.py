"""The model of the protocol with operators in it: rows of the sink are given up, the clock is reset, windows go by the events' own times.

As tests/unit/protocol/test_protocol_model.py, whose histories these are; the operators are in tests/support/protocol_operators.py.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from support.protocol_account import entries
from support.protocol_operators import ABANDON, RESET, Operator, operated_chaos, use_event_times
from support.protocol_outside import NAMES, Topic
from support.protocol_stages import POISON, configuration, stored_rows
from support.protocol_strikes import History, arrange, at_every_publish, before_every_call, reported
from support.protocol_world import World

from pipelines.errors import FencedError, RefusedError
from pipelines.process.arrivals import arrivals
from pipelines.process.leg import ProcessLeg
from pipelines.protocol.bodies import NOTHING, SINK_CHAIN, ProcessDone, ProcessPlan
from pipelines.protocol.ledger import Chain, ChainState, read_chain

pytestmark = pytest.mark.crash

EXECUTE = ProcessLeg._execute
HISTORIES = int(os.environ.get("TALLYFLOW_MODEL_HISTORIES", "300")) // 10


def play(seed: int, event_times: bool = False) -> World:
    world = World(seed)
    if event_times:
        use_event_times(world, world.rng.choice([2_000_000, 8_000_000]), world.rng.choice([0, 1_000_000]))
    try:
        operated_chaos(world, world.rng.choice([30, 100]))
        world.settle()
    finally:
        for actor in world.actors():
            actor.kill()
    return world


@pytest.mark.parametrize("event_times", [False, True], ids=["by arrival", "by event time"])
def test_random_histories_with_operators_lose_no_record(event_times: bool) -> None:
    for seed in range(HISTORIES):
        reported(f"seed {seed}", partial(play, seed, event_times))


def new_world(window_us: int = 0) -> World:
    """Seven records in two partitions, of which the table refuses one."""
    world = World(4)
    world.window_us, world.config, world.lateness_us = window_us, configuration("bad", window_us), None
    world.max_age, world.log.max_bytes = None, {}
    world.topic = Topic(world, {0: 0, 1: 7})
    world.begins_at_latest = world.expires = False
    world.table.refused, world.table.partitions = b"fine", 1
    for number, value in enumerate([b"good", b"bad", b"odd", POISON, b"good", b"odd", b"good", b"fine"]):
        world.topic.produce(number % 2, value, gap=number % 3)
    return world


def ended(world: World, operator: Operator) -> Operator:
    world.commands.append(operator)
    world.finish(operator.actors)
    return operator


# -- rows that are given up -------------------------------------------------------------------------------------------------


def die_at_first_insert(world: World, stored: str) -> None:
    """The runner is killed there; the table has stored nothing, all, or one of its partitions by then."""
    insert = world.table.insert

    def dying(*block: Any) -> None:
        world.table.insert = insert
        if stored != "nothing":
            with suppress(RefusedError):
                insert(*block)
        for actor in world.current.runner.actors:
            actor.is_killed = True
        world.call()

    world.table.insert = dying
    if stored == "all":
        world.table.refused = None
    if stored == "one partition":
        world.table.partitions = 3


def abandon_history(prepare: Callable[[World], None], stored: str = "nothing", with_waiting: bool = False) -> tuple[int, int]:
    """A runner dies at its first insert, what it had begun is given up, with what `prepare` arranged, and the history ends as all.

    Returns how many calls the command made, and how many of them published.
    """
    world = new_world()
    die_at_first_insert(world, stored)
    first = world.start()
    world.drain(first)
    world.current = None
    assert read_chain(world.log, NAMES, SINK_CHAIN).plan is not None, [a.error for a in first.actors]
    before = world.calls, world.log.publishes
    prepare(world)
    try:
        ended(world, Operator(world, ABANDON, with_waiting))
        made = world.calls - before[0], world.log.publishes - before[1]
        world.produce(2)
        world.settle()
    finally:
        for actor in world.actors():
            actor.kill()
    return made


STORED = pytest.mark.parametrize("stored", ["nothing", "all", "one partition"])


@STORED
@pytest.mark.parametrize("with_waiting", [False, True], ids=["the plan", "what waits as well"])
def test_abandoned_rows_are_letters_unless_stored(stored: str, with_waiting: bool) -> None:
    assert abandon_history(lambda world: None, stored, with_waiting)[1] > 2


@STORED
def test_giving_rows_up_may_end_before_every_single_call(stored: str) -> None:
    calls, _ = abandon_history(lambda world: None, stored, with_waiting=True)
    before_every_call(History(stored, calls, partial(abandon_history, stored=stored, with_waiting=True)))


def test_every_single_publish_of_giving_rows_up_may_fail() -> None:
    _, publishes = abandon_history(lambda world: None)
    at_every_publish(History("", publishes, abandon_history))


def found_in(first: int) -> None:
    """Plays the seed that finds a mistake as things are, and then others: one of them finds it when histories have changed."""
    for seed in (first, *range(300)):
        play(seed)


def finds_nothing(*_: object) -> npt.NDArray[np.int64]:
    return np.zeros(0, np.int64)


def test_giving_rows_up_without_asking_the_table_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.maintenance.plans.stored_rows", lambda *_, **__: finds_nothing())
    with pytest.raises(AssertionError, match="table"):
        abandon_history(lambda world: None, "all")


def test_abandoning_beside_a_runner_without_its_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Operator, "takes_lease", False)
    with pytest.raises(AssertionError, match=r"FencedError|table"):
        found_in(3)


def test_a_sink_that_sends_what_was_given_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command died between its decision and the letters."""
    monkeypatch.setattr("pipelines.sink.leg.abandoned_rows", lambda *_: None)
    with pytest.raises(AssertionError):
        found_in(113)


# -- the clock --------------------------------------------------------------------------------------------------------------


def reset_history(prepare: Callable[[World], None], killed_at: int = 0) -> tuple[int, int, int]:
    """A server that was 20 s ahead steps back, records wait, the clock is reset, with what `prepare` arranged; then others come.

    `killed_at`: the runner before it is killed at that call, counted from when the clock stepped. Returns how many calls that runner made
    since then, how many the command, and how many resets there are.
    """
    world = new_world(window_us=2_000_000)
    first = world.start()
    world.drain(first)
    world.clock.advance(timedelta(seconds=20))
    world.produce(3)
    world.drain(first)
    world.clock.advance(timedelta(seconds=-20))
    world.produce(3)
    begun = world.calls
    arrange(killed_at, "kill", world) if killed_at else None
    world.drain(first)
    of_runner = world.calls - begun
    first.kill()
    begun = world.calls
    prepare(world)
    try:
        ended(world, Operator(world, RESET))
        of_command = world.calls - begun
        for _ in range(3):
            world.clock.advance(timedelta(seconds=8))
            world.produce(3)
            world.drain(world.start())
        world.settle()
        resets = len([entry for entry in entries(world.log, "process") if entry.kind == "done"][-1].body.clock_resets)
    finally:
        for actor in world.actors():
            actor.kill()
    return of_runner, of_command, resets


def test_arrivals_go_on_behind_a_reset_and_never_back() -> None:
    of_runner, of_command, resets = reset_history(lambda world: None)
    assert of_runner > 20
    assert of_command > 3
    assert resets == 1


def test_resetting_the_clock_may_end_before_every_single_call() -> None:
    _, calls, _ = reset_history(lambda world: None)
    for kind in ("kill", "pause"):
        before_every_call(History("", calls, reset_history), kinds=[kind])


def test_the_clock_may_be_reset_behind_a_killed_runner() -> None:
    calls, *_ = reset_history(lambda world: None)
    for call in range(1, calls + 1):
        reported(f"kill before call {call} of {calls}", partial(reset_history, lambda world: None, killed_at=call))


class SeesNoPlan(Chain):
    """For a reset that does not wait until what an older runner has begun, by its own arrivals, is finished."""

    def open(self) -> ChainState:
        return replace(super().open(), plan=None)


def test_a_reset_that_passes_an_old_runners_arrivals_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.maintenance.inspect.Chain", SeesNoPlan)
    with pytest.raises((AssertionError, FencedError)):
        found_in(29)


def test_a_process_leg_that_forgets_resets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.process.leg.arrivals", lambda messages, clock_us, resets: arrivals(messages, clock_us))
    with pytest.raises(AssertionError, match="arrivals"):
        found_in(177)


# -- the events' own times --------------------------------------------------------------------------------------------------


def timed_history(prepare: Callable[[World], None]) -> tuple[int, set[str]]:
    """Records of two partitions in three rounds, each with a runner of its own and some that are late.

    Returns how many calls the runners made, and the codes of the dead letters.
    """
    world = new_world()
    # How far a leg looks is drawn, too: with lanes the sink would draw more.
    world.topic, world.has_lanes = Topic(world, {0: 0, 1: 7}), False
    use_event_times(world, 4_000_000, 1_000_000)
    begun = world.calls
    prepare(world)
    try:
        for first in (0, 6, 12):
            for number, ahead in enumerate([1, 0, 5, -4, 6, 2, -7, 3]):
                value = (b"good", b"odd", b"bad", b"good")[number % 4]
                world.topic.produce(number % 2, value + b"@%d" % max(0, first + ahead), gap=0)
            world.drain(world.start())
        made = world.calls - begun
        world.settle()
        dead_letters = [row for message in world.log.everything(NAMES.stream("dlq")) for row in stored_rows(message.payload).to_pylist()]
    finally:
        for actor in world.actors():
            actor.kill()
    return made, {dead_letter["code"] for dead_letter in dead_letters}


def test_watermarks_go_on_where_the_runner_before_has_left_them() -> None:
    made, codes = timed_history(lambda world: None)
    assert made > 60
    assert "late" in codes


def test_an_event_time_runner_may_end_before_every_call() -> None:
    calls, _ = timed_history(lambda world: None)
    before_every_call(History("", calls, timed_history))


def begins_its_watermarks_anew(self: ProcessLeg, plan: ProcessPlan) -> ProcessDone:
    """A leg that keeps watermarks to itself, and not in its `done`."""
    done = self.chain.state.done
    if done is not None and done.epoch != self.chain.state.epoch:
        self.chain.state = replace(self.chain.state, done=replace(done, body=replace(done.body, watermarks=NOTHING)))
    return EXECUTE(self, plan)


def test_watermarks_that_a_restart_forgets_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessLeg, "_execute", begins_its_watermarks_anew)
    with pytest.raises(AssertionError, match=r"table|dead letters"):
        timed_history(lambda world: None)
