"""The raw stream as the audit counts it: rows of each frame, offsets of each partition of a source, redriven dead letters."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from pipelines.connectors.nats.client import JetStream
from pipelines.proof.audit.account import Offsets, RawFrames
from pipelines.proof.readers.streams import Subjects, read_frames
from pipelines.protocol.naming import Names, is_redriven, is_tick, source_of_subject
from pipelines.protocol.positions import NO_POSITIONS, RawPositions, SourcePartition, packed
from pipelines.protocol.records import HEADER_FIRST, Message, decode_columns


@dataclass(frozen=True)
class RawRange:
    """The part of raw to read: up to sequence `to`, and of each partition the offsets up to `ends`, exclusive.

    Offsets begin at the first one that raw still holds; of a partition of which it holds none, at the first one in its source (`firsts`).
    """

    to: int
    ends: Mapping[SourcePartition, int]
    firsts: Mapping[SourcePartition, int]


@dataclass(frozen=True)
class RawRead:
    """The raw frames, and the offsets of each partition. `entered`: positions of redriven dead letters; these have no offset."""

    frames: RawFrames
    offsets: dict[SourcePartition, Offsets]
    entered: RawPositions


def read_raw(log: JetStream, names: Names, subjects: Subjects, of: RawRange) -> RawRead:
    """Read the raw frames once; `subjects` sees each."""
    sequences: list[int] = []
    rows: list[int] = []
    offsets: dict[SourcePartition, Offsets] = {}
    entered = [NO_POSITIONS]
    for message in read_frames(log, names, "raw", subjects, of.to):
        sequences.append(message.sequence)
        rows.append(message.rows)
        if is_tick(message.subject):
            continue
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


def _add_offsets(offsets: dict[SourcePartition, Offsets], message: Message, ends: Mapping[SourcePartition, int]) -> None:
    """Count the offsets of a frame that ingest wrote; its subject names its source and ends in its partition."""
    source, token = source_of_subject(message.subject), message.subject.rpartition(".")[2]
    if token.isdigit() and (key := SourcePartition(source, int(token))) in ends and key not in offsets:
        offsets[key] = Offsets(int(message.headers[HEADER_FIRST]), ends[key])
    frame = decode_columns(message.payload, ("partition", "offset"))
    partitions, all_offsets = (frame.column(name).to_numpy() for name in frame.column_names)
    for partition in np.unique(partitions).tolist():
        if (place := SourcePartition(source, partition)) in offsets:
            offsets[place].add_raw(all_offsets[partitions == partition])
