"""Whether an ingest leg reads a backlog, by its chain on the ledger."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from support.leg_case import LegCase, event

from pipelines.engine.backlog import BACKLOG_BYTES, BACKLOG_OFFSETS, Backlog
from pipelines.engine.leg import LegMeans
from pipelines.protocol.bodies import IngestDone, IngestPlan
from pipelines.protocol.ledger import Chain
from pipelines.protocol.naming import Names
from pipelines.protocol.topology import LegId
from pipelines.testing import ManualClock, MemoryLog

NAMES = Names("p")
ORDERS, USERS = LegId("ingest"), LegId("ingest", "users")
FEW = BACKLOG_OFFSETS // 2 - 1


def backlog(log: MemoryLog, clock: ManualClock) -> Backlog:
    return Backlog(log, NAMES, (ORDERS, USERS), clock.seconds)


class Leg:
    """An ingest leg of two partitions."""

    def __init__(self, log: MemoryLog, leg: LegId) -> None:
        self.chain = Chain(log, NAMES, leg.chain, 1)
        self.chain.open()
        self.to = {"0": 0, "1": 0}

    def plans(self, zero: int, one: int) -> None:
        before, self.to = self.to, {"0": self.to["0"] + zero, "1": self.to["1"] + one}
        self.chain.plan(IngestPlan(start=before, to=self.to))

    def ends(self, counts: Mapping[str, int]) -> None:
        plan = self.chain.state.plan
        assert plan is not None
        self.chain.done(IngestDone(start=plan.body.start, to=plan.body.to, counts=dict(counts), tails={}))


def test_legs_that_have_planned_nothing_read_no_backlog(log: MemoryLog, clock: ManualClock) -> None:
    assert not backlog(log, clock).is_read()
    Leg(log, ORDERS)
    assert not backlog(log, clock).is_read()


@pytest.mark.parametrize(("zero", "one", "is_read"), [(FEW, FEW, False), (FEW + 1, FEW + 1, True), (BACKLOG_OFFSETS, 0, True)])
def test_many_offsets_of_all_partitions_are_a_backlog(log: MemoryLog, clock: ManualClock, zero: int, one: int, is_read: bool) -> None:
    Leg(log, ORDERS).plans(zero, one)
    assert backlog(log, clock).is_read() is is_read


def test_one_source_with_a_backlog_is_enough(log: MemoryLog, clock: ManualClock) -> None:
    Leg(log, ORDERS).plans(1, 1)
    Leg(log, USERS).plans(BACKLOG_OFFSETS, 0)
    assert backlog(log, clock).is_read()


def test_few_large_records_are_a_backlog_by_their_mean_size(log: MemoryLog, clock: ManualClock) -> None:
    leg = Leg(log, ORDERS)
    leg.plans(10, 0)
    leg.ends({"offsets": 10, "rows_in": 10, "rows_out": 10, "bytes": BACKLOG_BYTES // 100 * 10})
    leg.plans(99, 0)
    assert not backlog(log, clock).is_read()
    leg.ends({"offsets": 99, "rows_in": 99, "rows_out": 99, "bytes": BACKLOG_BYTES // 100 * 99})
    leg.plans(101, 0)
    assert backlog(log, clock).is_read()


def test_the_begin_is_seen_in_half_a_second_the_end_at_once(log: MemoryLog, clock: ManualClock) -> None:
    leg, looked = Leg(log, ORDERS), backlog(log, clock)
    assert not looked.is_read()
    leg.plans(BACKLOG_OFFSETS, 0)
    assert not looked.is_read()
    clock.advance(timedelta(seconds=0.5))
    assert looked.is_read()
    leg.ends({"offsets": BACKLOG_OFFSETS, "rows_in": 0, "rows_out": 0})
    assert not looked.is_read()


class Unannounced(MemoryLog):
    """A log whose announcements are lost."""

    def on_message(self, subject: str, callback: Callable[[], None], containing: bytes) -> None:
        """Nothing is called."""


def test_legs_behind_a_backlog_take_larger_batches(tmp_path: Path, clock: ManualClock) -> None:
    case = LegCase(tmp_path, 1, Unannounced(clock))
    case.config.sink.max_delay_time, case.config.sink.max_batch_size = timedelta(milliseconds=100), 1000
    for leg in (case.process, case.delivery):
        leg.means = LegMeans(clock=case.clock.seconds)
    raw, out = case.process.open_input(), case.delivery.open_input()
    for number in range(2):
        case.send([event(number)])
        case.go_on()
    assert raw._available({"sequence": 2}) == raw._available({"sequence": 2}) == {"sequence": 3}
    assert out._available({"sequence": 1}) == {"sequence": 2}
    case.ingest.chain.plan(IngestPlan(start={"0": 2}, to={"0": 2 + BACKLOG_OFFSETS}))
    case.clock.advance(timedelta(milliseconds=400))
    # Its look that saw no backlog was within half a second.
    assert raw._available({"sequence": 2}) == {"sequence": 3}
    case.clock.advance(timedelta(milliseconds=200))
    assert raw._available({"sequence": 2}) == {"sequence": 2}
    assert raw._pause() == pytest.approx(0.05)
    assert out._available({"sequence": 1}) == {"sequence": 1}
    assert out._pause() == pytest.approx(0.4)
    case.clock.advance(timedelta(milliseconds=400))
    assert raw._available({"sequence": 2}) == {"sequence": 3}
    assert out._available({"sequence": 1}) == {"sequence": 2}
