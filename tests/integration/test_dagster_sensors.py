"""The sensors over real runners and servers: what a tick asks for, and what comes of it."""

import json
import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from support.alert_servers import Webhook, mail_server, webhook
from support.dagster_case import DagsterCase, dagster_case, failure, launch
from support.pipeline_case import PipelineCase, wait_until

from dagster_project.sensors import control as control_sensors
from resources.alerts import AlertsResource

pytestmark = pytest.mark.integration


@pytest.fixture
def dagster(case: PipelineCase) -> Iterator[DagsterCase]:
    case.create_topic()
    with dagster_case(case) as made:
        yield made


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


def launched(dagster: DagsterCase, data: dg.SensorResult) -> dg.ExecuteInProcessResult:
    """The one run that a tick asks for, done."""
    (request,) = data.run_requests or []
    job = dagster.defs.resolve_job_def(request.job_name)
    result = job.execute_in_process(instance=dagster.instance, run_config=request.run_config, tags=request.tags, raise_on_error=False)
    assert result.success, failure(result)
    return result


def answer(dagster: DagsterCase, result: dg.ExecuteInProcessResult) -> str:
    """What the run's own code has logged, in lines."""
    return "\n".join(one.user_message for one in dagster.instance.all_logs(result.run_id) if one.dagster_event is None)


@pytest.mark.crash
def test_a_killed_job_is_restarted_and_a_stopped_one_is_not(dagster: DagsterCase) -> None:
    case = dagster.case
    case.send_events(300)
    pid = dagster.jobs.start(case.file).state.pid
    assert pid is not None
    well = dagster.sensor("keep_pipelines_running")
    assert f"{case.pipeline}: running" in well.skip_message
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: dagster.jobs.inspect(case.file).state == "stopped", "a dead job")
    dead = dagster.sensor("keep_pipelines_running", well.cursor)
    assert dead.run_requests[0].run_key.startswith(f"start:{dagster.pipeline.key}:")
    reported = answer(dagster, launched(dagster, dead))
    assert "launched process" in reported
    assert "\nstarting" in reported
    assert "\nrunning: ingest " in reported
    assert dagster.jobs.inspect(case.file).state == "running"
    case.send_events(300)
    case.wait_count(case.good)
    assert case.invoke("stop", str(case.file)).output == "stopped\n"
    # A run that has waited in the queue until now.
    assert "skipped: its desired state is stopped" in answer(dagster, launched(dagster, dead))
    stopped = dagster.sensor("keep_pipelines_running", dead.cursor)
    assert stopped.skip_message == f"{case.pipeline}: its desired state is stopped"
    case.check()


def test_a_halted_runner_is_left_alone_and_alerted_once(dagster: DagsterCase, hook: Webhook, tmp_path: Path) -> None:
    case = dagster.case
    dagster.jobs.start(case.file, legs=("ingest", "process"))
    dagster.jobs.start(case.file, legs=("sink",))
    case.send_events(300)
    case.wait_count(300)
    case.client().command(f"ALTER TABLE {case.table} DROP COLUMN amount")
    case.send_events(300)
    wait_until(lambda: dagster.jobs.inspect(case.file).halted == ("sink",), "a runner that ended at its halt")
    with mail_server("starttls", tmp_path) as mail:
        people = {"sender": "a@example.org", "receivers": "b@example.org", "smtp_user": "no", "smtp_password": "not-the-password"}
        place = {"smtp_host": "127.0.0.1", "smtp_port": mail.port, "smtp_ca_file": mail.ca_file}
        dagster.alerts = AlertsResource(webhook_urls=hook.url, **place, **people)
        # The mail is refused, which is no failure of the tick.
        first = dagster.sensor("keep_pipelines_running")
    second = dagster.sensor("keep_pipelines_running", first.cursor)
    assert (first.run_requests, second.run_requests) == ([], [])
    assert "alert already sent" in second.skip_message
    (answer,) = hook.got
    assert answer.startswith(f"pipeline {case.pipeline}: halted: sink: ")
    assert "the table has no column 'amount'" in answer
    assert "`tallyflow plan abandon" in answer
    assert mail.box.got == []
    case.client().command(f"ALTER TABLE {case.table} ADD COLUMN amount Nullable(Float64) AFTER name")
    dagster.jobs.restart(case.file)
    case.wait_count(case.good)
    assert f"{case.pipeline}: running" in dagster.sensor("keep_pipelines_running", second.cursor).skip_message


def test_limits_count_once_the_file_is_reread(dagster: DagsterCase, hook: Webhook) -> None:
    case = dagster.case
    before = dagster.jobs.start(case.file).state
    case.send_events(30, bad_every=3)
    wait_until(lambda: len(case.dead_letters()) == 10, "10 dead letters")
    memory = json.dumps({dagster.pipeline.key: {"version": before.config_version}})
    case.write_file(lambda document: document.update(alerts={"dead_letters": {"count": 10}}))
    assert "10 dead letters waiting" in (quiet := dagster.sensor("watch_dead_letters", memory).skip_message)
    assert "fewer than 100" in quiet
    reloaded = DagsterCase(case, dagster.instance, hook.url)
    assert "10 dead letters waiting" in reloaded.sensor("watch_dead_letters", memory).skip_message
    assert [answer.partition(", the oldest")[0] for answer in hook.got] == [f"pipeline {case.pipeline}: 10 dead letters waiting"]
    after = reloaded.jobs.inspect(case.file)
    assert (after.state, after.pid) == ("running", before.pid)
    assert reloaded.jobs.restart(case.file).state.config_version == before.config_version


def test_letters_enter_again_once_after_the_file_was_mended(dagster: DagsterCase) -> None:
    case = dagster.case
    case.write_file(lambda document: document["sources"][0]["schema_fields"][2].update(type="int"))
    dagster.jobs.start(case.file, accept=True)
    # Amounts such as 0.0 are no whole numbers.
    case.send_events(30)
    wait_until(lambda: len(case.dead_letters()) == 30, "30 dead letters")
    first = dagster.sensor("watch_dead_letters")
    assert first.run_requests == []
    assert "30 dead letters waiting" in dagster.sensor("watch_dead_letters", first.cursor).skip_message
    case.write_file()
    dagster.jobs.restart(case.file)
    mended = dagster.sensor("watch_dead_letters", first.cursor)
    launched(dagster, mended)
    case.wait_count(30)
    assert "no dead letters wait" in dagster.sensor("watch_dead_letters", mended.cursor).skip_message
    dagster.jobs.stop(case.file)
    case.check()


@pytest.mark.crash
def test_a_tick_survives_a_nats_that_is_away_and_remembers(dagster: DagsterCase) -> None:
    dagster.jobs.start(dagster.case.file)
    memory = json.dumps({dagster.pipeline.key: {"version": "v", "alerted": 3, "alerted_at": 5.0}})
    dagster.case.stack.server("nats").kill()
    try:
        tick = dagster.sensor("watch_dead_letters", memory)
    finally:
        dagster.case.stack.up()
    assert json.loads(tick.cursor) == json.loads(memory)
    assert "NATS" in tick.skip_message or "no answer within" in tick.skip_message


def test_a_file_that_has_become_faulty_is_told(dagster: DagsterCase, caplog: pytest.LogCaptureFixture) -> None:
    first = dagster.sensor("watch_pipeline_files")
    dagster.case.write_file(lambda document: document["sink"].pop("table"))
    second = dagster.sensor("watch_pipeline_files", first.cursor)
    assert "is faulty" in second.skip_message
    assert "sink.table" in caplog.text
    assert "unchanged" in dagster.sensor("watch_pipeline_files", second.cursor).skip_message
    dagster.case.write_file()


def test_a_changed_file_restarts_or_reloads_where_asked_for(dagster: DagsterCase) -> None:
    pid = dagster.jobs.start(dagster.case.file).state.pid
    first = dagster.sensor("watch_pipeline_files")
    willing = DagsterCase(dagster.case, dagster.instance, restart_on_change=True)
    dagster.case.write_file(lambda document: document.update(alerts={"max_restarts": 1}))
    assert "is changed, but not for its runner" in willing.sensor("watch_pipeline_files", first.cursor).skip_message
    dagster.case.write_file(lambda document: document["sink"].update(max_insert_time="30s"))
    assert "is changed" in dagster.sensor("watch_pipeline_files", first.cursor).skip_message
    (request,) = willing.sensor("watch_pipeline_files", first.cursor).run_requests
    assert request.job_name == "restart_pipeline"
    text = dagster.case.file.read_text()
    dagster.case.write_file()
    back = willing.sensor("watch_pipeline_files", first.cursor)
    dagster.case.file.write_text(text)
    (again,) = willing.sensor("watch_pipeline_files", back.cursor).run_requests
    assert again.run_key != request.run_key, "Dagster would skip the second restart with the same content"
    # Settings that the runner can take are reloaded, without a restart.
    dagster.case.write_file(lambda document: document["sink"].update(max_batch_size=4000))
    tick = willing.sensor("watch_pipeline_files", first.cursor)
    assert tick.run_requests == []
    assert "is changed" in tick.skip_message
    now = dagster.case.ask()
    assert now is not None
    assert now["settings"]["reloaded_at"]
    assert dagster.jobs.look(dagster.case.file, dagster.pipeline.config).pid == pid


def test_a_cursor_that_another_release_has_left_ends_no_sensor(dagster: DagsterCase) -> None:
    for cursor in ("{", "[]", '{"KEY": 5}', '{"KEY": {"since": "then"}}', '{"KEY": {"since": 1.0, "mood": "grim"}}'):
        for sensor in ("keep_pipelines_running", "watch_lag", "watch_dead_letters", "watch_pipeline_files", "observe_pipelines"):
            tick = dagster.sensor(sensor, cursor.replace("KEY", dagster.pipeline.key))
            assert isinstance(json.loads(tick.cursor), dict), (sensor, cursor)


def unfinished_start(dagster: DagsterCase) -> dg.DagsterRun:
    """A run whose worker was killed, or that nothing takes out of the queue."""
    job = dagster.defs.resolve_job_def("start_pipeline")
    config = {"ops": {"start_pipeline_op": {"config": {"pipeline": dagster.case.pipeline}}}}
    return dagster.instance.create_run_for_job(job, run_config=config, status=dg.DagsterRunStatus.STARTED)


@pytest.mark.crash
def test_a_run_at_work_is_waited_for_an_endless_one_is_not(dagster: DagsterCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case = dagster.case
    pid = dagster.jobs.start(case.file).state.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: dagster.jobs.look(case.file, dagster.pipeline.config).state == "stopped", "a dead job")
    unfinished_start(dagster)
    assert "a run is working on it" in dagster.sensor("keep_pipelines_running").skip_message
    monkeypatch.setattr(control_sensors, "LONGEST_CONTROL", timedelta(0))
    dead = dagster.sensor("keep_pipelines_running")
    assert [request.job_name for request in dead.run_requests] == ["start_pipeline"]
    # A start that was queued leaves a pipeline alone that was stopped meanwhile.
    assert case.invoke("stop", str(case.file)).exit_code == 0
    launched(dagster, dead)
    assert dagster.jobs.look(case.file, dagster.pipeline.config).state == "stopped"


def test_an_edited_file_starts_no_unwanted_pipeline(dagster: DagsterCase) -> None:
    """One with another id; a faulty one's pipeline can still be stopped."""
    case = dagster.case
    dagster.jobs.start(case.file)
    case.write_file(lambda document: document.update(pipeline_id=f"{case.pipeline}-other"))
    for job in ("start_pipeline", "restart_pipeline", "drain_pipeline"):
        assert "reload the code location" in failure(launch(dagster, job)), job
    assert "reload the code location" in failure(dagster.materialize("raw_stream"))
    assert dagster.jobs.inspect(case.file).state == "stopped"
    assert dagster.jobs.look(case.file, dagster.pipeline.config).state == "running"
    case.write_file(lambda document: document["sink"].pop("table"))
    assert launch(dagster, "stop_pipeline").success
    assert dagster.jobs.look(case.file, dagster.pipeline.config).state == "stopped"
    case.write_file()
