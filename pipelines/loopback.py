"""HTTP on a loopback port, which every user of the host can reach, and every web page that one of them opens.

A `LoopbackServer` passes on only what `local_only` does: no requests of web pages, and none under another host name (DNS rebinding). Its
`BoundedConnection`s keep silent connections from using up the descriptors of the process.
"""

import asyncio
import ipaddress
import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from types import FrameType
from typing import Any

import uvicorn
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
        # For an answer to a request, whose headers are read here: `LoopbackServer` has no clock that ticks.
        self.server_state.default_headers = [(b"date", _date(int(time.time()))), *self.config.encoded_headers]
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


# To make it for each answer was a twentieth of the local ClickHouse's time in Python.
@lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


class LoopbackServer(uvicorn.Server):
    """A server of `application` that wakes for requests only, until `end` or a signal.

    uvicorn 0.54 wakes ten times a second to see whether it is to end: 0.0025 of a core in a runner that is otherwise idle at 0.03.
    """

    def __init__(self, application: ASGIApp, settings: Mapping[str, Any], connection: type[BoundedConnection] = BoundedConnection) -> None:
        """Create without listening. `settings`: of `uvicorn.Config`, beside those of every server here.

        As many connections as it takes may queue before the first is handled.
        """
        shared = {"http": connection, "ws": "none", "access_log": False, "date_header": False, "backlog": connection.most_connections}
        super().__init__(uvicorn.Config(local_only(application), **{**shared, **settings}))
        self._serving: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    async def main_loop(self) -> None:
        """Return when the server is to end."""
        _, ending = self._serving = asyncio.get_running_loop(), asyncio.Event()
        if not self.should_exit:
            await ending.wait()

    def end(self) -> None:
        """Let `run` return, after the requests in progress. For any thread; may be called again, and before `run`."""
        self.should_exit = True
        if self._serving is not None:
            loop, ending = self._serving
            with suppress(RuntimeError):  # the loop is closed: `run` has returned
                loop.call_soon_threadsafe(ending.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End at a signal, as `uvicorn.Server` does."""
        super().handle_exit(sig, frame)
        self.end()
