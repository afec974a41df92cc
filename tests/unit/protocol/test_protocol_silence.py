"""The protocol's model where a partition loses its leader in an open plan of ingest: the others go on, and its own records come once.

The leader goes before every single call of ingest, a publish is late, the runner is killed or paused; then it has a leader again.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import pytest
from support.protocol_outside import LANE, NAMES, Topic
from support.protocol_stages import configuration
from support.protocol_strikes import arrange, reported
from support.protocol_world import MAX_CALLS, Runner, World

import pipelines.ingest.leg
import pipelines.ingest.narrowing
from pipelines.errors import RetryableError
from pipelines.ingest.leg import IngestLeg
from pipelines.protocol.bodies import INGEST_CHAIN, IngestDone, IngestPlan, Offsets
from pipelines.protocol.ledger import ChainState, read_chain
from pipelines.protocol.tally import tally
from pipelines.testing import SINGLE, Fault

pytestmark = pytest.mark.crash

SILENT = 1
CALLS = 60
"""Of ingest, until it has nothing left; a few more or less by the seed."""
NARROWED = pipelines.ingest.narrowing.narrowed


@contextmanager
def world_of_two_partitions(seed: int) -> Iterator[World]:
    world = World(seed)
    world.window_us, world.config = 0, configuration("bad", 0)
    world.max_age, world.log.max_bytes = None, {}
    world.begins_at_latest = world.expires = False
    world.table.refused = None
    world.topic = Topic(world, {0: 0, SILENT: 7})
    # Frames are written as soon as there is something to write.
    world.flush_bytes = 1
    for number in range(24):
        world.topic.produce(number % 2, b"good", gap=number % 3)
    try:
        yield world
    finally:
        for actor in world.actors():
            actor.kill()


def chain_of_ingest(world: World) -> ChainState:
    world.current = None
    return read_chain(world.log, NAMES, INGEST_CHAIN)


def check_while_silent(world: World, runner: Runner) -> None:
    """The other partition is through, nothing of the open plan is left, and every leg's account is even meanwhile."""
    for actor in runner.actors:
        # A lane that was given up may have lost what another one held.
        assert actor.error is None or (actor.name == LANE and isinstance(actor.error, RetryableError)), f"{actor.name}: {actor.error!r}"
    ingest, account = chain_of_ingest(world), tally(world.log, NAMES, SINGLE)
    assert ingest.plan is None, "the plan is still open"
    assert ingest.to["0"] == world.topic.end[0]
    assert [leg.waiting for leg in account.legs] == [0, 0, 0], f"read more than was counted, or less: {account}"
    assert account.residue == 0


def history(seed: int, leader_goes_at: int, prepare: Callable[[World], None], is_paused: bool = False) -> None:
    """One runner, whose partition loses its leader at a call, and that is met by what `prepare` arranges; it is killed, or paused until the
    end. Another one goes on beside the silent partition; then the leader comes back, and what was late.
    """
    with world_of_two_partitions(seed) as world:
        first = started(world)
        world.leader_goes_at = world.calls + leader_goes_at
        prepare(world)
        world.drain(first)
        if not is_paused:
            first.kill()
        world.is_frozen, world.strike, world.leader_goes_at = False, None, 0
        world.topic.silent.add(SILENT)
        world.topic.produce(0, b"good", 0)
        second = started(world)
        world.drain(second)
        check_while_silent(world, second)
        world.log.deliver()
        world.topic.silent.clear()
        world.topic.produce(SILENT, b"good", 0)
        world.drain(second)
        world.settle()


def started(world: World) -> Runner:
    """A runner that has begun its legs: where a pipeline begins it asks every partition, and waits for all of them."""
    runner = world.start()
    world.finish(runner.actors[:1])
    return runner


def late(publish: int, world: World) -> None:
    world.log.fail_publish(Fault.DELAYED, publish)


def test_a_partition_may_lose_its_leader_before_every_call() -> None:
    lose_the_leader_before_every_call()


def lose_the_leader_before_every_call(max_calls: int = MAX_CALLS) -> None:
    def at_most(world: World) -> None:
        world.max_calls = max_calls

    for call in range(1, CALLS + 1):
        reported(f"no leader from call {call}", lambda c=call: history(c, c, at_most))


def test_a_publish_may_be_late_until_the_leader_is_back() -> None:
    for publish in range(2, 14):
        for call in range(3 * publish - 4, 3 * publish + 4):
            reported(f"late publish {publish}, no leader from call {call}", lambda p=publish, c=call: history(c, c, partial(late, p)))


def test_a_leaderless_runner_may_stop_before_every_call() -> None:
    for call in range(1, CALLS + 1, 3):
        # What is decided, and what follows from it, comes behind it.
        for struck in range(call, call + 12):
            kind = ("kill", "pause")[struck % 2]
            reported(
                f"no leader from call {call}, {kind} before call {struck}",
                lambda c=call, s=struck, k=kind: history(c, c, partial(arrange, s, k), is_paused=k == "pause"),
            )


# -- mistakes -----------------------------------------------------------------------------------------------------------------


def gives_up_what_was_written(plan: IngestPlan, reached: Mapping[str, int]) -> IngestPlan:
    return NARROWED(plan, dict.fromkeys(reached, 0))


def claims_what_was_not_written(plan: IngestPlan, reached: Mapping[str, int]) -> IngestPlan:
    return NARROWED(plan, {p: offset + 1 for p, offset in reached.items()})


def plans_less_than_was_left(done: IngestDone, start: Offsets, end: Offsets) -> Offsets:
    return {}


BEFORE_EVERY_CALL = lose_the_leader_before_every_call


@pytest.mark.parametrize(
    ("step", "mistake", "found_by", "reported"),
    [
        ("narrowed", gives_up_what_was_written, BEFORE_EVERY_CALL, "read more than was counted"),
        ("narrowed", claims_what_was_not_written, BEFORE_EVERY_CALL, "frames end before offset"),
        (
            "rest_to_plan",
            plans_less_than_was_left,
            test_a_publish_may_be_late_until_the_leader_is_back,
            "has already written beyond|the range ends before",
        ),
    ],
)
def test_a_narrowing_that_is_wrong_is_found(
    step: str, mistake: Callable[..., object], found_by: Callable[[], None], reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines.ingest.leg, step, mistake)
    with pytest.raises(AssertionError, match=reported):
        found_by()


def test_a_plan_not_narrowed_holds_up_the_other_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IngestLeg, "_narrow", lambda *_: None)
    with pytest.raises(AssertionError, match="does not come to an end"):
        lose_the_leader_before_every_call(max_calls=6000)
