"""A random history of the protocol's model, from a seed: legs go on in turns of a few calls, and now and then something happens."""

from contextlib import nullcontext
from datetime import timedelta
from functools import partial

from pipelines.protocol.redrive import DISCARD, ENTER
from pipelines.testing import Fault
from support.protocol_joins import small_portions
from support.protocol_outside import NAMES
from support.protocol_world import EXPIRE, MAX_CALLS, Runner, World


def chaos(world: World, steps: int) -> None:
    """A seed's history: legs go on in turns of a few calls, and now and then something happens."""
    rng, log = world.rng, world.log
    world.produce(rng.randint(1, 15))
    paused: set[Runner] = set()
    for _ in range(steps):
        world.move_leaders()
        world.move_tables()
        world.move_time()
        live = [r for r in world.runners if not r.is_expired]
        event = rng.random()
        if not [r for r in live if r not in paused] or event < 0.02:
            paused.update(r for r in live if rng.random() < 0.5)
            world.start()
        elif event < 0.05:
            rng.choice(live).kill()
        elif event < 0.08:
            paused.symmetric_difference_update([rng.choice(live)])
        elif event < 0.12:
            log.fail_publish(rng.choice(list(Fault)), rng.randint(1, 6))
        elif event < 0.14:
            fault = rng.choice(list(Fault))
            world.sinks.choice([*world.tables.values()]).fault = fault
        elif event < 0.16:
            world.current = None
            log.deliver()
            for table in world.tables.values():
                table.deliver()
        elif event < 0.22 and len(world.topic.held) and sum(map(len, world.topic.held.values())) < 60:
            world.produce(rng.randint(1, 8))
        elif event < 0.23:
            world.edit(rng.choice(["bad", "odd"]), rng.random() < 0.5)
        elif event < 0.25:
            world.clock.advance(timedelta(seconds=rng.choice([-5, 1, 10])))
        elif event < 0.26 and len(world.topic.held) < 4:
            world.topic.add_partition()
        elif event < 0.28 and world.expires:
            world.topic.expire()
        elif event < 0.3 and len(live) == 1 and not world.refuser.is_awaited:
            world.refuser.mend()
        elif event < 0.32:
            world.refuser.worsen()
        elif event < 0.4 and log.messages(NAMES.stream("dlq")):
            world.command(rng.choice([ENTER, ENTER, DISCARD, "import", EXPIRE, EXPIRE]), rng.choice([0.3, 1]))
        elif event < 0.43 and world.commands:
            rng.choice([world.commands[-1].kill, partial(paused.symmetric_difference_update, world.commands[-1:])])()
        else:
            awake = [a for a in world.actors() if a.runner not in paused]
            if awake:
                rng.choice(awake).step(rng.choice([1, 1, 2, 5, 15]))


def play(seed: int, max_calls: int = MAX_CALLS) -> World:
    world = World(seed)
    world.max_calls = max_calls
    world.meet_join()
    world.meet_second_sink()
    try:
        with small_portions() if world.join else nullcontext():
            chaos(world, world.rng.choice([10, 30, 100]))
            world.settle()
    finally:
        for actor in world.actors():
            actor.kill()
    return world
