"""One history of the protocol's model: the real legs, chains and writers as runners and commands over the outside of protocol_outside.py.

A seed decides, call by call, who goes on; tests/unit/protocol/test_protocol_model.py says what happens to them.
"""

import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from tenacity import wait_none

from pipelines.dead_letters.export_file import Edited, edited_frames
from pipelines.dead_letters.redrive import Redrive, taken
from pipelines.dead_letters.stream import purge_taken, read_frames, with_states
from pipelines.engine.connections import Means
from pipelines.engine.inputs import admit
from pipelines.engine.leg import AnyLeg, LegMeans, ReplanError, StoppedError
from pipelines.errors import FencedError, HaltError, RetryableError, UndecidedError
from pipelines.ingest.leg import IngestLeg
from pipelines.process import stage_config
from pipelines.process.leg import ProcessLeg
from pipelines.process.program import Program
from pipelines.process.ticks import TickedInput
from pipelines.protocol.bodies import REDRIVE_CHAIN
from pipelines.protocol.ledger import Chain
from pipelines.protocol.naming import all_roles
from pipelines.protocol.positions import Position
from pipelines.protocol.purge import Purge, fold_redrive, redrive_entries_that_may_go
from pipelines.protocol.records import Framing, Message
from pipelines.protocol.redrive import ENTER, OPEN
from pipelines.protocol.topology import LegId, Topology
from pipelines.sink.chunks import Chunk, chunks
from pipelines.sink.leg import SinkLeg
from pipelines.testing import ManualClock
from support.protocol_account import check_account, expected_outcomes
from support.protocol_join_account import check_joined_account, check_kept, names_waiting
from support.protocol_joins import JoinOfHistory, has_join, has_timed_join
from support.protocol_outside import FIRST, LANE, NAMES, Actor, MemoryStorage, ModelLog, Outside, Table, Topic
from support.protocol_stages import POISON, SECOND, VENOM, configuration, of_sinks, of_sources, uncompressed

MAX_ATTEMPTS = 4
EXPIRE = "expire"
LATER = datetime(9999, 1, 1, tzinfo=UTC)
MAX_CALLS = 20_000
OTHERS = 100
"""The partition of the second topic."""


class Runner:
    """One start of `tallyflow run`: opens its chains, anchors, then runs its legs side by side; all die together."""

    def __init__(self, world: "World") -> None:
        self.world = world
        world.epoch += 1
        self.epoch, self.config = world.epoch, world.config
        self.stop = threading.Event()
        self.lease = SimpleNamespace(lost=threading.Event(), remaining_seconds=10.0)
        self.actors = [Actor(world, "start", self._start, self)]

    def _start(self) -> None:
        log = self.world.log
        version = stage_config.store(log, NAMES, self.config)
        outside = Outside(self.world, self.epoch, version)
        legs = {}
        for name in self.world.topology.legs:
            kind, of_its_own = self._kinds()[name.kind]
            chain = Chain(log, NAMES, name.chain, self.epoch)
            chain.open()
            legs[name] = kind(outside.of_leg(name), chain, self.lease, self.stop, self.world.leg_means, **of_its_own)
        for name, source in self.world.topology.sources.items():
            topic = self.world.topics[source]
            legs[name].anchor(topic.ends if self.world.begins_at_latest else topic.starts)
        for name, leg in legs.items():
            self.actors.append(Actor(self.world, name, partial(self._run, leg, leg.start_offset()), self))
            if self.world.max_age is not None:
                purge = Purge(log, NAMES, self.world.topology, name, self.world.max_age)
                self.actors.append(Actor(self.world, f"purge of {name}", partial(self._purge, purge), self))

    def _kinds(self) -> dict[str, tuple[type[AnyLeg], dict[str, Any]]]:
        """Each leg, with its small limits: a short history has many frames, plans and chunks."""
        world = self.world
        return {
            "ingest": (IngestLeg, {"flush_bytes": world.flush_bytes}),
            "process": (ProcessLeg, {"plan_frames": world.plan_frames, "step_frames": world.step_frames}),
            "sink": (SinkLeg, {"cut": world.chunks}),
        }

    def _purge(self, purge: Purge) -> None:
        """As the runner's own thread does, beside the legs."""
        while not self.stop.is_set():
            with suppress(RetryableError):
                self.world.rng.choice([purge.by_age, purge.for_room])()
                purge.for_room()
            self.world.current.idle()

    def _run(self, leg: object, start: dict[str, int]) -> None:
        """Batch after batch, each as far as it likes; now and then from an old checkpoint, which must not matter."""
        world = self.world
        if world.rng.random() < 0.1:
            start = dict.fromkeys(start, 0)
        has_ticks = world.join is not None and world.join.lateness_us is None
        ticked = self._ticked(leg) if has_ticks and leg.name.kind == "process" else None
        while not self.stop.is_set():
            available = ticked(start) if ticked else self._available(leg.name, start)
            end = admit(start, available, world.rng.choice([1, 3, 10, 1000]))
            if end == start:
                world.current.idle()
            else:
                start = self._advanced(leg, end)

    def _advanced(self, leg: object, end: dict[str, int]) -> dict[str, int]:
        """Where the next batch begins: behind this one, or, in a new query, where the chain stands."""
        try:
            leg.advance(end)
        except ReplanError:
            leg.patiently(leg.chain.open)
            return leg.patiently(leg.start_offset)
        return end

    def _ticked(self, leg: ProcessLeg) -> Callable[[dict[str, int]], dict[str, int]]:
        """How far the leg may read, by its own input, which appends ticks; as everywhere, a log that does not answer has nothing new."""
        world = self.world
        found = TickedInput(world.log, NAMES, leg.name, (), leg._next_end_us, world.clock_that_leaps)

        def available(start: dict[str, int]) -> dict[str, int]:
            with suppress(RetryableError):
                return found._available(start)
            return start

        return available

    def _available(self, leg: LegId, start: dict[str, int]) -> dict[str, int]:
        if leg.kind == "ingest":
            source = self.world.topology.file_id(leg)
            topic = self.world.topics[source]
            ends = {str(p): start.get(str(p), 0) if p in topic.silent else end for p, end in topic.end.items()}
            if self.world.join is not None:
                self.world.join.mark(self.world, source, start, {p: end for p, end in ends.items() if int(p) not in topic.silent})
            return ends
        state = self.world.log.state(NAMES.stream(leg.input_role))
        return {"sequence": max(start["sequence"], state.last_sequence if state else 0)}

    def kill(self) -> None:
        for actor in self.actors:
            actor.kill()

    @property
    def is_expired(self) -> bool:
        return all(actor.is_expired for actor in self.actors)

    @property
    def is_overtaken(self) -> bool:
        return self.epoch < self.world.epoch


class Command:
    """One `tallyflow dlq reprocess`, `discard` or `import`: takes each waiting letter with probability `share`.

    EXPIRE is what the retention of letters does: it discards, lets frames go whose letters were all taken, and plans that no letter needs.
    """

    def __init__(self, world: "World", action: str, share: float) -> None:
        self.world, self._action, self._share = world, action, share
        world.command_epoch += 1
        self.epoch = world.command_epoch
        self.actors = [Actor(world, action, self._work, self)]

    def _work(self) -> None:
        log = self.world.log
        chain = Chain(log, NAMES, REDRIVE_CHAIN, self.epoch)
        chain.open()
        redrive = Redrive(log, NAMES, chain, self.world.means.framing, self.world.plan_letters)
        if self._action == EXPIRE:
            fold_redrive(log, NAMES, redrive_entries_that_may_go(log, NAMES, timedelta(0)))
        chosen = list(self._chosen())
        if self._action == "import":
            rows = (row for _, dead_letters in chosen for row in dead_letters.to_pylist())
            changes = {Position(row["_tf_sequence"], row["_tf_ordinal"]): {"value": self.world.mended} for row in rows}
            for places, payload in edited_frames(Edited("file", changes), chosen, self.world.means.framing):
                redrive.enter_edited(places, payload)
            return
        wanted = ((sequence, dead_letters["row"].to_numpy()) for sequence, dead_letters in chosen)
        redrive.enter(wanted) if self._action == ENTER else redrive.discard(wanted, "a test")
        if self._action == EXPIRE:
            purge_taken(log, NAMES, LATER, sys.maxsize)

    def _chosen(self) -> Iterator[tuple[int, pa.Table]]:
        log, rng = self.world.log, self.world.rng
        for sequence, dead_letters in with_states(read_frames(log, NAMES), taken(log, NAMES), MAX_ATTEMPTS):
            picked = dead_letters.filter([state == OPEN and rng.random() < self._share for state in dead_letters["state"].to_pylist()])
            if picked.num_rows:
                yield sequence, picked

    def kill(self) -> None:
        for actor in self.actors:
            actor.kill()

    @property
    def is_expired(self) -> bool:
        return all(actor.is_expired for actor in self.actors)

    @property
    def is_overtaken(self) -> bool:
        return self.epoch < self.world.command_epoch


class Inline:
    """A ThreadPoolExecutor whose work is done when it is submitted."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> "Inline":
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, work: Callable[..., None], *args: object) -> "Future[None]":
        future: Future[None] = Future()
        try:
            future.set_result(work(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class World:
    """One history. Everything random comes from `rng`, and only one actor runs at a time, so a seed is a story."""

    def __init__(self, seed: int) -> None:
        self.rng, self.seed = random.Random(seed), seed
        self.turn = threading.Lock()
        self.turn.acquire()
        self.current: Actor | None = None
        self.calls, self.max_calls = 0, MAX_CALLS
        self._seconds = 0.0
        self.epoch = self.command_epoch = 0
        self.window_us = self.rng.choice([0, 0, 2_000_000, 10**12])
        self.lateness_us: int | None = None
        """Where values hold the event's own time, and windows are measured on it."""
        self.join: JoinOfHistory | None = None
        """The join of the two sources, if there is one."""
        self._waits_for_room = 0
        self.gives_up = False
        """Rows of the sink may be given up."""
        self.config = configuration("bad", self.window_us)
        self.storages: dict[str, MemoryStorage] = {}
        self.clock = ManualClock()
        self.log = ModelLog(self, self.clock)
        self.log.streams = random.Random(f"the streams of {seed}").choice([1, 1, 3])
        self.table = Table(self)
        self.table.refused = self.rng.choice([None, b"fine", b"fine"])
        self.table.partitions = self.rng.choice([1, 3])
        self.topic = Topic(self, {0: 0, 1: self.rng.choice([0, 7])})
        self.has_two_sources = random.Random(f"the sources of {seed}").random() < 0.3
        self.others = Topic(self, {OTHERS: 3})
        """The topic of the second source; its partitions have numbers of their own, so that a record is known by partition and offset."""
        self.has_two_sinks = False
        self.second = Table(self)
        """The table of the second sink, if there is one."""
        self.refuser = self.table
        """The table that may refuse rows: one of them, so that a record has one dead letter at a time."""
        self.sinks = random.Random(f"the sinks of {seed}")
        self.max_age = self.rng.choice([None, timedelta(0), timedelta(0), timedelta(seconds=2), timedelta(seconds=20)])
        if self.max_age is not None and self.rng.random() < 0.3:
            limits = {role: self.rng.choice([30_000, 60_000, 200_000]) for role in ("raw", "out")}
            self.log.max_bytes = {NAMES.stream(role): limits[role.partition("-")[0]] for role in all_roles(3) if role[:3] in limits}
        self.begins_at_latest, self.expires = self.rng.random() < 0.2, self.rng.random() < 0.2
        self.poison = self.rng.choice([(), (), (POISON,), (POISON, VENOM)])
        self.runners: list[Runner] = []
        self.commands: list[Command] = []
        self.strike: tuple[int, str] | None = None
        self.leaders = random.Random(f"the leaders of {seed}")
        """Of its own, so that who else is met by chance does not depend on it."""
        self.loses_leaders = self.leaders.random() < 0.4
        self.leader_goes_at = 0
        self.lanes = random.Random(f"the lanes of {seed}")
        self.has_lanes = self.lanes.random() < 0.5
        self.is_mended_at_failure = False
        self.is_frozen = False
        self.means = Means(Framing(uncompressed, self._cut), Inline, lambda: SimpleNamespace(close=lambda: None, discard=lambda: None))
        # An insert of the model lasts no time, unless it is delivered late, and then it is refused like the first one: at each look it is
        # as old as any.
        self.leg_means = LegMeans(wait_none(), self.clock_that_leaps)
        self.plan_letters = self.rng.choice([2, 1000])
        self.flush_bytes = self.rng.choice([1, 200, 10_000])
        self.plan_frames = self.rng.choice([2, 5, 100])
        self.step_frames = self.rng.choice([1, 2, 12])
        self.chunk_rows = [2, 6, 1000]
        """Of which each look at the waiting frames takes one."""

    @property
    def mended(self) -> bytes:
        """The value of a dead letter that was edited."""
        return b"mended/1/0" if self.join else b"mended"

    @property
    def topics(self) -> dict[str, Topic]:
        """The topic of each source, by the source's id."""
        return {"orders": self.topic, **({"others": self.others} if self.has_two_sources else {})}

    @property
    def topology(self) -> Topology:
        return Topology.of([*self.topics], ["", SECOND.name] if self.has_two_sinks else [""])

    @property
    def tables(self) -> dict[LegId, Table]:
        """The table of each sink leg."""
        return {FIRST: self.table, **({SECOND: self.second} if self.has_two_sinks else {})}

    @property
    def config(self) -> Program:
        return of_sinks(of_sources(self.plain_config, [*self.topics]), self.has_two_sinks)

    @config.setter
    def config(self, config: Program) -> None:
        self.plain_config = config

    def of_partitions(self, fact: str) -> dict[int, Any]:
        """`held`, `first` or `end` of the partitions of all topics."""
        return {partition: found for topic in self.topics.values() for partition, found in getattr(topic, fact).items()}

    def chunks(self, messages: Iterator[Message]) -> Iterator[Chunk]:
        return chunks(messages, self.rng.choice(self.chunk_rows))

    def clock_that_leaps(self) -> float:
        self._seconds += 3600.0
        return self._seconds

    def _cut(self, table: pa.Table) -> Iterator[tuple[pa.Table, bytes]]:
        start = 0
        while start < table.num_rows:
            part = table.slice(start, self.rng.randint(1, 6))
            yield part, uncompressed(part)
            start += part.num_rows

    def call(self) -> None:
        self.calls += 1
        if self.calls > self.max_calls:
            raise AssertionError("the history does not come to an end")
        if self.calls == self.leader_goes_at:
            self.topic.silent.add(1)
        if self.strike is not None and self.calls == self.strike[0]:
            self._strike_now(self.strike[1])
        if self.current is not None:
            self.current.call()

    def _strike_now(self, kind: str) -> None:
        """Kills or pauses who is at work, in the middle of whatever it does."""
        if kind == "kill":
            for actor in self.current.runner.actors:
                actor.is_killed = True
        else:
            self.is_frozen = True
            self.current.spend_all()

    def move_leaders(self) -> None:
        """Now and then a partition loses its leader, or has one again."""
        if self.loses_leaders and self.leaders.random() < 0.1:
            self.topic.silent ^= {self.leaders.choice(sorted(self.topic.held))}

    def meet_join(self) -> None:
        """One history of three joins its two sources, of which none drops copies."""
        if has_join(self.seed) or has_timed_join(self.seed):
            self.join_sources()

    def join_sources(self) -> None:
        self.join, self.has_two_sources, self.window_us = JoinOfHistory.of_seed(self.seed), True, 0
        self.edit("bad")

    def edit(self, refused: str, has_more: bool = False) -> None:
        """The file has another configuration from now on."""
        if self.join is None:
            self.config = configuration(refused, self.window_us, has_more)
        else:
            self.config = self.join.configuration(refused, has_more)

    def meet_second_sink(self) -> None:
        """Three histories of ten have two sinks, of which either may refuse rows."""
        self.has_two_sinks = self.sinks.random() < 0.3
        if self.has_two_sinks and self.sinks.random() < 0.5:
            self.refuser, self.second.refused, self.table.refused = self.second, self.table.refused, None
        self.second.partitions = self.sinks.choice([1, 3])

    def move_tables(self) -> None:
        """Now and then one of two tables is away, or is there again."""
        if self.has_two_sinks and self.sinks.random() < 0.1:
            table = self.sinks.choice([self.table, self.second])
            table.is_away = not table.is_away

    def move_time(self) -> None:
        if self.join is not None:
            self.join.move_time(self)

    def wait_for_room(self) -> None:
        """A stream is full: its writer waits, and windows of a join by arrival end meanwhile.

        A tick has no room either. Where raw is too small for the records of one window, an operator raises its limit at last.
        """
        if self.join is not None:
            self.clock.advance(timedelta(seconds=1))
            self._waits_for_room += 1
            # By the records' own times no window ends while none comes in.
            patience = 30 if self.join.lateness_us is None else 5
            if self._waits_for_room % patience == 0 and names_waiting(self):
                for stream in [one for one in self.log.max_bytes if one.startswith(NAMES.stream("raw"))]:
                    self.log.max_bytes[stream] += 5_000

    def start(self) -> Runner:
        self.runners.append(Runner(self))
        return self.runners[-1]

    def command(self, action: str, share: float = 1.0) -> Command:
        self.commands.append(Command(self, action, share))
        return self.commands[-1]

    def everybody(self) -> list[Actor]:
        return [a for r in (*self.runners, *self.commands) for a in r.actors]

    def actors(self) -> list[Actor]:
        return [a for a in self.everybody() if not a.is_expired]

    def produce(self, count: int) -> None:
        for _ in range(count):
            kinds = [b"bad", b"odd", b"good", b"fine", *self.poison]
            value = self.rng.choice(kinds)
            if self.lateness_us is not None:
                value += b"@%d" % (sum(map(len, self.of_partitions("held").values())) // 3 + self.rng.randint(0, 6))
            partition = self.rng.choice(list(self.of_partitions("held")))
            if self.join is not None:
                value = self.join.value(kinds, sum(map(len, self.of_partitions("held").values())))
                partition = self.join.draws.choice([partition, OTHERS])
            topic = self.others if partition == OTHERS else self.topic
            topic.produce(partition, value, self.rng.choice([0, 0, 0, 1, 5]))

    def finish(self, actors: list[Actor]) -> None:
        """Runs these actors until each is over or idle."""
        while waiting := [a for a in actors if not a.is_expired and not a.is_idle]:
            for actor in waiting:
                if not self.is_frozen:
                    actor.step(1000)
            if self.is_frozen:
                return

    def drain(self, runner: Runner) -> None:
        """Runs one runner until all its legs are idle, one after another, with nothing left for the next."""
        while True:
            before = self.log.publishes
            for actor in runner.actors:
                actor.is_idle = False
            self.finish(list(runner.actors))
            if runner.is_expired or self.is_frozen or (self.log.publishes == before and len(runner.actors) > 1):
                return

    def settle(self) -> None:
        """The end of every history: a clean runner drains; whatever was paused or in flight comes to life; the account is checked twice."""
        self.log.come_back()
        for table in self.tables.values():
            table.fault, table.is_away = None, False
        self.is_frozen, self.leader_goes_at = False, 0
        self.topic.silent.clear()
        clean = self.start()
        self.drain(clean)
        # Whatever a command has left open is finished by the next one, which takes what it likes; where raw is full, once there is room.
        while isinstance(self._finish_dead_letters(clean).error, RetryableError):
            pass
        self.check(clean)
        self.current = None
        self.log.deliver()
        for table in self.tables.values():
            table.deliver()
        for runner in self.runners:
            if runner is not clean:
                runner.stop.set()
        self.finish_zombies(clean)
        if self.join is not None:
            self.join.end_windows(self)
        self.drain(clean)
        self.check(clean)
        for actor in self.actors():
            actor.kill()

    def _finish_dead_letters(self, clean: Runner) -> Actor:
        (command,) = self.command(ENTER, self.rng.choice([0, 0.5, 1])).actors
        self.finish([command])
        self.drain(clean)
        return command

    def finish_zombies(self, clean: Runner) -> None:
        while zombies := [a for a in self.actors() if a.runner is not clean]:
            self.rng.choice(zombies).step(self.rng.randint(1, 9))

    def check(self, clean: Runner) -> None:
        """Nobody may end in surprise, and nobody may think that it was overtaken when it was not."""
        self.current = None
        for actor in self.everybody():
            if actor.error is not None and not isinstance(actor.error, self._may_end_with(actor, clean)):
                raise AssertionError(f"{actor.name} of runner {actor.runner.epoch}: {actor.error!r}") from actor.error
        if self.join is None:
            check_account(self, expected_outcomes(self))
        else:
            check_joined_account(self)

    def check_purged(self, sequences: set[int]) -> None:
        """Nothing may be purged of raw that a join still needs."""
        if self.join is not None and sequences:
            check_kept(self, sequences)

    def _may_end_with(self, actor: Actor, clean: Runner) -> tuple[type[Exception], ...]:
        """Fenced by a newer one; a start or a command by an outage; what was told to stop while it waited; a lane that was given up."""
        if actor.name == LANE:
            # Its part was done by the leg, which may have come far since.
            return (HaltError, RetryableError, UndecidedError)
        fenced = (FencedError,) if actor.was_overtaken else ()
        if isinstance(actor.runner, Command):
            return *fenced, RetryableError
        return fenced if actor.runner is clean else (*fenced, StoppedError, *((RetryableError,) if actor.name == "start" else ()))
