"""The assets of a pipeline, materialized on real servers: they start it, report its numbers, and hold back what is not sound."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import httpx
import pytest
from dagster._core.test_utils import freeze_time
from dagster_case import DagsterCase, dagster_case, failure, metadata
from pipeline_case import PipelineCase, wait_until
from pyspark.sql import SparkSession

from dagster_project.numbers import PLOTTED
from pipelines.runners import find_runners

pytestmark = pytest.mark.integration
SEAMS = ("raw_stream", "dedup_store", "out_stream", "clickhouse_table", "dead_letters")
CAUGHT_UP = {"mode": "UNTIL_CAUGHT_UP"}


def with_dedup(document: dict[str, Any]) -> None:
    document["transforms"] = [{"type": "dedup", "config": {"key": "id", "time_window": "1h"}}]


@pytest.fixture
def pipeline(case: PipelineCase) -> Iterator[DagsterCase]:
    case.write_file(with_dedup)
    case.create_topic()
    with dagster_case(case) as made:
        yield made


def test_a_bounded_materialization_ends_with_everything_in_the_table_and_its_numbers(pipeline: DagsterCase) -> None:
    case = pipeline.case
    case.send_events(300, bad_every=100)
    case.send([b'{"id": 5, "name": "again"}'])
    result = pipeline.materialize(*SEAMS, **CAUGHT_UP)
    assert result.success, failure(result)
    assert case.count() == case.good == 297
    found = metadata(result)
    assert {name: {*numbers} - {"state", "config version", "directory", "log"} for name, numbers in found.items()} == {
        seam: {*PLOTTED[seam]} - {"lag_offsets"} for seam in SEAMS
    }
    assert found["clickhouse_table"]["dagster/row_count"] == 297
    assert (found["dedup_store"]["duplicates_dropped"], found["dedup_store"]["keys"]) == (1, 297)
    assert (found["dead_letters"]["dead_letters"], found["dead_letters"]["dead_letters_percent"]) == (3, round(300 / 301, 4))
    assert find_runners(case.names.directory(case.home)) == []


def test_a_selection_starts_the_job_that_goes_on_when_the_run_has_ended_and_a_second_one_adopts_it(pipeline: DagsterCase) -> None:
    case = pipeline.case
    case.send_events(90)
    result = pipeline.materialize("raw_stream")
    assert result.success, failure(result)
    assert {*metadata(result)} == {"raw_stream"}
    first = find_runners(case.names.directory(case.home))[0]["pid"]
    case.send_events(90)
    case.wait_count(180)
    again = pipeline.materialize("clickhouse_table")
    told = metadata(again)["clickhouse_table"]
    assert told["state"] == "running"
    assert httpx.get(told["status of ingest, process, sink"], timeout=60, trust_env=False).json()["pipeline"] == case.pipeline
    assert find_runners(case.names.directory(case.home))[0]["pid"] == first
    restarted = pipeline.materialize("clickhouse_table", restart=True)
    assert restarted.success, failure(restarted)
    assert find_runners(case.names.directory(case.home))[0]["pid"] != first


def test_a_pipeline_that_cannot_start_fails_with_what_to_do_and_no_traceback(case: PipelineCase) -> None:
    with dagster_case(case) as pipeline:
        said = failure(pipeline.materialize("raw_stream", **CAUGHT_UP))
    assert "create the topic, or correct" in said
    assert "Traceback" not in said


def test_what_was_checked_is_published(pipeline: DagsterCase) -> None:
    pipeline.case.send_events(60)
    assert pipeline.materialize(*SEAMS, **CAUGHT_UP).success
    result = pipeline.job("publish")
    assert result.success, failure(result)
    assert metadata(result)["published"]["dagster/row_count"] == 60
    verdicts = {one.check_name: one for one in result.get_asset_check_evaluations()}
    assert all(one.passed for one in verdicts.values())
    assert verdicts["verification"].metadata["not judged"].value == "the first hour"


def test_a_failed_blocking_check_holds_the_publication_back_and_names_the_row(pipeline: DagsterCase) -> None:
    case = pipeline.case
    case.send_events(60)
    assert pipeline.materialize(*SEAMS, **CAUGHT_UP).success
    case.client().command(f"INSERT INTO {case.table} SELECT * FROM {case.table} WHERE id = 17")
    result = pipeline.job("publish")
    assert not result.success
    assert metadata(result) == {}
    doubled = next(one for one in result.get_asset_check_evaluations() if one.check_name == "duplicates")
    assert (doubled.passed, doubled.blocking, doubled.severity) == (False, True, dg.AssetCheckSeverity.ERROR)
    assert f"| {case.topic} | 2 | 5 | 2 |" in str(doubled.metadata["examples"].value)


def test_a_failed_check_that_only_warns_does_not_hold_back(case: PipelineCase) -> None:
    case.write_file(lambda document: document.update(checks={"duplicates": {"severity": "warn"}}))
    case.create_topic()
    case.send_events(60)
    with dagster_case(case) as pipeline:
        assert pipeline.materialize("clickhouse_table", **CAUGHT_UP).success
        case.client().command(f"INSERT INTO {case.table} SELECT * FROM {case.table} WHERE id = 17")
        result = pipeline.job("publish")
    assert result.success, failure(result)
    assert {*metadata(result)} == {"published"}


def test_compaction_reports_before_and_after_and_its_proof(pipeline: DagsterCase) -> None:
    for _ in range(3):
        pipeline.case.send_events(100)
        assert pipeline.materialize("dedup_store", **CAUGHT_UP).success
    result = pipeline.job("compact")
    assert result.success, failure(result)
    found = metadata(result)["dedup_compaction"]
    assert (found["keys_before"], found["keys_after"], found["live_keys_found"]) == (300, 300, 300)
    assert found["runs_after"] <= 8 < found["runs_before"]
    assert "| listed |" in found["buckets"]


@pytest.mark.spark
def test_compaction_may_be_done_in_tasks_of_the_spark_resource(pipeline: DagsterCase, session: SparkSession) -> None:
    for _ in range(2):
        pipeline.case.send_events(100)
        assert pipeline.materialize("dedup_store", **CAUGHT_UP).success
    result = pipeline.materialize("dedup_compaction", with_spark=True)
    assert result.success, failure(result)
    found = metadata(result)["dedup_compaction"]
    assert (found["keys_after"], found["live_keys_found"]) == (200, 200)
    assert found["runs_after"] <= 8 < found["runs_before"]
    assert session.range(3).count() == 3, "a session that was there is left running"


def test_dead_letters_enter_again_when_somebody_has_said_which(pipeline: DagsterCase) -> None:
    case = pipeline.case
    case.send_events(90, bad_every=30)
    assert pipeline.materialize("dead_letters", **CAUGHT_UP).success
    assert "say which dead letters" in failure(pipeline.materialize("reprocessed_letters"))
    assert "has no time zone" in failure(pipeline.materialize("reprocessed_letters", since="2026-01-01T00:00:00"))
    result = pipeline.job("reprocess")
    assert result.success, failure(result)
    assert metadata(result)["reprocessed_letters"]["entered"] == 3
    case.warm_run()
    case.check()


def test_the_sensor_reports_a_running_pipeline_and_says_why_it_is_quiet_about_others(pipeline: DagsterCase) -> None:
    case = pipeline.case
    quiet = pipeline.sensor("observe_pipelines")
    assert "stopped" in quiet.skip_message
    case.send_events(60)
    assert pipeline.materialize("clickhouse_table").success
    case.wait_count(60)

    def nothing_waits() -> Any:
        found = pipeline.sensor("observe_pipelines")
        return found if any(isinstance(event, dg.AssetMaterialization) for event in found.asset_events) else None

    reported = wait_until(nothing_waits, "a report that nothing waits")
    event = reported.asset_events[0]
    numbers = {name: value.value for name, value in event.metadata.items()}
    assert (numbers["dagster/row_count"], numbers["lag_offsets"], numbers["state"]) == (60, 0, "running")
    plotted = [name for name, value in numbers.items() if isinstance(value, int | float)]
    assert len(plotted) <= 12
    # Five minutes have not passed since: the next tick observes only.
    observed = pipeline.sensor("observe_pipelines", reported.cursor)
    assert [type(one) for one in observed.asset_events] == [dg.AssetObservation]
    assert json.loads(observed.cursor) == json.loads(reported.cursor)


def hour_now() -> str:
    """The hour in which arrives what is sent now; a test that crosses the hour asks for both."""
    return f"{datetime.now(UTC):%Y-%m-%d-%H:00}"


def verify_now(pipeline: DagsterCase, hours: set[str]) -> list[dg.ExecuteInProcessResult]:
    """As Dagster does it in an hour: before that the hour has not ended, and there is no such partition."""
    wanted = sorted({*hours, hour_now()})
    with freeze_time(datetime.now(UTC) + timedelta(hours=1)):
        return [pipeline.materialize("verification", partition=hour) for hour in wanted]


def test_a_verified_hour_is_reported_and_the_table_passes_by_it(pipeline: DagsterCase) -> None:
    before = hour_now()
    pipeline.case.send_events(90, bad_every=30)
    assert pipeline.materialize(*SEAMS, **CAUGHT_UP).success
    results = verify_now(pipeline, {before})
    assert all(result.success for result in results)
    found = [metadata(result)["verification"] for result in results]
    assert sum(one.get("rows", 0) for one in found) == 87
    assert all(one["is_match"] for one in found)
    verdict = next(one for one in pipeline.job("publish").get_asset_check_evaluations() if one.check_name == "verification")
    assert verdict.passed
    assert verdict.metadata["hours verified"].value == len(found)


def test_a_wrong_value_is_found_by_verification_and_holds_the_publication_back(pipeline: DagsterCase) -> None:
    case, before = pipeline.case, hour_now()
    case.send_events(60)
    assert pipeline.materialize(*SEAMS, **CAUGHT_UP).success
    case.client().command(f"ALTER TABLE {case.table} UPDATE name = 'wrong' WHERE id = 17 SETTINGS mutations_sync = 2")
    evaluations = [one for result in verify_now(pipeline, {before}) for one in result.get_asset_check_evaluations()]
    differing = next(one for one in evaluations if not one.passed)
    assert "1 different rows name" in str(differing.description)
    assert "| 5 |" in str(differing.metadata["examples"].value)
    published = pipeline.job("publish")
    assert not published.success
    red = [one.check_name for one in published.get_asset_check_evaluations() if not one.passed]
    assert red == ["verification"]
    # Mended and verified again: the newest verdict of the hour counts.
    case.client().command(f"ALTER TABLE {case.table} UPDATE name = 'event 17' WHERE id = 17 SETTINGS mutations_sync = 2")
    assert all(result.success for result in verify_now(pipeline, {before}))
    assert pipeline.job("publish").success
