"""HTTP on a loopback port, which every user of the host can reach, and every web page that one of them opens.

`local_only` refuses requests of web pages, and requests under another host name (DNS rebinding). `BoundedConnection` keeps silent
connections from using up the descriptors of the process.
"""

import asyncio
import ipaddress

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol


def local_only(application: ASGIApp) -> ASGIApp:
    """Wrap the application so that it receives only requests without a `refusal`."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        reason = refusal(Headers(scope=scope)) if scope["type"] == "http" else ""
        if reason:
            await PlainTextResponse(f"{reason}\n", 403, {"Connection": "close"})(scope, receive, send)
        else:
            await application(scope, receive, send)

    return guarded


def refusal(headers: Headers) -> str:
    """Return why a request must be refused, empty if it may be answered: it names another host, or another origin's page sends it.

    Ports are not compared: a tunnel or a proxy has another one.
    """
    host = headers.get("host", "")
    if not is_loopback(host):
        return "this server answers to 127.0.0.1, [::1] and localhost only"
    if headers.get("origin", f"http://{host}") != f"http://{host}":
        return "this server answers no page of another origin"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "this server answers no page of another site"
    return ""


def is_loopback(host: str) -> bool:
    """Return True for the name or address of this host's own interface, with or without a port."""
    name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if not name:
        name, port = port, ""
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


class BoundedConnection(H11Protocol):
    """One connection: refused beyond `most_connections`, closed if its request head takes longer than `head_seconds`.

    uvicorn 0.54 bounds neither: `limit_concurrency` counts only connections that have sent a whole request.
    """

    most_connections = 32
    head_seconds = 5.0
    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= self.most_connections:
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()
        elif self._closing is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._closing = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
