"""Histories of lanes that are written out: random ones come upon them too seldom. The account judges them as well."""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from pipelines.errors import FencedError
from pipelines.protocol.lanes.rules import Wishes
from support.lanes.ingest import IngestLane
from support.lanes.outside import Kafka, LaneTable
from support.lanes.process import ProcessLane
from support.lanes.world import Driver, LaneWorld

T = TypeVar("T")


class Steady(random.Random):
    """Takes all there is at once. `states`: whether lanes write a state after each step, or none."""

    def __init__(self, states: bool = True) -> None:
        super().__init__(0)
        self.states = states

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[-1]

    def random(self) -> float:
        return 0.0 if self.states else 0.99


class Written:
    """A world with one partition and a table that takes everything, in which a history goes on lane by lane."""

    def __init__(self, wishes: Wishes) -> None:
        self.world = world = LaneWorld(0)
        world.rng = self.rng = Steady()
        world.dedups, world.expires, world.purges = True, False, True
        world.kafka, world.table = Kafka(world, 1), LaneTable(world)
        world.kafka.first, world.kafka.end = {0: 0}, {0: 0}
        world.table.refused, world.table.partitions = None, 1
        world.wishes = wishes
        self.driver: Driver = world.start()
        self.assign()

    def assign(self) -> None:
        """The driver writes the next assignment; none of its tasks has begun."""
        self.driver.actor.step(1000)
        self.world.current = None  # type: ignore[assignment]

    def produce(self, key: str, value: str) -> None:
        kafka = self.world.kafka
        kafka.held[0].append((kafka.end[0], key, value))
        kafka.end[0] += 1

    def ingest(self) -> None:
        lane = IngestLane(self.world.tasks[-1], 0)
        lane.open()
        while lane.step():
            pass

    def process(self, bucket: int) -> ProcessLane:
        """The bucket's lane of the last attempt, opened."""
        lane = ProcessLane(self.world.tasks[-1], bucket)
        lane.open()
        return lane

    def work_off(self) -> None:
        """All lanes of the last assignment but those of the sink."""
        self.ingest()
        for bucket in range(self.world.tasks[-1].assignment.layout.buckets):
            self.process(bucket).step()

    def want_buckets(self, buckets: int) -> None:
        """Two assignments: the first closes the layout, if it may, and the second has the next one."""
        self.world.wishes = replace(self.world.wishes, buckets=buckets)
        for _ in range(2):
            self.assign()
            self.work_off()

    def settle(self) -> None:
        self.world.rng = random.Random(0)
        self.world.settle()


def an_earlier_attempt_reads_on_behind_a_purge() -> None:
    """The first attempt writes a row and no state, the second opens and stands still, the third states; then raw is purged."""
    history = Written(Wishes("", 1, 1, 1))
    try:
        history.produce("k1", "good")
        history.ingest()
        history.rng.states = False
        history.process(0).step()
        history.rng.states = True
        history.world.retry()
        second = history.process(0)
        history.world.retry()
        third = history.process(0)
        third.step()
        history.produce("k1", "fine")
        history.ingest()
        third.step()
        history.world.purge()
        with suppress(FencedError):
            # Of both records it sees but the other one, whose key it does not know.
            second.step()
        history.settle()
    finally:
        history.world.end()


def a_layout_is_over_before_its_buckets_have_sink_lanes() -> None:
    """Two buckets, then three, then two, while no sink lane has begun: a row waits in the third bucket."""
    history = Written(Wishes("", 2, 2, 1))
    try:
        history.work_off()
        history.want_buckets(3)
        # The third bucket's, of three.
        history.produce("k3", "good")
        history.work_off()
        history.want_buckets(2)
        history.settle()
    finally:
        history.world.end()
