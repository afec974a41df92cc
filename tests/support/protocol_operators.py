"""Operators beside the runners of the protocol's model: one gives rows of the sink up, one resets the clock; both the real commands.

They take the leg's lease as a start does, and like a start only from who is taken for dead; whoever starts later takes it from them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

from pipelines.config import OnError
from pipelines.connectors.nats.streams import StreamState
from pipelines.errors import FencedError, HaltError
from pipelines.maintenance.inspect import KeyState
from pipelines.maintenance.plans import Abandonment, Reached
from pipelines.maintenance.reset_clock import reset_clock
from pipelines.protocol.naming import STREAM_ID_KEY
from pipelines.protocol.redrive import ENTER
from pipelines.sink.settling import NEEDED_COLUMNS
from pipelines.testing import SINGLE, Fault
from support.protocol_outside import NAMES, Actor, ModelLog, Outside, Table
from support.protocol_stages import configuration
from support.protocol_world import Command, World

ABANDON, RESET = "abandon", "reset"
_NOTHING_TO_RESET = ("a range was begun and is not finished", "no record has gone through", "was never started")
_NOTHING_TO_ABANDON = ("was never started",)


class ModelLease:
    """A leg's lease, which its operator has from the moment on in which it is started, until somebody starts later."""

    def __init__(self, operator: "Operator") -> None:
        self._operator = operator

    def acquire(self) -> int:
        self._operator.world.call()
        if self._operator.is_overtaken:
            raise FencedError("somebody else holds it")
        return self._operator.epoch

    def release(self) -> None: ...


class Operator(Command):
    """One `tallyflow plan abandon` or `tallyflow reset-clock`. `with_waiting`: what waits behind the open plan is given up as well."""

    takes_lease = True

    def __init__(self, world: World, action: str, with_waiting: bool = False) -> None:
        self.world, self._with_waiting = world, with_waiting
        world.epoch += self.takes_lease
        world.gives_up |= action == ABANDON
        self.epoch = world.epoch
        self.actors = [Actor(world, action, self._abandon if action == ABANDON else self._reset, self)]

    def _abandon(self) -> None:
        with _told(_NOTHING_TO_ABANDON):
            world, leg = self.world, SINGLE.sinks[0]
            reached = Reached(leg, _Log(world.log), _Asked(world.table), _Outside(world, 0, ""), lambda: ModelLease(self))
            abandonment = Abandonment(_Config, reached, lambda words: None, lambda seconds: None, world.clock_that_leaps)
            abandonment.find(self._with_waiting, is_not_stored=False)
            abandonment.run("a test")

    def _reset(self) -> None:
        with _told(_NOTHING_TO_RESET):
            reset_clock(ModelKeyState(self))

    @property
    def is_overtaken(self) -> bool:
        return self.epoch < self.world.epoch


@contextmanager
def _told(words: tuple[str, ...]) -> Iterator[None]:
    """A command that is refused for one of these reasons has changed nothing, and says so."""
    try:
        yield
    except HaltError as error:
        if not any(reason in str(error) for reason in words):
            raise


class ModelKeyState(KeyState):
    """As `reset_clock` sees it."""

    def __init__(self, operator: Operator) -> None:
        self.names, self._operator = NAMES, operator
        self.connections = Outside(operator.world, operator.epoch, "")

    def lease(self) -> ModelLease:
        return ModelLease(self._operator)


_Config = SimpleNamespace(
    pipeline_id=NAMES.pipeline,
    sink=SimpleNamespace(max_insert_time=timedelta(seconds=60), names_pipeline=False),
    nats=None,
    on_error=OnError(),
    seen_from=lambda leg: _Config,
)


class _Asked:
    """The table with the columns that an abandonment asks for."""

    def __init__(self, table: Table) -> None:
        self._table, self.system = table, table.system
        self.inspect, self.inserts_at_work, self.stored_positions = table.inspect, table.inserts_at_work, table.stored_positions

    def columns(self, database: str, name: str) -> list[SimpleNamespace]:
        self._table.columns(database, name)
        return [SimpleNamespace(name=column) for column in NEEDED_COLUMNS]

    def close(self) -> None: ...


class _Log:
    """The world's log as a connection of the command's own, which it closes; streams tell their ids."""

    def __init__(self, log: ModelLog) -> None:
        self._log = log

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)

    def state(self, stream: str) -> StreamState | None:
        found = self._log.state(stream)
        return found and StreamState(**{**vars(found), "metadata": {STREAM_ID_KEY: "S"}})

    def close(self) -> None: ...


class _Outside(Outside):
    def close(self) -> None: ...


def operated_chaos(world: World, steps: int) -> None:
    """A seed's history in which operators begin; of what the chaos of the other histories does, what concerns them."""
    rng, log = world.rng, world.log
    world.produce(rng.randint(5, 15))
    paused: set[object] = set()
    for _ in range(steps):
        live = [runner for runner in world.runners if not runner.is_expired]
        event = rng.random()
        if not [runner for runner in live if runner not in paused] or event < 0.04:
            paused.update(runner for runner in live if rng.random() < 0.5)
            world.start()
        elif event < 0.08:
            rng.choice(live).kill()
        elif event < 0.11:
            log.fail_publish(rng.choice(list(Fault)), rng.randint(1, 6))
        elif event < 0.14:
            world.table.fault = rng.choice(list(Fault))
        elif event < 0.2 and sum(map(len, world.topic.held.values())) < 60:
            world.produce(rng.randint(1, 8))
        elif event < 0.22:
            world.config = configuration(rng.choice(["bad", "odd"]), world.window_us, rng.random() < 0.5, world.lateness_us)
        elif event < 0.26:
            world.clock.advance(timedelta(seconds=rng.choice([-20, -5, 1, 10])))
        elif event < 0.31:
            world.commands.append(Operator(world, ABANDON, rng.random() < 0.3))
        elif event < 0.36:
            world.commands.append(Operator(world, RESET))
        elif event < 0.4 and log.messages(NAMES.stream("dlq")):
            world.command(ENTER, rng.choice([0.3, 1]))
        elif event < 0.44 and world.commands:
            rng.choice([world.commands[-1].kill, partial(paused.symmetric_difference_update, world.commands[-1:])])()
        else:
            awake = [actor for actor in world.actors() if actor.runner not in paused]
            if awake:
                rng.choice(awake).step(rng.choice([1, 2, 5, 15, 40]))


def use_event_times(world: World, window_us: int, lateness_us: int) -> None:
    """Values get a time of their own, windows are measured on it."""
    world.window_us, world.lateness_us = window_us, lateness_us
    world.config = configuration("bad", window_us, lateness_us=lateness_us)
