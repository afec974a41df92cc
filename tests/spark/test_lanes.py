"""Lanes in Spark's tasks: what they do of a large backlog, and a lane that ends in the middle of it."""

import psutil
import pytest
from pyspark.sql import SparkSession
from support.dedup_case import check_first_of_keys, copies, with_lanes
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, kill, wait_until, workers_of

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.usefixtures("no_idle_workers")]
RECORDS = 300_000
"""Of which no process takes so many at once that the rest is too little for lanes."""
KEYS = 200_003
GOOD = len({number * 7919 % KEYS for number in range(RECORDS) if number % 100 != 99})


class Run:
    """A runner whose lanes wait for work."""

    def __init__(self, case: PipelineCase, session: SparkSession) -> None:
        case.write_file(with_lanes(3))
        case.create_topic()
        case.session, self._case = session, case
        self.runner = case.warm_runner(until_caught_up=False)
        self._thread = case.in_background(self.runner)
        wait_until(lambda: self._lanes == 2, "two lanes")

    @property
    def _lanes(self) -> int:
        return self.runner.coordinator.lanes if self.runner.coordinator else 0

    def lane_processes(self, session: SparkSession) -> list[psutil.Process]:
        """The Python workers that have no leg."""
        legs = {leg.process.pid for leg in self.runner.legs.values() if leg.process}
        return [worker for worker in workers_of(session) if worker.pid not in legs]

    def wait(self) -> None:
        wait_until(lambda: self._case.count() == GOOD, "all rows")

    def end(self) -> dict[str, int]:
        """Stop when all rows are there; return the parts that lanes have done for each leg."""
        self.wait()
        self.runner.request_stop()
        self._thread.join(PATIENCE_SECONDS)
        counts = check_first_of_keys(self._case)
        assert counts.total() == RECORDS
        return {str(leg): view.status.lane_parts for leg, view in self.runner.legs.items()}


def test_lanes_share_the_work_on_a_backlog(case: PipelineCase, session: SparkSession) -> None:
    run = Run(case, session)
    case.send_at_once(copies(RECORDS, keys=KEYS))
    parts = run.end()
    assert parts["ingest"] >= 1, parts
    assert parts["process"] >= 1, parts
    assert parts["sink"] == 0, "it has no part to give away"


def test_parts_of_a_killed_lane_are_done_by_the_leg(case: PipelineCase, session: SparkSession) -> None:
    run = Run(case, session)
    lanes = run.lane_processes(session)
    assert len(lanes) == 2
    # A process that is stopped answers no request, as one whose host is gone.
    lanes[0].suspend()
    case.send_at_once(copies(RECORDS, keys=KEYS))
    kill(lanes[1])
    run.wait()
    lanes[0].resume()
    run.end()
