"""The dashboard's server: the page, its files, and the figures as JSON, on loopback, for this host's own browser only."""

import json
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipelines.config import PipelineConfig
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.dashboard.figures import Choice, RollupFigures, all_figures
from pipelines.errors import ConfigurationError, Fault, HaltError, TallyflowError
from pipelines.loopback import LoopbackServer

PAGE = Path(__file__).parent / "page"
_HEADERS = {
    # Nothing from elsewhere, nothing inline: what a row of the table holds can never run.
    b"content-security-policy": b"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}
_MOST_TEXT = 4096


class _Headers:
    """Adds the headers that keep a browser to this page."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS.items()]
            await send(message)

        await self._application(scope, receive, with_headers)


class _Figures:
    """The figures of all rollups of a file, asked for one request after the other: a client serves one thread at a time."""

    def __init__(self, config: PipelineConfig) -> None:
        self._lock, self._clients = threading.Lock(), []
        self.by_name: dict[str, RollupFigures] = {}
        for seen in config.by_sink:
            clickhouse = ClickHouse(seen.sink)
            self._clients.append(clickhouse)
            self.by_name |= all_figures(seen, clickhouse)

    def ask(self, name: str, question: Callable[[RollupFigures], Any]) -> Any:
        if name not in self.by_name:
            raise LookupError(f"there is no rollup {name!r}")
        with self._lock:
            return question(self.by_name[name])

    def close(self) -> None:
        for client in self._clients:
            client.close()


def application_of(config: PipelineConfig, figures: _Figures) -> ASGIApp:
    """Return the application: `/` the page, `/page/` its files, `/api/` the figures."""
    title = config.name or config.pipeline_id

    def page(_: Request) -> Response:
        return FileResponse(PAGE / "index.html", media_type="text/html")

    def rollups(_: Request) -> Response:
        return JSONResponse({"title": title, "rollups": [one.description for one in figures.by_name.values()]})

    def groups(request: Request) -> Response:
        return _answered(lambda: {"groups": figures.ask(request.query_params.get("rollup", ""), RollupFigures.groups)})

    def of_window(request: Request) -> Response:
        def answer() -> Any:
            choice = _choice(request.query_params)
            return figures.ask(request.query_params.get("rollup", ""), lambda one: one.of(choice))

        return _answered(answer)

    routes = [
        Route("/", page),
        Route("/api/rollups", rollups),
        Route("/api/groups", groups),
        Route("/api/figures", of_window),
        Mount("/page", StaticFiles(directory=PAGE)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(_Headers)])


def _choice(asked: Mapping[str, str]) -> Choice:
    """Return what a request asks for. Raise LookupError for anything but a window and a JSON list of texts."""
    text = asked.get("group", "[]")
    try:
        group = json.loads(text) if len(text) <= _MOST_TEXT else None
    except (ValueError, RecursionError):
        group = None
    if not isinstance(group, list) or not all(isinstance(one, str) for one in group):
        raise LookupError("the group must be a JSON list of texts")
    return Choice(asked.get("window", ""), tuple(group))


def _answered(answer: Callable[[], Any]) -> Response:
    """Return the answer as JSON: 404 for what does not exist, 503 with the reason while ClickHouse cannot answer."""
    try:
        return JSONResponse(answer())
    except LookupError as error:
        return JSONResponse({"error": str(error.args[0])}, 404)
    except TallyflowError as error:
        return JSONResponse({"error": str(error)}, 503)


class Dashboard:
    """A dashboard at a port of loopback. `url` may be opened as soon as this exists; requests wait until it serves."""

    def __init__(self, config: PipelineConfig, port: int = 0) -> None:
        """Listen. Raise ConfigurationError for a file without rollups, HaltError if the port is taken."""
        self._figures = _Figures(config)
        if not self._figures.by_name:
            raise ConfigurationError(
                f"pipeline {config.pipeline_id}", [Fault("sink.rollups", "the dashboard shows rollups, and there are none")]
            )
        try:
            self._socket = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise HaltError(f"serving the dashboard: port {port} cannot be used ({error.strerror}); choose another with --port") from error
        self._server = LoopbackServer(application_of(config, self._figures), {"log_level": "error", "timeout_graceful_shutdown": 2})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/"

    def refresh(self) -> None:
        """Let ClickHouse compute the windows of all rollups now."""
        for name in self._figures.by_name:
            self._figures.ask(name, RollupFigures.refresh)

    def serve(self) -> None:
        """Serve until `stop`, Ctrl-C or SIGTERM."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._figures.close()

    def stop(self) -> None:
        """Let `serve` return. For any thread."""
        self._server.end()
