"""Whom nobody looks at: what of failed runs and checks people are called for, once for each cause."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_project.assets.verification_hours import partitions_name
from dagster_project.pipeline_files import PipelineFiles, read_pipeline_files
from dagster_project.sensors.alerting import ChecksMemory, build, cause_of, failure_message, newly_failed, pipeline_of, watched
from resources.alerts import Alert, AlertsResource

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "orders" / "pipeline.yaml"
ENVIRONMENT = {"KAFKA_BOOTSTRAP": "k:9092", "CLICKHOUSE_HOST": "ch", "CLICKHOUSE_PORT": "8123"}
ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
TABLE, VERIFICATION = dg.AssetKey(["orders_demo", "clickhouse_table"]), dg.AssetKey(["orders_demo", "verification"])


@pytest.fixture
def files(tmp_path: Path) -> PipelineFiles:
    (tmp_path / "orders.yaml").write_text(EXAMPLE.read_text())
    return read_pipeline_files(tmp_path, ENVIRONMENT)


def report(
    instance: dg.DagsterInstance, name: str, answer: str, passed: bool = False, severity: Any = ERROR, hour: str | None = None
) -> None:
    key = VERIFICATION if hour else TABLE
    made = dg.AssetCheckEvaluation(key, check_name=name, passed=passed, metadata={}, severity=severity, description=answer, partition=hour)
    instance.report_runless_asset_event(made)


def test_a_red_check_alerts_once_until_its_cause_changes(files: PipelineFiles) -> None:
    keys, memory = watched(files.pipelines[0]), ChecksMemory()
    story: list[tuple[str, bool, Any, list[str]]] = [
        ("1 of 20,562 confirmed rows are missing", False, ERROR, ["check gaps failed: 1 of 20,562 confirmed rows are missing"]),
        ("1 of 20,931 confirmed rows are missing", False, ERROR, []),
        ("500 of 21,000 confirmed rows are missing", False, ERROR, ["check gaps failed: 500 of 21,000 confirmed rows are missing"]),
        ("not judged", False, WARN, []),
        ("501 of 21,000 confirmed rows are missing", False, ERROR, []),
        ("21,500 positions, as confirmed", True, ERROR, []),
        ("502 of 21,900 confirmed rows are missing", False, ERROR, ["check gaps failed: 502 of 21,900 confirmed rows are missing"]),
    ]
    with dg.DagsterInstance.ephemeral() as instance:
        for answer, passed, severity, wanted in story:
            report(instance, "gaps", answer, passed, severity)
            failed, memory = newly_failed(instance, keys, memory)
            assert failed == wanted, answer


def test_each_red_hour_calls_and_a_green_one_hides_none(files: PipelineFiles) -> None:
    keys, memory = watched(files.pipelines[0]), ChecksMemory()
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(partitions_name(files.pipelines[0]), [f"2026-03-01-{hour}:00" for hour in ("09", "10", "11")])
        report(instance, "match", "3 rows match", passed=True, hour="2026-03-01-09:00")
        assert newly_failed(instance, keys, memory)[0] == []
        memory = newly_failed(instance, keys, memory)[1]
        report(instance, "match", "1 missing rows", hour="2026-03-01-10:00")
        report(instance, "match", "7 rows match", passed=True, hour="2026-03-01-11:00")
        failed, memory = newly_failed(instance, keys, memory)
        assert failed == ["check match of 2026-03-01-10:00 failed: 1 missing rows"]


def test_the_check_of_all_hours_alerts_nobody(files: PipelineFiles) -> None:
    assert "verification" not in {key.name for key in watched(files.pipelines[0])}
    assert {"gaps", "match", "conservation"} <= {key.name for key in watched(files.pipelines[0])}


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("1 of 20,562 rows", "7 of 93,111 rows", True),
        ("1 of 20,562 rows", "12 of 20,562 rows", False),
        ("ClickHouse did not answer", "Kafka did not answer", False),
        ("after 81.5 s", "after 79.2 s", True),
    ],
)
def test_a_cause_is_the_words_and_how_large_their_numbers_are(one: str, other: str, is_same: bool) -> None:
    assert (cause_of(one) == cause_of(other)) == is_same


class Calls(AlertsResource):
    """Keeps what it would send."""

    def send(self, alert: Alert) -> list[str]:
        CALLS.append(f"{alert.pipeline}: {alert.what}")
        return []


CALLS: list[str] = []


def failed(instance: dg.DagsterInstance, files: PipelineFiles, error: str, name: str = "compact_orders_demo", **tags: str) -> None:
    """A run that fails so, and what the sensor makes of it."""

    @dg.op
    def break_down() -> None:
        if error:
            raise dg.Failure(error, allow_retries=False)

    @dg.job(name=name, tags=tags)
    def job() -> None:
        break_down()

    result = job.execute_in_process(instance=instance, raise_on_error=False)
    if result.success:
        return
    defs = build(files, ["prune_event_log"])
    sensor = next(one for one in defs.sensors or () if one.name == "alert_failed_runs")
    event = result.get_run_failure_event()
    context = dg.build_run_status_sensor_context(
        sensor_name=sensor.name, dagster_instance=instance, dagster_run=result.dagster_run, dagster_event=event
    ).for_run_failure()
    sensor(context, tallyflow_alerts=Calls())


def test_a_failed_run_of_ours_alerts_once_for_each_cause(files: PipelineFiles) -> None:
    CALLS.clear()
    tag = {"tallyflow/pipeline": "orders-demo"}
    with dg.DagsterInstance.ephemeral() as instance:
        failed(instance, files, "disk of 20 GiB is full", **tag)
        failed(instance, files, "disk of 21 GiB is full", **tag)
        assert CALLS == ["orders-demo: compact_orders_demo failed: disk of 20 GiB is full"]
        failed(instance, files, "NATS did not answer", **tag)
        failed(instance, files, "", **tag)
        failed(instance, files, "NATS did not answer", **tag)
        failed(instance, files, "no room", name="prune_event_log")
        failed(instance, files, "somebody else's", name="theirs")
    reported = [call.partition(" failed: ")[2] for call in CALLS]
    assert reported == ["disk of 20 GiB is full", "NATS did not answer", "NATS did not answer", "no room"]
    assert CALLS[-1].startswith("all: ")


def test_a_run_failed_by_a_red_check_is_left_to_the_check(files: PipelineFiles) -> None:
    @dg.asset(key=TABLE)
    def table() -> None: ...

    @dg.asset_check(asset=TABLE, blocking=True)
    def gaps() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=False)

    with dg.DagsterInstance.ephemeral() as instance:
        defs = dg.Definitions(assets=[table], asset_checks=[gaps])
        result = defs.get_implicit_global_asset_job_def().execute_in_process(instance=instance, raise_on_error=False)
        assert not result.success
        assert failure_message(instance, result.dagster_run) is None


def test_a_run_from_the_page_belongs_to_its_assets_pipeline(files: PipelineFiles) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        for key, wanted in ((["orders_demo", "published"], "orders-demo"), (["others", "published"], None)):
            run = instance.create_run_for_job(asset_job(key), asset_selection=frozenset({dg.AssetKey(key)}))
            assert pipeline_of(files, run) == wanted


def asset_job(key: list[str]) -> dg.JobDefinition:
    @dg.asset(key=key)
    def made() -> None: ...

    return dg.Definitions(assets=[made]).get_implicit_global_asset_job_def()
