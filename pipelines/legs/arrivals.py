"""Raw frames as the process leg takes them in: each with its arrival, decoded into the input of the stages."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import pyarrow as pa

from pipelines.errors import HaltError, RetryableError
from pipelines.ledger import Log
from pipelines.naming import bucket_of_partition
from pipelines.records import HEADER_PARTITION, HEADER_TOPIC, Message, decode_frame, with_positions

FRAMES_PER_STEP = 12


@dataclass(frozen=True)
class Arrived:
    """A raw frame with its arrival: the running maximum of the frames' server times in sequence order, in microseconds."""

    message: Message
    arrival_us: int


@dataclass(frozen=True)
class ClockReset:
    """A decision of the ledger: from behind the frame at `after` on, the arrival, which had run ahead to `arrival_us` while the server's
    clock said `server_us`, does not stand still, but goes on at half the server's speed until the server's clock is there.

    So it never steps back, and no window is shorter than it was. The frames up to `last` were there already: none came later than
    `server_us`, whatever their times say.
    """

    after: int
    last: int
    server_us: int
    arrival_us: int

    def time_us(self, sequence: int, server_us: int) -> int:
        """What stands for the server's time of a frame behind `after`."""
        known_us = min(server_us, self.server_us) if sequence <= self.last else server_us
        return max(known_us, self.arrival_us + max(0, known_us - self.server_us) // 2)


def clock_resets(done: Mapping[str, Any]) -> list[ClockReset]:
    """Those that a `done` of the process leg carries, in their order."""
    return [ClockReset(*reset) for reset in done.get("clock_resets", ())]


def arrivals(messages: Iterable[Message], clock_us: int, resets: Sequence[ClockReset] = ()) -> Iterator[Arrived]:
    """`messages` must be all frames of the stream from where `clock_us` was taken, in sequence order: the server's time may step back."""
    for message in messages:
        clock_us = max(clock_us, arrival_by(resets, message.sequence, microseconds(message.time)))
        yield Arrived(message, clock_us)


def arrival_by(resets: Sequence[ClockReset], sequence: int, server_us: int) -> int:
    """What stands for the server's time of a frame, by the last reset before it."""
    for reset in reversed(resets):
        if sequence > reset.after:
            return reset.time_us(sequence, server_us)
    return server_us


def microseconds(instant: datetime) -> int:
    return int(instant.timestamp()) * 1_000_000 + instant.microsecond


def bucket_of(message: Message, buckets: int) -> int:
    return bucket_of_partition(int(message.headers[HEADER_PARTITION]), buckets)


def steps(frames: Iterable[Arrived]) -> Iterator[list[Arrived]]:
    """Frames in the portions that go through the stages together."""
    iterator = iter(frames)
    while step := list(islice(iterator, FRAMES_PER_STEP)):
        yield step


def records_of(message: Message, arrival_us: int) -> pa.Table:
    """The frame's records with their positions. Raises HaltError for a frame that nobody of ours has written."""
    try:
        table = decode_frame(message.payload)
    except pa.ArrowInvalid as error:
        raise HaltError(f"decoding {message.subject} at {message.sequence}: {error}; only Tallyflow may write to its streams") from error
    return with_positions(table, message.sequence, message.headers[HEADER_TOPIC], arrival_us)


def read_again(log: Log, stream: str, places: pa.Table) -> pa.Table:
    """The records of the raw frames that hold `places` (`_tf_sequence`, `_tf_arrival`), in position order.

    Raises RetryableError while a frame is not served.
    """
    frames = places.group_by("_tf_sequence").aggregate([("_tf_arrival", "max")]).sort_by("_tf_sequence").to_pylist()
    records = []
    for frame in frames:
        message = log.get(stream, frame["_tf_sequence"])
        if message is None:
            raise RetryableError(f"reading {stream}: sequence {frame['_tf_sequence']} is not served yet")
        records.append(records_of(message, microseconds(frame["_tf_arrival_max"])))
    return pa.concat_tables(records, promote_options="default").unify_dictionaries()
