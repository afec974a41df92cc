"""The records of a preview as raw frames: lines of JSON, or the newest records of the topic.

Each record has the position that it would have in a pipeline of its own: its frame, and its place in the frame. As in ingest, an empty
frame announces each partition: dedup by event time lets none of them run ahead of the others. No frame is stored.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from pipelines.config import KafkaSource
from pipelines.connectors.sources import Source
from pipelines.process.arrivals import Arrived, arrivals
from pipelines.protocol.naming import Names
from pipelines.protocol.records import (
    HEADER_BYTES,
    HEADER_PARTITION,
    HEADER_TOPIC,
    RAW_SCHEMA,
    Message,
    encode_frame,
)

FRAME_RECORDS = 5000
PATIENCE_SECONDS = 10.0


@dataclass(frozen=True)
class Given:
    """One record: its value, and what Kafka keeps beside it. `at`: its arrival, aware UTC."""

    value: bytes | None
    at: datetime
    key: bytes | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] | None = None
    partition: int = 0


def of_lines(lines: Iterable[bytes], at: datetime | None = None) -> Iterator[Given]:
    """Yield a record per line that is not empty, all of them arriving at one instant, by default now."""
    arrival = at or datetime.now(UTC)
    for line in lines:
        if value := line.strip():
            yield Given(value, arrival)


def frames_of(records: Iterable[Given], source: KafkaSource) -> list[Arrived]:
    """Return the records as raw frames in their order: one for each run of records of one partition and one arrival.

    An arrival never steps back: a record that is given an earlier one arrives with the record before it.
    """
    given = list(records)
    messages = _announced({record.partition for record in given}, given[0].at, source) if given else []
    offsets: dict[int, int] = {}
    run: list[Given] = []

    def close() -> None:
        if run:
            partition = run[0].partition
            first = offsets.get(partition, 0)
            offsets[partition] = first + len(run)
            messages.append(_frame(len(messages) + 1, _table(run, first), partition, run[0].at, source))
            run.clear()

    for record in given:
        if run and ((record.partition, record.at) != (run[0].partition, run[0].at) or len(run) == FRAME_RECORDS):
            close()
        run.append(record)
    close()
    return list(arrivals(messages, 0))


def newest_frames(source: KafkaSource, opened: Source, count: int) -> list[Arrived]:
    """Return the newest records of the source as raw frames, as if they arrived now: `count` of each partition at most.

    No consumer group is used. Raise RetryableError while the source is away, HaltError if it does not exist.
    """
    partitions = opened.facts(PATIENCE_SECONDS).partitions
    starts, ends = opened.starts(partitions), opened.ends(partitions)
    ranges = {partition: (max(starts[partition], end - count), end) for partition, end in ends.items()}
    ranges = {partition: (first, end) for partition, (first, end) in ranges.items() if first < end}
    now = datetime.now(UTC)
    messages = _announced(ranges, now, source)
    for block in opened.read(ranges):
        if block.records.num_rows:
            messages.append(_frame(len(messages) + 1, block.records, block.partition, now, source))
    return list(arrivals(messages, 0))


def _announced(partitions: Iterable[int], at: datetime, source: KafkaSource) -> list[Message]:
    return [_frame(number, RAW_SCHEMA.empty_table(), partition, at, source) for number, partition in enumerate(sorted(partitions), 1)]


def _table(run: Sequence[Given], first: int) -> pa.Table:
    count = len(run)
    columns: dict[str, Iterable[Any]] = {
        "key": [record.key for record in run],
        "value": [record.value for record in run],
        "headers": [list(record.headers) if record.headers is not None else None for record in run],
        "partition": [run[0].partition] * count,
        "offset": range(first, first + count),
        "timestamp": [record.at for record in run],
        "oversize": [None] * count,
    }
    return pa.table([pa.array(list(columns[field.name]), field.type) for field in RAW_SCHEMA], schema=RAW_SCHEMA)


def _frame(sequence: int, records: pa.Table, partition: int, at: datetime, source: KafkaSource) -> Message:
    headers = {HEADER_TOPIC: source.topic, HEADER_PARTITION: str(partition), HEADER_BYTES: str(records.nbytes)}
    subject = Names("preview").raw(source.source_id, partition)
    return Message(subject, sequence, at, encode_frame(records), headers)
