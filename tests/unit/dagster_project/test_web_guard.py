"""Which requests reach a Dagster without a login: its own pages', and those of no browser."""

import asyncio
from typing import Any

import pytest

from dagster_project.web.guard import Guard, refusal

HOST = "127.0.0.1:3000"
OWN = {"host": HOST, "origin": f"http://{HOST}", "sec-fetch-site": "same-origin", "content-type": "application/json"}
LINK = {"host": HOST, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
IMAGE = {"host": HOST, "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}


def request(method: str, target: str, headers: dict[str, str]) -> dict[str, Any]:
    path, _, query = target.partition("?")
    kind = {"type": "websocket"} if method == "WS" else {"type": "http", "method": method}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {**kind, "path": path, "query_string": query.encode(), "headers": raw}


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("GET", "/", {"host": HOST, "sec-fetch-site": "none"}),
        ("GET", "/runs/b?tag=x", LINK),
        ("POST", "/graphql", OWN),
        ("WS", "/graphql", OWN),
        ("POST", "/graphql", {"host": HOST, "content-type": "application/json; charset=utf-8"}),
        ("POST", "/graphql", {**OWN, "host": "localhost:8080", "origin": "http://localhost:8080"}),
        ("GET", "/server_info", {"host": "[::1]:3000"}),
        ("GET", "/graphql", {"host": HOST, "accept": "text/html"}),
    ],
)
def test_own_pages_links_and_other_clients_are_let_in(method: str, target: str, headers: dict[str, str]) -> None:
    assert refusal(request(method, target, headers)) == ""


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("GET", "/graphql?query=mutation", IMAGE),
        ("GET", "/graphql?query=mutation", {"host": HOST}),
        ("GET", "/graphql/?%71uery=mutation", {"host": HOST}),
        ("HEAD", "/graphql?query=", {"host": HOST}),
        ("GET", "/graphql?query=mutation", LINK),
        ("GET", "/graphql", LINK),
        ("GET", "/", IMAGE),
        ("POST", "/graphql", {**OWN, "origin": "http://evil.example"}),
        ("POST", "/graphql", {**OWN, "origin": "null"}),
        ("POST", "/graphql", {**OWN, "origin": "http://127.0.0.1:9999"}),
        ("POST", "/graphql", {**OWN, "sec-fetch-site": "same-site"}),
        ("POST", "/graphql", {"host": HOST, "content-type": "text/plain;application/json"}),
        ("POST", "/graphql", {"host": HOST, "content-type": "multipart/form-data; boundary=x"}),
        ("POST", "/graphql", {"host": HOST}),
        ("POST", "/report_asset_materialization/a", {**OWN, "sec-fetch-site": "cross-site"}),
        ("GET", "/", {"host": "evil.example"}),
        ("GET", "/", {"host": "evil.localhost:3000"}),
        ("GET", "/", {}),
        ("WS", "/graphql", {**OWN, "origin": "https://evil.example"}),
        ("WS", "/graphql", {**OWN, "host": "evil.example", "origin": "http://evil.example"}),
    ],
)
def test_foreign_pages_and_foreign_host_names_are_refused(method: str, target: str, headers: dict[str, str]) -> None:
    scope = request(method, target, headers)
    assert refusal(scope)
    reached: list[str] = []
    sent: list[Any] = []

    async def app(*_: Any) -> None:
        reached.append("app")

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {}

    asyncio.run(Guard(app)(scope, receive, send))
    assert not reached
    assert sent[0].get("status") == 403 or sent[0]["type"] == "websocket.close"


def test_two_hosts_are_none() -> None:
    scope = request("GET", "/", {"host": HOST})
    scope["headers"].append((b"host", b"evil.example"))
    assert refusal(scope)
