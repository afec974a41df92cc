"""The JetStream connector against a real server."""

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import nats.errors
import psutil
import pytest
from nats.js import JetStreamContext
from support.pipeline_case import PipelineCase, pause, wait_until

from pipelines.config import NatsConnection, load
from pipelines.connectors.nats import streams as jetstream
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.nats.connection import REQUEST_TIMEOUT_SECONDS
from pipelines.connectors.nats.messages import direct_message
from pipelines.connectors.nats.streams import FETCH_BATCH_BYTES, FETCH_BATCH_MESSAGES
from pipelines.connectors.nats.wire import Reply
from pipelines.errors import ConflictError, DataLossError, HaltError, RetryableError
from pipelines.protocol.ledger import Append
from pipelines.protocol.records import Message
from pipelines.protocol.stream_limits import MAX_FRAME_BYTES
from resources.local.stack import LocalStack

pytestmark = pytest.mark.integration


@pytest.fixture
def log(running_stack: LocalStack) -> Iterator[JetStream]:
    opened = JetStream(NatsConnection(url=running_stack.addresses().nats_url), "test").connect()
    yield opened
    opened.close()


@pytest.fixture
def stream(log: JetStream) -> Iterator[str]:
    """A stream `test-x` with the subjects `test-x.>`."""
    name = f"test-{uuid4().hex[:8]}"
    log.ensure_stream(name, f"{name}.>", {"id": "first"})
    yield name
    log.delete_stream(name)


def publish(log: JetStream, subject: str, payloads: list[bytes], expected: int = 0) -> list[int]:
    """Publishes in order, each behind the one before; returns the sequences."""
    sequences = []
    for payload in payloads:
        expected = log.publish(subject, payload, {"Tf-Rows": "1"}, expected)
        sequences.append(expected)
    return sequences


def test_a_publish_succeeds_only_behind_the_expected_message(log: JetStream, stream: str) -> None:
    first = log.publish(f"{stream}.a", b"one", {}, 0)
    other = log.publish(f"{stream}.b", b"uno", {}, 0)
    second = log.publish(f"{stream}.a", b"two", {}, first)
    assert (first, other, second) == (1, 2, 3)
    for expected in (0, first, other, second + 1):
        with pytest.raises(ConflictError, match="wrong last sequence"):
            log.publish(f"{stream}.a", b"three", {}, expected)
    state = log.state(stream)
    assert state is not None
    assert (state.first_sequence, state.last_sequence, state.messages) == (1, 3, 3)


def test_several_subjects_are_appended_to_at_once(log: JetStream, stream: str) -> None:
    first = log.publish(f"{stream}.b", b"one", {}, 0)
    sizes = {"a": 1, "b": 1, "c": 1, "d": 2**21}
    a, b, c, d = log.publish_all([Append(f"{stream}.{name}", b"x" * size, {}, 0) for name, size in sizes.items()])
    stored = {name: log.last(stream, f"{stream}.{name}") for name in sizes}
    assert {a, c} == {2, 3}
    assert {name: message and message.sequence for name, message in stored.items()} == {"a": a, "b": first, "c": c, "d": None}
    assert isinstance(b, ConflictError)
    assert isinstance(d, HaltError)


def test_the_clock_is_the_one_that_stamps_messages(log: JetStream, stream: str) -> None:
    before = log.clock(stream)
    publish(log, f"{stream}.a", [b"one"])
    message = log.get(stream, 1)
    assert message is not None
    assert before <= message.time <= log.clock(stream)
    with pytest.raises(HaltError, match="reading the clock of stream"):
        log.clock("test-none")


def test_last_and_get_give_the_message_as_it_was_published(log: JetStream, stream: str) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    log.publish(f"{stream}.a", b"\x00\xff", {"Tf-First": "7", "Tf-Rows": "3"}, 0)
    log.publish(f"{stream}.b", b"", {}, 0)
    for found in (log.last(stream, f"{stream}.a"), log.get(stream, 1)):
        assert found is not None
        assert (found.subject, found.sequence, found.payload, found.rows) == (f"{stream}.a", 1, b"\x00\xff", 3)
        assert found.headers["Tf-First"] == "7"
        assert before < found.time < datetime.now(UTC) + timedelta(seconds=1)
    newest = log.last(stream, f"{stream}.>")
    assert newest is not None
    assert (newest.sequence, newest.payload) == (2, b"")


def test_an_empty_subject_and_an_unwritten_sequence_are_none(log: JetStream, stream: str) -> None:
    assert log.last(stream, f"{stream}.a") is None
    assert log.get(stream, 1) is None
    publish(log, f"{stream}.a", [b"1"])
    assert log.last(stream, f"{stream}.b") is None
    assert log.get(stream, 2) is None


def test_fetch_goes_over_several_windows_in_order(log: JetStream, stream: str) -> None:
    count = 2 * FETCH_BATCH_MESSAGES + 40
    publish(log, f"{stream}.a", [b"%d" % number for number in range(count)])
    assert [m.sequence for m in log.fetch(stream, f"{stream}.>", 0, count)] == list(range(1, count + 1))
    middle = list(log.fetch(stream, f"{stream}.>", FETCH_BATCH_MESSAGES - 1, FETCH_BATCH_MESSAGES + 2))
    assert [(m.sequence, m.payload) for m in middle] == [(n, b"%d" % (n - 1)) for n in range(256, 259)]
    assert list(log.fetch(stream, f"{stream}.>", count, count)) == []
    assert list(log.fetch(stream, f"{stream}.>", count, count + 100)) == []


def test_fetch_limits_its_windows_by_bytes(log: JetStream, stream: str) -> None:
    payload = bytes(500_000)
    count = FETCH_BATCH_BYTES // len(payload) + 8
    publish(log, f"{stream}.a", [payload] * count)
    found = list(log.fetch(stream, f"{stream}.>", 0, count))
    assert [m.sequence for m in found] == list(range(1, count + 1))
    assert all(m.payload == payload for m in found)


def test_a_fetch_takes_nothing_behind_its_range(log: JetStream, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(log, f"{stream}.a", [b"x"] * 20)
    taken: list[Message] = []

    def taking(reply: Reply) -> Message:
        taken.append(direct_message(reply))
        return taken[-1]

    monkeypatch.setattr(jetstream, "direct_message", taking)
    assert [m.sequence for m in log.fetch(stream, f"{stream}.>", 3, 5)] == [4, 5]
    assert [m.sequence for m in taken] == [4, 5]


@pytest.mark.crash
def test_a_read_under_way_ends_with_its_connection(log: JetStream, stream: str, running_stack: LocalStack) -> None:
    publish(log, f"{stream}.a", [b"x"])
    other = JetStream(NatsConnection(url=running_stack.addresses().nats_url), "other").connect()
    wire = other._plain_wire()
    assert wire is not None
    nats, failed = psutil.Process(running_stack.server("nats").pid), list[str]()

    def read() -> None:
        with pytest.raises(RetryableError) as raised:
            list(other.fetch(stream, f"{stream}.a", 0, 1))
        failed.append(str(raised.value))

    pause(nats)
    try:
        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: wire._exchanges, "the read")
        other.close()
        reader.join(REQUEST_TIMEOUT_SECONDS)
    finally:
        nats.resume()
    assert failed == [f"reading {stream} from 1 to 1: NATS did not answer (ConnectionClosedError)"]


def test_the_largest_frame_is_read_in_every_way(log: JetStream, stream: str) -> None:
    payload = random.Random(1).randbytes(MAX_FRAME_BYTES)
    log.publish(f"{stream}.a", payload, {"Tf-Rows": "1", "Tf-Topic": "t" * 249}, 0)
    found = [log.last(stream, f"{stream}.a"), log.get(stream, 1), *log.fetch(stream, f"{stream}.a", 0, 1)]
    assert [message and message.payload == payload for message in found] == [True] * 3


def test_fetch_by_subject_gives_that_subject_only(log: JetStream, stream: str) -> None:
    tails = {"a": 0, "b": 0}
    for number in range(600):
        subject = "ab"[number % 3 == 0]
        tails[subject] = log.publish(f"{stream}.{subject}", b"%d" % number, {}, tails[subject])
    assert [int(m.payload) for m in log.fetch(stream, f"{stream}.b", 0, 600)] == list(range(0, 600, 3))
    assert [int(m.payload) for m in log.fetch(stream, f"{stream}.b", 10, 20)] == [12, 15, 18]
    assert list(log.fetch(stream, f"{stream}.c", 0, 600)) == []
    assert log.subjects(stream, f"{stream}.>") == {f"{stream}.a": 400, f"{stream}.b": 200}


def test_fetch_passes_purged_sequences_and_scan_refuses_them(log: JetStream, stream: str) -> None:
    publish(log, f"{stream}.a", [b"x"] * 10)
    publish(log, f"{stream}.b", [b"y"] * 10)
    log.purge(stream, f"{stream}.a", 6)
    assert [m.sequence for m in log.fetch(stream, f"{stream}.>", 0, 20)] == list(range(6, 21))
    assert [m.sequence for m in log.scan(stream, 5, 20)] == list(range(6, 21))
    with pytest.raises(DataLossError, match=r"sequences \[4, 5\] of 4\.\.20 are missing"):
        log.scan(stream, 3, 20)
    log.purge(stream, f"{stream}.b", 15)
    with pytest.raises(DataLossError, match=r"sequences \[11, 12, 13, 14\] of 6\.\.20"):
        log.scan(stream, 5, 20)
    last = log.last(stream, f"{stream}.a")
    assert last is not None
    assert last.sequence == 10


def test_scan_gives_headers_and_times_without_payloads(log: JetStream, stream: str) -> None:
    count = FETCH_BATCH_MESSAGES + 44
    publish(log, f"{stream}.a", [b"payload"] * count)
    found = log.scan(stream, 0, count)
    assert [m.sequence for m in found] == list(range(1, count + 1))
    assert {(m.subject, m.payload, m.rows) for m in found} == {(f"{stream}.a", b"", 1)}
    assert [m.sequence for m in log.scan(stream, 100, 103)] == [101, 102, 103]
    assert log.scan(stream, 7, 7) == []


def test_a_message_has_the_same_time_whichever_way_it_is_read(log: JetStream, stream: str) -> None:
    publish(log, f"{stream}.a", [b"payload"] * 100)
    fetched = [m.time for m in log.fetch(stream, f"{stream}.>", 0, 100)]
    assert [m.time for m in log.scan(stream, 0, 100)] == fetched
    assert [found.time for n in range(1, 101) if (found := log.get(stream, n))] == fetched


def test_a_full_stream_refuses_writers_until_there_is_room(log: JetStream) -> None:
    name = f"test-{uuid4().hex[:8]}"
    log.ensure_stream(name, f"{name}.>", {}, max_bytes=50_000)
    sequence = log.publish(f"{name}.a", bytes(30_000), {}, 0)
    with pytest.raises(RetryableError, match=r"the stream is full: waiting until its reader has confirmed"):
        log.publish(f"{name}.b", bytes(30_000), {}, 0)
    assert log.last(name, f"{name}.b") is None
    log.purge(name, f"{name}.a", sequence + 1)
    assert log.publish(f"{name}.b", bytes(30_000), {}, 0) == sequence + 1
    assert log.delete_stream(name)


def test_a_payload_over_the_servers_limit_is_a_halt(log: JetStream, stream: str) -> None:
    with pytest.raises(HaltError):
        log.publish(f"{stream}.a", bytes(2 * 1024 * 1024), {}, 0)


def test_a_stream_that_is_made_twice_keeps_its_metadata(log: JetStream, stream: str) -> None:
    again = log.ensure_stream(stream, f"{stream}.>", {"id": "second"}, max_bytes=1)
    assert again.metadata["id"] == "first"
    assert again.max_bytes == -1


def test_a_stream_that_somebody_made_meanwhile_is_examined(log: JetStream, stream: str) -> None:
    state = log.state(stream)
    assert state is not None
    log._wait("changing a stream", log._js.update_stream(replace(state.settings, max_age=3600)))
    with pytest.raises(HaltError, match="messages expire after 3600 s"):
        log.ensure_stream(stream, f"{stream}.>", {"id": "second"})


def test_an_unknown_stream_has_no_state_and_reading_it_is_a_halt(log: JetStream) -> None:
    assert log.state("test-unknown") is None
    assert not log.delete_stream("test-unknown")
    for read in (
        lambda: log.last("test-unknown", "test-unknown.a"),
        lambda: log.get("test-unknown", 1),
        lambda: log.scan("test-unknown", 0, 1),
    ):
        with pytest.raises(HaltError, match="the stream does not exist"):
            read()
    with pytest.raises(RetryableError):
        list(log.fetch("test-unknown", ">", 0, 1))


def test_a_subscriber_hears_of_new_messages_until_it_stops(log: JetStream, stream: str) -> None:
    heard = threading.Semaphore(0)
    stop = log.on_message(f"{stream}.a", heard.release)
    publish(log, f"{stream}.a", [b"1", b"2"])
    publish(log, f"{stream}.b", [b"1"])
    assert heard.acquire(timeout=60)
    assert heard.acquire(timeout=60)
    stop()
    publish(log, f"{stream}.a", [b"3"], 2)
    assert not heard.acquire(timeout=0.3)


def test_a_subscriber_may_hear_of_some_messages_only(log: JetStream, stream: str) -> None:
    heard = threading.Semaphore(0)
    log.on_message(f"{stream}.a", heard.release, b"done")
    publish(log, f"{stream}.a", [b"a plan", b"is done"])
    assert heard.acquire(timeout=60)
    assert not heard.acquire(timeout=0.3)


@pytest.mark.crash
def test_a_connection_outlives_a_restart_of_the_server(log: JetStream, stream: str, running_stack: LocalStack) -> None:
    publish(log, f"{stream}.a", [b"%d" % n for n in range(10)])
    server = running_stack.server("nats")
    server.kill()
    with pytest.raises(RetryableError, match="NATS did not answer"):
        log.last(stream, f"{stream}.a")
    server.start()

    def state() -> object:
        try:
            return log.state(stream)
        except RetryableError:
            return None

    wait_until(state, "an answer after the restart")
    assert [m.payload for m in log.fetch(stream, f"{stream}.>", 0, 10)] == [b"%d" % n for n in range(10)]
    assert log.publish(f"{stream}.a", b"10", {}, 10) == 11


def test_nobody_there_is_told_at_once_and_the_address_is_named() -> None:
    log = JetStream(NatsConnection(url="nats://127.0.0.1:1"))
    with pytest.raises(RetryableError, match=r"connecting to NATS at nats://127\.0\.0\.1:1: NATS did not answer \(.*Connect call failed"):
        log.connect()
    log.close()


@pytest.mark.parametrize("settings", [{"credentials_file": "no-such.creds"}, {"tls": {"ca_file": "no-such.pem"}}])
def test_a_missing_file_of_the_connection_is_a_halt(settings: dict[str, object]) -> None:
    log = JetStream(NatsConnection.model_validate({"url": "nats://127.0.0.1:1", **settings}))
    with pytest.raises(HaltError, match="check the files that `nats` names"):
        log.connect()
    log.close()


@pytest.mark.parametrize(("said", "error"), [({}, HaltError), ({"MaxPayloadError": "retryable"}, RetryableError)])
def test_the_pipeline_file_decides_the_class_of_an_error(case: PipelineCase, said: dict[str, str], error: type[Exception]) -> None:
    case.write_file(lambda document: document.update(on_error={"nats": said}))
    with closing(JetStream.of(load(case.file, case.environment())).connect()) as log, pytest.raises(error):
        log.publish("too.large", bytes(2 * 1024 * 1024), {}, 0)


def test_a_purge_keeps_its_sequence_and_may_be_repeated(log: JetStream, stream: str) -> None:
    publish(log, f"{stream}.a", [b"%d" % n for n in range(4)])
    publish(log, f"{stream}.b", [b"%d" % n for n in range(4)])
    for _ in range(2):
        log.purge(stream, f"{stream}.a", 3)
        assert [m.sequence for m in log.fetch(stream, f"{stream}.>", 0, 8)] == [3, 4, 5, 6, 7, 8]
    log.purge(stream, f"{stream}.a", 2)
    assert log.subjects(stream, f"{stream}.>") == {f"{stream}.a": 2, f"{stream}.b": 4}


@pytest.mark.parametrize("below", [0, 1])
def test_a_purge_below_the_first_sequence_removes_nothing(log: JetStream, stream: str, below: int) -> None:
    publish(log, f"{stream}.a", [b"x"] * 3)
    log.purge(stream, f"{stream}.a", below)
    assert log.subjects(stream, f"{stream}.>") == {f"{stream}.a": 3}


def test_writers_go_on_from_the_last_message_a_purge_left(log: JetStream, stream: str) -> None:
    last = publish(log, f"{stream}.a", [b"%d" % n for n in range(5)])[-1]
    log.purge(stream, f"{stream}.a", last)
    assert log.subjects(stream, f"{stream}.>") == {f"{stream}.a": 1}
    with pytest.raises(ConflictError):
        log.publish(f"{stream}.a", b"from the beginning", {}, 0)
    assert log.publish(f"{stream}.a", b"5", {}, last) == last + 1
    state = log.state(stream)
    assert state is not None
    assert (state.first_sequence, state.last_sequence, state.messages) == (last, last + 1, 2)


def test_a_purge_of_a_subjects_last_message_resets_writers(log: JetStream, stream: str) -> None:
    """What a purge must never do: nothing tells this subject from one that was never written."""
    last = publish(log, f"{stream}.a", [b"x"] * 3)[-1]
    log.purge(stream, f"{stream}.a", last + 1)
    assert log.last(stream, f"{stream}.a") is None
    assert log.publish(f"{stream}.a", b"x", {}, 0) == last + 1


@pytest.mark.parametrize("is_read", [True, False], ids=["the read succeeds", "the read fails"])
def test_a_consumer_that_is_gone_at_clean_up_changes_no_outcome(
    log: JetStream, stream: str, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    """As after a restart of the server, which forgets consumers in memory."""
    publish(log, f"{stream}.a", [b"one", b"two"])
    fetch = JetStreamContext.PullSubscription.fetch

    async def fetch_and_lose(self: JetStreamContext.PullSubscription, *arguments: Any, **options: Any) -> Any:
        found = await fetch(self, *arguments, **options)
        for consumer in await self._js.consumers_info(stream):
            await self._js.delete_consumer(stream, consumer.name)
        if not is_read:
            raise nats.errors.TimeoutError
        return found

    monkeypatch.setattr(JetStreamContext.PullSubscription, "fetch", fetch_and_lose)
    if is_read:
        assert [message.sequence for message in log.scan(stream, 0, 2)] == [1, 2]
    else:
        with pytest.raises(RetryableError, match="did not answer"):
            log.scan(stream, 0, 2)


def test_a_lost_consumer_is_made_again_by_the_next_attempt(log: JetStream, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(log, f"{stream}.a", [b"one", b"two"])
    bind = JetStreamContext.pull_subscribe_bind

    async def lose_and_bind(self: JetStreamContext, consumer: str, stream_of: str) -> Any:
        await self.delete_consumer(stream_of, consumer)
        return await bind(self, consumer, stream_of)

    monkeypatch.setattr(jetstream, "REQUEST_TIMEOUT_SECONDS", 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(JetStreamContext, "pull_subscribe_bind", lose_and_bind)
        with pytest.raises(RetryableError):
            log.scan(stream, 0, 2)
    assert [message.sequence for message in log.scan(stream, 0, 2)] == [1, 2]
