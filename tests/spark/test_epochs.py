"""Epochs: the tasks of one streaming query take every record, and the next epoch's task finds what the one before has started."""

import pytest
from pyspark.sql import SparkSession
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until
from support.plain_runner import BriskEngine

from pipelines.engine.line import Process
from pipelines.protocol.topology import LegId
from pipelines.runner.epochs import Epochs

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.usefixtures("no_idle_workers")]


class ShortEpochs(BriskEngine):
    """An epoch ends after half a second; the test sees what Spark counted."""

    epoch_seconds = 0.5

    def epochs(self, *arguments: object) -> Epochs:
        self.made = super().epochs(*arguments)
        return self.made


def test_every_record_is_counted_by_sparks_tasks(case: PipelineCase, session: SparkSession) -> None:
    engine = ShortEpochs(session)
    case.create_topic()
    case.send_events(3000, bad_every=100)
    runner = case.warm_runner()
    runner._engine = engine
    runner.run()
    totals = [leg.status.totals["rows_in"] for leg in runner.legs.values()]
    assert (engine.made.rows, totals) == (sum(totals), [3000, 3000, 2970])
    case.check()


def test_legs_stay_in_their_worker_over_many_epochs(case: PipelineCase, session: SparkSession) -> None:
    engine = ShortEpochs(session)
    case.create_topic()
    runner = case.warm_runner(until_caught_up=False)
    runner._engine = engine
    thread = case.in_background(runner)
    processes: dict[LegId, set[Process | None]] = {leg: set() for leg in runner.legs}
    epochs = set()
    with case.load():
        for rows in range(500, 4000, 500):
            case.wait_count(rows)
            for name, leg in runner.legs.items():
                processes[name].add(leg.process)
            epochs.add(session.streams.active[0].lastProgress.batchId)
    wait_until(lambda: case.count() == case.good, "all rows")
    runner.request_stop()
    thread.join(PATIENCE_SECONDS)
    assert [len(each) for each in processes.values()] == [1, 1, 1], "each leg stays where it is"
    assert len(set.union(*processes.values())) == 3, "in a process of its own"
    assert len(epochs) > 2
    assert {leg.lease.holder.epoch for leg in runner.legs.values()} == {1}, "no leg was taken over"
    case.check()
