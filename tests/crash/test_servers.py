"""Each local server killed with SIGKILL and started again in the middle of a run: the same runner goes on by itself."""

import pytest
from pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until
from pyspark.sql import SparkSession

from pipelines.runner import Runner

pytestmark = pytest.mark.crash

SYSTEMS = {"kafka": "Kafka", "nats": "NATS", "clickhouse": "ClickHouse"}


def _reasons(runner: Runner) -> list[str]:
    return [leg.status.message for leg in runner.legs.values() if leg.status.state == "waiting"]


@pytest.mark.parametrize("server", list(SYSTEMS))
def test_a_runner_waits_for_a_killed_server_and_goes_on(case: PipelineCase, session: SparkSession, server: str) -> None:
    case.create_topic()
    runner = case.warm_runner(until_caught_up=False)
    thread = case.in_background(runner)
    case.send_events(3000, bad_every=100)
    case.wait_count(1)
    if server == "kafka":
        case.send_events(60_000, name_bytes=100)
    case.stack.server(server).kill()
    if server != "kafka":
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
    asked = case.command("status", str(case.file))
    assert asked.returncode == 0, asked.stderr
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
