"""The runners of pipelines as Dagster's resource starts, finds, asks and stops them: real runners on real servers, without Spark."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from support.dagster_case import streaming_jobs
from support.pipeline_case import PipelineCase, pause, wait_until

from pipelines.control.control import find_runners, read_desired, read_launched
from pipelines.control.job_state import JobState
from pipelines.errors import ConfigurationError, HaltError
from resources.streaming_jobs import StreamingJobs

pytestmark = pytest.mark.crash
PLAIN_RUNNER = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); from support.plain_runner import main; main()"


@pytest.fixture
def jobs(case: PipelineCase) -> Iterator[StreamingJobs]:
    case.create_topic()
    made = streaming_jobs(case)
    yield made
    directory = case.names.directory(case.home)
    case.write_file()
    made.stop(case.file, kill_after=timedelta(seconds=30))
    print(*(path.read_text() for path in directory.glob("logs/*.log")), sep="\n")


def test_a_started_job_runs_until_stopped_and_loses_nothing(case: PipelineCase, jobs: StreamingJobs) -> None:
    assert jobs.inspect(case.file).state == "stopped"
    case.send_events(900, bad_every=100)
    started = jobs.start(case.file)
    assert (started.adopted, started.state.state, started.state.desired) == (False, "running", "running")
    assert {*started.state.legs} == {"ingest", "process", "sink"}
    case.wait_count(case.good)
    state = jobs.inspect(case.file)
    assert (state.lag, state.pid, bool(state.config_version)) == (0, find_runners(jobs.directory(case.pipeline))[0]["pid"], True)
    assert jobs.stop(case.file)
    assert not jobs.stop(case.file)
    stopped = jobs.inspect(case.file)
    assert (stopped.state, stopped.desired) == ("stopped", "stopped")
    case.check()


def test_the_runner_has_its_own_session_and_no_dagster_variables(
    case: PipelineCase, jobs: StreamingJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_RUN_JOB_NAME", "start_pipeline")
    # A forked process shows the environment and the command of the one that it was forked from.
    monkeypatch.setattr(type(jobs), "popen", subprocess.Popen)
    monkeypatch.setattr(type(jobs), "command", (sys.executable, "-c", PLAIN_RUNNER))
    pid = jobs.start(case.file).state.pid
    assert pid is not None
    environment = psutil.Process(pid).environ()
    assert not [name for name in environment if name.startswith("DAGSTER_")]
    passwords = case.addresses.kafka_password, case.addresses.nats_password, case.addresses.clickhouse_password
    assert environment["KAFKA_SASL_PASSWORD"] == case.addresses.kafka_password
    shown = " ".join(psutil.Process(pid).cmdline()) + repr(jobs)
    assert [password for password in passwords if password in shown] == []
    assert os.getsid(pid) == pid


def test_two_starts_at_once_are_one_runner(case: PipelineCase, jobs: StreamingJobs) -> None:
    with ThreadPoolExecutor(2) as pool:
        both = [*pool.map(lambda _: jobs.start(case.file), range(2))]
    assert len(find_runners(jobs.directory(case.pipeline))) == 1
    assert {one.state.pid for one in both} == {find_runners(jobs.directory(case.pipeline))[0]["pid"]}
    assert any(one.adopted for one in both)


def test_a_runner_that_was_started_by_hand_is_adopted(case: PipelineCase, jobs: StreamingJobs) -> None:
    process = case.start_plain()
    case.wait_ready(process)
    assert jobs.inspect(case.file).desired is None
    started = jobs.start(case.file)
    assert (started.adopted, started.state.pid, started.log) == (True, process.pid, None)
    jobs.stop(case.file)
    assert process.wait(60) == 0


def test_only_the_legs_that_are_missing_are_started(case: PipelineCase, jobs: StreamingJobs) -> None:
    jobs.start(case.file, legs=("ingest",))
    first = jobs.inspect(case.file).pid
    started = jobs.start(case.file)
    assert [one["legs"] for one in find_runners(jobs.directory(case.pipeline))] == [["ingest"], ["process", "sink"]]
    assert started.state.pid == first
    assert read_desired(jobs.directory(case.pipeline)).legs == ("ingest", "process", "sink")


def test_a_runner_that_fails_at_its_start_is_quoted(case: PipelineCase, jobs: StreamingJobs) -> None:
    document = yaml.safe_load(case.file.read_text())
    document["sources"][0]["topic"] = "no-such-topic"
    case.file.write_text(yaml.safe_dump(document))
    with pytest.raises(HaltError, match=r"no-such-topic.* create the topic, or correct"):
        jobs.start(case.file)
    assert read_desired(jobs.directory(case.pipeline)) is None


def test_a_faulty_file_lists_its_faults_and_starts_nothing(case: PipelineCase, jobs: StreamingJobs) -> None:
    case.write_file(lambda document: document["sink"].pop("table"))
    with pytest.raises(ConfigurationError, match=r"sink\.table"):
        jobs.start(case.file)
    assert read_launched(jobs.directory(case.pipeline)) is None


def test_a_killed_runner_is_stopped_even_while_unreaped(case: PipelineCase, jobs: StreamingJobs) -> None:
    pid = jobs.start(case.file).state.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: jobs.inspect(case.file).state == "stopped", "a stopped job")
    state = jobs.inspect(case.file)
    assert (state.desired, state.missing) == ("running", ("ingest", "process", "sink"))


def halted(case: PipelineCase, jobs: StreamingJobs) -> JobState:
    """The sink in a runner of its own, ended because the table lost a column; ingest and process run on in another one."""
    jobs.start(case.file, legs=("ingest", "process"))
    jobs.start(case.file, legs=("sink",))
    case.send_events(300)
    case.wait_count(300)
    case.client().command(f"ALTER TABLE {case.table} DROP COLUMN amount")
    case.send_events(300)
    return wait_until(lambda: (state := jobs.inspect(case.file)).halted == ("sink",) and state, "a runner that ended at its halt")


def mend(case: PipelineCase) -> None:
    case.client().command(f"ALTER TABLE {case.table} ADD COLUMN amount Nullable(Float64) AFTER name")


def test_a_halted_runner_stays_halted_until_its_legs_restart(case: PipelineCase, jobs: StreamingJobs) -> None:
    state = halted(case, jobs)
    assert (state.state, state.missing, {*state.legs}) == ("halted", (), {"ingest", "process"})
    assert state.message.startswith("sink: ")
    assert "the table has no column 'amount'" in state.message
    answer = case.invoke("status", str(case.file)).output
    assert "sink halted at 20" in answer
    assert "the table has no column 'amount'" in " ".join(answer.split())
    mend(case)
    assert jobs.start(case.file).state.state == "running"
    case.wait_count(case.good)
    assert "halted" not in case.invoke("status", str(case.file)).output
    (sink,) = [one for one in find_runners(jobs.directory(case.pipeline)) if one["legs"] == ["sink"]]
    os.kill(sink["pid"], signal.SIGKILL)
    killed = wait_until(lambda: (state := jobs.inspect(case.file)).missing and state, "a leg that is missing")
    assert (killed.state, killed.missing, killed.halted) == ("running", ("sink",), ())


def test_a_start_killed_before_its_leg_hides_behind_no_halt(
    case: PipelineCase, jobs: StreamingJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    halted(case, jobs)
    before = read_launched(jobs.directory(case.pipeline))
    assert before is not None
    monkeypatch.setattr(type(jobs), "popen", subprocess.Popen)
    monkeypatch.setattr(type(jobs), "command", (sys.executable, "-c", "import time; time.sleep(600)"))
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(jobs.start, case.file)
        launched = wait_until(lambda: (one := read_launched(jobs.directory(case.pipeline))) and one.log != before.log and one, "a launch")
        os.kill(launched.pid, signal.SIGKILL)
        with pytest.raises(HaltError, match="it said nothing"):
            start.result()
    state = jobs.inspect(case.file)
    assert (state.state, state.missing, state.halted) == ("running", ("sink",), ())


def test_an_edit_ends_a_halt_unless_of_alerts_or_faulty(case: PipelineCase, jobs: StreamingJobs) -> None:
    halted(case, jobs)
    case.write_file(lambda document: document.update(alerts={"max_restarts": 1}))
    assert jobs.inspect(case.file).halted == ("sink",)
    config = jobs.config(case.file)
    case.write_file(lambda document: document["sink"].pop("table"))
    assert jobs.look(case.file, config).halted == ("sink",)
    case.write_file(lambda document: document["sink"].update(max_batch_size=4000))
    state = jobs.inspect(case.file)
    assert (state.state, state.halted, state.missing) == ("running", (), ("sink",))


def without_table(document: dict[str, Any]) -> None:
    document["sink"].update(table="no_such_table", create_table=False)


def test_a_dead_job_that_can_never_start_is_halted(case: PipelineCase, jobs: StreamingJobs) -> None:
    pid = jobs.start(case.file).state.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: jobs.inspect(case.file).state == "stopped", "a dead job")
    case.write_file(without_table)
    with pytest.raises(HaltError, match="does not exist; create it"):
        jobs.start(case.file)
    state = jobs.inspect(case.file)
    assert (state.state, state.halted, state.missing, state.is_alive) == ("halted", ("ingest", "process", "sink"), (), False)
    assert state.message.startswith("ingest, process, sink: checking table ")


def test_a_failing_start_says_nothing_of_a_live_runner(case: PipelineCase, jobs: StreamingJobs) -> None:
    pid = jobs.start(case.file).state.pid
    assert pid is not None
    case.write_file(without_table)
    with pytest.raises(HaltError, match="does not exist; create it"):
        case.warm_run(legs=("sink",))
    os.kill(pid, signal.SIGKILL)
    # What the kernel is still taking down does not answer.
    state = wait_until(lambda: not (one := jobs.inspect(case.file)).is_alive and one, "a dead job")
    assert (state.state, state.halted, state.missing) == ("stopped", (), ("ingest", "process", "sink"))


def test_a_paused_runner_is_unreachable_until_replaced(case: PipelineCase, jobs: StreamingJobs) -> None:
    case.send_events(300)
    pid = jobs.start(case.file).state.pid
    assert pid is not None
    pause(psutil.Process(pid))
    state = jobs.inspect(case.file)
    assert (state.state, state.pid) == ("unreachable", pid)
    assert str(pid) in state.message
    restarted = jobs.restart(case.file, kill_after=timedelta(seconds=1))
    assert restarted.state.pid != pid
    case.wait_count(case.good)
    jobs.stop(case.file)
    case.check()


def test_a_drain_ends_when_nothing_waits_and_stops_the_job(case: PipelineCase, jobs: StreamingJobs) -> None:
    jobs.start(case.file)
    case.send_events(3000, bad_every=100)
    drained = jobs.drain(case.file)
    assert (drained.state.state, drained.state.desired) == ("stopped", "stopped")
    case.check()


def test_the_command_line_stops_a_job_of_dagster_for_good(case: PipelineCase, jobs: StreamingJobs) -> None:
    jobs.start(case.file)
    assert case.invoke("stop", str(case.file)).output == "stopped\n"
    state = jobs.inspect(case.file)
    assert (state.state, state.desired, state.missing) == ("stopped", "stopped", ())


@pytest.mark.parametrize("events", [0, 300], ids=["before the first record", "after some"])
def test_a_system_that_is_away_is_waiting_and_not_dead(case: PipelineCase, jobs: StreamingJobs, events: int) -> None:
    case.send_events(events)
    jobs.start(case.file)
    case.wait_count(case.good)
    case.stack.server("kafka").kill()
    try:
        state = wait_until(lambda: (one := jobs.inspect(case.file)).state == "waiting" and one, "a waiting job")
        assert state.message
    finally:
        case.stack.up()
    wait_until(lambda: jobs.inspect(case.file).state == "running", "a running job")


def test_a_start_that_waits_for_kafka_says_so_and_goes_on(case: PipelineCase, jobs: StreamingJobs) -> None:
    case.send_events(300)
    case.stack.server("kafka").kill()
    with ThreadPoolExecutor(1) as pool:
        try:
            starting = pool.submit(jobs.start, case.file)
            state = wait_until(lambda: (one := jobs.inspect(case.file)).state == "waiting" and one, "a start that waits")
            assert f"describing topic {case.topic}: Kafka did not answer" in state.message
            assert "the start waits at most 60 s: start the server, or correct its address" in state.message
            assert state.legs == {"ingest": "waiting", "process": "starting", "sink": "starting"}
            shown = case.invoke("status", str(case.file), "--json")
            assert (shown.exit_code, json.loads(shown.stdout)["legs"]["ingest"]["state"]) == (1, "waiting")
            assert not starting.done()
        finally:
            case.stack.up()
        assert starting.result().state.state == "running"
    assert [*case.names.directory(case.home).glob("*-waiting-*")] == []
    case.wait_count(case.good)
