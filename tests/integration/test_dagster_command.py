"""`tallyflow dagster`: the page with the pipelines comes up on loopback, and nothing is left when it is told to end."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import psutil
import pytest
import yaml
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, survivors, wait_until
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

QUERY = "{repositoriesOrError {... on RepositoryConnection {nodes {jobs {name} sensors {name sensorState {status}}}}}}"

pytestmark = pytest.mark.integration


@pytest.fixture
def command(case: PipelineCase) -> Iterator["subprocess.Popen[str]"]:
    (case.directory / "foreign").mkdir()
    environment = case.environment(TALLYFLOW_PIPELINES=str(case.directory), DAGSTER_HOME=str(case.directory / "foreign"))
    process = subprocess.Popen(
        [sys.executable, "-m", "pipelines.cli", "dagster", "--own-servers"],
        env=environment,
        stdout=(case.directory / "said.txt").open("w"),
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    yield process
    if process.poll() is None:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


PAUSE = "mutation { setAutoMaterializePaused(paused: true) }"
IS_PAUSED = "{instance {autoMaterializePaused}}"


def check_guarded(address: str) -> None:
    """Requests as pages of another site make them change nothing; those of the own page do."""

    def paused() -> bool:
        answer = httpx.post(f"{address}/graphql", json={"query": IS_PAUSED}, timeout=60)
        return bool(answer.json()["data"]["instance"]["autoMaterializePaused"])

    before = paused()
    wanted = PAUSE if not before else PAUSE.replace("true", "false")
    json_as_text = {"Content-Type": "text/plain;application/json", "Origin": "http://evil.example"}
    for answer in (
        httpx.get(f"{address}/graphql", params={"query": wanted}, headers={"Accept": "image/*"}, timeout=60),
        httpx.post(f"{address}/graphql", content=json.dumps({"query": wanted}), headers=json_as_text, timeout=60),
        httpx.post(f"{address}/graphql", json={"query": wanted}, headers={"Origin": "http://evil.localhost"}, timeout=60),
        httpx.post(f"{address}/graphql", json={"query": wanted}, headers={"Host": "evil.example"}, timeout=60),
        httpx.post(f"{address}/graphql", json={"query": wanted}, headers={"Sec-Fetch-Site": "cross-site"}, timeout=60),
    ):
        assert (answer.status_code, answer.text.startswith("refused: ")) == (403, True)
    assert paused() == before
    socket = address.replace("http://", "ws://") + "/graphql"
    with pytest.raises(InvalidStatus):
        connect(socket, origin="http://evil.example", subprotocols=["graphql-ws"])
    with connect(socket, origin=address, subprotocols=["graphql-ws"]) as opened:
        assert opened.subprotocol == "graphql-ws"
    assert httpx.post(f"{address}/graphql", json={"query": wanted}, headers={"Origin": address}, timeout=60).status_code == 200
    assert paused() != before


def test_it_serves_on_loopback_and_leaves_nothing_behind(case: PipelineCase, command: "subprocess.Popen[str]") -> None:
    output = case.directory / "said.txt"

    def url() -> str | None:
        assert command.poll() is None, output.read_text()
        found = re.search(r"^Dagster: (http://127\.0\.0\.1:\d+)$", output.read_text(), re.MULTILINE)
        return found[1] if found else None

    address = wait_until(url, "Dagster's address")
    answer = httpx.post(f"{address}/graphql", json={"query": QUERY}, timeout=60).json()["data"]["repositoriesOrError"]["nodes"][0]
    assert f"publish_{case.pipeline.replace('-', '_')}" in [job["name"] for job in answer["jobs"]]
    states = {one["name"]: one["sensorState"]["status"] for one in answer["sensors"]}
    assert states["observe_pipelines"] == "RUNNING"
    check_guarded(address)
    assert "ignoring DAGSTER_HOME of your shell" in output.read_text()
    assert list((case.directory / "foreign").iterdir()) == []
    family = psutil.Process(command.pid).children(recursive=True)
    listening = {c.laddr.ip for one in family for c in one.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}
    home = case.home / "dagster"
    assert yaml.safe_load((home / "dagster.yaml").read_text())["telemetry"] == {"enabled": False}
    os.kill(command.pid, signal.SIGINT)
    assert command.wait(PATIENCE_SECONDS) == 0, output.read_text()
    assert survivors(family, 0) == []
    assert json.loads((home / "ports.json").read_text())["webserver"] == int(address.rpartition(":")[2])
