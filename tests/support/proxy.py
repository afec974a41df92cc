"""A TCP proxy on loopback between a pipeline and one of its servers: a test makes the network fail while they talk.

It runs on a thread of its own; every method may be called from any other and has taken effect when it returns. What a fault does is counted
(`connections`, `cuts`, `half_closes`), so that a test waits for a count and never for a time.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

HOST = "127.0.0.1"
_CHUNK_BYTES = 64 * 1024
_PATIENCE_SECONDS = 30.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER: on, zero seconds."""


@dataclass
class _Fault:
    """What is done to the next `left` requests that contain `when`; of `in_a_row` of them that were hit, the next one passes."""

    when: bytes = b""
    left: int = 0
    in_a_row: int = 0
    streak: int = 0
    after_bytes: int = 0

    def hits(self, request: bytes) -> bool:
        if not self.left or self.when not in request:
            return False
        if self.in_a_row and self.streak == self.in_a_row:
            self.streak = 0
            return False
        self.streak, self.left = self.streak + 1, self.left - 1
        return True


@dataclass(eq=False)
class _Link:
    """One client's connection and ours to the server. Bytes wait while `gate` is not set."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    is_mute: bool = False
    """The answers wait as well, although requests pass."""
    is_armed: bool = False

    def reset(self) -> None:
        for writer in (self.client, self.server):
            if writer is not None and not writer.is_closing():
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                writer.transport.abort()


class Proxy:
    """Passes everything on to `port` of this host, until told otherwise. A context manager; its own port is `port`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.latency_seconds = 0.0
        """Between a byte's arrival here and its departure, in each direction; of connections that are made from now on."""
        self.connections = self.cuts = self.half_closes = 0
        self._cut, self._half_close = _Fault(), _Fault()
        self._is_silent = False
        self._held: bytes | None = None
        self._muted: bytes | None = None
        self._speaks = asyncio.Event()
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        # Bound and never listening: the port stays ours while connections to it are refused.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind((HOST, 0))
        self.port: int = self._reserved.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_SECONDS)
        self._loop.close()
        self._reserved.close()

    # -- faults -------------------------------------------------------------------------------------------------------------

    def pass_on(self) -> None:
        """Ends refusing, holding and silence; what was held back is delivered, late."""
        self._call(self._pass_on())

    def refuse(self) -> None:
        """Resets every connection and refuses new ones, as when nothing listens."""
        self._call(self._refuse())

    def be_silent(self) -> None:
        """Accepts connections and says nothing, on the present ones as well: a network that drops packets."""
        self._call(self._be_silent())

    def hold(self, when: bytes) -> None:
        """Holds back each request that contains `when`, and its connection with it."""
        self._held = when

    def mute(self, when: bytes) -> None:
        """Lets each request that contains `when` through, and holds back its answer, and whatever its connection is answered behind it."""
        self._speaks.clear()
        self._muted = when

    def forget(self) -> None:
        """The present connections never say anything again, nor are they closed: a peer that went without a word. New ones pass."""
        self._call(self._forget())

    def cut(self, times: int, when: bytes, in_a_row: int = 0, after_bytes: int = 0) -> None:
        """Lets a request that contains `when` through and ends its connection before a byte of the answer, for so many requests.

        `in_a_row`: after so many of them in succession, one is answered. `after_bytes`: so much of the answer comes before the end.
        """
        self._cut = _Fault(when, times, in_a_row, after_bytes=after_bytes)

    def half_close(self, times: int, when: bytes, after_bytes: int) -> None:
        """Ends the sending direction `after_bytes` after the start of a request that contains `when`; the answer still passes."""
        self._half_close = _Fault(when, times, after_bytes=after_bytes)

    # -- on the loop --------------------------------------------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_SECONDS)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, self.port, reuse_port=True, limit=_CHUNK_BYTES)

    async def _pass_on(self) -> None:
        self._is_silent, self._held, self._muted = False, None, None
        self._speaks.set()
        for link in self._links:
            link.gate.set()
        if self._server is None:
            await self._listen()

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for link in self._links:
            link.reset()

    async def _be_silent(self) -> None:
        self._is_silent = True
        for link in self._links:
            link.gate.clear()

    async def _forget(self) -> None:
        await self._be_silent()
        self._links.clear()
        self._is_silent = False

    async def _end(self) -> None:
        await self._refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(requests, client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.connections += 1
        link = _Link(client)
        if not self._is_silent:
            link.gate.set()
        self._links.add(link)
        try:
            await link.gate.wait()
            answers, link.server = await asyncio.open_connection(HOST, self._target, limit=_CHUNK_BYTES)
            await asyncio.gather(self._carry_requests(link, requests, link.server), self._carry_answers(link, answers))
        except OSError:
            link.reset()
        finally:
            self._links.discard(link)
            for writer in (link.client, link.server):
                if writer is not None:
                    writer.close()

    async def _carry_requests(self, link: _Link, requests: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        latency = self.latency_seconds
        while request := await requests.read(_CHUNK_BYTES):
            if self._held is not None and self._held in request:
                link.gate.clear()
            await link.gate.wait()
            link.is_armed = self._cut.hits(request) or link.is_armed
            link.is_mute = (self._muted is not None and self._muted in request) or link.is_mute
            if self._half_close.hits(request):
                await self._carry_beginning(link, request, requests, server)
                return
            await self._send(server, request, latency)
        await self._send(server, None, latency)

    async def _carry_beginning(self, link: _Link, request: bytes, requests: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        """`after_bytes` of the request and the end; the rest is read and dropped, as the client must see no error."""
        left = self._half_close.after_bytes
        while request and left > 0:
            await self._send(server, request[:left], 0)
            left -= len(request)
            request = await requests.read(_CHUNK_BYTES)
        # Before the end is sent: who has the answer to it finds it counted.
        self.half_closes += 1
        await self._send(server, None, 0)
        while await requests.read(_CHUNK_BYTES):
            await link.gate.wait()

    async def _carry_answers(self, link: _Link, answers: asyncio.StreamReader) -> None:
        latency = self.latency_seconds
        while answer := await answers.read(_CHUNK_BYTES):
            await link.gate.wait()
            if link.is_mute:
                await self._speaks.wait()
            if link.is_armed:
                await self._carry_part(link, answer, answers)
                return
            await self._send(link.client, answer, latency)
        await self._send(link.client, None, latency)

    async def _carry_part(self, link: _Link, answer: bytes, answers: asyncio.StreamReader) -> None:
        """So much of the answer as the cut leaves, and the end: in order where something came before it, else a reset."""
        left = self._cut.after_bytes
        while answer and left > 0:
            await self._send(link.client, answer[:left], 0)
            left -= len(answer)
            answer = await answers.read(_CHUNK_BYTES) if left > 0 else b""
        self.cuts += 1
        if self._cut.after_bytes:
            link.client.close()
        else:
            link.reset()

    async def _send(self, to: asyncio.StreamWriter, content: bytes | None, latency: float) -> None:
        """Writes `content`, or the end if there is none, `latency` later; calls of one latency stay in order."""

        def send() -> None:
            if not to.is_closing():
                to.write_eof() if content is None else to.write(content)

        if latency:
            self._loop.call_later(latency, send)
        else:
            send()
            await to.drain()
