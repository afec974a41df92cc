"""Failed runs under a real Dagster with its daemon: which of them call people, and what is said."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from dagster_graphql import DagsterGraphQLClient
from support.alert_servers import Webhook, webhook
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until

pytestmark = pytest.mark.crash
SECRET = "not-the-password-of-clickhouse"
TICKS = (
    """{ repositoriesOrError { ... on RepositoryConnection { nodes { sensors { name sensorState { ticks(limit: 1) { status } } } } } } }"""
)


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with webhook() as made:
        yield made


@pytest.fixture
def address(case: PipelineCase, hook: Webhook) -> Iterator[str]:
    """Of `tallyflow dagster` with the case's file, its alerts going to the webhook, and a wrong password for ClickHouse."""
    answer = case.directory / "said.txt"
    case.create_topic()
    addresses = {"TALLYFLOW_PIPELINES": str(case.directory), "TALLYFLOW_ALERT_WEBHOOKS": hook.url}
    environment = case.environment(**addresses, CLICKHOUSE_PASSWORD=SECRET)
    with answer.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipelines.cli", "dagster", "--own-servers"],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield wait_until(lambda: _address(process, answer), "Dagster's address")
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
        print(answer.read_text()[-6000:])


def _address(process: "subprocess.Popen[bytes]", answer: Path) -> str:
    assert process.poll() is None, answer.read_text()
    found = re.search(r"^Dagster: (http://127\.0\.0\.1:\d+)$", answer.read_text(), re.MULTILINE)
    return found[1] if found else ""


def has_ticked(address: str, sensor: str) -> bool:
    """A sensor of failed runs looks from its first tick on."""
    (node,) = httpx.post(f"{address}/graphql", json={"query": TICKS}, timeout=60).json()["data"]["repositoriesOrError"]["nodes"]
    return any(one["name"] == sensor and one["sensorState"]["ticks"] for one in node["sensors"])


def failed(client: DagsterGraphQLClient, job: str, pipeline: str) -> str:
    """Id of a run that has failed."""
    run = client.submit_job_execution(job, run_config={"ops": {f"{job}_op": {"config": {"pipeline": pipeline}}}})
    wait_until(lambda: client.get_run_status(run).value == "FAILURE", f"the failure of {job}")
    return str(run)


def test_failed_starts_and_compactions_alert_with_a_message(case: PipelineCase, address: str, hook: Webhook) -> None:
    wait_until(lambda: has_ticked(address, "alert_failed_runs"), "the first tick of the sensor")
    client = DagsterGraphQLClient("127.0.0.1", port_number=int(address.rpartition(":")[2]))
    failed(client, "compact_keys", case.pipeline)
    wait_until(lambda: hook.got, "an alert of the compaction")
    run = failed(client, "start_pipeline", case.pipeline)
    wait_until(lambda: len(hook.got) > 1, "an alert of the start")
    compaction, answer = hook.got
    assert compaction.startswith(f"pipeline {case.pipeline}: compact_keys failed: ")
    assert answer.startswith(f"pipeline {case.pipeline}: start_pipeline failed: starting {case.pipeline}: the runner has ended: ")
    assert "in the sink's connection_params" in answer
    assert answer.endswith(f"what to do: see run {run} in Dagster")
    logged = (case.home / "dagster" / "dagster.log").read_text()
    assert "start_pipeline failed" in logged
    assert SECRET not in answer + logged
    assert hook.url not in logged
