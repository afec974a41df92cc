"""Epochs: the tasks of one streaming query take every record, and the next epoch's task finds what the one before has started."""

import json
import time
from itertools import pairwise
from statistics import median

import pytest
from pyspark.sql import SparkSession
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until
from support.plain_runner import WatchedEngine

from pipelines.engine.line import Process
from pipelines.protocol.topology import LegId
from pipelines.runner.scaling import LIMITS, Limits, Mark, Scaling

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.usefixtures("no_idle_workers")]


class ShortEpochs(WatchedEngine):
    """An epoch ends after half a second; the test sees what Spark counted."""

    epoch_seconds = 0.5


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
        for rows in range(500, 100_000, 500):
            case.wait_count(rows)
            for name, leg in runner.legs.items():
                processes[name].add(leg.process)
            epochs.add(session.streams.active[0].lastProgress.batchId)
            if rows > 3000 and len(epochs) > 2:
                break
    wait_until(lambda: case.count() == case.good, "all rows")
    runner.request_stop()
    thread.join(PATIENCE_SECONDS)
    assert [len(each) for each in processes.values()] == [1, 1, 1], "each leg stays where it is"
    assert len(set.union(*processes.values())) == 3, "in a process of its own"
    assert len(epochs) > 2
    assert {leg.lease.holder.epoch for leg in runner.legs.values()} == {1}, "no leg was taken over"
    case.check()


BORDERS = 4


class Held(Scaling):
    """So many lanes, whatever the load is: a busy machine would add some before the border that ends the others.

    The test changes it in place: the runner, which writes back what it has read, would undo a new one.
    """

    def hold(self, lanes: int) -> None:
        object.__setattr__(self, "lanes", lanes)

    def next(self, now: Mark, working: int, most: int, limits: Limits = LIMITS) -> Scaling:
        return self


def _done_at(case: PipelineCase, leg: LegId) -> list[float]:
    """When each plan of a leg was done, by the ledger."""
    log, stream, subject = case.log(), case.names.stream("ledger"), case.names.chain(leg)
    state = log.state(stream)
    assert state is not None
    entries = [(json.loads(message.payload), message.time.timestamp()) for message in log.fetch(stream, subject, 0, state.last_sequence)]
    log.close()
    return [at for entry, at in entries if entry["kind"] == "done"]


def _longest_gap(done_at: list[float], since: float, until: float) -> float:
    """The longest time between two plans of which one was done within a span."""
    return max(after - before for before, after in pairwise(done_at) if before < until and after > since)


def test_legs_work_on_across_a_border_that_adds_lanes(case: PipelineCase, session: SparkSession) -> None:
    case.write_file(lambda document: document.update(lanes=3, buckets=3))
    case.create_topic()
    runner = case.warm_runner(until_caught_up=False)
    engine = runner._engine = WatchedEngine(session)
    engine.scaling = held = Held()
    thread = case.in_background(runner)
    coordinator = runner.coordinator
    assert coordinator is not None
    spans: list[tuple[float, float]] = []
    quiet: list[tuple[float, float]] = []
    with case.load(100):
        for _ in range(BORDERS):
            case.wait_count(case.count() + 300)
            begun = time.time()
            case.wait_count(case.count() + 600)
            quiet.append((begun, time.time()))
            held.hold(2)
            begun = time.time()
            wait_until(lambda: coordinator.lanes == 2, "two lanes")
            spans.append((begun, time.time()))
            held.hold(0)
            wait_until(lambda: coordinator.lanes == 0, "no lane")
    wait_until(lambda: case.count() == case.good, "all rows")
    assert {leg.lease.holder.epoch for leg in runner.legs.values()} == {1}, "no leg was taken over"
    runner.request_stop()
    thread.join(PATIENCE_SECONDS)
    case.check()
    for leg in ("ingest", "process"):
        done_at = _done_at(case, LegId(leg))
        at_borders, elsewhere = ([_longest_gap(done_at, *span) for span in some] for some in (spans, quiet))
        print(f"{leg}: longest gap at borders {at_borders}, elsewhere {elsewhere}")
        assert median(at_borders) <= max(0.5, 2 * median(elsewhere))
