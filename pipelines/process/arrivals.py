"""Raw frames as the process leg reads them: each with its arrival, decoded into the input of the stages."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from pipelines.errors import HaltError, RetryableError
from pipelines.protocol.bodies import ClockReset
from pipelines.protocol.ledger import Log
from pipelines.protocol.naming import source_of_subject
from pipelines.protocol.records import (
    HEADER_TOPIC,
    HISTORY_SCHEMA,
    RAW_SCHEMA,
    Message,
    check_columns,
    decode_frame,
    describe_frame,
    joined,
    with_positions,
)

SOURCE_COLUMN = "source"
FRAMES_PER_STEP = 12
STEP_BYTES = 32 * 1024 * 1024
"""Limit of decoded frames that pass through the stages together.

For JSON with large values DuckDB takes up to twenty times as much, out of its 2 GiB.
"""


@dataclass(frozen=True)
class Arrived:
    """A raw frame with its arrival: the running maximum of the frames' server times in sequence order, in microseconds."""

    message: Message
    arrival_us: int


def arrivals(messages: Iterable[Message], clock_us: int, resets: Sequence[ClockReset] = ()) -> Iterator[Arrived]:
    """Yield the frames with their arrivals.

    `messages` must be all frames of the stream from the place of `clock_us` on, in sequence order: the server's time may step back.
    """
    for message in messages:
        clock_us = max(clock_us, arrival_by(resets, message.sequence, microseconds(message.time)))
        yield Arrived(message, clock_us)


def arrival_by(resets: Sequence[ClockReset], sequence: int, server_us: int) -> int:
    """Return the time that replaces the server's time of a frame, by the last reset before the frame."""
    for reset in reversed(resets):
        if sequence > reset.after:
            return reset.time_us(sequence, server_us)
    return server_us


def microseconds(instant: datetime) -> int:
    return int(instant.timestamp()) * 1_000_000 + instant.microsecond


def steps(frames: Iterable[Arrived], most_bytes: int = STEP_BYTES, most_frames: int = FRAMES_PER_STEP) -> Iterator[list[Arrived]]:
    """Yield the portions of frames that pass through the stages together: at most `most_frames` and `most_bytes`, or one frame."""
    step: list[Arrived] = []
    size = 0
    for frame in frames:
        if step and (len(step) == most_frames or size + frame.message.content_bytes > most_bytes):
            yield step
            step, size = [], 0
        step.append(frame)
        size += frame.message.content_bytes
    if step:
        yield step


def records_of(message: Message, arrival_us: int) -> pa.Table:
    """Return the frame's records with their positions. Raise HaltError for a frame that was not written by Tallyflow."""
    what = describe_frame(message)
    table = decode_frame(message.payload, what)
    check_columns(table, RAW_SCHEMA, HISTORY_SCHEMA, what)
    if HEADER_TOPIC not in message.headers:
        raise HaltError(f"decoding {what}: it has no header {HEADER_TOPIC}; only Tallyflow may write to its streams")
    return with_positions(table, message.sequence, message.headers[HEADER_TOPIC], arrival_us)


def sourced_records_of(message: Message, arrival_us: int) -> pa.Table:
    """Return the frame's records as `records_of`, with the id of their source in SOURCE_COLUMN."""
    records = records_of(message, arrival_us)
    return records.append_column(SOURCE_COLUMN, pa.repeat(source_of_subject(message.subject), records.num_rows))


def read_again(log: Log, stream: str, places: pa.Table) -> pa.Table:
    """Read the raw frames that hold `places` (`_tf_sequence`, `_tf_arrival`) again; return their records in position order.

    They have SOURCE_COLUMN. Raise RetryableError while a frame is not served.
    """
    frames = places.group_by("_tf_sequence", use_threads=False).aggregate([("_tf_arrival", "max")]).sort_by("_tf_sequence").to_pylist()
    records = []
    for frame in frames:
        message = log.get(stream, frame["_tf_sequence"])
        if message is None:
            raise RetryableError(f"reading {stream}: sequence {frame['_tf_sequence']} is not served yet")
        records.append(sourced_records_of(message, microseconds(frame["_tf_arrival_max"])))
    return joined(records)
