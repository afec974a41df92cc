"""The pipeline's streams, frame by frame. Functions raise RetryableError while NATS is away.

A message on these streams names in a header the message before it on its subject. So a frame that was removed from the middle of a subject
is detected, and so is a subject without its beginning. The latter may be an effect of the purge, but the purge never takes messages younger
than the retention, and never the last message of a subject.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipelines.connectors.nats.client import JetStream
from pipelines.errors import RetryableError
from pipelines.protocol.ledger import Log
from pipelines.protocol.naming import Names, is_redriven, is_then_dropped
from pipelines.protocol.positions import SEQUENCE_AND_ORDINAL, Position, RawPositions, position_keys
from pipelines.protocol.records import (
    EMIT_FIELD,
    HEADER_FIRST,
    HEADER_TOPIC,
    Message,
    decode_columns,
    describe_frame,
)

_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
Coordinates = tuple[str, int, int]
"""Topic, partition, offset."""


def last_sequence(log: JetStream, stream: str) -> int:
    """Return the sequence of the stream's last message; 0 if there is no stream."""
    state = log.state(stream)
    return state.last_sequence if state else 0


def first_sequence(log: JetStream, stream: str) -> int:
    """Return the sequence of the stream's first message; 0 if there is no stream."""
    state = log.state(stream)
    return state.first_sequence if state else 0


@dataclass(frozen=True)
class Removed:
    """A missing message, detected by the next one of its subject: at `sequence`, and perhaps others before it.

    `after`: the message that was read before the gap. `purged_to`: see `Subjects`.
    """

    stream: str
    subject: str
    sequence: int
    after: int
    purged_to: int

    def __str__(self) -> str:
        return f"{self.stream} sequence {self.sequence} ({self.subject})"


class Subjects:
    """The subjects of one stream, as its messages link to each other. `see` takes every message first; `settle` comes last.

    `purged_to`: raw sequences up to this one may be missing at the beginning of a subject; 0 if none may. `removed`: gaps after the
    beginning.
    """

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.purged_to = 0
        self.removed: list[Removed] = []
        self._last: dict[str, int] = {}
        self._begins: list[tuple[int, int]] = []
        """For each subject without its first message: the sequence of the last missing one, and the raw sequence that it may reach."""

    def see(self, message: Message) -> None:
        """Note one message, in the order of the stream."""
        before = int(message.headers.get(_EXPECTED, "0"))
        last = self._last.get(message.subject)
        if last is None and before:
            self._begins.append((before, _reaches_to(message)))
        elif last is not None and before != last:
            self.removed.append(Removed(self.stream, message.subject, before, last, _reaches_to(message)))
        self._last[message.subject] = message.sequence

    def settle(self, log: Log, purged_below: int) -> None:
        """Take the purge into account, once the stream has been read.

        `purged_below`: the stream's sequences below it may be purged. If the message before a gap is missing by now, a purge beside this
        reading has removed it, and the gap is no fault.
        """
        purged = [gap for gap in self.removed if log.get(self.stream, gap.after) is None]
        reached = [reaches_to for before, reaches_to in self._begins if before < purged_below]
        self.purged_to = max([0, *reached, *(gap.purged_to for gap in purged)])
        self.removed = [gap for gap in self.removed if gap not in purged]


def _reaches_to(message: Message) -> int:
    """Return the raw sequence up to which a message before this one may have held positions."""
    first = message.headers[HEADER_FIRST]
    is_of_raw = first.isdigit() or is_redriven(message.subject)
    return int(message.headers[_EXPECTED]) if is_of_raw else Position.parse(first).sequence


def read_frames(log: JetStream, names: Names, role: str, subjects: Subjects | None = None, to: int | None = None) -> Iterator[Message]:
    """Yield the messages of a stream up to `to` (its present end if None) that exist, in order; `subjects` sees each.

    Raise RetryableError if the end is not served yet.
    """
    stream = names.stream(role)
    state = log.state(stream)
    if state is None or not state.messages:
        return
    last, reached = state.last_sequence if to is None else to, 0
    for message in log.fetch(stream, names.subjects(role), state.first_sequence - 1, last):
        if subjects is not None:
            subjects.see(message)
        reached = message.sequence
        yield message
    if reached < last and log.get(stream, last) is not None:
        raise RetryableError(f"reading {stream}: {reached + 1}..{last} are not served yet; try again")


def positions_of(message: Message) -> RawPositions:
    """Return the raw positions of the rows of an out, dead-letter or duplicates frame."""
    positions: RawPositions = position_keys(decode_columns(message.payload, SEQUENCE_AND_ORDINAL, describe_frame(message)))
    return positions


def rows_of(message: Message) -> pa.Table:
    """Return `position`, the raw position, and `emit`, the number among the rows of its record, of the rows of an out frame."""
    found = decode_columns(message.payload, (*SEQUENCE_AND_ORDINAL, EMIT_FIELD.name), describe_frame(message))
    return pa.table({"position": position_keys(found), "emit": found.column(EMIT_FIELD.name)})


def read_then_dropped(log: JetStream, names: Names) -> Iterator[RawPositions]:
    """Yield the positions of records that dedup has accepted and a later step has dropped, a frame at a time."""
    return (positions_of(message) for message in read_frames(log, names, "duplicates") if is_then_dropped(message.subject))


def read_dead_letters(log: JetStream, names: Names, columns: Sequence[str], subjects: Subjects | None = None) -> Iterator[pa.Table]:
    """Yield `position` and these columns of the dead letters, a frame at a time."""
    for message in read_frames(log, names, "dlq", subjects):
        dead_letters = decode_columns(message.payload, (*SEQUENCE_AND_ORDINAL, *columns), describe_frame(message))
        yield dead_letters.append_column("position", pa.array(position_keys(dead_letters))).select(["position", *columns])


def coordinates(log: JetStream, names: Names, positions: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Coordinates]:
    """Return the Kafka coordinates of the raw records at these positions, as far as their frames exist."""
    ordinals_of: dict[int, list[int]] = {}
    for sequence, ordinal in positions:
        ordinals_of.setdefault(sequence, []).append(ordinal)
    by_position: dict[tuple[int, int], Coordinates] = {}
    for sequence, ordinals in ordinals_of.items():
        message = log.get(names.stream("raw"), sequence) if sequence else None
        if message is None:
            continue
        topic, frame = message.headers[HEADER_TOPIC], decode_columns(message.payload, ("partition", "offset")).to_pylist()
        by_position |= {(sequence, o): (topic, frame[o]["partition"], frame[o]["offset"]) for o in ordinals if o < len(frame)}
    return by_position
