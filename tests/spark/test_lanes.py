"""Lanes in Spark's tasks: what they do of a large backlog, a lane that ends in the middle of it, and how they come and go."""

from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession
from support.dedup_case import check_first_of_keys, copies, with_lanes
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, kill, pause, wait_until, workers_of
from support.plain_runner import WatchedEngine

from pipelines.runner.scaling import Limits, Scaling

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.usefixtures("no_idle_workers")]
RECORDS = 300_000
"""Of which no process takes so many at once that the rest is too little for lanes."""
KEYS = 200_003
GOOD = len({number * 7919 % KEYS for number in range(RECORDS) if number % 100 != 99})


def three_lanes(document: dict[str, Any]) -> None:
    """The sink waits until process has done a plan: it finds many rows at once."""
    with_lanes(3)(document)
    document["sink"]["max_delay_time"] = "5s"


class Run:
    """A runner that keeps two lanes, which wait for work; with `limits` as many as the load takes."""

    def __init__(self, case: PipelineCase, session: SparkSession, limits: Limits | None = None) -> None:
        case.write_file(three_lanes)
        case.create_topic()
        case.session, self._case = session, case
        self.runner = case.warm_runner(until_caught_up=False)
        self.engine = self.runner._engine = WatchedEngine(session)
        self.engine.scaling, self.engine.limits = Scaling(0 if limits else 2), limits or Limits()
        self._thread = case.in_background(self.runner)
        wait_until(lambda: self.lanes == self.engine.scaling.lanes, "two lanes, or none")

    @property
    def lanes(self) -> int:
        return self.runner.coordinator.lanes if self.runner.coordinator else 0

    def lane_processes(self, session: SparkSession) -> list[psutil.Process]:
        """The Python workers that have no leg."""
        legs = {leg.process.pid for leg in self.runner.legs.values() if leg.process}
        return [worker for worker in workers_of(session) if worker.pid not in legs]

    def wait(self) -> None:
        wait_until(lambda: self._case.count() == GOOD, "all rows")

    def join(self) -> None:
        self.runner.request_stop()
        self._thread.join(PATIENCE_SECONDS)

    def end(self) -> dict[str, int]:
        """Stop when all rows are there; return the parts that lanes have done for each leg."""
        self.wait()
        self.join()
        counts = check_first_of_keys(self._case)
        assert counts.total() == RECORDS
        return {str(leg): view.status.lane_parts for leg, view in self.runner.legs.items()}


def test_lanes_share_the_work_on_a_backlog(case: PipelineCase, session: SparkSession) -> None:
    run = Run(case, session)
    case.send_at_once(copies(RECORDS, keys=KEYS))
    parts = run.end()
    assert parts["ingest"] >= 1, parts
    assert parts["process"] >= 1, parts
    assert parts["sink"] >= 1, parts


@pytest.mark.crash
def test_a_lane_killed_while_it_inserts_doubles_nothing(case: PipelineCase, session: SparkSession) -> None:
    run = Run(case, session)
    client = case.client()
    # Inserts of some seconds: those of the leg and of its lanes run side by side.
    client.command(f"ALTER TABLE {case.table} ADD COLUMN slow UInt8 MATERIALIZED sleepEachRow(0.00002)")
    lanes = run.lane_processes(session)
    case.send_at_once(copies(RECORDS, keys=KEYS))
    running = "SELECT count() FROM system.processes WHERE query LIKE 'INSERT INTO%' AND position(query, {t:String}) > 0"
    wait_until(lambda: client.query(running, {"t": case.table}).result_rows[0][0] >= 2, "an insert of a lane beside the leg's")
    for lane in lanes:
        kill(lane)
    run.end()


@pytest.mark.crash
def test_parts_of_a_killed_lane_are_done_by_the_leg(case: PipelineCase, session: SparkSession) -> None:
    run = Run(case, session)
    lanes = run.lane_processes(session)
    assert len(lanes) == 2
    # A process that is stopped answers no request, as one whose host is gone.
    pause(lanes[0])
    case.send_at_once(copies(RECORDS, keys=KEYS))
    kill(lanes[1])
    run.wait()
    lanes[0].resume()
    run.end()


def test_lanes_come_with_a_backlog_and_go_after_it(case: PipelineCase, session: SparkSession) -> None:
    run = Run(case, session, Limits(busy_seconds=0.3, quiet_seconds=2.0))
    assert len(workers_of(session)) == 3, "a process for each leg, and no other"
    case.send_at_once(copies(RECORDS, keys=KEYS))
    wait_until(lambda: run.lanes > 0, "a lane")
    assert run.lane_processes(session)
    run.wait()
    wait_until(lambda: run.lanes == 0, "no lane")
    case.send_at_once(copies(100, first=RECORDS, keys=KEYS))
    assert {leg.lease.holder.epoch for leg in run.runner.legs.values()} == {1}, "no leg was taken over"
    run.join()
    case.warm_run()
    assert check_first_of_keys(case).total() == RECORDS + 100
    assert [note for note in case.reported if note.startswith("lanes: ")][-1] == "lanes: 1 instead of 2, by the load"
