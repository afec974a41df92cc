"""The raw stream as the audit counts it: rows of each frame, Kafka offsets of each partition, redriven dead letters."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from pipelines.connectors.nats.client import JetStream
from pipelines.proof.audit.account import Offsets, RawFrames
from pipelines.proof.readers.streams import Subjects, read_frames
from pipelines.protocol.naming import Names, is_redriven
from pipelines.protocol.positions import NO_POSITIONS, RawPositions, packed
from pipelines.protocol.records import HEADER_FIRST, Message, decode_columns


@dataclass(frozen=True)
class RawRange:
    """The part of raw to read: up to sequence `to`, and of each partition the offsets up to `ends`, exclusive.

    Offsets begin at the first one that raw still holds; of a partition of which it holds none, at the first one in Kafka (`firsts`).
    """

    to: int
    ends: Mapping[int, int]
    firsts: Mapping[int, int]


@dataclass(frozen=True)
class RawRead:
    """The raw frames, and the offsets of each partition. `entered`: positions of redriven dead letters; these have no offset."""

    frames: RawFrames
    offsets: dict[int, Offsets]
    entered: RawPositions


def read_raw(log: JetStream, names: Names, subjects: Subjects, of: RawRange) -> RawRead:
    """Read the raw frames once; `subjects` sees each."""
    sequences: list[int] = []
    rows: list[int] = []
    offsets: dict[int, Offsets] = {}
    entered = [NO_POSITIONS]
    for message in read_frames(log, names, "raw", subjects, of.to):
        sequences.append(message.sequence)
        rows.append(message.rows)
        if is_redriven(message.subject):
            entered.append(_origins(message))
        else:
            _add_offsets(offsets, message, of.ends)
    for partition, end in of.ends.items():
        if partition not in offsets:
            offsets[partition] = Offsets(of.firsts.get(partition, end), end)
    frames = RawFrames(np.array(sequences, dtype=np.int64), np.array(rows, dtype=np.int64))
    return RawRead(frames, offsets, np.concatenate(entered))


def _origins(message: Message) -> RawPositions:
    """Return the former positions of the redriven dead letters in a frame."""
    origins = decode_columns(message.payload, ("origin",)).column("origin").combine_chunks()
    parts = pc.split_pattern(origins, ".").flatten().to_numpy(zero_copy_only=False).astype(np.uint64)
    return packed(parts[::2], parts[1::2])


def _add_offsets(offsets: dict[int, Offsets], message: Message, ends: Mapping[int, int]) -> None:
    """Count the offsets of a frame that ingest wrote; its subject ends in its partition."""
    token = message.subject.rpartition(".")[2]
    if token.isdigit() and int(token) in ends and int(token) not in offsets:
        offsets[int(token)] = Offsets(int(message.headers[HEADER_FIRST]), ends[int(token)])
    frame = decode_columns(message.payload, ("partition", "offset"))
    partitions, all_offsets = (frame.column(name).to_numpy() for name in frame.column_names)
    for partition in np.unique(partitions).tolist():
        if partition in offsets:
            offsets[partition].add_raw(all_offsets[partitions == partition])
