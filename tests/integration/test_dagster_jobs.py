"""The jobs of the launchpad, on real servers and real runners, in this process."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest
from dagster_case import DagsterCase, dagster_case, failure
from pipeline_case import PipelineCase

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


def told(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    assert result.success, failure(result)
    events = [event for event in result.all_events if event.is_successful_output]
    return {name: value.value for name, value in events[0].step_output_data.metadata.items()}


def test_a_pipeline_is_started_restarted_drained_and_stopped_from_the_launchpad(dagster: DagsterCase) -> None:
    case = dagster.case
    case.send_events(300)
    first = told(launch(dagster, "start_pipeline"))
    assert (first["state"], first["adopted a runner"]) == ("running", False)
    again = told(launch(dagster, "start_pipeline"))
    assert (again["pid"], again["adopted a runner"]) == (first["pid"], True)
    assert told(launch(dagster, "restart_pipeline"))["pid"] != first["pid"]
    case.send_events(300)
    assert told(launch(dagster, "drain_pipeline"))["state"] == "stopped"
    assert told(launch(dagster, "stop_pipeline")) == {"stopped a runner": False}
    case.check()


def test_dead_letters_are_rehearsed_reprocessed_and_discarded(dagster: DagsterCase) -> None:
    case = dagster.case
    case.send_events(100, bad_every=10)
    told(launch(dagster, "drain_pipeline"))
    rehearsed = told(launch(dagster, "reprocess_dead_letters", everything=True, dry_run=True))
    assert (rehearsed["letters"], rehearsed["would pass"]) == (10, 0)
    first = case.letters()[0]
    version, position = first["config_version"], f"{first['_tf_sequence']}.{first['_tf_ordinal']}"
    assert told(launch(dagster, "reprocess_dead_letters", everything=True, not_rejected_by=version)) == {"entered again": 0}
    assert told(launch(dagster, "reprocess_dead_letters", positions=[position])) == {"entered again": 1}
    assert told(launch(dagster, "reprocess_dead_letters", positions=[position])) == {"entered again": 0, "left: redriven": 1}
    assert told(launch(dagster, "discard_dead_letters", stage="parse", reason="broken for good"))["discarded"] == 9
    told(launch(dagster, "drain_pipeline"))
    case.check()


@pytest.mark.parametrize(
    ("job", "config", "words"),
    [
        ("start_pipeline", {"pipeline": "no-such"}, "there are case-"),
        ("start_pipeline", {"legs": ["sinc"]}, "legs: sinc; there are ingest, process, sink"),
        ("reprocess_dead_letters", {}, "say which dead letters"),
        ("discard_dead_letters", {"everything": True, "reason": " "}, "reason: say why"),
        ("reprocess_dead_letters", {"positions": ["17"]}, "must be a sequence and an ordinal"),
        ("reprocess_dead_letters", {"everything": True}, "the pipeline was never started"),
    ],
)
def test_what_cannot_be_done_is_a_failure_with_its_remedy(dagster: DagsterCase, job: str, config: dict[str, Any], words: str) -> None:
    assert words in failure(launch(dagster, job, **config))
