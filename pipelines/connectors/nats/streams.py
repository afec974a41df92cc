"""NATS JetStream as the pipeline uses it: one connection per process, driven from ordinary threads; what is asked often goes over a `wire`.

Reads of resume points go to the stream's leader (`STREAM.MSG.GET`); ranges are read with batched direct gets (ADR-31), which need no
consumer on the server, so a crashed reader leaves nothing behind. Writers use compare-and-set per subject only: message ids
deduplicate within a time window and prove nothing (reference/reliability.md section 3).
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import compress
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import ConnectionClosedError, NoRespondersError, TimeoutError
from nats.js import JetStreamContext, api
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from pipelines.connectors.nats.connection import REQUEST_TIMEOUT_SECONDS, Connection
from pipelines.connectors.nats.contiguous import check_contiguous
from pipelines.connectors.nats.errors import map_error
from pipelines.connectors.nats.loop_work import LoopWork
from pipelines.connectors.nats.messages import direct_message, instant, sequence_and_time, stored_message
from pipelines.connectors.nats.stream_settings import check_stream
from pipelines.connectors.nats.wire import DESCRIPTION, NOBODY, STATUS, Exchange, Reply, Request, Wire
from pipelines.errors import HaltError, RetryableError
from pipelines.protocol.ledger import Append, Outcome
from pipelines.protocol.naming import stream_of_subject
from pipelines.protocol.records import Message

FETCH_BATCH_MESSAGES = 256
# After a pull of 100 MB in one request the server closed the connection as a slow consumer (reliability.md section 3).
FETCH_BATCH_BYTES = 8 * 1024 * 1024
_NO_MESSAGE = 10037
T = TypeVar("T")


@dataclass(frozen=True)
class StreamState:
    """State of a stream: its name, first and last sequence (last stays when all is purged), counts, and the metadata given at creation."""

    name: str
    first_sequence: int
    last_sequence: int
    messages: int
    bytes: int
    max_bytes: int
    metadata: dict[str, str]
    stored_settings: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The settings as the server tells them."""

    @property
    def settings(self) -> api.StreamConfig:
        """The settings that the server has, for `check_stream`."""
        return api.StreamConfig.from_response(dict(self.stored_settings))


def _publishing(subject: str) -> str:
    return f"publishing to {subject} of stream {stream_of_subject(subject)}"


async def _asked(client: Client, requests: Sequence[Request]) -> list[Reply | BaseException]:
    """Ask through the client, where there is no wire."""

    async def ask(request: Request) -> Reply:
        headers = dict(request.headers) or None
        try:
            reply = await client.request(request.subject, request.payload, timeout=REQUEST_TIMEOUT_SECONDS, headers=headers)
        except NoRespondersError:
            return Reply(b"", {STATUS: NOBODY})
        return Reply(reply.data, reply.headers or {})

    return await asyncio.gather(*map(ask, requests), return_exceptions=True)


def _first_of_each(answers: list[list[Reply]]) -> list[Reply]:
    return [replies[0] for replies in answers]


def _told(answer: Reply | BaseException, nobody: type[Exception] = ServiceUnavailableError) -> dict[str, Any]:
    """Return what the server says, or raise its error, `nobody` if nobody serves the subject.

    To make the client's classes of it would take 150 us of CPU.
    """
    if isinstance(answer, BaseException):
        raise answer
    if answer.headers.get(STATUS) == NOBODY:
        raise nobody
    told: dict[str, Any] = json.loads(answer.data)
    if "error" in told:
        raise APIError.from_error(told["error"])
    return told


def _info_of(stream: str) -> Request:
    return Request(f"$JS.API.STREAM.INFO.{stream}", b"")


def _append(subject: str, payload: bytes, headers: dict[str, str], expected: int | None) -> Request:
    condition = {} if expected is None else {"Nats-Expected-Last-Subject-Sequence": str(expected)}
    return Request(subject, payload, {**headers, **condition})


def _has_more(stream: str, headers: Mapping[str, str]) -> bool:
    """Return whether a stream holds more behind what was read directly, as the message without a payload at the end tells."""
    match headers[STATUS]:
        case "204":
            return int(headers.get("Nats-Num-Pending", "0")) > 0
        case "404":
            return False
        case "503":
            raise RetryableError(f"reading {stream}: no direct-get responder (is the stream there, with allow_direct?)")
        case status:
            raise HaltError(f"reading {stream}: direct get answered {status} {headers.get(DESCRIPTION, '')}")


def _window(stream: str, answers: list[list[Reply]]) -> tuple[list[Message], bool]:
    ((*messages, end),) = answers
    return [direct_message(message) for message in messages], _has_more(stream, end.headers)


class _Answer:
    """The answer to one batched direct get: messages, then a status. A callback takes them: to await each one takes twice the CPU."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._messages: list[Message] = []
        self._has_more: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def take(self, reply: Msg) -> None:
        if self._has_more.done():
            return
        headers = reply.headers or {}
        try:
            if STATUS in headers:
                self._has_more.set_result(_has_more(self._stream, headers))
            else:
                self._messages.append(direct_message(reply))
        except Exception as error:
            self._has_more.set_exception(error)

    async def whole(self, closed: "asyncio.Future[None]") -> tuple[list[Message], bool]:
        """Return (messages, whether the stream holds more of this subject).

        Raise TimeoutError if no more of it comes, ConnectionClosedError once the connection is `closed`.
        """
        seen, ends = 0, list[asyncio.Future[Any]]([self._has_more, closed])
        while True:
            await asyncio.wait(ends, timeout=REQUEST_TIMEOUT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if self._has_more.done():
                return self._messages, self._has_more.result()
            if closed.done():
                raise ConnectionClosedError
            if len(self._messages) == seen:
                raise TimeoutError
            seen = len(self._messages)


class Streams(Connection):
    """A connection that reads and writes the messages of streams, as the server holds them."""

    _jetstream: JetStreamContext | None = None

    @property
    def _js(self) -> JetStreamContext:
        if self._jetstream is None:
            self._jetstream = self._connected.jetstream(timeout=REQUEST_TIMEOUT_SECONDS)
        return self._jetstream

    def _answers(self, doing: str, requests: Sequence[Request]) -> list[Reply | BaseException]:
        """Ask all at once; return the answer of each, or why there is none."""
        wire = self._plain_wire()
        if wire is None:
            return self._wait(doing, _asked(self._connected, requests))
        fits = [wire.fits(request) for request in requests]
        fitting = list(compress(requests, fits))
        answers = iter(self._result(doing, self._sent(doing, wire, fitting, _first_of_each), REQUEST_TIMEOUT_SECONDS) if fitting else ())
        return [next(answers) if is_fitting else nats.errors.MaxPayloadError() for is_fitting in fits]

    def _sent(
        self,
        doing: str,
        wire: Wire,
        requests: Sequence[Request],
        read: Callable[[list[list[Reply]]], T],
        has_ended: Callable[[Reply], bool] = lambda reply: True,
    ) -> Exchange[T]:
        try:
            return wire.ask(requests, read, has_ended)
        except nats.errors.Error as error:
            raise map_error(doing, error, self._classes) from error

    def store(self, subject: str, payload: bytes, headers: dict[str, str], expected: int | None) -> int:
        """Append one message iff `expected` is the subject's last sequence (0: it is empty; None: whatever it is); return the new one.

        Raises ConflictError if it is not. RetryableError means that the outcome is unknown: read the last message before a retry.
        """
        (outcome,) = self._stored([_append(subject, payload, headers, expected)])
        if isinstance(outcome, int):
            return outcome
        raise outcome

    def store_all(self, appends: Sequence[Append]) -> list[Outcome]:
        """Do `store` for messages of several subjects at once. Return the outcome of each."""
        return self._stored([_append(*append) for append in appends])

    def _stored(self, requests: Sequence[Request]) -> list[Outcome]:
        answers = self._answers(_publishing(requests[0].subject), requests)

        def outcome(request: Request, answer: Reply | BaseException) -> Outcome:
            try:
                return int(_told(answer, NoStreamResponseError)["seq"])
            except Exception as error:
                return map_error(_publishing(request.subject), error, self._classes)

        return [outcome(request, answer) for request, answer in zip(requests, answers, strict=True)]

    def last(self, stream: str, subject: str) -> Message | None:
        """Return the last message of a subject (wildcards allowed), from the stream's leader; None if the subject is empty."""
        return self._read(stream, subject, {"last_by_subj": subject})

    def get(self, stream: str, sequence: int) -> Message | None:
        """Return the message at `sequence`, from the stream's leader; None if it is purged or not yet written."""
        return self._read(stream, str(sequence), {"seq": sequence})

    def _read(self, stream: str, what: str, asked: dict[str, str | int]) -> Message | None:
        doing = f"reading {what} of stream {stream}"
        (answer,) = self._answers(doing, [Request(f"$JS.API.STREAM.MSG.GET.{stream}", json.dumps(asked).encode())])
        try:
            return stored_message(_told(answer)["message"])
        except Exception as error:
            if isinstance(error, NotFoundError) and error.err_code == _NO_MESSAGE:
                return None
            raise map_error(doing, error, self._classes) from error

    def first_since(self, stream: str, subject: str, instant: datetime) -> Message | None:
        """Return the first message of `subject` whose server time is `instant` or later; None if none is served (a replica may lag)."""
        request = {"start_time": instant.astimezone(UTC).isoformat(), "next_by_subj": subject, "batch": 1}
        self.connect()
        messages, _ = self._wait(f"reading {stream} from {instant} on", self._direct(stream, request))
        return messages[0] if messages else None

    def fetch(self, stream: str, subject: str, after: int, to: int) -> Iterator[Message]:
        """Yield the messages of `subject` (wildcards allowed) with `after` < sequence <= `to`, in order, prefetching one window ahead.

        A lagging replica may answer direct gets, so the end of the iterator does not prove completeness: callers check that sequences (or
        the subject's chain of expected-last-sequence headers) have no gap.
        """
        doing = f"reading {stream} from {after + 1} to {to}"
        self.connect()

        def ask(after: int) -> Callable[[], tuple[list[Message], bool]]:
            most = min(FETCH_BATCH_MESSAGES, to - after)
            window = {"next_by_subj": subject, "batch": most, "max_bytes": FETCH_BATCH_BYTES, "seq": after + 1}
            wire = self._plain_wire()
            if wire is None:
                return partial(self._result, doing, LoopWork(self._loop, self._direct(stream, window)), 4 * REQUEST_TIMEOUT_SECONDS)
            request = Request(f"$JS.API.DIRECT.GET.{stream}", json.dumps(window).encode())
            sent = self._sent(doing, wire, [request], partial(_window, stream), lambda reply: STATUS in reply.headers)
            return partial(self._result, doing, sent, REQUEST_TIMEOUT_SECONDS)

        pending = ask(after) if after < to else None
        while pending is not None:
            messages, more = pending()
            last = messages[-1].sequence if messages else to
            pending = ask(last) if more and last < to else None
            for message in messages:
                if message.sequence > to:
                    return
                yield message

    def scan(self, stream: str, after: int, to: int) -> list[Message]:
        """List every message of the stream with `after` < sequence <= `to`, without payloads and without a gap.

        Uses a short-lived headers-only consumer. Raises DataLossError if sequences are missing: they were purged or the stream lost them.
        """
        found = self._wait(
            f"scanning {stream} from {after + 1} to {to}", self._scan(self._js, stream, after, to), 6 * REQUEST_TIMEOUT_SECONDS
        )
        check_contiguous(stream, [message.sequence for message in found], after, to)
        return found

    async def _scan(self, js: JetStreamContext, stream: str, after: int, to: int) -> list[Message]:
        if after >= to:
            return []
        config = api.ConsumerConfig(
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=after + 1,
            ack_policy=api.AckPolicy.NONE,
            headers_only=True,
            inactive_threshold=30.0,
            mem_storage=True,
        )
        info = await js.add_consumer(stream, config)
        messages: list[Message] = []
        try:
            consumer = await js.pull_subscribe_bind(info.name, stream)
            while not messages or messages[-1].sequence < to:
                count = min(FETCH_BATCH_MESSAGES, to - (messages[-1].sequence if messages else after))
                for raw in await consumer.fetch(count, timeout=REQUEST_TIMEOUT_SECONDS):
                    sequence, time = sequence_and_time(raw)
                    messages.append(Message(raw.subject, sequence, time, b"", dict(raw.headers or {})))
            await consumer.unsubscribe()
        finally:
            # A restart of the server may have deleted it; otherwise the server deletes it after 30 s.
            with suppress(Exception):
                await js.delete_consumer(stream, info.name)
        return [message for message in messages if message.sequence <= to]

    async def _direct(self, stream: str, request: dict[str, Any]) -> tuple[list[Message], bool]:
        """Send one batched direct get; return (messages, whether the stream holds more of this subject)."""
        client = self._client
        assert client is not None
        inbox, answer = client.new_inbox(), _Answer(stream)
        replies = await client.subscribe(inbox, cb=answer.take, pending_msgs_limit=-1, pending_bytes_limit=-1)
        try:
            await client.publish(f"$JS.API.DIRECT.GET.{stream}", json.dumps(request).encode(), reply=inbox)
            return await answer.whole(self._closed)
        finally:
            # Only the result or the error of the read matters; a closed connection has no subscription left.
            with suppress(Exception):
                await replies.unsubscribe()

    def state(self, stream: str) -> StreamState | None:
        """Return the stream's state; None if it does not exist."""
        return self.states([stream])[stream]

    def states(self, streams: Sequence[str]) -> dict[str, StreamState | None]:
        """Return the state of each stream, None if it does not exist; all are asked at once. Raise the error of the first that fails."""
        if not streams:
            return {}
        answers = self._answers(f"reading the state of stream {streams[0]}", list(map(_info_of, streams)))
        return {stream: self._state(stream, answer) for stream, answer in zip(streams, answers, strict=True)}

    def _state(self, stream: str, answer: Reply | BaseException) -> StreamState | None:
        try:
            info = _told(answer)
        except NotFoundError:
            return None
        except Exception as error:
            raise map_error(f"reading the state of stream {stream}", error, self._classes) from error
        state, config = info["state"], info["config"]
        own = config.get("max_bytes") or -1, config.get("metadata") or {}, config
        return StreamState(stream, state["first_seq"], state["last_seq"], state["messages"], state["bytes"], *own)

    def clock(self, stream: str) -> datetime:
        """Return the time at the stream's leader, whose clock stamps the messages; other hosts' may differ. Raise if there is no stream."""
        doing = f"reading the clock of stream {stream}"
        (answer,) = self._answers(doing, [_info_of(stream)])
        try:
            return instant(_told(answer)["ts"])
        except APIError as error:
            raise map_error(doing, error, self._classes) from error

    def subjects(self, stream: str, subject: str) -> dict[str, int]:
        """Return the subjects of the stream that match `subject` and hold messages, with their counts."""
        info = self._wait(f"listing the subjects of {stream}", self._js.stream_info(stream, subjects_filter=subject))
        return dict(info.state.subjects or {})

    def ensure_stream(
        self,
        stream: str,
        subjects: str,
        metadata: dict[str, str],
        max_bytes: int = -1,
        is_compressed: bool = False,
        replicas: int = 1,
    ) -> StreamState:
        """Create the stream if it is missing; an existing one keeps its metadata. Return its state.

        `limits` retention with `discard: new`: a full stream refuses writers (back-pressure) and never drops unread messages. Raises
        HaltError for an existing stream whose settings could remove acknowledged messages, or with other subjects. `is_compressed`: by the
        server, for small messages that resemble each other; frames are compressed already.
        """
        doing = f"creating stream {stream}"
        config = api.StreamConfig(
            name=stream,
            subjects=[subjects],
            retention=api.RetentionPolicy.LIMITS,
            discard=api.DiscardPolicy.NEW,
            storage=api.StorageType.FILE,
            max_bytes=max_bytes,
            max_age=0,
            num_replicas=replicas,
            allow_direct=True,
            compression=api.StoreCompression.S2 if is_compressed else api.StoreCompression.NONE,
            # Message ids are not used; the smallest window keeps the server's id table empty.
            duplicate_window=1,
            metadata=metadata,
        )
        try:
            self._wait(doing, self._js.add_stream(config))
        except HaltError:
            # It is there, with other metadata: another runner of the pipeline may have been first.
            if (found := self.state(stream)) is None:
                raise
            check_stream(found.settings, subjects)
            return found
        created = self.state(stream)
        if created is None:
            raise HaltError(f"{doing}: it was created but does not exist; is another process deleting this pipeline?")
        return created

    def set_metadata(self, stream: str, metadata: dict[str, str]) -> None:
        """Set these entries of the stream's metadata; keep the others, and all settings."""
        doing = f"changing the metadata of {stream}"
        self._change(stream, doing, lambda config: replace(config, metadata={**(config.metadata or {}), **metadata}))

    def set_replicas(self, stream: str, replicas: int) -> None:
        """Have so many servers of a cluster keep the stream; keep all other settings. The stream is used meanwhile."""
        self._change(stream, f"changing the replicas of {stream} to {replicas}", lambda config: replace(config, num_replicas=replicas))

    def _change(self, stream: str, doing: str, changed: Callable[[api.StreamConfig], api.StreamConfig]) -> None:
        async def change() -> None:
            await self._js.update_stream(changed((await self._js.stream_info(stream)).config))

        self._wait(doing, change())

    def delete_stream(self, stream: str) -> bool:
        """Delete the stream with all its messages; return False if it did not exist."""
        if self.state(stream) is None:
            return False
        return bool(self._wait(f"deleting stream {stream}", self._js.delete_stream(stream)))

    def purge(self, stream: str, subject: str, below: int) -> None:
        """Delete the subject's messages with sequence < `below`, which must not exceed its last: that message is a resume point."""
        # nats-py 2.16 leaves a zero out of the request, and the server then purges the whole subject.
        if below > 1:
            self._wait(f"purging {subject} below {below}", self._js.purge_stream(stream, seq=below, subject=subject))
