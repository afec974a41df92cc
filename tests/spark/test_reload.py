"""Settings reach legs in Spark's workers: those at work, those that replace a killed one, and lanes with the work of a leg."""

from collections.abc import Callable
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession
from support.dedup_case import check_first_of_keys, copies, with_lanes
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, kill, wait_until
from support.plain_runner import WatchedEngine

from pipelines.runner.reloads import reload
from pipelines.runner.runner import Runner
from pipelines.runner.scaling import Scaling

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.usefixtures("no_idle_workers")]
RECORDS, KEYS = 300_000, 200_003
Document = dict[str, Any]


def slow(document: Document) -> None:
    document["sink"].update(max_batch_size=1_000_000, max_delay_time="1h")


def quick(document: Document) -> None:
    document["sink"].update(max_batch_size=5000, max_delay_time="100ms")


def started(case: PipelineCase, session: SparkSession, change: Callable[[Document], object], lanes: int = 0) -> tuple[Runner, Any]:
    case.write_file(change)
    case.create_topic()
    case.session = session
    runner = case.warm_runner(until_caught_up=False)
    engine = runner._engine = WatchedEngine(session)
    engine.scaling = Scaling(lanes)
    return runner, case.in_background(runner)


def reloaded(case: PipelineCase, runner: Runner, change: Callable[[Document], object]) -> str:
    case.write_file(change)
    return reload(runner, case.file.read_text())


def taken(runner: Runner, digest: str) -> bool:
    return all(leg.status.settings == digest for leg in runner.legs.values())


def test_legs_in_workers_take_settings_and_stay_where_they_are(case: PipelineCase, session: SparkSession) -> None:
    runner, thread = started(case, session, slow)
    case.send_events(100)
    case.wait_count(1)
    case.send_events(200)
    wait_until(lambda: runner.legs[runner.topology.process].status.totals.get("rows_in") == 300, "all records in process")
    before = {leg: (view.process, view.lease.holder.epoch) for leg, view in runner.legs.items()}
    assert case.count() <= 100
    with case.load():
        digest = reloaded(case, runner, quick)
        case.wait_count(600)
    assert taken(runner, digest)
    assert {leg: (view.process, view.lease.holder.epoch) for leg, view in runner.legs.items()} == before
    wait_until(lambda: case.count() == case.good, "all rows")
    runner.request_stop()
    thread.join(PATIENCE_SECONDS)
    case.check()


@pytest.mark.crash
def test_a_worker_killed_right_after_a_reload_comes_back_with_it(case: PipelineCase, session: SparkSession) -> None:
    runner, thread = started(case, session, slow)
    case.send_events(100)
    case.wait_count(1)
    case.send_events(200)
    sink = runner.legs[runner.topology.sinks[0]]
    wait_until(lambda: runner.legs[runner.topology.process].status.totals.get("rows_in") == 300, "all records in process")
    killed = sink.process
    assert killed is not None
    digest = reloaded(case, runner, quick)
    kill(psutil.Process(killed.pid))
    wait_until(lambda: sink.process != killed and taken(runner, digest), "a sink in another process, under the new settings")
    case.send_events(300)
    wait_until(lambda: case.count() == case.good, "all rows")
    assert sink.lease.holder.epoch > 1, "it was taken over"
    runner.request_stop()
    thread.join(PATIENCE_SECONDS)
    case.check()


def test_lanes_work_on_across_a_reload(case: PipelineCase, session: SparkSession) -> None:
    def with_two(document: Document) -> None:
        with_lanes(3)(document)
        document["sink"].update(max_delay_time="5s")

    def with_none(document: Document) -> None:
        with_two(document)
        document.update(lanes=1, on_error={"max_rejected_percent": 3})

    runner, thread = started(case, session, with_two, lanes=2)
    coordinator = runner.coordinator
    assert coordinator is not None
    wait_until(lambda: coordinator.lanes == 2, "two lanes")
    case.send_at_once(copies(RECORDS, keys=KEYS))
    wait_until(lambda: sum(leg.status.lane_parts for leg in runner.legs.values()) > 0, "a part that a lane has done")
    digest = reloaded(case, runner, with_none)
    wait_until(lambda: taken(runner, digest), "all legs under the new settings")
    wait_until(lambda: coordinator.lanes == 0, "no lane")
    good = len({number * 7919 % KEYS for number in range(RECORDS) if number % 100 != 99})
    wait_until(lambda: case.count() == good, "all rows")
    assert {leg.lease.holder.epoch for leg in runner.legs.values()} == {1}, "no leg was taken over"
    runner.request_stop()
    thread.join(PATIENCE_SECONDS)
    assert check_first_of_keys(case).total() == RECORDS


def test_lanes_reject_as_their_leg_says(case: PipelineCase, session: SparkSession) -> None:
    runner, thread = started(case, session, with_lanes(3), lanes=2)
    coordinator = runner.coordinator
    assert coordinator is not None
    wait_until(lambda: coordinator.lanes == 2, "two lanes")

    def halting(document: Document) -> None:
        with_lanes(3)(document)
        document["on_error"] = "halt"

    digest = reloaded(case, runner, halting)
    wait_until(lambda: taken(runner, digest), "all legs under the new settings")
    case.send_at_once(copies(RECORDS, keys=KEYS))
    process = runner.legs[runner.topology.process]
    wait_until(lambda: process.failure is not None, "a halt at a rejected record")
    assert "as `on_error.rejected: halt` requires" in process.status.message
    assert not case.dead_letters(), "none of its records, in whatever process, became one"
    runner.request_stop()
    thread.join(PATIENCE_SECONDS)
    case.write_file(with_lanes(3))
    case.warm_run()
    assert check_first_of_keys(case).total() == RECORDS
