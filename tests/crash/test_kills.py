"""Processes of a runner killed or stopped from outside, one at a time, in the middle of load."""

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, family_of, kill, members, survivors, wait_until

from pipelines.control.control import read_halts
from pipelines.testing import LEGS

pytestmark = pytest.mark.crash

JVM = "org.apache.spark.deploy.SparkSubmit"
PLANNER = "python_streaming_source_runner"
WORKER_DAEMON = "pyspark.daemon pyspark.worker"


def _started(case: PipelineCase, *arguments: str) -> "subprocess.Popen[str]":
    case.create_topic()
    process = case.start(*arguments)
    case.wait_ready(process)
    return process


def _drained(case: PipelineCase) -> bool:
    return case.count() == case.good and len(case.dead_letters()) == case.sent - case.good


def _end(case: PipelineCase, process: "subprocess.Popen[str]") -> str:
    """Lets a runner finish what was sent, stops it, and gives its words."""
    wait_until(lambda: _drained(case), "the end of the backlog")
    process.send_signal(signal.SIGTERM)
    words = process.communicate(timeout=PATIENCE_SECONDS)[1]
    assert process.returncode == 0, words
    return words


def _nothing_lost(checkpoint: Path) -> None:
    assert checkpoint.exists()


def _last_commit_lost(checkpoint: Path) -> None:
    commits = [path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
    max(commits, key=lambda path: int(path.name)).unlink()


def _checkpoint_lost(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)


@pytest.mark.parametrize("accident", [_nothing_lost, _last_commit_lost, _checkpoint_lost])
def test_a_runner_killed_under_load_is_replaced_by_the_next(case: PipelineCase, accident: Callable[[Path], None]) -> None:
    process = _started(case)
    with case.load():
        case.wait_count(2000)
        process.kill()
        assert process.wait(PATIENCE_SECONDS) == -9
    checkpoints = [path.parent for path in case.names.directory(case.home).glob("*/checkpoint-*/commits") if any(path.iterdir())]
    assert len(checkpoints) == len(LEGS)
    for checkpoint in checkpoints:
        accident(checkpoint)
    case.warm_run()
    case.check()


def test_a_runner_whose_jvm_was_killed_ends_with_an_error_soon(case: PipelineCase) -> None:
    process = _started(case)
    with case.load():
        case.wait_count(1000)
        (jvm,) = members(process, JVM)
        kill(jvm)
        words = process.communicate(timeout=PATIENCE_SECONDS)[1]
    assert process.returncode == 1, words
    # PySpark's own threads may have printed a traceback before.
    assert "Spark's JVM has ended" in words.strip().splitlines()[-1], words
    # A crash and no halt: Dagster starts it again.
    assert read_halts(case.names.directory(case.home)) == {}
    case.warm_run()
    case.check()


def test_a_runner_goes_on_when_one_of_its_workers_is_killed(case: PipelineCase) -> None:
    process = _started(case, "--driver-offsets", "0", "--driver-frames", "0")
    with case.load():
        case.wait_count(1000)
        daemons = {daemon.pid for daemon in members(process, WORKER_DAEMON)}
        workers = [worker for worker in members(process, WORKER_DAEMON) if worker.ppid() in daemons]
        kill(workers[0])
        case.wait_count(case.count() + 2000)
    words = _end(case, process)
    assert "halted" not in words
    case.check()


def test_a_query_whose_planner_was_killed_is_restarted(case: PipelineCase) -> None:
    process = _started(case)
    for turn, leg in enumerate(LEGS):
        with case.load():
            case.wait_count(case.count() + 500)
            planners = sorted(members(process, PLANNER), key=psutil.Process.create_time)
            assert len(planners) == len(LEGS), (leg, planners)
            kill(planners[0])
            wait_until(lambda gone=planners[0], n=turn: gone not in members(process, PLANNER), "the planner's end")
            case.wait_count(case.count() + 1500)
    words = _end(case, process)
    assert words.count("restarting the query") >= len(LEGS), words
    case.check()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_under_load_finishes_the_batches_in_work(case: PipelineCase, number: signal.Signals) -> None:
    process = _started(case)
    with case.load():
        case.wait_count(1000)
        process.send_signal(number)
        words = process.communicate(timeout=PATIENCE_SECONDS)[1]
    assert process.returncode == 0, words
    assert "Traceback" not in words, words
    assert not survivors(family_of(process), 5)
    case.warm_run()
    case.check()
