"""ClickHouse's HTTP interface over the embedded engine, as an ASGI application.

In: requests as a ClickHouse server takes them (manual, "HTTP interface"). Out: its status codes, headers, bodies and error texts. A body is
read completely before its statement starts: a client that disconnects in the middle has inserted nothing. Differences from a server: users
and rights are ours (`clickhouse_users`); of a session only SET and USE last, and temporary tables are refused (48); `compress=1`,
`decompress=1` and external data are refused (48); the engine has query ids of its own, so a statement is killed by
`Settings['log_comment']`, which holds ours.
"""

import asyncio
import binascii
import json
import logging
import secrets
import tempfile
import time
import uuid
from base64 import b64decode
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, TypeVar
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from resources.local.clickhouse import formats
from resources.local.clickhouse.engine import Answer, Engine, EngineError, Stream, server_error
from resources.local.clickhouse.request import Call, Work, plan
from resources.local.clickhouse.sessions import SessionTable
from resources.local.clickhouse.users import AUTHENTICATION_FAILED, User, UserTable

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_BODY_IN_MEMORY_BYTES = 64 << 20
_INLINE_BYTES = 64 << 10
_PLANNERS, _READERS, _WRITERS = 4, 32, 16
# exceptionCodeToHTTPStatus.cpp of the server; all others are 500.
_STATUS = {
    194: 401,
    **dict.fromkeys((192, 193, 497, 512, 516), 403),
    **dict.fromkeys((6, 8, 15, 25, 26, 27, 36, 37, 38, 41, 44, 53, 62, 72, 117, 123, 167, 168, 223, 321, 376, 427, 441, 675, 676), 400),
    **dict.fromkeys((46, 47, 50, 56, 60, 63, 73, 78, 81, 115, 152, 336, 511), 404),
    229: 413,
    48: 501,
    **dict.fromkeys((76, 209, 439), 503),
    159: 408,
    779: 415,
}


class _DisconnectedError(Exception):
    """The client closed the connection."""


@dataclass
class Exchange:
    """One request and its answer. `disconnected` is done as soon as the client has closed the connection (after the body was read)."""

    scope: Scope
    receive: Receive
    send: Send
    query_id: str
    headers: Headers
    started_ns: int = field(default_factory=time.monotonic_ns)
    disconnected: asyncio.Future[None] | None = None
    has_begun: bool = False

    async def begin(self, status: int, headers: dict[str, str]) -> None:
        self.has_begun = True
        raw = [(name.lower().encode(), value.encode("utf-8")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, body: bytes, more: bool = False) -> None:
        if self.disconnected and self.disconnected.done():
            raise _DisconnectedError
        body = b"" if self.scope["method"] == "HEAD" else body
        await self.send({"type": "http.response.body", "body": body, "more_body": more})

    async def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        await self.begin(status, headers | {"Content-Length": str(len(body))})
        await self.write(body)


class ClickHouseApp:
    """The application. Reading and writing statements have a pool of threads each, so slow SELECTs do not hold up inserts."""

    def __init__(self, engine: Engine, users: UserTable, max_body_bytes: int) -> None:
        self._engine = engine
        self._users = users
        self._max_body_bytes = max_body_bytes
        self._sessions = SessionTable()
        self._planners = ThreadPoolExecutor(_PLANNERS, "plan")
        self._readers = ThreadPoolExecutor(_READERS, "read")
        self._writers = ThreadPoolExecutor(_WRITERS, "write")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        parameters = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, errors="surrogateescape"))
        query_id = parameters.get("query_id") or str(uuid.uuid4())
        exchange = Exchange(scope, receive, send, query_id, Headers(scope=scope))
        try:
            await self._route(exchange, parameters)
        except _DisconnectedError:
            return
        except EngineError as error:
            await self._refuse(exchange, error)
        except ValueError as error:
            await self._refuse(exchange, server_error(117, str(error), "INCORRECT_DATA", self._engine.version))
        except Exception as error:
            logger.exception("answering query %s", exchange.query_id)
            await self._refuse(
                exchange, server_error(1002, f"{type(error).__name__} in the HTTP server", "UNKNOWN_EXCEPTION", self._engine.version)
            )

    async def _route(self, exchange: Exchange, parameters: dict[str, str]) -> None:
        method, path = exchange.scope["method"], exchange.scope["path"]
        text = {"Content-Type": "text/html; charset=UTF-8"}
        if path in ("/ping", "/replicas_status") or (path == "/" and method in ("GET", "HEAD") and "query" not in parameters):
            await exchange.answer(200, text, b"Ok.\n")
        elif path != "/":
            await exchange.answer(404, text, f"There is no handle {path}\nUse / or /ping for health checks.\n".encode())
        elif method not in ("GET", "HEAD", "POST"):
            await exchange.answer(405, text, b"Only GET, HEAD and POST are supported.\n")
        elif not exchange.query_id.isascii() or not exchange.query_id.isprintable():
            raise server_error(36, "query_id must be printable ASCII", "BAD_ARGUMENTS", self._engine.version)
        else:
            user = self._authenticate(exchange.headers, parameters)
            with tempfile.SpooledTemporaryFile(max_size=_BODY_IN_MEMORY_BYTES, dir=str(self._engine.spool)) as body:
                await self._take_body(exchange, body)
                exchange.disconnected = asyncio.ensure_future(_wait_until_disconnected(exchange.receive))
                try:
                    await self._serve(exchange, Call(method, exchange.headers, parameters, exchange.query_id, user, body))
                finally:
                    exchange.disconnected.cancel()

    def _authenticate(self, headers: Headers, parameters: dict[str, str]) -> User:
        name, password = "default", ""
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            try:
                name, _, password = b64decode(credentials, validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                name = ""
        elif "x-clickhouse-user" in headers or "x-clickhouse-key" in headers:
            name, password = headers.get("x-clickhouse-user", name), headers.get("x-clickhouse-key", "")
        elif "user" in parameters or "password" in parameters:
            name, password = parameters.get("user", name), parameters.get("password", "")
        user = self._users.authenticate(name, password)
        if user is None:
            text = f"{name}: Authentication failed: password is incorrect, or there is no user with such name"
            raise server_error(AUTHENTICATION_FAILED, text, "AUTHENTICATION_FAILED", self._engine.version)
        return user

    async def _take_body(self, exchange: Exchange, body: IO[bytes]) -> None:
        declared = exchange.headers.get("content-length", "0")
        size, is_too_large = 0, declared.isdecimal() and int(declared) > self._max_body_bytes
        while not is_too_large:
            message = await exchange.receive()
            if message["type"] == "http.disconnect":
                raise _DisconnectedError
            piece = message.get("body", b"")
            size += len(piece)
            is_too_large = size > self._max_body_bytes
            if size > _BODY_IN_MEMORY_BYTES:
                await asyncio.to_thread(body.write, piece)
            else:
                body.write(piece)
            if not message.get("more_body"):
                break
        if is_too_large:
            text = f"The body is larger than {self._max_body_bytes} bytes"
            raise server_error(229, text, "QUERY_IS_TOO_LARGE", self._engine.version)
        body.seek(0)

    async def _serve(self, exchange: Exchange, call: Call) -> None:
        work = await asyncio.wrap_future(self._planners.submit(plan, call, self._engine, self._sessions))
        is_streamed = work.statement.verb == "SELECT" and call.parameters.get("wait_end_of_query", "0") in ("0", "")
        joiner = formats.joiner(work.output) if is_streamed else None
        if joiner is not None:
            try:
                stream = await self._run(exchange, work, lambda: self._engine.stream(work.sql, work.output, work.options))
            except EngineError as error:
                # Not every statement that begins like a SELECT can be streamed; the engine says so before it starts.
                if error.code != 36 or "Streaming query is not supported" not in error.text:
                    raise
            else:
                await self._send_stream(exchange, call, work, stream, joiner)
                return
        answer = await self._run(exchange, work, lambda: self._execute(call, work))
        await self._send_answer(exchange, call, work, answer)

    def _execute(self, call: Call, work: Work) -> Answer:
        if work.data is not None:
            return self._engine.insert(work.sql, work.clauses, work.statement.format or "Values", work.data, work.options)
        answer = self._engine.run(work.sql, work.output, work.options)
        if work.statement.verb in ("SET", "USE") and (session := call.parameters.get("session_id")):
            self._sessions.add(call.user.name, session, call.session_timeout, work.sql)
        return answer

    async def _run(self, exchange: Exchange, work: Work, function: Callable[[], _T]) -> _T:
        """Run the function in a thread.

        If a read's client disconnects, the read is killed; a write continues to its end, as on a server.
        """
        running: Future[_T] = (self._readers if work.is_read else self._writers).submit(function)
        waiting = asyncio.wrap_future(running)
        if work.is_read and exchange.disconnected:
            watched: set[asyncio.Future[object]] = {waiting, exchange.disconnected}  # type: ignore[arg-type]
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and not running.cancel():
                self._planners.submit(self._engine.kill, exchange.query_id)
        return await waiting

    async def _send_answer(self, exchange: Exchange, call: Call, work: Work, answer: Answer) -> None:
        encoding = self._encoding(call)
        headers = self._headers(exchange, work, encoding)
        headers["X-ClickHouse-Summary"] = _summary(exchange, answer)
        if len(answer.body) <= _INLINE_BYTES:
            encoder = formats.Encoder(encoding)
            body = encoder.encode(answer.body) + encoder.finish() if len(answer.body) else b""
            await exchange.answer(200, headers, body)
            return
        if not encoding:
            headers["Content-Length"] = str(len(answer.body))
        await exchange.begin(200, headers)
        encoder = formats.Encoder(encoding)
        for piece in formats.cut(answer.body):
            await exchange.write(await asyncio.to_thread(encoder.encode, piece), more=True)
        await exchange.write(encoder.finish())

    async def _send_stream(self, exchange: Exchange, call: Call, work: Work, stream: Stream, joiner: formats.Joiner) -> None:
        """Send block by block. An error after the first byte is reported in the body, and the connection is cut, as by a server."""
        encoder = formats.Encoder(encoding := self._encoding(call))
        tag = secrets.token_hex(8)
        is_last = False

        def next_piece() -> tuple[bytes, bool]:
            block, is_last = stream.fetch()
            piece = joiner.join(block) if block else b""
            piece += joiner.finish() if is_last else b""
            return (encoder.encode(piece) if piece else b"") + (encoder.finish() if is_last else b""), is_last

        try:
            piece, is_last = await self._run(exchange, work, next_piece)
            headers = self._headers(exchange, work, encoding) | {"X-ClickHouse-Exception-Tag": tag}
            found = Answer(memoryview(b""), stream.read_rows, stream.read_bytes, result_rows=stream.result_rows)
            headers["X-ClickHouse-Summary"] = _summary(exchange, found)
            await exchange.begin(200, headers)
            await exchange.write(piece, more=not is_last)
            while not is_last:
                piece, is_last = await self._run(exchange, work, next_piece)
                await exchange.write(piece, more=not is_last)
        except EngineError as error:
            if not exchange.has_begun:
                raise
            text = f"{error.text}\n".encode()
            closing = f"\r\n__exception__\r\n{tag}\r\n".encode() + text + f"{len(text)} {tag}\r\n__exception__\r\n".encode()
            # Returning without the end of the body makes uvicorn cut the connection.
            await exchange.write(encoder.encode(closing) + encoder.finish(), more=True)
        finally:
            self._planners.submit(stream.close if is_last else stream.cancel)

    async def _refuse(self, exchange: Exchange, error: EngineError) -> None:
        if exchange.has_begun:
            return
        status = _STATUS.get(error.code, 500)
        headers = self._common(exchange) | {"X-ClickHouse-Exception-Code": str(error.code), "Content-Type": "text/plain; charset=UTF-8"}
        if status == 413:
            headers["Connection"] = "close"
        await exchange.answer(status, headers, f"{error.text}\n".encode("utf-8", "replace"))

    def _common(self, exchange: Exchange) -> dict[str, str]:
        query_id = exchange.query_id if exchange.query_id.isascii() and exchange.query_id.isprintable() else ""
        names = {"X-ClickHouse-Server-Display-Name": self._engine.display_name, "X-ClickHouse-Timezone": self._engine.timezone}
        return names | {"X-ClickHouse-Query-Id": query_id}

    def _headers(self, exchange: Exchange, work: Work, encoding: str) -> dict[str, str]:
        headers = self._common(exchange) | {"X-ClickHouse-Format": work.output, "Content-Type": formats.content_type(work.output)}
        return headers | ({"Content-Encoding": encoding} if encoding else {})

    def _encoding(self, call: Call) -> str:
        if call.parameters.get("enable_http_compression", "1") == "0":
            return ""
        return formats.response_encoding(call.headers.get("accept-encoding", ""))

    def stop(self) -> None:
        """Start no further statement; do not wait for running ones."""
        for pool in (self._planners, self._readers, self._writers):
            pool.shutdown(wait=False, cancel_futures=True)


async def _wait_until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


def _summary(exchange: Exchange, answer: Answer) -> str:
    figures = {
        "read_rows": answer.read_rows,
        "read_bytes": answer.read_bytes,
        "written_rows": answer.written_rows,
        "written_bytes": answer.written_bytes,
        "total_rows_to_read": 0,
        "result_rows": answer.result_rows,
        "result_bytes": len(answer.body) or answer.written_bytes,
        "elapsed_ns": time.monotonic_ns() - exchange.started_ns,
    }
    return json.dumps({name: str(value) for name, value in figures.items()}, separators=(",", ":"))
