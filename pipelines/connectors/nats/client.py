"""NATS JetStream as the pipeline uses it: streams whose frames may have their bodies on other streams (`protocol.frame_bodies`)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from pipelines.config import NatsConnection, PipelineConfig
from pipelines.connectors.nats.errors import TABLE_CLASSES
from pipelines.connectors.nats.streams import Streams, StreamState
from pipelines.error_classes import ErrorClasses
from pipelines.errors import RetryableError
from pipelines.protocol import frame_bodies
from pipelines.protocol.ledger import Append, Outcome, outcome_of
from pipelines.protocol.naming import body_number, body_streams
from pipelines.protocol.records import Message


def fetch_whole(log: Any, stream: str, subject: str, after: int, to: int) -> Iterator[Message]:
    """Fetch as `JetStream.fetch` does, if the message at `to` is known to be of `subject`.

    Raises RetryableError, after the served messages, if the leader has that message and the answering replica does not: it lags, and serves
    only the beginning.
    """
    reached = after
    for message in log.fetch(stream, subject, after, to):
        reached = message.sequence
        yield message
    if reached < to and log.get(stream, to) is not None:
        raise RetryableError(
            f"reading {subject} of {stream}: {reached + 1}..{to} are not served yet by the replica that answered; try again"
        )


class JetStream(Streams):
    """A connection that reads and writes frames. `streams`: to how many it deals the bodies of those that it writes."""

    def __init__(self, settings: NatsConnection, name: str = "tallyflow", classes: ErrorClasses = TABLE_CLASSES, streams: int = 1) -> None:
        super().__init__(settings, name, classes)
        self._streams = streams

    @classmethod
    def of(cls, config: PipelineConfig, name: str = "tallyflow") -> Self:
        """Create a pipeline's client, not connected yet: its servers, its error classes, and bodies dealt to as many streams as it says."""
        return cls(config.nats, name, config.on_error.classes("nats"), config.streams)

    def publish(self, subject: str, payload: bytes, headers: dict[str, str], expected: int) -> int:
        """Append one message iff `expected` is the subject's last sequence (0: the subject is empty); return the new sequence.

        Raises ConflictError if it is not. RetryableError means that the outcome is unknown: read the last message before a retry.
        """
        return frame_bodies.publish(self.store, self._streams, subject, payload, headers, expected)

    def publish_all(self, appends: Sequence[Append]) -> list[Outcome]:
        """Do `publish` for messages of several subjects, at once where no bodies are dealt; return the outcome of each."""
        return self.store_all(appends) if self._streams == 1 else [outcome_of(partial(self.publish, *append)) for append in appends]

    def get(self, stream: str, sequence: int) -> Message | None:
        """Return the message at `sequence`, from the stream's leader; None if it is purged or not yet written."""
        message = super().get(stream, sequence)
        return message and frame_bodies.with_body(message, super().get)

    def fetch(self, stream: str, subject: str, after: int, to: int) -> Iterator[Message]:
        """Yield messages as `Streams.fetch` does, each with its body. Raise DataLossError for a body that is gone."""
        return frame_bodies.with_bodies(super().fetch(stream, subject, after, to), super().fetch, super().get)

    def purge(self, stream: str, subject: str, below: int) -> None:
        """Delete the subject's messages with sequence < `below`, which must not exceed its last, and the bodies that only they need."""
        super().purge(stream, subject, below)
        if body_number(subject, self._streams):
            frame_bodies.purge_bodies(super().fetch(stream, subject, below - 1, frame_bodies.NEWEST), super().purge)

    def extent(self, stream: str) -> StreamState | None:
        """Return the stream's state, with its bodies counted (`merged`); None if it does not exist."""
        return merged([self.state(each) for each in (stream, *body_streams(stream, self._streams))])


def merged(states: Sequence[StreamState | None]) -> StreamState | None:
    """Return the state of a stream, the first, with the bytes of its body streams; None if it does not exist.

    `name`, `bytes` and `max_bytes` are those of the stream with the least room if they are limited, else `bytes` are those of all.
    """
    own, there = states[0], [state for state in states if state]
    if own is None or own.max_bytes <= 0:
        return own and replace(own, bytes=sum(state.bytes for state in there))
    fullest = min(there, key=lambda state: state.max_bytes - state.bytes)
    return replace(own, name=fullest.name, bytes=fullest.bytes, max_bytes=fullest.max_bytes)
