"""When a run with an end has confirmed everything: literal chains in memory."""

from typing import Any

from pipelines.protocol.bodies import IngestDone, IngestPlan, ProcessDone, ProcessPlan, SinkDone, SinkPlan
from pipelines.protocol.ledger import Chain
from pipelines.protocol.naming import Names
from pipelines.runner.caught_up import LegsLeft
from pipelines.testing import LEGS, SINGLE, MemoryLog

NAMES = Names("orders")
INGEST, PROCESS, SINK = LEGS
RAW, OUT = NAMES.raw("orders", 0), NAMES.out(0)


class CountingLog(MemoryLog):
    """Notes whose chain was read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def last(self, stream: str, subject: str) -> Any:
        self.read.append(subject)
        return super().last(stream, subject)


class Run:
    """A run over partition 0, whose frozen end is offset 2; a frame holds a record."""

    def __init__(self) -> None:
        self.log = CountingLog()
        self.chains: dict[str, Chain[Any, Any]] = {leg: Chain(self.log, NAMES, leg.chain, 1) for leg in LEGS}
        for chain in self.chains.values():
            chain.open()
        self.left = LegsLeft(SINGLE.up_to(LEGS), {INGEST: {0: 2}}, self.log, NAMES)

    def append(self, subject: str) -> int:
        last = self.log.last(NAMES.stream(subject.split(".")[2]), subject)
        return self.log.publish(subject, b"frame", {}, last.sequence if last else 0)

    def ingest(self, to: int) -> None:
        self.append(RAW)
        chain, ends = self.chains[INGEST], {"0": to}
        chain.plan(IngestPlan(start={}, to=ends))
        chain.done(IngestDone(start={}, to=ends))

    def process(self, to: int) -> None:
        self.append(OUT)
        chain = self.chains[PROCESS]
        start = chain.state.to or 0
        chain.plan(ProcessPlan(start=start, to=to, config="v"))
        chain.done(ProcessDone(start=start, to=to, config="v"))

    def sink(self, to: int) -> None:
        chain = self.chains[SINK]
        start = chain.state.to or 0
        chain.plan(SinkPlan(start=start, to=to, config="v", rows=1, digest="0" * 32))
        chain.done(SinkDone(start=start, to=to))


def test_nothing_is_left_once_each_leg_has_confirmed_its_input() -> None:
    run = Run()
    run.ingest(1)
    assert not run.left.are_none()
    run.ingest(2)
    assert not run.left.are_none()
    run.process(2)
    assert not run.left.are_none()
    run.sink(1)
    assert run.left.are_none()


def test_what_arrives_behind_the_end_is_not_waited_for() -> None:
    run = Run()
    run.ingest(2)
    run.process(1)
    assert not run.left.are_none()
    run.ingest(9)
    run.sink(1)
    assert run.left.are_none()


def test_a_leg_that_has_reached_its_end_is_asked_no_more() -> None:
    run = Run()
    run.ingest(2)
    run.process(1)
    assert not run.left.are_none()
    run.log.read.clear()
    assert not run.left.are_none()
    assert run.log.read == [NAMES.chain(SINK)]


def test_nothing_is_confirmed_before_the_legs_that_come_first() -> None:
    """An empty raw stream is all processed; yet its records are still to come."""
    run = Run()
    run.process(1)
    run.sink(1)
    assert not run.left.are_none()
