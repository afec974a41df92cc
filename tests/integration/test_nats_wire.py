"""The connection for frames: against the real server through JetStream, and against what a server may send, byte for byte."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from uuid import uuid4

import pytest
from nats.errors import ConnectionClosedError, TimeoutError
from support.pipeline_case import wait_until

from pipelines.config import NatsConnection
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.nats.wire import DESCRIPTION, STATUS, Exchange, Reply, Request, Wire, parsed_headers
from pipelines.errors import RetryableError
from pipelines.protocol.ledger import Append
from resources.local.stack import LocalStack

pytestmark = pytest.mark.integration
MOST_BYTES = 1024 * 1024


@pytest.fixture
def log(running_stack: LocalStack) -> Iterator[JetStream]:
    with closing(JetStream(NatsConnection(url=running_stack.addresses().nats_url), "test").connect()) as opened:
        yield opened


@pytest.fixture
def stream(log: JetStream) -> Iterator[str]:
    name = f"wire-{uuid4().hex[:8]}"
    log.ensure_stream(name, f"{name}.>", {})
    yield name
    log.delete_stream(name)


@pytest.fixture
def ends() -> Iterator[tuple[Wire, socket.socket]]:
    """A wire, and the server's end of it."""
    ours, theirs = socket.socketpair()
    wire = Wire(ours, "_INBOX.a", MOST_BYTES)
    assert theirs.recv(100) == b"SUB _INBOX.a.* 1\r\n"
    yield wire, theirs
    wire.close()
    theirs.close()


def asked(wire: Wire, theirs: socket.socket) -> "Exchange[list[list[Reply]]]":
    """One request, as the server has got it."""
    exchange = wire.ask([Request("s", b"x")], lambda replies: replies)
    assert theirs.recv(100) == b"PUB s _INBOX.a.0 1\r\nx\r\n"
    return exchange


# -- what is sent and read --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "headers"),
    [
        (b"NATS/1.0\r\nA: b\r\nTf-Topic: t:u\r\n\r\n", {"A": "b", "Tf-Topic": "t:u"}),
        (b"NATS/1.0 503\r\n\r\n", {STATUS: "503"}),
        (b"NATS/1.0 404 No Messages\r\n\r\n", {STATUS: "404", DESCRIPTION: "No Messages"}),
        (b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 3\r\n\r\n", {STATUS: "204", DESCRIPTION: "EOB", "Nats-Num-Pending": "3"}),
    ],
)
def test_headers_are_read_with_the_status_of_the_server(sent: bytes, headers: dict[str, str]) -> None:
    assert parsed_headers(sent) == headers


def test_an_answer_in_pieces_is_read_whole(ends: tuple[Wire, socket.socket]) -> None:
    wire, theirs = ends
    exchange = asked(wire, theirs)
    for piece in (b"HMSG _INBOX.a.0 1 ", b"18 21\r\nNATS/1.0\r\nA: b", b"\r\n\r\n\x00\r", b"\n\r\n"):
        theirs.sendall(piece)
    ((reply,),) = exchange.result(10)
    assert reply == Reply(b"\x00\r\n", {"A": "b"})


def test_pings_are_answered_and_notes_passed_over(ends: tuple[Wire, socket.socket]) -> None:
    wire, theirs = ends
    theirs.sendall(b'INFO {"a":1}\r\n+OK\r\nPING\r\n')
    assert theirs.recv(100) == b"PONG\r\n"
    theirs.sendall(b"MSG _INBOX.a.99 1 1\r\nx\r\n")
    exchange = asked(wire, theirs)
    theirs.sendall(b"MSG _INBOX.a.0 1 2\r\nok\r\n")
    assert exchange.result(10) == [[Reply(b"ok")]]


def test_headers_conditions_and_contents_arrive_as_sent(log: JetStream, stream: str) -> None:
    payload = bytes(range(256)) * 100 + b"\r\nPUB x 1\r\n"
    assert log.publish(f"{stream}.a", payload, {"Tf-Topic": "orders", "Tf-Rows": "7"}, 0) == 1
    assert log.publish(f"{stream}.a", b"", {}, 1) == 2
    for found in (log.get(stream, 1), next(log.fetch(stream, f"{stream}.a", 0, 1))):
        assert found is not None
        assert (found.payload, found.headers["Tf-Topic"], found.headers["Tf-Rows"]) == (payload, "orders", "7")
    assert [message.payload for message in log.fetch(stream, f"{stream}.a", 1, 2)] == [b""]


def test_threads_get_their_own_answers_at_the_same_time(log: JetStream, stream: str) -> None:
    def append(subject: int) -> list[int]:
        last, sequences = 0, []
        for number in range(50):
            last = log.publish(f"{stream}.{subject}", b"%d" % number * 1000, {}, last)
            sequences.append(last)
        return sequences

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(append, range(8)))
    assert sorted(sequence for sequences in found for sequence in sequences) == list(range(1, 401))
    for subject, sequences in enumerate(found):
        messages = list(log.fetch(stream, f"{stream}.{subject}", 0, 400))
        assert [(m.sequence, m.payload) for m in messages] == [(s, b"%d" % n * 1000) for n, s in enumerate(sequences)]


def test_hundreds_of_appends_go_at_once(log: JetStream, stream: str) -> None:
    appends = [Append(f"{stream}.{number}", b"%d" % number, {"A": "b"}, 0) for number in range(400)]
    assert log.store_all(appends) == list(range(1, 401))


# -- what is lost -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"-ERR 'Stale Connection'\r\n", b"MSG _INBOX.a.0 1\r\n", b"HMSG _INBOX.a.0 1 x y\r\n", b"\r\n", b""])
def test_what_is_no_answer_ends_the_connection(ends: tuple[Wire, socket.socket], sent: bytes) -> None:
    wire, theirs = ends
    exchange = asked(wire, theirs)
    theirs.sendall(sent)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionClosedError):
        exchange.result(10)
    wait_until(lambda: wire.is_closed, "the end of the connection")
    with pytest.raises(ConnectionClosedError):
        wire.ask([Request("s", b"x")], len)


def test_an_answer_cut_off_within_is_none(ends: tuple[Wire, socket.socket]) -> None:
    wire, theirs = ends
    exchange = asked(wire, theirs)
    theirs.sendall(b"MSG _INBOX.a.0 1 100\r\nonly this")
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionClosedError):
        exchange.result(10)


def test_an_answer_that_does_not_come_ends_the_connection(ends: tuple[Wire, socket.socket]) -> None:
    wire, theirs = ends
    exchange = asked(wire, theirs)
    with pytest.raises(TimeoutError):
        exchange.result(0.01)
    exchange.cancel()
    assert wire.is_closed


def test_a_lost_connection_is_made_anew_by_the_next_request(log: JetStream, stream: str) -> None:
    assert log.publish(f"{stream}.a", b"x", {}, 0) == 1
    first = log._plain_wire()
    assert first is not None
    first.close()
    assert log.publish(f"{stream}.a", b"y", {}, 1) == 2
    assert log._plain_wire() is not first


class CountedLock:
    """A lock that counts who has asked for it."""

    def __init__(self) -> None:
        self.asked, self._lock = 0, threading.Lock()

    def __enter__(self) -> None:
        self.asked += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_one_attempt_stands_for_all_that_wait_for_it(log: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, attempts = CountedLock(), list[int]()

    async def fail() -> Wire:
        attempts.append(lock.asked)
        while lock.asked < 4:
            await asyncio.sleep(0.001)
        raise RetryableError("nobody answers")

    monkeypatch.setattr(log, "_wiring", lock)
    monkeypatch.setattr(log, "_open_wire", fail)
    with ThreadPoolExecutor(4) as threads:
        raised = [asking.exception(30) for asking in [threads.submit(log.state, "any") for _ in range(4)]]
    assert [str(error) for error in raised] == ["nobody answers"] * 4
    assert len(attempts) == 1
    monkeypatch.undo()
    assert log.state("any") is None


def test_a_closed_connection_closes_that_for_frames(running_stack: LocalStack) -> None:
    log = JetStream(NatsConnection(url=running_stack.addresses().nats_url), "test").connect()
    wire = log._plain_wire()
    log.close()
    assert wire is not None
    assert wire.is_closed
