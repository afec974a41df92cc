"""The jobs of the launchpad, on real servers and real runners, in this process."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from support.dagster_case import DagsterCase, dagster_case, failure, launch, reported
from support.pipeline_case import PipelineCase

pytestmark = pytest.mark.integration


@pytest.fixture
def dagster(case: PipelineCase) -> Iterator[DagsterCase]:
    case.create_topic()
    with dagster_case(case) as made:
        yield made


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
    """Their runs are tagged, and report to the asset of the reprocessed ones."""
    case = dagster.case
    case.send_events(100, bad_every=10)
    drained = launch(dagster, "drain_pipeline")
    reported(drained)
    run = dagster.instance.get_run_by_id(drained.run_id)
    assert run is not None
    assert run.tags["tallyflow/pipeline"] == case.pipeline
    rehearsed = reported(launch(dagster, "reprocess_dead_letters", everything=True, dry_run=True))
    assert (rehearsed["letters"], rehearsed["would pass"]) == (10, 0)
    assert dagster.instance.get_latest_materialization_event(dagster.key("reprocessed_letters")) is None
    first = case.dead_letters()[0]
    version, position = first["config_version"], f"{first['_tf_sequence']}.{first['_tf_ordinal']}"
    assert reported(launch(dagster, "reprocess_dead_letters", everything=True, not_rejected_by=version)) == {"entered again": 0}
    assert reported(launch(dagster, "reprocess_dead_letters", positions=[position])) == {"entered again": 1}
    made = dagster.instance.get_latest_materialization_event(dagster.key("reprocessed_letters"))
    assert made is not None
    assert made.asset_materialization.metadata["entered again"].value == 1
    assert reported(launch(dagster, "reprocess_dead_letters", positions=[position])) == {"entered again": 0, "left: redriven": 1}
    assert reported(launch(dagster, "discard_dead_letters", stage="parse", reason="broken for good"))["discarded"] == 9
    case.warm_run()
    case.check()


REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("start_pipeline", {"legs": ["sinc"]}, "legs: give one or more of ingest, process, sink"),
    ("reprocess_dead_letters", {}, "choose the dead letters"),
    ("discard_dead_letters", {"everything": True, "reason": " "}, "reason: required"),
    ("reprocess_dead_letters", {"positions": ["17"]}, "must be a sequence and an ordinal"),
    ("reprocess_dead_letters", {"everything": True}, "was never started"),
)


def test_what_cannot_be_done_is_a_failure_with_its_remedy(dagster: DagsterCase) -> None:
    for job, config, words in REFUSED:
        assert words in failure(launch(dagster, job, **config)), (job, config)


def failed_with(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """The metadata of the failure."""
    failed = next(event for event in result.all_events if event.is_step_failure)
    found = failed.step_failure_data.user_failure_data
    assert found is not None
    return {name: value.value for name, value in found.metadata.items()}


@pytest.mark.usefixtures("brief_inserts")
def test_the_launchpad_verifies_and_puts_missing_rows_back(dagster: DagsterCase) -> None:
    case = dagster.case
    case.send_events(300)
    case.warm_run()
    found = reported(launch(dagster, "verify_pipeline", with_kafka=True))
    assert (found["rows"], found["in Kafka"], found["is_match"], found["differences"]) == (300, 300, True, 0)
    before, now = sorted(case.rows()), datetime.now(UTC)
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
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE id IN (17, 18) SETTINGS mutations_sync = 2")
    found = reported(launch(dagster, "put_back_missing"))
    assert (found["missing"], found["put back"], found["is_match"]) == (2, 2, True)
    assert sorted(case.rows()) == before
    again = reported(launch(dagster, "put_back_missing"))
    assert (again["missing"], again["put back"]) == (0, 0)
    case.send(b'{"id": "bad"}' for _ in range(2))
    case.warm_run()
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE id = 18 SETTINGS mutations_sync = 2")
    beside = reported(launch(dagster, "put_back_missing"))
    assert (beside["put back"], beside["is_match"], beside["is_proven"]) == (1, True, False), "letters that wait to enter differ in nothing"
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE id = 17 SETTINGS mutations_sync = 2")
    case.client().command(f"ALTER TABLE {case.table} UPDATE name = 'wrong' WHERE id = 3 SETTINGS mutations_sync = 2")
    result = launch(dagster, "put_back_missing")
    assert failure(result) == "1 row put back; verified afterwards: 1 different rows name"
