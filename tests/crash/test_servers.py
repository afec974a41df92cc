"""Each local server killed with SIGKILL and started again in the middle of a run: the same runner goes on by itself."""

import threading

import psutil
import pytest
from pyspark.sql import SparkSession
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, pause, wait_until

from pipelines.engine.inputs import Offset
from pipelines.ingest.leg import IngestLeg
from pipelines.protocol.bodies import IngestPlan
from pipelines.runner.runner import Runner

pytestmark = pytest.mark.crash

SYSTEMS = {"kafka": "Kafka", "nats": "NATS", "clickhouse": "ClickHouse"}


def _reasons(runner: Runner) -> list[str]:
    return [leg.status.message for leg in runner.legs.values() if leg.status.state == "waiting"]


class HeldIngest(IngestLeg):
    """Stands still before a plan while `holds` is set; `is_reached` is set when it has come there."""

    holds, is_reached, may_go_on = threading.Event(), threading.Event(), threading.Event()

    def propose(self, end: Offset) -> IngestPlan:
        if self.holds.is_set():
            self.is_reached.set()
            self.may_go_on.wait(PATIENCE_SECONDS)
        return super().propose(end)


@pytest.mark.parametrize("server", list(SYSTEMS))
def test_a_runner_waits_for_a_killed_server_and_goes_on(case: PipelineCase, session: SparkSession, server: str) -> None:
    case.session = None if server == "kafka" else session
    case.leg_classes["ingest"] = HeldIngest
    case.create_topic()
    runner = case.warm_runner(until_caught_up=False)
    thread = case.in_background(runner)
    case.send_events(3000, bad_every=100)
    case.wait_count(1)
    if server == "kafka":
        # Something must be left to read when Kafka dies, however fast the leg is.
        HeldIngest.holds.set()
        case.send_events(5000, bad_every=100)
        assert HeldIngest.is_reached.wait(PATIENCE_SECONDS)
        case.stack.server(server).kill()
        HeldIngest.holds.clear()
        HeldIngest.may_go_on.set()
    else:
        case.stack.server(server).kill()
        case.send_events(5000, bad_every=100)
    wait_until(lambda: any(SYSTEMS[server] in reason for reason in _reasons(runner)), f"a leg that waits for {server}")
    case.stack.server(server).start()
    wait_until(lambda: case.count() == case.good, "all rows")
    assert thread.is_alive()
    wait_until(lambda: not _reasons(runner), "the end of the waiting")
    runner.request_stop()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    case.check()


def test_a_runner_outlives_the_loss_of_all_three_servers(case: PipelineCase) -> None:
    case.create_topic()
    process = case.start()
    case.wait_ready(process)
    case.send_events(30_000, bad_every=100)
    case.wait_count(1)
    for server in SYSTEMS:
        case.stack.server(server).kill()
    asked = case.invoke("status", str(case.file))
    assert asked.exit_code == 0, asked.stderr
    wait_until(lambda: "waiting" in {leg["state"] for leg in (case.ask() or {"legs": {}})["legs"].values()}, "a leg that waits")
    shown = case.status()
    assert shown is not None
    assert any(system in leg["message"] for leg in shown["legs"].values() for system in SYSTEMS.values())
    case.stack.up()
    wait_until(lambda: case.count() == case.good, "all rows")
    process.terminate()
    words = process.communicate(timeout=PATIENCE_SECONDS)[1]
    assert process.returncode == 0, words
    case.check()


def test_a_run_whose_last_progress_kafka_does_not_take_ends(case: PipelineCase) -> None:
    kafka, is_silent = case.stack.server("kafka"), threading.Event()

    class SilencedIngest(IngestLeg):
        def show_progress(self) -> None:
            pause(psutil.Process(kafka.pid))
            super().show_progress()
            is_silent.set()

    case.create_topic()
    case.send_events(30)
    case.leg_classes["ingest"] = SilencedIngest
    runner = case.warm_runner(until_caught_up=False)
    try:
        thread = case.in_background(runner)
        assert is_silent.wait(PATIENCE_SECONDS)
        runner.request_stop()
        # As long as a service manager waits.
        thread.join(120)
        assert not thread.is_alive()
    finally:
        # A broker that goes on behind a pause may lack a controller for a minute.
        kafka.kill()
        kafka.start()
    case.leg_classes["ingest"] = IngestLeg
    case.warm_run()
    case.check()
