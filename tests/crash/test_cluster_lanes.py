"""Lanes on a Spark cluster: they come with a backlog, go after it, may be lost with their executor, and executors follow them."""

import json
import random
import signal
import subprocess
from contextlib import closing
from typing import Any

import psutil
import pytest
from support.cluster_case import Cluster, sharing_state
from support.dedup_case import check_first_of_keys, event, with_lanes
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, kill, wait_until

from pipelines.connectors.nats.client import JetStream
from pipelines.protocol.tally import tally
from pipelines.testing import SINGLE

pytestmark = pytest.mark.crash
BACKLOGS = (60_000, 120_000, 240_000, *[480_000] * 6)
"""Which of them takes lanes depends on the machine: a leg must be busy for long enough. The oracle reads every record."""
DYNAMIC_ALLOCATION = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.executorIdleTimeout": "10s",
    "spark.executor.cores": "3",
}


class Run:
    """A run on a cluster whose lanes come and go soon; `keys`: those of the records that were sent."""

    def __init__(self, case: PipelineCase, most_lanes: int, **properties: str) -> None:
        case.write_file(sharing_state(case, with_lanes(most_lanes)))
        case.create_topic()
        self.case, self.cluster = case, Cluster(case.stack)
        self.options = self.cluster.options(case, **properties)
        self.sent, self.keys = 0, set[int]()
        self.process = self.start()

    def start(self) -> "subprocess.Popen[str]":
        process = self.case.start_eager(*self.options)
        self.case.wait_ready(process)
        return process

    def send(self, count: int) -> None:
        """Send records of which every tenth repeats a key and every hundredth is no JSON."""
        numbers = range(self.sent, self.sent + count)
        records = [b"{" if n % 100 == 99 else event(n, n - 57 if n % 10 == 0 else n) for n in numbers]
        self.keys.update(json.loads(record)["id"] for record in records if record != b"{")
        self.case.send_at_once(records)
        self.sent += count

    def send_until_lanes(self) -> None:
        """Send one backlog after the other until lanes are at work: those that are wanted go if there is nothing to do before they come."""
        for count in BACKLOGS:
            self.send(count)
            wait_until(lambda: self.lanes("working") > 1 or self.case.count() == len(self.keys), "all rows, or lanes")
            if self.lanes("working") > 1:
                return
        raise AssertionError("no backlog took lanes")

    @property
    def status(self) -> dict[str, Any]:
        return self.case.ask() or {}

    def lanes(self, state: str) -> int:
        return int((self.status.get("lanes") or {}).get(state, 0))

    def wait(self) -> None:
        """Until all rows are there, and every leg has confirmed its part: one that was lost may have inserted before it could."""
        wait_until(lambda: self.case.count() == len(self.keys), "all rows")
        with closing(self.case.log()) as log:
            wait_until(lambda: is_confirmed(log, self.case), "what every leg has confirmed")

    def end(self) -> str:
        """Stop in good order, without a leg that has halted; return what the run has said."""
        self.process.send_signal(signal.SIGTERM)
        words = self.process.communicate(timeout=PATIENCE_SECONDS)[1]
        assert (self.process.returncode, "halted" in words) == (0, False), words
        return words

    def check(self) -> None:
        assert check_first_of_keys(self.case).total() == self.sent


def test_lanes_are_lost_with_their_executor_and_nothing_else_is(case: PipelineCase) -> None:
    run = Run(case, 3)
    run.send_until_lanes()
    run.send(BACKLOGS[0])
    kill(random.choice(run.cluster.executors()))
    run.wait()
    legs = wait_until(lambda: [one for one in run.cluster.executors() if one.pid in _places(run)], "an executor with a leg")
    kill(legs[0])
    run.send(1000)
    run.wait()
    assert "with an executor have ended: " in run.end(), "the daemon of its workers has said so"
    run.check()


def is_confirmed(log: JetStream, case: PipelineCase) -> bool:
    account = tally(log, case.names, SINGLE)
    return account.residue == 0 and not any(leg.waiting or leg.has_open_plan for leg in account.legs)


def _places(run: Run) -> set[int]:
    """The executors in which legs work."""
    workers = {int(leg["worker"].rpartition(":")[2]) for leg in run.status["legs"].values()}
    executors = {executor.pid for executor in run.cluster.executors()}
    return {parent.pid for pid in workers for parent in psutil.Process(pid).parents() if parent.pid in executors}


def _epochs(run: Run) -> list[int]:
    return [leg["epoch"] for leg in run.status["legs"].values()]


def test_executors_follow_the_lanes_with_dynamic_allocation(case: PipelineCase) -> None:
    # One executor has a slot for each leg, and none for the lane.
    run = Run(case, 2, **DYNAMIC_ALLOCATION)
    (first,) = run.cluster.executors()
    assert _places(run) == {first.pid}
    epochs = _epochs(run)
    run.send_until_lanes()
    assert len(run.cluster.executors()) == 2, "the first one has no free slot"
    run.wait()
    wait_until(lambda: run.lanes("working") == 1, "no lane")
    wait_until(lambda: run.cluster.executors() == [first], "the first executor alone")
    run.send(1000)
    run.wait()
    assert (_places(run), _epochs(run)) == ({first.pid}, epochs), "no leg was taken over"
    run.end()
    run.check()
