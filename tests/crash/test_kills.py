"""Processes of a runner killed or stopped from outside, one at a time, in the middle of load."""

import random
import shutil
import signal
import subprocess

import pytest
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, family_of, forked_workers, kill, members, survivors, wait_until

from pipelines.control.control import read_halts

pytestmark = pytest.mark.crash

JVM = "org.apache.spark.deploy.SparkSubmit"


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


@pytest.mark.parametrize("loses_checkpoint", [False, True])
def test_a_runner_killed_under_load_is_replaced_by_the_next(case: PipelineCase, loses_checkpoint: bool) -> None:
    process = _started(case)
    with case.load():
        case.wait_count(2000)
        process.kill()
        assert process.wait(PATIENCE_SECONDS) == -9
    (checkpoint,) = case.names.directory(case.home).glob("*/checkpoint-*")
    if loses_checkpoint:
        shutil.rmtree(checkpoint)
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


def test_a_runner_goes_on_whenever_its_worker_is_killed(case: PipelineCase) -> None:
    """More often than Spark tries a task: now and then the query begins again, too."""
    process, moments = _started(case), random.Random(7)
    with case.load():
        for _ in range(10):
            case.wait_count(case.count() + moments.randint(1, 1500))
            for worker in forked_workers(family_of(process)):
                kill(worker)
    words = _end(case, process)
    assert "halted" not in words
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
