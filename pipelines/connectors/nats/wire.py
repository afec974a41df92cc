"""A plain connection to NATS for what is large or frequent: requests, written by the threads that make them, and one thread that reads.

The client takes 635 us of CPU to publish a frame of 250 kB, and 480 us to read one; here it is 170 and 95 (2 cores): a frame passes through
no event loop, and is copied once. The client connects, as it knows the servers, the credentials and the order of both, and hands its socket
over. Protocol: docs.nats.io/reference/reference-protocols/nats-protocol. A connection that was lost, or did not answer in time, is not used
again.
"""

import io
import itertools
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from nats.aio.client import Client
from nats.errors import ConnectionClosedError, TimeoutError

T = TypeVar("T")

_READ_BYTES = 128 * 1024
_SEND_SECONDS = 5
_PIECES = 256
"""Limit of the pieces of one call of the kernel, which takes 1,024."""
_HEADER_LINE = b"NATS/1.0"
STATUS, DESCRIPTION = "Status", "Description"
NOBODY = "503"
"""The status of an answer by which the server tells that nobody serves the subject."""


class Request(NamedTuple):
    """A message to publish with an address for its answer."""

    subject: str
    payload: bytes
    headers: Mapping[str, str] = {}


@dataclass(frozen=True)
class Reply:
    """An answer, or one message of it. `headers`: with STATUS and DESCRIPTION, if the server has answered by itself."""

    data: bytes
    headers: dict[str, str] = field(default_factory=dict)


class Exchange(Generic[T]):
    """Requests that were sent, and their answers as `read` makes them; `has_ended` tells the last message of an answer."""

    def __init__(self, wire: "Wire", read: Callable[[list[list[Reply]]], T], has_ended: Callable[[Reply], bool], count: int) -> None:
        self._wire, self._read, self._has_ended, self._open = wire, read, has_ended, count
        self._replies: list[list[Reply]] = [[] for _ in range(count)]
        self._ended = threading.Event()

    def take(self, number: int, reply: Reply) -> bool:
        """Note a message of the answer with this number; return whether it was the last one. For the thread that reads."""
        self._replies[number].append(reply)
        is_last = self._has_ended(reply)
        self._open -= is_last
        if not self._open:
            self._ended.set()
        return is_last

    def lose(self) -> None:
        """End the wait: the connection is lost. For any thread."""
        self._ended.set()

    def result(self, timeout_seconds: float) -> T:
        """Return what `read` makes of the messages of each answer, or raise what it raises.

        Raise nats.errors.TimeoutError if nothing has come for so long, ConnectionClosedError if the connection was lost before.
        """
        seen = 0
        while not self._ended.wait(timeout_seconds):
            now = sum(map(len, self._replies))
            if now == seen:
                raise TimeoutError
            seen = now
        if self._open:
            raise ConnectionClosedError
        return self._read(self._replies)

    def cancel(self) -> None:
        """Close the connection, unless all answers are there: what did not answer in time may be gone."""
        if self._open:
            self._wire.close()


class Wire:
    """A connection that has taken over the socket of a client. Thread-safe. `inbox`: answers come to the subjects below it."""

    def __init__(self, taken: socket.socket, inbox: str, max_payload_bytes: int) -> None:
        self._socket, self._inbox, self._max_payload_bytes = taken, inbox, max_payload_bytes
        self._exchanges: dict[bytes, tuple[Exchange[Any], int]] = {}
        self._numbers = itertools.count()
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self.is_closed = False
        self._send([f"SUB {inbox}.* 1\r\n".encode()])
        threading.Thread(target=self._read_until_lost, name="nats frames", daemon=True).start()

    def ask(
        self,
        requests: Sequence[Request],
        read: Callable[[list[list[Reply]]], T],
        has_ended: Callable[[Reply], bool] = lambda reply: True,
    ) -> Exchange[T]:
        """Send requests, of which each `fits`, and return without waiting. Raise ConnectionClosedError."""
        exchange = Exchange(self, read, has_ended, len(requests))
        names = [b"%d" % next(self._numbers) for _ in requests]
        pieces = [piece for name, request in zip(names, requests, strict=True) for piece in self._published(name, request)]
        with self._lock:
            if self.is_closed:
                raise ConnectionClosedError
            self._exchanges.update((name, (exchange, number)) for number, name in enumerate(names))
        self._send(pieces)
        return exchange

    def fits(self, request: Request) -> bool:
        """Return whether the server takes a message so large."""
        return len(_encoded(request.headers)) + len(request.payload) <= self._max_payload_bytes

    def _published(self, name: bytes, request: Request) -> list[bytes]:
        headers = _encoded(request.headers)
        size = len(headers) + len(request.payload)
        operation, sizes = (b"HPUB", b"%d %d" % (len(headers), size)) if headers else (b"PUB", b"%d" % size)
        head = b"%s %s %s.%s %s\r\n%s" % (operation, request.subject.encode(), self._inbox.encode(), name, sizes, headers)
        return [head, request.payload, b"\r\n"]

    def _send(self, pieces: Sequence[bytes]) -> None:
        try:
            with self._sending:
                for at in range(0, len(pieces), _PIECES):
                    self._send_all([memoryview(piece) for piece in pieces[at : at + _PIECES]])
        except OSError as error:
            # Half of a message may have been sent: nothing may follow it.
            self.close()
            raise ConnectionClosedError from error

    def _send_all(self, views: list[memoryview]) -> None:
        while views:
            sent = self._socket.sendmsg(views)
            while views and sent >= len(views[0]):
                sent -= len(views.pop(0))
            if views:
                views[0] = views[0][sent:]

    def _read_until_lost(self) -> None:
        # What is not of the protocol ends the connection as a loss does.
        with (
            suppress(OSError, ValueError, IndexError, EOFError),
            io.BufferedReader(self._socket.makefile("rb", buffering=0), _READ_BYTES) as file,
        ):
            while (line := file.readline()) and not line.startswith(b"-ERR"):
                self._take(line, file)
        self.close()
        self._socket.close()

    def _take(self, line: bytes, file: "io.BufferedReader[Any]") -> None:
        operation, *words = line.split()
        if operation == b"PING":
            with suppress(ConnectionClosedError):
                self._send([b"PONG\r\n"])
        if operation not in (b"MSG", b"HMSG"):
            return
        header_bytes = int(words[-2]) if operation == b"HMSG" else 0
        headers = parsed_headers(_exactly(file, header_bytes)) if header_bytes else {}
        data = _exactly(file, int(words[-1]) - header_bytes)
        if _exactly(file, 2) != b"\r\n":
            raise ValueError
        name = words[0].rpartition(b".")[2]
        with self._lock:
            exchange, number = self._exchanges.get(name, (None, 0))
        if exchange is not None and exchange.take(number, Reply(data, headers)):
            with self._lock:
                self._exchanges.pop(name, None)

    def close(self) -> None:
        """Close the connection; whoever waits for an answer is told. For any thread, again and again."""
        with self._lock:
            self.is_closed = True
            lost, self._exchanges = self._exchanges, {}
        # Wakes the thread that reads, which closes the socket.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for exchange in {id(exchange): exchange for exchange, _ in lost.values()}.values():
            exchange.lose()


def _exactly(file: "io.BufferedReader[Any]", count: int) -> bytes:
    read = file.read(count)
    if len(read) < count:
        raise EOFError
    return read


def _encoded(headers: Mapping[str, str]) -> bytes:
    if not headers:
        return b""
    return b"".join([_HEADER_LINE, b"\r\n", *(f"{name}: {value}\r\n".encode() for name, value in headers.items()), b"\r\n"])


def parsed_headers(headers: bytes) -> dict[str, str]:
    """Return the headers of a message, with the status that may stand in their first line."""
    first, *lines = headers.decode(errors="replace").split("\r\n")
    status, _, description = first.removeprefix(_HEADER_LINE.decode()).strip().partition(" ")
    parsed = {name: value.strip() for name, separator, value in (line.partition(":") for line in lines) if separator}
    return parsed | ({STATUS: status} if status else {}) | ({DESCRIPTION: description} if description else {})


def is_plain(client: Client) -> bool:
    """Return whether a connected client has a socket of its own, and sends and gets through it what is not encrypted."""
    writer = getattr(client._transport, "_io_writer", None)
    return writer is not None and writer.get_extra_info("ssl_object") is None


async def taken_over(client: Client) -> Wire:
    """Return a wire with the socket of a client that `is_plain` and has just connected; close the client."""
    inbox, most = client.new_inbox(), client.max_payload
    taken = socket.socket(fileno=os.dup(client._transport._io_writer.get_extra_info("socket").fileno()))
    await client.close()
    taken.setblocking(True)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SECONDS, 0))
    return Wire(taken, inbox, most)
