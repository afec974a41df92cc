"""The status port, and whatever else serves HTTP on loopback: who connects and says little takes nothing from the runner."""

import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest
import uvicorn
from support.pipeline_case import wait_until

from pipelines.loopback import BoundedConnection, LoopbackServer
from pipelines.runner.status import StatusServer

pytestmark = pytest.mark.integration

SOON_SECONDS = 0.5


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Those with which uvicorn looks whether it is to end, as the server is."""
    counted: list[int] = []
    monkeypatch.setattr(uvicorn.Server, "on_tick", lambda _, count: counted.append(count))
    return counted


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ticks: list[int]) -> Iterator[int]:
    """Of the status server of a runner that is healthy and does nothing."""
    monkeypatch.setattr(BoundedConnection, "head_seconds", SOON_SECONDS)
    options = SimpleNamespace(legs=["ingest"])
    around = {"reloads": None, "config": SimpleNamespace(pipeline_id="orders")}
    runner = SimpleNamespace(own_directory=tmp_path, options=options, is_ready=True, legs={}, is_fenced=False, log_path="", **around)
    server = StatusServer(runner)  # type: ignore[arg-type]
    server.start()
    wait_until(lambda: _is_healthy(server.port), "the status server")
    yield server.port
    server.close()


def _is_healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False, timeout=10).is_success
    except httpx.TransportError:
        return False


def connect(opened: ExitStack, port: int) -> socket.socket:
    return opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))


def is_ended(connection: socket.socket) -> bool:
    """Waits until the other side has ended the connection."""
    try:
        while connection.recv(65536):
            continue
    except ConnectionError:
        pass
    return True


@pytest.mark.crash
def test_a_flood_of_connections_leaks_no_descriptors(port: int) -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    process = psutil.Process()
    with ExitStack() as opened:
        before = process.num_fds()
        flood = [connect(opened, port) for _ in range(min(300, limit // 4))]
        for connection in flood:
            connection.setblocking(False)
        # Ours are in this process as well as the server's.
        held = process.num_fds() - before - len(flood)
        assert held <= 2 * BoundedConnection.most_connections
        for connection in flood:
            connection.settimeout(30)
            assert is_ended(connection)
        # A head may take longer than SOON_SECONDS to come on a machine that is busy.
        wait_until(lambda: _is_healthy(port), "an answer behind the flood")


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        b"POST /no HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nx",
    ],
    ids=["nothing", "half a head", "no body"],
)
def test_what_is_not_said_in_time_is_not_waited_for(port: int, sent: bytes) -> None:
    with ExitStack() as opened:
        connection = connect(opened, port)
        connection.sendall(sent)
        began = time.monotonic()
        # A byte now and then keeps nothing open.
        connection.settimeout(SOON_SECONDS / 5)
        while time.monotonic() - began < 60:
            try:
                if not connection.recv(65536):
                    break
                continue
            except TimeoutError:
                pass
            except ConnectionError:
                break
            try:
                connection.sendall(b"x" if sent else b"")
            except ConnectionError:
                break
        else:
            pytest.fail("the connection is held")


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_a_web_page_reads_no_status(port: int, headers: dict[str, str]) -> None:
    answer = httpx.get(f"http://127.0.0.1:{port}/healthz", headers=headers, trust_env=False, timeout=30)
    assert (answer.status_code, "healthy" in answer.text) == (403, False)


def test_settings_are_taken_from_who_reads_the_runners_file(port: int, tmp_path: Path) -> None:
    def post(key: str, content: Any = b"version: v3", **headers: str) -> httpx.Response:
        given = {"Authorization": f"Bearer {key}", **headers}
        return httpx.post(f"http://127.0.0.1:{port}/reload", content=content, headers=given, trust_env=False, timeout=10)

    key = json.loads((tmp_path / "status.json").read_text())["key"]
    assert [post("none").status_code, post(key[:-1]).status_code] == [401, 401]
    assert post(key, Origin="http://elsewhere").status_code == 403
    assert post(key, iter([b"a text of any length"])).status_code == 413
    answer = post(key)
    assert (answer.status_code, "its runner is still starting" in answer.json()["refused"]) == (409, True)


def test_a_server_wakes_for_requests_only_and_dates_each_answer(port: int, ticks: list[int]) -> None:
    answer = httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False, timeout=30)
    dated = parsedate_to_datetime(answer.headers["date"])
    assert timedelta(0) <= datetime.now(UTC) - dated < timedelta(seconds=30)
    assert ticks == []


def test_a_server_may_be_ended_again_and_before_it_serves() -> None:
    async def answers(*_: Any) -> None:
        raise AssertionError("nobody asks")

    server, listener = LoopbackServer(answers, {"log_level": "error"}), socket.create_server(("127.0.0.1", 0))
    server.end()
    server.run(sockets=[listener])
    server.end()


def test_one_connection_asks_again_and_again(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
        for _ in range(3):
            assert client.get("/healthz").json() == {"healthy": True}
            # Longer than a head may take: between requests nothing is awaited.
            time.sleep(1.2 * SOON_SECONDS)
