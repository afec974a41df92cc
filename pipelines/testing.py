"""Fakes and builders for tests of the protocol and of stages: no server, no JVM, no time that moves by itself.

`MemoryLog` is JetStream as the protocol and the legs use it (`ledger.Log`), with faults on demand. `ManualClock` moves only on request.
`records` builds raw tables from literals.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial

import pyarrow as pa

from pipelines.connectors.nats.client import merged
from pipelines.connectors.nats.contiguous import check_contiguous
from pipelines.connectors.nats.errors import too_large
from pipelines.connectors.nats.streams import StreamState
from pipelines.errors import ConflictError, RetryableError
from pipelines.protocol import frame_bodies
from pipelines.protocol.codec import Count, Form, Text
from pipelines.protocol.ledger import Append, Outcome, outcome_of
from pipelines.protocol.naming import body_number, body_streams
from pipelines.protocol.records import RAW_SCHEMA, Message
from pipelines.protocol.topology import Topology

FIRST_INSTANT = datetime(2026, 1, 1, tzinfo=UTC)
SINGLE = Topology.of(["orders"], [""])
"""The topology of a pipeline with one source and one sink, and its legs."""
LEGS = SINGLE.legs
MAX_PAYLOAD_BYTES = 1024 * 1024
"""NATS's default `max_payload`, for headers and content together."""


class ManualClock:
    """A clock that a test moves. `seconds` and `sleep` replace `time.monotonic` and `time.sleep`; sleeping moves the clock."""

    def __init__(self, now: datetime = FIRST_INSTANT) -> None:
        self.now = now

    def advance(self, step: timedelta) -> None:
        """Move the clock by `step`; a negative step is a server whose clock was set back."""
        self.now += step

    def __call__(self, stream: str) -> datetime:
        """Return the time at the leader of a stream, as `JetStream.clock` does."""
        return self.now

    def seconds(self) -> float:
        return (self.now - FIRST_INSTANT).total_seconds()

    def sleep(self, seconds: float) -> None:
        self.advance(timedelta(seconds=seconds))


class Fault(Enum):
    """The outcome of a publish; the writer sees RetryableError each time.

    LOST_ACKNOWLEDGEMENT: stored. DROPPED: never stored. DELAYED: stored when the test calls `deliver` (a request that was still in flight
    when its writer timed out).
    """

    LOST_ACKNOWLEDGEMENT = "lost acknowledgement"
    DROPPED = "dropped"
    DELAYED = "delayed"


@dataclass(frozen=True)
class _Request:
    subject: str
    payload: bytes
    headers: dict[str, str]
    expected: int | None


@dataclass(frozen=True)
class Sample(Form):
    """An item, or a report, of a task; here, where workers find it."""

    numbers: tuple[Count, ...] = ()
    texts: tuple[Text, ...] = ()


def stream_of(subject: str) -> str:
    """Return the stream of a subject of `naming.Names`: `tf.<pipeline>.<role>...` is in `tf-<pipeline>-<role>`."""
    _, pipeline, role, *_ = subject.split(".")
    return f"tf-{pipeline}-{role}"


def _matches(subject: str, pattern: str) -> bool:
    return pattern in (subject, ">") or (pattern.endswith(".>") and subject.startswith(pattern[:-1]))


class MemoryLog:
    """All streams of one server, in memory; thread-safe. Raises the errors of `connectors.nats.client.JetStream`.

    A test arms faults: `fail_publish` for one of the next publishes, `go_away` for every call until `come_back`.
    """

    def __init__(self, clock: ManualClock | None = None, streams: int = 1) -> None:
        self.clock = clock or ManualClock()
        self.streams = streams
        """To how many streams the bodies of frames are dealt."""
        self.publishes = 0
        """Publish calls that reached the server, including refused ones."""
        self.max_bytes: dict[str, int] = {}
        """Limit of a stream by its name; a full stream refuses writers."""
        self._streams: dict[str, dict[int, Message]] = {}
        self._ends: dict[str, int] = {}
        self._last: dict[str, Message] = {}
        self._faults: dict[int, Fault] = {}
        self._in_flight: list[_Request] = []
        self._away = 0
        self._lock = threading.RLock()

    def fail_publish(self, fault: Fault, nth: int = 1) -> None:
        """Arm a fault for the `nth` publish from now (1: the next one)."""
        self._faults[self.publishes + nth] = fault

    def go_away(self, calls: int = -1) -> None:
        """Raise RetryableError for the next `calls` calls of any kind; without a number for all calls until `come_back`."""
        self._away = calls

    def come_back(self) -> None:
        """Answer every call again: armed faults are cleared, delayed publishes stay in flight."""
        self._away = 0
        self._faults.clear()

    def deliver(self) -> int:
        """Store the delayed publishes in order; return how many of them won their compare-and-set."""
        arrived, self._in_flight = self._in_flight, []
        won = 0
        for request in arrived:
            try:
                self._store(request)
                won += 1
            except (ConflictError, RetryableError):
                # Nobody waits for this answer.
                continue
        return won

    def publish(self, subject: str, payload: bytes, headers: dict[str, str], expected: int) -> int:
        """Append one message iff `expected` is the subject's last sequence (0: none); return its sequence. Else raise ConflictError."""
        return frame_bodies.publish(self.store, self.streams, subject, payload, headers, expected)

    def publish_all(self, appends: Sequence[Append]) -> list[Outcome]:
        """Do `publish` for each, in order, whatever becomes of those before it."""
        return [outcome_of(partial(self.publish, *append)) for append in appends]

    def store(self, subject: str, payload: bytes, headers: dict[str, str], expected: int | None) -> int:
        """Append one message as it is, whatever the last sequence is if `expected` is None."""
        self._reach(f"publishing to {subject}")
        with self._lock:
            self.publishes += 1
            fault = self._faults.pop(self.publishes, None)
            request = _Request(subject, payload, dict(headers), expected)
            if fault in (Fault.DROPPED, Fault.DELAYED):
                if fault is Fault.DELAYED:
                    self._in_flight.append(request)
                raise RetryableError(f"publishing to {subject}: no answer ({fault.value})")
            sequence = self._store(request)
            if fault is Fault.LOST_ACKNOWLEDGEMENT:
                raise RetryableError(f"publishing to {subject}: no answer ({fault.value})")
            return sequence

    def _store(self, request: _Request) -> int:
        size = len(request.payload) + sum(len(name) + len(text) + 4 for name, text in request.headers.items())
        if size > MAX_PAYLOAD_BYTES:
            raise too_large(f"publishing to {request.subject}")
        found = self._last.get(request.subject)
        if request.expected not in (None, found.sequence if found else 0):
            raise ConflictError(f"publishing to {request.subject}: wrong last sequence: {found.sequence if found else 0}")
        stream = stream_of(request.subject)
        limit = self.max_bytes.get(stream)
        if limit is not None and self._bytes(stream) + len(request.payload) > limit:
            raise RetryableError(f"publishing to {request.subject}: the stream is full")
        sequence = self._ends[stream] = self._ends.get(stream, 0) + 1
        message = Message(request.subject, sequence, self.clock.now, request.payload, request.headers)
        self._streams.setdefault(stream, {})[sequence] = message
        self._last[request.subject] = message
        return sequence

    def _bytes(self, stream: str) -> int:
        return sum(len(message.payload) for message in self._streams.get(stream, {}).values())

    def last(self, stream: str, subject: str) -> Message | None:
        """Return the last message of a subject (wildcards allowed); None if it holds none."""
        self._reach(f"reading {subject} of stream {stream}")
        with self._lock:
            if not subject.endswith(".>"):
                return self._last.get(subject)
            found = [m for s, m in self._last.items() if _matches(s, subject) and stream_of(s) == stream]
            return max(found, key=lambda message: message.sequence, default=None)

    def get(self, stream: str, sequence: int) -> Message | None:
        """Return the message at `sequence`; None if it was purged or never written."""
        message = self._get(stream, sequence)
        return message and frame_bodies.with_body(message, self._get)

    def _get(self, stream: str, sequence: int) -> Message | None:
        self._reach(f"reading {sequence} of stream {stream}")
        with self._lock:
            return self._streams.get(stream, {}).get(sequence)

    def first_since(self, stream: str, subject: str, instant: datetime) -> Message | None:
        """Return the first message of `subject` whose time is `instant` or later."""
        return next((m for m in self.fetch(stream, subject, 0, self._ends.get(stream, 0)) if m.time >= instant), None)

    def fetch(self, stream: str, subject: str, after: int, to: int) -> Iterator[Message]:
        """Return the messages of `subject` (wildcards allowed) with `after` < sequence <= `to`, in order."""
        return frame_bodies.with_bodies(self._fetch(stream, subject, after, to), self._fetch, self._get)

    def _fetch(self, stream: str, subject: str, after: int, to: int) -> Iterator[Message]:
        self._reach(f"reading {stream} from {after + 1} to {to}")
        with self._lock:
            held = self._streams.get(stream, {})
            found = [held[n] for n in range(after + 1, min(to, self._ends.get(stream, 0)) + 1) if n in held]
        return iter([message for message in found if _matches(message.subject, subject)])

    def scan(self, stream: str, after: int, to: int) -> list[Message]:
        """List every message with `after` < sequence <= `to`, without payloads. Raise DataLossError if one is missing."""
        found = [replace(message, payload=b"") for message in self._fetch(stream, ">", after, to)]
        check_contiguous(stream, [message.sequence for message in found], after, to)
        return found

    def state(self, stream: str) -> StreamState | None:
        """Return the stream's state; None before its first message (streams need no creation here)."""
        self._reach(f"reading the state of stream {stream}")
        with self._lock:
            if stream not in self._ends:
                return None
            held = self._streams[stream]
            first, limit = min(held, default=self._ends[stream] + 1), self.max_bytes.get(stream, -1)
            return StreamState(stream, first, self._ends[stream], len(held), self._bytes(stream), limit, {})

    def states(self, streams: Sequence[str]) -> dict[str, StreamState | None]:
        """Return the state of each stream, None before its first message."""
        return {stream: self.state(stream) for stream in streams}

    def extent(self, stream: str) -> StreamState | None:
        """Return the stream's state, with its bodies counted."""
        return merged([self.state(each) for each in (stream, *body_streams(stream, self.streams))])

    def subjects(self, stream: str, subject: str) -> dict[str, int]:
        """Return the subjects of the stream that match `subject` and hold messages, with their counts."""
        counts: dict[str, int] = {}
        for message in self.fetch(stream, subject, 0, self._ends.get(stream, 0)):
            counts[message.subject] = counts.get(message.subject, 0) + 1
        return counts

    def purge(self, stream: str, subject: str, below: int) -> None:
        """Remove the messages of `subject` with sequence < `below`, and their bodies; a subject without messages has no last message."""
        self._purge(stream, subject, below)
        if body_number(subject, self.streams):
            frame_bodies.purge_bodies(self._fetch(stream, subject, below - 1, frame_bodies.NEWEST), self._purge)

    def _purge(self, stream: str, subject: str, below: int) -> None:
        self._reach(f"purging {subject} below {below}")
        with self._lock:
            held = self._streams.get(stream, {})
            for sequence in [n for n, message in held.items() if n < below and _matches(message.subject, subject)]:
                message = held.pop(sequence)
                if self._last[message.subject].sequence == sequence:
                    del self._last[message.subject]

    def messages(self, stream: str) -> list[Message]:
        """Return everything that the stream holds, in order, even while faults are armed: for assertions."""
        return [message for _, message in sorted(self._streams.get(stream, {}).items())]

    def _reach(self, doing: str) -> None:
        if self._away:
            self._away -= 1 if self._away > 0 else 0
            raise RetryableError(f"{doing}: NATS did not answer")


def records(
    partition: int,
    values: Sequence[bytes | None],
    *,
    first: int = 0,
    offsets: Sequence[int] | None = None,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Sequence[tuple[bytes, bytes | None]] | None] | None = None,
    timestamp: datetime = FIRST_INSTANT,
) -> pa.Table:
    """Build a raw table (RAW_SCHEMA): one row per value, at `offsets` or at `first`, `first` + 1, ... of `partition`."""
    count = len(values)
    columns = {
        "key": list(keys) if keys is not None else [None] * count,
        "value": list(values),
        "headers": [list(pairs) if pairs is not None else None for pairs in headers] if headers is not None else [None] * count,
        "partition": [partition] * count,
        "offset": list(offsets) if offsets is not None else list(range(first, first + count)),
        "timestamp": [timestamp] * count,
        "oversize": [None] * count,
    }
    return pa.table(columns, schema=RAW_SCHEMA)
