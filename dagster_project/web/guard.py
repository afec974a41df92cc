"""Blocks requests of other sites' pages to a web server that has no login.

A browser on this host sends requests for any page that it shows, and Dagster accepts a mutation even as a plain URL. Allowed: requests of
Dagster's own pages, of clients that are not browsers (curl, a library), and links that lead to a page. `deployment/nginx.conf` does the
same where nginx is in front.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Allowed names of this host: a page that uses another name for this address may pose as ours (DNS rebinding).

Any port, for tunnels.
"""
_READS = frozenset({"GET", "HEAD"})


class Guard:
    """The application, for requests without a `refusal`; others get 403, and a WebSocket is not opened."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = refusal(scope) if scope["type"] in ("http", "websocket") else ""
        if not why:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": why})
        else:
            text = f"refused: {why}\n".encode()
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text)).encode())]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": text})


def refusal(scope: Scope) -> str:
    """Return why a request, or a WebSocket, of an ASGI scope is refused; empty if it is allowed."""
    hosts, origins, sites = (_values(scope, name) for name in (b"host", b"origin", b"sec-fetch-site"))
    if len(hosts) != 1 or _without_port(hosts[0]) not in _NAMES:
        return "this Dagster answers at http://127.0.0.1 only"
    if any(origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}") for origin in origins):
        return "the request comes from a page of another site"
    is_graphql = "graphql" in scope["path"].lower()
    is_read = scope["type"] == "http" and scope["method"] in _READS
    if any(site not in ("same-origin", "none") for site in sites) and not (is_read and not is_graphql and _is_link(scope)):
        return "the request comes from a page of another site"
    if is_graphql and is_read and "query" in parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True):
        return "a GraphQL operation must be sent by POST"
    if is_graphql and scope["type"] == "http" and scope["method"] == "POST" and not _is_json(scope):
        return "a GraphQL operation must be sent as application/json"
    return ""


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").lower() for key, value in scope["headers"] if key.lower() == name]


def _without_port(host: str) -> str:
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def _is_link(scope: Scope) -> bool:
    """Return True if somebody follows a link to a page, in a window of its own."""
    return _values(scope, b"sec-fetch-mode") == ["navigate"] and _values(scope, b"sec-fetch-dest") == ["document"]


def _is_json(scope: Scope) -> bool:
    return [value.partition(";")[0].strip() for value in _values(scope, b"content-type")] == ["application/json"]
