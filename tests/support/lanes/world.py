"""One history of the lanes' model: drivers, tasks and their processes. A seed decides, call by call, who goes on.

A task works all lanes of its share; attempts at one share, tasks of earlier epochs, and drivers go on beside each other until they notice
that they were replaced. tests/unit/protocol/test_lanes_model.py says what happens to them.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pipelines.errors import FencedError, HaltError, RetryableError
from pipelines.protocol.lanes import rules
from pipelines.protocol.lanes.bodies import (
    ASSIGNMENTS,
    Assignment,
    ingest_chain,
    lane_epoch,
    process_chain,
    sink_chain,
)
from pipelines.protocol.lanes.chain import LaneChain, live_segments
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.records import Message
from pipelines.testing import ManualClock
from support.lanes.account import check_account
from support.lanes.ingest import IngestLane
from support.lanes.names import NAMES, SOURCE
from support.lanes.outside import Kafka, LaneLog, LaneTable, Segments
from support.lanes.process import ProcessLane
from support.lanes.sink import SinkLane
from support.protocol_outside import Actor

MAX_CALLS = 30_000
Lane = IngestLane | ProcessLane | SinkLane


@dataclass(eq=False)
class Process:
    """A worker process: what it has written and not made durable dies with it; segments it has read stay in its cache."""

    unsaved: dict[str, frozenset[str]] = field(default_factory=dict)
    cache: dict[str, frozenset[str]] = field(default_factory=dict)
    is_dead: bool = False


class Task:
    """One attempt at a share of an assignment, in a process."""

    def __init__(self, world: "LaneWorld", process: Process, assignment: Assignment, share: int, attempt: int) -> None:
        self.world, self.process, self.assignment, self.share, self.attempt = world, process, assignment, share, attempt
        self.epoch = lane_epoch(assignment.to, attempt)
        self.stop = False
        self.tokens_when_overtaken: int | None = None
        self.settlings_when_overtaken = 0
        self.actor = Actor(world, f"task {assignment.to}.{share}.{attempt}", self._work, self)  # type: ignore[arg-type]

    def _work(self) -> None:
        """Lane by lane, a step each, in any order; a lane that lost a server begins anew, one that was replaced stops."""
        lanes: dict[str, Lane] = {}
        waiting = list(self.assignment.shares[self.share])
        while waiting and not self.stop:
            has_moved = False
            for name in self.world.rng.sample(waiting, len(waiting)):
                try:
                    if name not in lanes:
                        lane = self._lane(name)
                        if not lane.open():
                            continue
                        lanes[name] = lane
                    has_moved |= lanes[name].step()
                except RetryableError:
                    lanes.pop(name, None)
                except FencedError:
                    assert self.is_overtaken, f"lane {name} of epoch {self.epoch} was fenced and not replaced"
                    waiting.remove(name)
            if not has_moved:
                self.world.current.idle()

    def _lane(self, name: str) -> Lane:
        kind, number = name.split(".")
        if kind == "ingest":
            return IngestLane(self, int(number))
        if kind == "process":
            return ProcessLane(self, int(number))
        generation = self.assignment.generation
        return SinkLane(self, generation.number, int(number), generation.groups[int(number)])

    def overtake(self) -> None:
        if self.tokens_when_overtaken is None:
            self.tokens_when_overtaken, self.settlings_when_overtaken = len(self.world.table.tokens), self.world.table.settlings

    @property
    def is_overtaken(self) -> bool:
        return self.tokens_when_overtaken is not None


class Driver:
    """One driver: with each epoch it writes an assignment to the ledger, and starts the tasks of its shares."""

    def __init__(self, world: "LaneWorld") -> None:
        self.world = world
        world.driver_epoch += 1
        self.epoch, self.config = world.driver_epoch, world.config
        self.actor = Actor(world, f"driver {self.epoch}", self._work, self)  # type: ignore[arg-type]

    def _work(self) -> None:
        chain: LaneChain[Assignment] = LaneChain(self.world.log, NAMES, ASSIGNMENTS, self.epoch)
        is_open = False
        while True:
            try:
                if not is_open:
                    chain.open()
                    is_open = True
                before = chain.state.done.body if chain.state.done else None
                wishes = replace(self.world.wishes, config=self.config)
                facts = self._facts(before)
                self.world.call()
                chosen = rules.next_assignment(before, wishes, facts, self.world.kafka.held)
                chain.advance(chosen)
            except RetryableError:
                is_open = False
                continue
            self.world.launch(chosen)
            self.world.current.idle()

    def _facts(self, before: Assignment | None) -> rules.Facts:
        log = self.world.log
        if before is None:
            return rules.Facts(None, False)
        number, groups = before.generation.number, before.generation.groups
        has_begun = all(read_chain(log, NAMES, sink_chain(number, group)).done for group in range(len(groups)))
        if not before.is_draining:
            return rules.Facts(None, has_begun)
        lanes = [name.split(".") for share in before.shares for name in share]
        for partition in [int(n) for kind, n in lanes if kind == "ingest"]:
            state = read_chain(log, NAMES, ingest_chain(SOURCE, partition)).done
            if state is None or not state.body.is_closed or state.body.layout != before.layout.number:
                return rules.Facts(None, has_begun)
        end = log.end(NAMES.stream("raw"))
        states = [read_chain(log, NAMES, process_chain(bucket)) for bucket in range(before.layout.buckets)]
        if any(s.done is None or s.done.body.layout != before.layout.number or s.to < end for s in states):
            return rules.Facts(None, has_begun)
        segments = [name for b, s in enumerate(states) for name in live_segments(log, NAMES, process_chain(b), s)]
        return rules.Facts(max(state.to for state in states), has_begun, tuple(dict.fromkeys(segments)))

    @property
    def is_overtaken(self) -> bool:
        return self.epoch < self.world.driver_epoch


class LaneWorld:
    """Everything random comes from `rng`, and only one actor runs at a time, so a seed is a story."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.turn = threading.Lock()
        self.turn.acquire()
        self.current: Actor = None  # type: ignore[assignment]
        self.is_mended_at_failure = False
        self.calls = self.driver_epoch = self.versions = 0
        self.strike = 0
        """The call before which whoever makes it is killed, or stands still (`strikes_with`)."""
        self.strikes_with = "kill"
        self.struck: Actor | None = None
        """Who stands still."""
        self.dedups = self.rng.random() < 0.8
        self.expires = self.rng.random() < 0.3
        self.purges = self.rng.random() < 0.5
        self.kafka = Kafka(self, self.rng.choice([1, 2, 2]))
        self.log = LaneLog(self, ManualClock())
        self.table = LaneTable(self)
        self.segments = Segments(self)
        self._planned: dict[str, int] = {}
        self.drivers: list[Driver] = []
        self.tasks: list[Task] = []
        self.assignment: Assignment | None = None
        self.wishes = rules.Wishes("", self.rng.choice([1, 2, 3]), self.rng.choice([1, 1, 2]), self.rng.choice([1, 2]))
        self.edit()

    def edit(self) -> None:
        """The file is edited: the next driver brings another version."""
        self.versions += 1
        self.config = f"c{self.versions}"

    def call(self) -> None:
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise AssertionError("the history does not come to an end")
        if self.current is None:
            return
        if self.calls == self.strike and self.strikes_with == "kill":
            self.mark(self.current.runner)  # type: ignore[arg-type]
        elif self.calls == self.strike:
            self.struck = self.current
            self.current.spend_all()
        self.current.call()

    def mark(self, runner: Task | Driver) -> list[Actor]:
        """kill -9 of a driver, or of a task's process with all tasks in it: each ends where it stands."""
        ended = [runner.actor]
        if isinstance(runner, Task):
            runner.process.is_dead = True
            runner.process.unsaved.clear()
            ended = [task.actor for task in self.tasks if task.process is runner.process and not task.actor.is_expired]
        for actor in ended:
            actor.is_killed = True
        return ended

    def kill(self, runner: Task | Driver) -> None:
        """As `mark`, from outside of every actor."""
        for actor in self.mark(runner):
            actor.kill()

    def planned(self, digest: str) -> None:
        self._planned[digest] = len(self.table.tokens)

    def is_recent(self, digest: str) -> bool:
        """Whether a chunk was decided so lately that its tokens must still be known: in deed by the time of its entry."""
        return len(self.table.tokens) - self._planned[digest] <= self.table.window // 4

    def check_lease(self) -> None:
        """Before an insert: a lane that was overtaken a while ago, or waited for, has no lease left to begin one."""
        task = self.current.runner
        if isinstance(task, Task) and task.tokens_when_overtaken is not None:
            passed = len(self.table.tokens) - task.tokens_when_overtaken
            if passed > self.table.window // 4 or self.table.settlings > task.settlings_when_overtaken:
                raise RetryableError("the lease is over")

    def launch(self, assignment: Assignment) -> None:
        """A new epoch's tasks, in processes that are there or in new ones. Tasks of earlier epochs go on until they notice."""
        if self.assignment is None or assignment.to > self.assignment.to:
            self.assignment = assignment
        for task in self.tasks:
            if task.assignment.to < self.assignment.to:
                task.overtake()
                task.stop |= self.rng.random() < 0.3
        for share in range(len(assignment.shares)):
            self.attempt(assignment, share, 0)
        if assignment.to < self.assignment.to:
            for task in self.tasks[-len(assignment.shares) :]:
                task.overtake()

    def attempt(self, assignment: Assignment, share: int, number: int) -> None:
        for task in self.tasks:
            if (task.assignment.to, task.share) == (assignment.to, share):
                task.overtake()
        processes = list({id(t.process): t.process for t in self.tasks if not t.process.is_dead}.values())
        process = self.rng.choice(processes) if processes and self.rng.random() < 0.6 else Process()
        self.tasks.append(Task(self, process, assignment, share, number))

    def retry(self) -> None:
        """Spark tries a share again, while an attempt at it may still be at work."""
        if self.assignment is not None:
            share = self.rng.randrange(len(self.assignment.shares))
            here = [t.attempt for t in self.tasks if (t.assignment.to, t.share) == (self.assignment.to, share)]
            if here:
                self.attempt(self.assignment, share, max(here) + 1)

    def start(self) -> Driver:
        self.drivers.append(Driver(self))
        return self.drivers[-1]

    def purge(self) -> None:
        """What every reader has passed goes, subject by subject, but the last message."""
        self.current = None  # type: ignore[assignment]
        for subject, frames in self._by_subject("raw").items():
            *_, partition, bucket = subject.split(".")
            processed = read_chain(self.log, NAMES, process_chain(int(bucket))).to or 0
            ingested = read_chain(self.log, NAMES, ingest_chain(SOURCE, int(partition))).to or 0
            self.log.purge(NAMES.stream("raw"), subject, rules.raw_that_may_go(frames, processed, ingested))
        if self.assignment is None:
            return
        generation = self.assignment.generation
        for group, buckets in enumerate(generation.groups):
            state = read_chain(self.log, NAMES, sink_chain(generation.number, group)).done
            for bucket in buckets if state else ():
                frames = self._by_subject("out").get(NAMES.out(bucket), [])
                if frames:
                    self.log.purge(NAMES.stream("out"), NAMES.out(bucket), min(state.body.to + 1, frames[-1].sequence))

    def _by_subject(self, role: str) -> dict[str, list[Message]]:
        found: dict[str, list[Message]] = {}
        for message in self.log.messages(NAMES.stream(role)):
            found.setdefault(message.subject, []).append(message)
        return found

    def actors(self) -> list[Actor]:
        return [runner.actor for runner in (*self.drivers, *self.tasks) if not runner.actor.is_expired]

    def live_tasks(self) -> list[Task]:
        return [task for task in self.tasks if not task.actor.is_expired]

    def settle(self) -> None:
        """The end of every history: servers are well, a new driver's tasks drain; then what was paused or in flight comes to life."""
        self.log.come_back()
        self.table.fault, self.strike = None, 0
        self.kafka.silent.clear()
        driver = self.start()
        self.drain(driver)
        check_account(self)
        self.current = None  # type: ignore[assignment]
        self.log.deliver()
        self.table.deliver()
        while zombies := [t.actor for t in self.live_tasks() if t.is_overtaken and not t.actor.is_idle]:
            self.rng.choice(zombies).step(self.rng.randint(1, 9))
        for actor in [d.actor for d in self.drivers if d is not driver and not d.actor.is_expired]:
            actor.step(1000)
        self.drain(driver)
        self.check_ends()
        check_account(self)

    def drain(self, driver: Driver) -> None:
        """Epoch after epoch until its wishes are fulfilled and nothing is left to do."""
        while True:
            driver.actor.is_idle = False
            self._finish(lambda: [driver.actor])
            if driver.actor.is_expired:
                raise AssertionError(f"the last driver ended: {driver.actor.error!r}") from driver.actor.error
            self._work_off()
            made = self.assignment
            assert made is not None
            has_groups = len(made.generation.groups) == min(self.wishes.groups, len({b for g in made.generation.groups for b in g}))
            covers = set(range(made.layout.buckets)) <= {b for g in made.generation.groups for b in g}
            fulfilled = not made.is_draining and made.layout.buckets == self.wishes.buckets and has_groups and covers
            if fulfilled and made.config == self.config and f"ingest.{len(self.kafka.held) - 1}" in {n for s in made.shares for n in s}:
                return

    def _work_off(self) -> None:
        """The tasks of the last assignment, until none of them publishes any more."""
        while True:
            before = self.log.publishes, len(self.table.tokens)
            for task in self.live_tasks():
                task.actor.is_idle = False
            self._finish(lambda: [t.actor for t in self.live_tasks() if not t.is_overtaken])
            if (self.log.publishes, len(self.table.tokens)) == before:
                return

    def _finish(self, actors: Callable[[], list[Actor]]) -> None:
        while waiting := [a for a in actors() if not a.is_expired and not a.is_idle]:
            for actor in waiting:
                actor.step(1000)
            self.check_ends()

    def check_ends(self) -> None:
        """Nobody may end in surprise, and nobody may think that it was replaced when it was not."""
        for runner in (*self.drivers, *self.tasks):
            error = runner.actor.error
            allowed = FencedError if isinstance(runner, Driver) else HaltError
            if error is None or (runner.actor.was_overtaken and isinstance(error, allowed)):
                continue
            raise AssertionError(f"{runner.actor.name}: {error!r}") from error

    def end(self) -> None:
        for actor in self.actors():
            actor.kill()
