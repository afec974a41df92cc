"""Starts, stops and restarts that meet each other, a faulty file, or a process that is killed: what was wanted last holds."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.dagster_case import streaming_jobs
from support.pipeline_case import PipelineCase, pause, wait_until

from pipelines.config import PipelineConfig
from pipelines.control.control import Desired, find_runners, read_desired, read_launched
from pipelines.errors import ConfigurationError, HaltError, TallyflowError
from resources.streaming_jobs import StreamingJobs

pytestmark = pytest.mark.crash

_START = """
import sys
from pathlib import Path
from support.dagster_case import PlainJobs
from resources.clickhouse import ClickHouseResource
from resources.kafka import KafkaResource
from resources.nats import NatsResource

PlainJobs(kafka=KafkaResource(), nats=NatsResource(), clickhouse=ClickHouseResource()).start(Path(sys.argv[1]))
"""
"""A process that starts the pipeline of a file, as a code server or a run worker does."""


@pytest.fixture
def jobs(case: PipelineCase) -> Iterator[StreamingJobs]:
    case.create_topic()
    made = streaming_jobs(case)
    yield made
    made.stop_pipeline(case.pipeline, kill_after=timedelta(seconds=30))


@pytest.fixture
def config(case: PipelineCase, jobs: StreamingJobs) -> PipelineConfig:
    """As the file says it at first, whatever the test makes of the file."""
    return jobs.config(case.file)


def change_shape(document: dict[str, Any]) -> None:
    document["transforms"] = [{"type": "dedup", "config": {"key": "id", "time_window": "1h"}}]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda document: document["sink"].pop("table"), ConfigurationError),
        (lambda document: document["sink"]["mapping"][1].update(column_type="Array(Int64)"), ConfigurationError),
        (change_shape, HaltError),
    ],
    ids=["faulty", "no such cast", "another shape"],
)
@pytest.mark.parametrize("verb", ["restart", "drain"])
def test_a_faulty_start_leaves_the_running_job_alone(
    case: PipelineCase,
    jobs: StreamingJobs,
    config: PipelineConfig,
    verb: str,
    change: Callable[[dict[str, Any]], None],
    error: type[TallyflowError],
) -> None:
    pid = jobs.start(case.file).state.pid
    case.write_file(change)
    with pytest.raises(error):
        getattr(jobs, verb)(case.file)
    state = jobs.look(case.file, config)
    assert (state.state, state.pid, state.desired) == ("running", pid, "running")


def test_a_pipeline_with_a_faulty_file_is_stopped_by_its_id(case: PipelineCase, jobs: StreamingJobs, config: PipelineConfig) -> None:
    jobs.start(case.file)
    case.write_file(lambda document: document["sink"].pop("table"))
    assert jobs.stop_pipeline(case.pipeline)
    assert jobs.look(case.file, config).state == "stopped"


def test_a_stop_that_meets_two_starts_ends_both(
    case: PipelineCase, jobs: StreamingJobs, config: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka is away, so that both would wait for it: the runner that comes first must not be forgotten for the second."""
    waiting, wait = [], StreamingJobs._wait_until_ready

    def noted(*arguments: Any) -> Any:
        waiting.append(arguments)
        return wait(*arguments)

    monkeypatch.setattr(StreamingJobs, "_wait_until_ready", noted)
    case.stack.server("kafka").kill()
    try:
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(jobs.start, case.file) for _ in range(2)]
            wait_until(lambda: len(waiting) == 2, "two starts that wait")
            assert jobs.stop(case.file, kill_after=timedelta(seconds=30))
            failures = [one.exception() for one in both]
    finally:
        case.stack.up()
    assert [type(one) for one in failures] == [HaltError, HaltError]
    assert len([*jobs.directory(case.pipeline).glob("logs/runner-*.log")]) == 1
    assert read_desired(jobs.directory(case.pipeline)) == Desired("stopped")
    assert jobs.look(case.file, config).state == "stopped"


def starter(case: PipelineCase) -> "subprocess.Popen[bytes]":
    environment = case.environment(PYTHONPATH=str(Path(__file__).parents[1]))
    return subprocess.Popen([sys.executable, "-c", _START, str(case.file)], env=environment, start_new_session=True)


def test_starts_from_several_processes_are_one_runner(case: PipelineCase, jobs: StreamingJobs) -> None:
    starters = [starter(case) for _ in range(3)]
    assert [one.wait(120) for one in starters] == [0, 0, 0]
    assert len(find_runners(jobs.directory(case.pipeline))) == 1
    assert len([*jobs.directory(case.pipeline).glob("logs/runner-*.log")]) == 1


def test_a_killed_start_leaves_a_job_that_is_meant_to_run(case: PipelineCase, jobs: StreamingJobs, config: PipelineConfig) -> None:
    process = starter(case)
    wait_until(lambda: read_launched(jobs.directory(case.pipeline)), "a runner on its way")
    wait_until(lambda: read_desired(jobs.directory(case.pipeline)), "a note of what is wanted")
    process.kill()
    process.wait()
    state = wait_until(lambda: (one := jobs.look(case.file, config)).state == "running" and one, "a running job")
    assert (state.desired, state.missing) == ("running", ())


def is_to_end(pid: int) -> bool:
    """Whether a paused process has got a SIGTERM that it has not seen yet."""
    pending = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("ShdPnd:"))
    return bool(int(pending.split()[1], 16) & 1 << signal.SIGTERM - 1)


def test_a_stop_in_the_middle_of_a_restart_holds(case: PipelineCase, jobs: StreamingJobs, config: PipelineConfig) -> None:
    pid = jobs.start(case.file).state.pid
    assert pid is not None
    pause(psutil.Process(pid))
    with ThreadPoolExecutor(2) as pool:
        # It would kill the runner itself in the end; the stop comes before, however slow the machine is.
        restarting = pool.submit(jobs.restart, case.file, kill_after=timedelta(seconds=60))
        wait_until(lambda: is_to_end(pid), "a restart that waits for the runner")
        assert jobs.stop(case.file, kill_after=timedelta(seconds=1))
        failure = restarting.exception()
    assert "it was stopped meanwhile" in str(failure)
    state = jobs.look(case.file, config)
    assert (state.state, state.desired) == ("stopped", "stopped")


def test_files_of_another_release_are_read_as_absent(case: PipelineCase, jobs: StreamingJobs, config: PipelineConfig) -> None:
    directory = jobs.directory(case.pipeline)
    (directory / "ingest-1").mkdir(parents=True)
    for path in ("desired.json", "launched.json", "ingest-1/status.json"):
        (directory / path).write_text('{"pid": 1}')
    state = jobs.look(case.file, config)
    assert (state.state, state.desired) == ("stopped", None)
