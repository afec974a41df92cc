"""What the audit reads: the pipeline's streams, frame by frame, into the places of `audit.Account`. Never the ledger's counts.

A message on these streams says in a header which one was the last of its subject before it. So a frame that was removed from the middle
of a subject is known, and so is a subject that lacks its beginning. That may be the purge at work, but it never takes what is younger than
the retention, and never the last message of a subject.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from pipelines.connectors.nats.client import JetStream
from pipelines.errors import RetryableError
from pipelines.key_store.index import Words
from pipelines.proof.audit.account import Offsets, RawFrames, encoded
from pipelines.protocol.ledger import Log
from pipelines.protocol.naming import Names, is_redriven
from pipelines.protocol.positions import Position, position_keys
from pipelines.protocol.records import HEADER_FIRST, HEADER_TOPIC, Message, decode_columns, place_of_frame

_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_PLACE = ("_tf_sequence", "_tf_ordinal")
Coordinates = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass(frozen=True)
class Removed:
    """A message that is gone from behind another of its subject: at `sequence`, and perhaps others before it.

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
    """The subjects of one stream, as its messages tell of each other. Shown every message first, settled then.

    `purged_to`: raw sequences up to this one may be gone from the beginning of a subject; 0 if none may. `removed`: gaps behind the
    beginning.
    """

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.purged_to = 0
        self.removed: list[Removed] = []
        self._last: dict[str, int] = {}
        self._begins: list[tuple[int, int]] = []
        """Of each subject whose first message is gone: the sequence of the last one that is, and up to where those before may reach."""

    def see(self, message: Message) -> None:
        before = int(message.headers.get(_EXPECTED, "0"))
        known = self._last.get(message.subject)
        if known is None and before:
            self._begins.append((before, _reaches_to(message)))
        elif known is not None and before != known:
            self.removed.append(Removed(self.stream, message.subject, before, known, _reaches_to(message)))
        self._last[message.subject] = message.sequence

    def settle(self, log: Log, purged_below: int) -> None:
        """`purged_below`: the stream's sequences that the purge has let go, asked when the stream had been read.

        Where the message before a gap is gone by now, the purge was at work while the stream was read: that is no fault.
        """
        gone = [gap for gap in self.removed if log.get(self.stream, gap.after) is None]
        reached = [reaches_to for before, reaches_to in self._begins if before < purged_below]
        self.purged_to = max([0, *reached, *(gap.purged_to for gap in gone)])
        self.removed = [gap for gap in self.removed if gap not in gone]


def _reaches_to(message: Message) -> int:
    """The raw sequence up to which a message before this one may have held positions."""
    first = message.headers[HEADER_FIRST]
    is_of_raw = first.isdigit() or is_redriven(message.subject)
    return int(message.headers[_EXPECTED]) if is_of_raw else Position.parse(first).sequence


def read_frames(log: JetStream, names: Names, role: str, subjects: Subjects, to: int | None = None) -> Iterator[Message]:
    """The messages of a stream up to `to` (its present end if None) that are there, in order; tells `subjects` of each.

    Raises RetryableError when the end is not served yet.
    """
    stream = names.stream(role)
    state = log.state(stream)
    if state is None or not state.messages:
        return
    last, reached = state.last_sequence if to is None else to, 0
    for message in log.fetch(stream, names.subjects(role), state.first_sequence - 1, last):
        subjects.see(message)
        reached = message.sequence
        yield message
    if reached < last and log.get(stream, last) is not None:
        raise RetryableError(f"auditing {stream}: {reached + 1}..{last} are not served yet; try again")


def abandoned_in(message: Message) -> int:
    """How many letters of a dead-letter frame are rows that somebody has given up."""
    codes = decode_columns(message.payload, ("code",)).column("code")
    return int(pc.sum(pc.equal(codes, "abandoned")).as_py() or 0)


def codes_of(message: Message) -> Words:
    """Raw positions of the rows of an out, dead-letter or duplicates frame."""
    codes: Words = position_keys(decode_columns(message.payload, _PLACE, place_of_frame(message)))
    return codes


@dataclass(frozen=True)
class RawRead:
    """The raw frames, and the offsets of each partition. `entered`: the positions of the dead letters that have come in again."""

    frames: RawFrames
    offsets: dict[int, Offsets]
    entered: Words


@dataclass(frozen=True)
class RawWanted:
    """What to read of raw: up to sequence `to`. Offsets are taken up to `ends`, from the first one that raw still holds; of a partition of
    which it holds none, from the first one in Kafka (`firsts`). Dead letters that have come in again count for no offset.
    """

    to: int
    ends: Mapping[int, int]
    firsts: Mapping[int, int]


def read_raw(log: JetStream, names: Names, subjects: Subjects, wanted: RawWanted) -> RawRead:
    """The raw frames; tells `subjects` of each."""
    sequences: list[int] = []
    rows: list[int] = []
    offsets: dict[int, Offsets] = {}
    entered = [np.zeros(0, dtype=np.uint64)]
    for message in read_frames(log, names, "raw", subjects, wanted.to):
        sequences.append(message.sequence)
        rows.append(message.rows)
        if is_redriven(message.subject):
            entered.append(_letters_of(message))
        else:
            _add_offsets(offsets, message, wanted)
    for partition, end in wanted.ends.items():
        if partition not in offsets:
            offsets[partition] = Offsets(wanted.firsts.get(partition, end), end)
    frames = RawFrames(np.array(sequences, dtype=np.int64), np.array(rows, dtype=np.int64))
    return RawRead(frames, offsets, np.concatenate(entered))


def _letters_of(message: Message) -> Words:
    """The positions of the letters that the records of a frame were."""
    origins = decode_columns(message.payload, ("origin",)).column("origin").combine_chunks()
    parts = pc.split_pattern(origins, ".").flatten().to_numpy(zero_copy_only=False).astype(np.uint64)
    return encoded(parts[::2], parts[1::2])


def _add_offsets(offsets: dict[int, Offsets], message: Message, wanted: RawWanted) -> None:
    """The subject of a frame that ingest wrote ends in its partition."""
    token, ends = message.subject.rpartition(".")[2], wanted.ends
    if token.isdigit() and int(token) in ends and int(token) not in offsets:
        offsets[int(token)] = Offsets(int(message.headers[HEADER_FIRST]), ends[int(token)])
    frame = decode_columns(message.payload, ("partition", "offset"))
    partitions, found = (frame.column(name).to_numpy() for name in frame.column_names)
    for partition in np.unique(partitions).tolist():
        if partition in offsets:
            offsets[partition].add_raw(found[partitions == partition])


def coordinates(log: JetStream, names: Names, positions: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Coordinates]:
    """Those of the raw records at these positions that are there."""
    wanted: dict[int, list[int]] = {}
    for sequence, ordinal in positions:
        wanted.setdefault(sequence, []).append(ordinal)
    found: dict[tuple[int, int], Coordinates] = {}
    for sequence, ordinals in wanted.items():
        message = log.get(names.stream("raw"), sequence) if sequence else None
        if message is None:
            continue
        topic, frame = message.headers[HEADER_TOPIC], decode_columns(message.payload, ("partition", "offset")).to_pylist()
        found |= {(sequence, o): (topic, frame[o]["partition"], frame[o]["offset"]) for o in ordinals if o < len(frame)}
    return found
