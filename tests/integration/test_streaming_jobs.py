"""The runners of pipelines as Dagster's resource starts, finds, asks and stops them: real runners on real servers, without Spark."""

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import yaml
from pipeline_case import IN_DRIVER, PipelineCase, wait_until

from pipelines.errors import ConfigurationError, HaltError
from pipelines.runners import find_runners, read_desired, read_launched
from resources.clickhouse import ClickHouseResource
from resources.kafka import KafkaResource
from resources.nats import NatsResource
from resources.streaming_jobs import StreamingJobs

pytestmark = pytest.mark.integration

PASSWORD = "only-by-the-environment"
PLAIN = [sys.executable, str(Path(__file__).parents[1] / "plain_runner.py")]


def streaming_jobs(case: PipelineCase, **fields: object) -> StreamingJobs:
    """The addresses are only in the resources: the environment of this process has none of them."""
    a = case.addresses
    clickhouse = ClickHouseResource(
        host=a.clickhouse_host, port=str(a.clickhouse_port), user=a.clickhouse_user, password=a.clickhouse_password
    )
    given = {"home": str(case.home), "command": PLAIN, "run_options": [*IN_DRIVER], **fields}
    return StreamingJobs(
        kafka=KafkaResource(bootstrap_servers=a.kafka_bootstrap, sasl_password=PASSWORD),
        nats=NatsResource(url=a.nats_url),
        clickhouse=clickhouse,
        **given,
    )


@pytest.fixture
def jobs(case: PipelineCase) -> Iterator[StreamingJobs]:
    case.create_topic()
    made = streaming_jobs(case)
    yield made
    directory = case.names.directory(case.home)
    case.write_file()
    made.stop(case.file, kill_after=timedelta(seconds=30))
    print(*(path.read_text() for path in directory.glob("logs/*.log")), sep="\n")


def test_a_started_job_runs_until_it_is_stopped_and_nothing_is_lost(case: PipelineCase, jobs: StreamingJobs) -> None:
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


def test_the_runner_has_a_session_of_its_own_and_none_of_dagsters_variables(
    case: PipelineCase, jobs: StreamingJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_RUN_JOB_NAME", "start_pipeline")
    pid = jobs.start(case.file).state.pid
    assert pid is not None
    environment = psutil.Process(pid).environ()
    assert not [name for name in environment if name.startswith("DAGSTER_")]
    assert environment["KAFKA_SASL_PASSWORD"] == PASSWORD
    assert PASSWORD not in " ".join(psutil.Process(pid).cmdline())
    assert PASSWORD not in repr(jobs)
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


def test_a_runner_that_ends_at_its_start_is_told_in_its_own_words(case: PipelineCase, jobs: StreamingJobs) -> None:
    document = yaml.safe_load(case.file.read_text())
    document["sources"][0]["topic"] = "no-such-topic"
    case.file.write_text(yaml.safe_dump(document))
    with pytest.raises(HaltError, match=r"no-such-topic.* create the topic, or correct"):
        jobs.start(case.file)
    assert read_desired(jobs.directory(case.pipeline)) is None


def test_a_faulty_file_is_told_with_its_faults_and_starts_nothing(case: PipelineCase, jobs: StreamingJobs) -> None:
    case.write_file(lambda document: document["sink"].pop("table"))
    with pytest.raises(ConfigurationError, match=r"sink\.table"):
        jobs.start(case.file)
    assert read_launched(jobs.directory(case.pipeline)) is None


def test_a_killed_runner_is_seen_as_stopped_although_its_parent_has_not_asked_for_it(case: PipelineCase, jobs: StreamingJobs) -> None:
    pid = jobs.start(case.file).state.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: jobs.inspect(case.file).state == "stopped", "a stopped job")
    state = jobs.inspect(case.file)
    assert (state.desired, state.missing) == ("running", ("ingest", "process", "sink"))


def test_a_paused_runner_is_unreachable_and_a_restart_with_a_limit_replaces_it(case: PipelineCase, jobs: StreamingJobs) -> None:
    case.send_events(300)
    pid = jobs.start(case.file).state.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    state = jobs.inspect(case.file)
    assert (state.state, state.pid) == ("unreachable", pid)
    assert str(pid) in state.message
    restarted = jobs.restart(case.file, kill_after=timedelta(seconds=1))
    assert restarted.state.pid != pid
    case.wait_count(case.good)
    jobs.stop(case.file)
    case.check()


def test_a_drain_ends_when_nothing_waits_and_leaves_the_job_stopped(case: PipelineCase, jobs: StreamingJobs) -> None:
    jobs.start(case.file)
    case.send_events(3000, bad_every=100)
    drained = jobs.drain(case.file)
    assert (drained.state.state, drained.state.desired) == ("stopped", "stopped")
    case.check()


def test_the_command_line_stops_what_dagster_started_and_it_is_meant_to_be_stopped(case: PipelineCase, jobs: StreamingJobs) -> None:
    jobs.start(case.file)
    assert case.invoke("stop", str(case.file)).output == "stopped\n"
    state = jobs.inspect(case.file)
    assert (state.state, state.desired, state.missing) == ("stopped", "stopped", ())


def test_a_system_that_is_away_is_waiting_and_not_dead(case: PipelineCase, jobs: StreamingJobs) -> None:
    case.send_events(300)
    jobs.start(case.file)
    case.wait_count(case.good)
    case.stack.server("kafka").kill()
    try:
        state = wait_until(lambda: (one := jobs.inspect(case.file)).state == "waiting" and one, "a waiting job")
        assert state.message
    finally:
        case.stack.up()
    wait_until(lambda: jobs.inspect(case.file).state == "running", "a running job")
