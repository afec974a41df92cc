"""One fast case per class of fault; tests/crash has all of them."""

import shutil
import signal

import psutil
import pytest
from pyspark.sql import SparkSession
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, family_of, kill, members, survivors, wait_until

from pipelines.protocol.failpoints import VARIABLE

pytestmark = [pytest.mark.crash, pytest.mark.spark]


def test_a_kill_after_insert_and_a_lost_checkpoint_are_harmless(case: PipelineCase, session: SparkSession) -> None:
    case.session = session
    case.create_topic()
    case.send_events(6000, bad_every=100)
    killed = case.run(**{VARIABLE: "sink.after-insert:1"})
    assert killed.returncode == -9, killed.stderr
    assert case.count() > 0
    checkpoints = [path for path in case.names.directory(case.home).glob("*/checkpoint-*") if path.is_dir()]
    assert checkpoints
    for checkpoint in checkpoints:
        shutil.rmtree(checkpoint)
    case.warm_run()
    case.check()


def test_a_runner_whose_jvm_was_killed_ends_and_the_next_goes_on(case: PipelineCase, session: SparkSession) -> None:
    case.session = session
    case.create_topic()
    process = case.start()
    case.wait_ready(process)
    with case.load():
        case.wait_count(500)
        kill(members(process, "org.apache.spark.deploy.SparkSubmit")[0])
        words = process.communicate(timeout=PATIENCE_SECONDS)[1]
    assert process.returncode == 1, words
    assert "Spark's JVM has ended" in words.strip().splitlines()[-1], words
    case.warm_run()
    case.check()


def test_a_terminated_runner_finishes_batches_and_cleans_up(case: PipelineCase, session: SparkSession) -> None:
    case.session = session
    case.create_topic()
    process = case.start()
    case.wait_ready(process)
    with case.load():
        case.wait_count(500)
        process.send_signal(signal.SIGTERM)
        words = process.communicate(timeout=PATIENCE_SECONDS)[1]
    assert process.returncode == 0, words
    assert not survivors(family_of(process), 5)
    case.warm_run()
    case.check()


def test_legs_of_a_killed_worker_go_on_in_another_one(case: PipelineCase, session: SparkSession) -> None:
    case.session = session
    case.create_topic()
    runner = case.warm_runner(until_caught_up=False)
    thread = case.in_background(runner)
    with case.load():
        case.wait_count(500)
        for leg in runner.legs.values():
            process = leg.process
            kill(psutil.Process(process.pid))
            case.wait_count(case.count() + 1000)
            assert leg.process != process
    wait_until(lambda: case.count() == case.good, "all rows")
    runner.request_stop()
    thread.join(PATIENCE_SECONDS)
    case.check()


def test_a_killed_server_is_waited_for(case: PipelineCase) -> None:
    case.create_topic()
    runner = case.warm_runner(until_caught_up=False)
    thread = case.in_background(runner)
    case.send_events(1000)
    case.wait_count(1000)
    case.stack.server("nats").kill()
    case.send_events(1000, bad_every=100)
    wait_until(lambda: "NATS" in runner.legs["ingest"].status.message, "a leg that waits")
    case.stack.server("nats").start()
    wait_until(lambda: case.count() == case.good, "all rows")
    runner.request_stop()
    thread.join(PATIENCE_SECONDS)
    case.check()


def test_a_second_runner_is_refused(case: PipelineCase) -> None:
    case.create_topic()
    first = case.warm_runner(until_caught_up=False)
    thread = case.in_background(first)
    second = case.invoke("run", str(case.file))
    assert second.exit_code == 1
    assert "a runner on this host already holds" in second.stderr
    case.send_events(500)
    case.wait_count(500)
    first.request_stop()
    thread.join(PATIENCE_SECONDS)
    case.check()


def test_a_deleted_pipeline_begins_anew_under_the_same_name(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(1000)
    case.warm_run()
    assert case.invoke("delete", str(case.file), "--yes", "--keep-table").exit_code == 0
    # Unlike TRUNCATE, this leaves the insert tokens that the table remembers.
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE 1 SETTINGS mutations_sync = 2")
    assert case.count() == 0
    case.warm_run()
    assert case.count() == 1000
    case.check()
