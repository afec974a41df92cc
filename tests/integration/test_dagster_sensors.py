"""The sensors over real runners and servers: what a tick asks for, and what comes of it."""

import json
import os
import signal
from collections.abc import Iterator

import dagster as dg
import pytest
from dagster_case import DagsterCase, dagster_case, failure
from pipeline_case import PipelineCase, wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def dagster(case: PipelineCase) -> Iterator[DagsterCase]:
    case.create_topic()
    with dagster_case(case) as made:
        yield made


def launched(dagster: DagsterCase, data: dg.SensorResult) -> dg.ExecuteInProcessResult:
    """The one run that a tick asks for, done."""
    (request,) = data.run_requests or []
    job = dagster.defs.resolve_job_def(request.job_name)
    result = job.execute_in_process(instance=dagster.instance, run_config=request.run_config, raise_on_error=False)
    assert result.success, failure(result)
    return result


def test_a_killed_job_is_started_again_and_a_stopped_one_stays_stopped(dagster: DagsterCase) -> None:
    case = dagster.case
    case.send_events(300)
    pid = dagster.jobs.start(case.file).state.pid
    assert pid is not None
    well = dagster.sensor("keep_pipelines_running")
    assert f"{case.pipeline}: running" in well.skip_message
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: dagster.jobs.look(case.pipeline).state == "stopped", "a dead job")
    dead = dagster.sensor("keep_pipelines_running", well.cursor)
    assert dead.run_requests[0].run_key.startswith(f"start:{dagster.pipeline.key}:")
    launched(dagster, dead)
    assert dagster.jobs.look(case.pipeline).state == "running"
    case.send_events(300)
    case.wait_count(case.good)
    assert case.invoke("stop", str(case.file)).output == "stopped\n"
    stopped = dagster.sensor("keep_pipelines_running", dead.cursor)
    assert stopped.skip_message == f"{case.pipeline}: is not meant to run"
    case.check()


def test_letters_enter_again_once_after_the_file_was_mended(dagster: DagsterCase) -> None:
    case = dagster.case
    case.write_file(lambda document: document["sources"][0]["schema_fields"][2].update(type="int"))
    dagster.jobs.start(case.file, accept=True)
    # Amounts such as 0.0 are no whole numbers.
    case.send_events(30)
    wait_until(lambda: len(case.letters()) == 30, "30 dead letters")
    first = dagster.sensor("watch_dead_letters")
    # The first look tries once, and finds nothing that another configuration has rejected.
    launched(dagster, first)
    assert "30 letters wait" in dagster.sensor("watch_dead_letters", first.cursor).skip_message
    case.write_file()
    dagster.jobs.restart(case.file)
    mended = dagster.sensor("watch_dead_letters", first.cursor)
    launched(dagster, mended)
    case.wait_count(30)
    assert "no letters wait" in dagster.sensor("watch_dead_letters", mended.cursor).skip_message
    dagster.jobs.stop(case.file)
    case.check()


def test_a_tick_survives_a_nats_that_is_away_and_remembers(dagster: DagsterCase) -> None:
    dagster.jobs.start(dagster.case.file)
    memory = json.dumps({dagster.pipeline.key: {"version": "v", "told": 3, "told_at": 5.0}})
    dagster.case.stack.server("nats").kill()
    try:
        tick = dagster.sensor("watch_dead_letters", memory)
    finally:
        dagster.case.stack.up()
    assert json.loads(tick.cursor) == json.loads(memory)
    assert "NATS" in tick.skip_message or "not seen within" in tick.skip_message


def test_a_file_that_has_become_faulty_is_told(dagster: DagsterCase, caplog: pytest.LogCaptureFixture) -> None:
    first = dagster.sensor("watch_pipeline_files")
    dagster.case.write_file(lambda document: document["sink"].pop("table"))
    second = dagster.sensor("watch_pipeline_files", first.cursor)
    assert "is faulty" in second.skip_message
    assert "sink.table" in caplog.text
    assert "as before" in dagster.sensor("watch_pipeline_files", second.cursor).skip_message
    dagster.case.write_file()


def test_a_changed_file_of_a_running_pipeline_restarts_it_where_that_is_asked_for(dagster: DagsterCase) -> None:
    dagster.jobs.start(dagster.case.file)
    first = dagster.sensor("watch_pipeline_files")
    dagster.case.write_file(lambda document: document["sink"].update(max_batch_size=4000))
    assert "is changed" in dagster.sensor("watch_pipeline_files", first.cursor).skip_message
    willing = DagsterCase(dagster.case, dagster.instance, restart_on_change=True)
    (request,) = willing.sensor("watch_pipeline_files", first.cursor).run_requests
    assert request.job_name == "restart_pipeline"
