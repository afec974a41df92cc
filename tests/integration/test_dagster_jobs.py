"""The jobs of the launchpad, on real servers and real runners, in this process."""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession
from support.dagster_case import DagsterCase, dagster_case, failure
from support.dedup_case import copies, keyed_by, live_entries
from support.pipeline_case import PipelineCase

pytestmark = pytest.mark.integration


@pytest.fixture
def dagster(case: PipelineCase) -> Iterator[DagsterCase]:
    case.create_topic()
    with dagster_case(case) as made:
        yield made


def launch(dagster: DagsterCase, job: str, **config: Any) -> dg.ExecuteInProcessResult:
    settings = {"pipeline": dagster.case.pipeline, **config}
    run_config = {"ops": {f"{job}_op": {"config": settings}}}
    return dagster.defs.resolve_job_def(job).execute_in_process(instance=dagster.instance, run_config=run_config, raise_on_error=False)


def reported(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    assert result.success, failure(result)
    events = [event for event in result.all_events if event.is_successful_output]
    return {name: value.value for name, value in events[0].step_output_data.metadata.items()}


def test_the_launchpad_starts_restarts_drains_and_stops(dagster: DagsterCase) -> None:
    case = dagster.case
    case.send_events(300)
    first = reported(launch(dagster, "start_pipeline"))
    assert (first["state"], first["adopted a runner"]) == ("running", False)
    again = reported(launch(dagster, "start_pipeline"))
    assert (again["pid"], again["adopted a runner"]) == (first["pid"], True)
    assert reported(launch(dagster, "restart_pipeline"))["pid"] != first["pid"]
    case.send_events(300)
    assert reported(launch(dagster, "drain_pipeline"))["state"] == "stopped"
    assert reported(launch(dagster, "stop_pipeline")) == {"stopped a runner": False}
    case.check()


def test_dead_letters_are_rehearsed_reprocessed_and_discarded(dagster: DagsterCase) -> None:
    case = dagster.case
    case.send_events(100, bad_every=10)
    reported(launch(dagster, "drain_pipeline"))
    rehearsed = reported(launch(dagster, "reprocess_dead_letters", everything=True, dry_run=True))
    assert (rehearsed["letters"], rehearsed["would pass"]) == (10, 0)
    first = case.dead_letters()[0]
    version, position = first["config_version"], f"{first['_tf_sequence']}.{first['_tf_ordinal']}"
    assert reported(launch(dagster, "reprocess_dead_letters", everything=True, not_rejected_by=version)) == {"entered again": 0}
    assert reported(launch(dagster, "reprocess_dead_letters", positions=[position])) == {"entered again": 1}
    assert reported(launch(dagster, "reprocess_dead_letters", positions=[position])) == {"entered again": 0, "left: redriven": 1}
    assert reported(launch(dagster, "discard_dead_letters", stage="parse", reason="broken for good"))["discarded"] == 9
    reported(launch(dagster, "drain_pipeline"))
    case.check()


@pytest.mark.parametrize(
    ("job", "config", "words"),
    [
        ("start_pipeline", {"legs": ["sinc"]}, "legs: give one or more of ingest, process, sink"),
        ("reprocess_dead_letters", {}, "choose the dead letters"),
        ("discard_dead_letters", {"everything": True, "reason": " "}, "reason: required"),
        ("reprocess_dead_letters", {"positions": ["17"]}, "must be a sequence and an ordinal"),
        ("reprocess_dead_letters", {"everything": True}, "was never started"),
    ],
)
def test_what_cannot_be_done_is_a_failure_with_its_remedy(dagster: DagsterCase, job: str, config: dict[str, Any], words: str) -> None:
    assert words in failure(launch(dagster, job, **config))


def failed_with(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """The metadata of the failure."""
    failed = next(event for event in result.all_events if event.is_step_failure)
    found = failed.step_failure_data.user_failure_data
    assert found is not None
    return {name: value.value for name, value in found.metadata.items()}


def test_a_verification_from_the_launchpad_fails_with_the_rows(dagster: DagsterCase) -> None:
    case = dagster.case
    case.send_events(300)
    reported(launch(dagster, "drain_pipeline"))
    found = reported(launch(dagster, "verify_pipeline", with_kafka=True))
    assert (found["rows"], found["in Kafka"], found["is_match"], found["differences"]) == (300, 300, True, 0)
    now = datetime.now(UTC)
    assert (
        reported(launch(dagster, "verify_pipeline", since=(now + timedelta(hours=1)).isoformat()))["summary"]
        == "nothing to compare in this range"
    )
    case.client().command(f"ALTER TABLE {case.table} UPDATE name = 'wrong' WHERE id IN (17, 18) SETTINGS mutations_sync = 2")
    result = launch(dagster, "verify_pipeline", examples=1)
    assert failure(result) == "2 different rows name"
    metadata = failed_with(result)
    assert (metadata["differences"], metadata["is_match"]) == (2, False)
    assert metadata["examples"].count("wrong") == 1
    assert reported(launch(dagster, "verify_pipeline", until=(now - timedelta(hours=9)).isoformat()))["is_match"]
    assert "since: write an instant such as" in failure(launch(dagster, "verify_pipeline", since="yesterday"))


def test_the_launchpad_puts_missing_rows_back(dagster: DagsterCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.proof.put_back.QUIET_SECONDS", 0)
    case = dagster.case
    case.send_events(300)
    reported(launch(dagster, "drain_pipeline"))
    before = sorted(case.rows())
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE id IN (17, 18) SETTINGS mutations_sync = 2")
    found = reported(launch(dagster, "put_back_missing"))
    assert (found["missing"], found["put back"], found["is_match"]) == (2, 2, True)
    assert sorted(case.rows()) == before
    again = reported(launch(dagster, "put_back_missing"))
    assert (again["missing"], again["put back"]) == (0, 0)
    case.send(b'{"id": "bad"}' for _ in range(2))
    reported(launch(dagster, "drain_pipeline"))
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE id = 18 SETTINGS mutations_sync = 2")
    beside = reported(launch(dagster, "put_back_missing"))
    assert (beside["put back"], beside["is_match"], beside["is_proven"]) == (1, True, False), "letters that wait to enter differ in nothing"
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE id = 17 SETTINGS mutations_sync = 2")
    case.client().command(f"ALTER TABLE {case.table} UPDATE name = 'wrong' WHERE id = 3 SETTINGS mutations_sync = 2")
    result = launch(dagster, "put_back_missing")
    assert failure(result) == "1 row put back; verified afterwards: 1 different rows name"


def test_a_run_is_tagged_and_reports_to_its_asset(dagster: DagsterCase) -> None:
    case = dagster.case
    case.send_events(100, bad_every=10)
    result = launch(dagster, "drain_pipeline")
    reported(result)
    run = dagster.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags["tallyflow/pipeline"] == case.pipeline
    reported(launch(dagster, "reprocess_dead_letters", everything=True, dry_run=True))
    assert dagster.instance.get_latest_materialization_event(dagster.key("reprocessed_letters")) is None
    reported(launch(dagster, "reprocess_dead_letters", everything=True))
    made = dagster.instance.get_latest_materialization_event(dagster.key("reprocessed_letters"))
    assert made is not None
    assert made.asset_materialization.metadata["entered again"].value == 10


def test_a_lost_key_store_is_rebuilt_by_a_job(case: PipelineCase) -> None:
    case.write_file(keyed_by("id", window="1h"))
    case.create_topic()
    case.send(copies(400))
    case.warm_run()
    with dagster_case(case) as dagster:
        before = live_entries(case)
        shutil.rmtree(case.names.directory(case.home) / "state")
        assert reported(launch(dagster, "rebuild_state"))["records"] == 400
        assert live_entries(case) == before


@pytest.mark.spark
def test_keys_may_be_compacted_in_tasks_of_the_spark_resource(case: PipelineCase, session: SparkSession) -> None:
    case.write_file(keyed_by("id", window="1s"))
    case.create_topic()
    for first in range(0, 1200, 400):
        case.send(copies(400, first=first))
        case.warm_run()
    with dagster_case(case) as dagster:
        before = live_entries(case)
        assert reported(launch(dagster, "compact_keys", with_spark=True))["live_keys_found"] == len(before)
        assert live_entries(case) == before
    assert session.range(3).count() == 3, "a session that was there is left running"
