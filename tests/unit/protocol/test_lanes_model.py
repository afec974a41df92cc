"""A model of the protocol of lanes, before their code: what is decided, why, and histories that try to break it.

Lanes, drivers and tasks (tests/support/lanes/) run over an in-memory log, a Kafka whose partitions grow, expire and lose leaders, a table
with a window of tokens, and segments that a kill loses until they are durable. A seed decides, call by call, who goes on. Every process
can be killed before every call; attempts at a share, tasks of earlier epochs and earlier drivers go on beside their successors; an answer
may be lost, a request late. `pipelines/protocol/lanes/` holds what the product takes as it is: bodies, chain, writer, rules.

What was decided
- **Chains.** One per lane, `open{epoch}` and states; no plans. A lane's last `done` is its whole state, finished and decided; a decision
  is a state with an empty range, before its first effect. Who writes: ingest (source, partition), process (bucket), sink (generation,
  group), and `lanes`, the driver's assignments. A bucket's chain stays whoever owns the bucket, so splitting and merging process lanes
  moves nothing. A sink chunk spans its group's buckets (one insert, one token), so its chain is the group's. Other groups are another
  generation: the new lane that has the first bucket of an old group finishes that group's open chunk and closes its chain; the others
  wait for that.
- **Epochs.** assignment number x 1024 + attempt. An assignment is an entry on the ledger, so its number is given once; a second attempt
  of a Spark task has a higher epoch than the first. Chains refuse lower epochs, and so does every subject: a frame names its writer's
  epoch, and nobody appends behind a higher one. Losing the compare-and-set is not enough: an earlier attempt that reads the tail *after*
  it was replaced wins the next one.
- **What an earlier attempt may write.** The same rows at the same positions; that does no harm and needs no fence. Where the answer is
  about to change (configuration, expired offsets passed over, another layout), whoever decides first puts a *fence* on every output: an
  empty frame that repeats the last position. It is put even behind a frame of one's own, because of publishes of one's own still under
  way.
- **A process lane fences whenever it opens**, before its first state, for a purge changes the answer, too. One attempt wrote the row of a
  key and died without a state; a second opened and stood still; a third found the row there, stated it, met the key again, a duplicate,
  and stated that. It had appended nothing, so no output bore its epoch. Raw was purged up to its state but for the last frame. The second
  went on, read that frame only, took its key for a new one and appended a row. Nobody sees a gap: the numbers of a stream that others
  share have gaps anyway. Two empty frames for a lane and epoch, where reading one's chain before each publish would cost one call each.
- **Ingest resumes without an entry per poll.** A frame carries `Tf-Base` (every record of the partition below it stands on its subject)
  and `Tf-Base-Rows` (how many). The next poll is published when all subjects of the last one have acknowledged, so the largest base of
  any tail, or the chain's state if that is further, is where to go on; each subject then leaves out what it holds. The largest last
  offset would lose records of a poll that was cut; the smallest would read back to the last record of a rare bucket. A state is written
  every 10 s, so that bases do not expire where only markers follow, and for purge. Raw from the state's offset on stays: it is read back
  when offsets expire.
- **Process** publishes step by step and writes a state about once a second: replaying from the last state decides the same, and positions
  leave out what is there. A switch stands on the chain as (sequence, version): behind the ends of the fenced outputs, and the state.
- **Another number of buckets**: an assignment drains (ingest lanes complete a cut poll, fence all subjects, close), process reaches the
  end of raw, the next assignment names the layout, since which sequence, and all segments of the old buckets, with which each new bucket
  begins. Frames name their layout: an earlier attempt that meets a later one stops, for it would judge by a store of another cut. A lane
  deletes only segments of its own bucket and layout: the others share the rest.
- **No layout is closed before each of its buckets has a sink lane.** A generation follows once every lane of the one before has begun,
  which waits for the table. So a layout of three buckets could follow one of two under the generation of two, write rows to the third, and
  give way to a layout of two again: the next generation had the buckets of the one before and of the newest layout, and nobody ever read
  the third. The change waits, rather than the layout that is drained: ingest stands still while a layout drains, and must not wait for a
  table.
- **Sink.** The token is made of positions and digest. Several lanes share the table's window of tokens: a chunk whose outcome is unknown
  is sent again only while few tokens can have passed since its entry (its time says so), and else settled by reading its positions.
- **Ledger entries** at 1,000 events/s, 4 partitions, 8 buckets, chunks each 100 ms: ingest 0.4/s, process 8/s, sink 10/s (a state
  confirms a chunk and plans the next), epochs 0.2/s: 19/s. A plan and a done for each step of 100 ms were 260/s.

Not modelled: redrive, poison, a second hop, event time. Atomic publishing of a poll is left out: without it there are more cases.

`TALLYFLOW_MODEL_HISTORIES` (default 300) says how many histories are played, the same everywhere, from the seed `TALLYFLOW_MODEL_FIRST`
(default 0) on, so that two processes may share them; `TALLYFLOW_MODEL_SEED` plays one. A history costs about 13 ms of CPU.
"""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest
from support.lanes import histories
from support.lanes.mutants import COMMON, RARE, WRITTEN, Patch, name_of
from support.lanes.world import Driver, LaneWorld
from support.protocol_outside import Actor

from pipelines.errors import HaltError
from pipelines.testing import Fault


def chaos(world: LaneWorld, steps: int) -> None:
    """A seed's history: drivers and tasks go on in turns of a few calls, and now and then something happens."""
    rng, log = world.rng, world.log
    for _ in range(rng.randint(1, 15)):
        world.kafka.produce(rng)
    paused: set[object] = set()
    for _ in range(steps):
        drivers = [d for d in world.drivers if not d.actor.is_expired]
        event = rng.random()
        if not drivers or event < 0.02:
            paused.update(d for d in drivers if rng.random() < 0.5)
            if rng.random() < 0.5:
                world.edit()
            world.start()
        elif event < 0.05:
            end_the_epoch(world, drivers)
        elif event < 0.09:
            world.strike = world.calls + rng.randint(1, 30)
        elif event < 0.1:
            world.kill(rng.choice([*drivers, *world.live_tasks()]))
        elif event < 0.13:
            world.retry()
        elif event < 0.17:
            paused.symmetric_difference_update([rng.choice([*drivers, *world.live_tasks()])])
        elif event < 0.22:
            log.fail_publish(rng.choice(list(Fault)), rng.randint(1, 6))
        elif event < 0.25:
            world.table.fault = rng.choice(list(Fault))
        elif event < 0.27:
            world.current = None
            log.deliver()
            world.table.deliver()
        elif event < 0.34 and sum(map(len, world.kafka.held.values())) < 60:
            for _ in range(rng.randint(1, 8)):
                world.kafka.produce(rng)
        elif event < 0.35 and len(world.kafka.held) < 3:
            world.kafka.add_partition()
        elif event < 0.37:
            world.kafka.silent ^= {rng.choice(sorted(world.kafka.held))}
        elif event < 0.40 and world.expires:
            world.kafka.expire(rng)
        elif event < 0.43 and world.purges:
            world.purge()
        else:
            awake = [a for a in world.actors() if a.runner not in paused and not (isinstance(a.runner, Driver) and a.is_idle)]
            if awake:
                rng.choice(awake).step(rng.choice([1, 2, 5, 15, 40]))


def end_the_epoch(world: LaneWorld, drivers: list[Driver]) -> None:
    """Drivers write the next assignment: shares, groups of the sink and the number of buckets may be others."""
    rng = world.rng
    if rng.random() < 0.7:
        buckets = rng.choice([world.wishes.buckets, 1, 2, 3])
        world.wishes = replace(world.wishes, buckets=buckets, groups=rng.choice([1, 1, 2, 3]), shares=rng.choice([1, 2, 3]))
    for driver in drivers:
        driver.actor.is_idle = False


def play(seed: int) -> LaneWorld:
    world = LaneWorld(seed)
    try:
        chaos(world, world.rng.choice([20, 60, 150]))
        world.settle()
    finally:
        world.end()
    return world


def test_every_record_of_random_histories_is_accounted_for() -> None:
    if seed := os.environ.get("TALLYFLOW_MODEL_SEED"):
        play(int(seed))
        return
    first = int(os.environ.get("TALLYFLOW_MODEL_FIRST", "0"))
    for seed in range(first, first + int(os.environ.get("TALLYFLOW_MODEL_HISTORIES", "300"))):
        try:
            play(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed} (TALLYFLOW_MODEL_SEED={seed}): {error}") from error


def found_within(histories: int) -> bool:
    for seed in range(histories):
        try:
            play(seed)
        except (AssertionError, HaltError):
            return True
    return False


@pytest.mark.parametrize("mutant", COMMON, ids=name_of)
def test_lanes_without_one_protection_are_found(mutant: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    # A lane that waits for what is gone never ends; no sound history has taken half as many.
    monkeypatch.setattr("support.lanes.world.MAX_CALLS", 12_000)
    assert found_within(300)


@pytest.mark.crash
@pytest.mark.parametrize("mutant", RARE, ids=name_of)
def test_lanes_are_found_that_seldom_miss_a_protection(mutant: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert found_within(6000)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_out_history_is_accounted_for(name: str) -> None:
    getattr(histories, name)()


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_out_history_finds_its_protection(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    WRITTEN[name](monkeypatch)
    with pytest.raises(AssertionError, match=r"[1-9]\d*} (too many|missing)"):
        getattr(histories, name)()


def short_history(kind: str = "", call: int = 0) -> int:
    """Two epochs of two shares each, the second under another configuration, with another number of buckets, and one group.

    Before `call` the process at work is killed, or whoever is at work stands still until the end. Returns the calls made until then.
    """
    world = LaneWorld(4)
    world.dedups, world.expires, world.table.refused, world.table.partitions = True, False, "fine", 3
    world.wishes = replace(world.wishes, buckets=2, groups=2, shares=2)
    for _ in range(12):
        world.kafka.produce(world.rng)
    stands: set[Actor] = set()
    world.strike, world.strikes_with = call, kind
    try:
        for _ in range(3):
            world.start()
            for _ in range(6):
                for actor in world.actors():
                    if actor not in stands:
                        actor.is_idle = False
                        actor.step(30)
                        if world.struck is actor:
                            stands.add(actor)
            world.edit()
            world.wishes = replace(world.wishes, buckets=3, groups=1)
            for _ in range(4):
                world.kafka.produce(world.rng)
        made = world.calls
        world.settle()
    finally:
        world.end()
    return made


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["kill", "pause"])
def test_lanes_may_stop_before_every_call(kind: str) -> None:
    """Every third call here, until lanes are the pipeline's code; `TALLYFLOW_MODEL_EVERY=1` takes each."""
    calls = short_history()
    assert calls > 300
    for call in range(1, calls + 1, int(os.environ.get("TALLYFLOW_MODEL_EVERY", "3"))):
        try:
            short_history(kind, call)
        except BaseException as error:
            raise AssertionError(f"{kind} before call {call} of {calls}: {error}") from error
