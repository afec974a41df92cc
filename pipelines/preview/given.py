"""The records of a preview as raw frames: lines of JSON, or the newest records of the topics.

Each record has the position that it would have in a pipeline of its own: its frame, and its place in the frame. As in ingest, an empty
frame announces each partition: dedup by event time lets none of them run ahead of the others. No frame is stored.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from pipelines.config import KafkaSource
from pipelines.connectors.sources import Source
from pipelines.process.arrivals import Arrived, arrivals
from pipelines.protocol.naming import Names
from pipelines.protocol.records import (
    HEADER_BYTES,
    HEADER_LAST,
    HEADER_PARTITION,
    HEADER_TOPIC,
    RAW_SCHEMA,
    Message,
    encode_frame,
)

FRAME_RECORDS = 5000
PATIENCE_SECONDS = 10.0
_NO_KEY = (b"", b"null")
"""What kcat and kafka-console-consumer print for a record without a key."""


@dataclass(frozen=True)
class Given:
    """One record: its value, and what Kafka keeps beside it. `at`: its arrival, aware UTC. `source`: its id, empty for the first one."""

    value: bytes | None
    at: datetime
    key: bytes | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] | None = None
    partition: int = 0
    source: str = ""


def of_lines(lines: Iterable[bytes], at: datetime | None = None, source: str = "", has_keys: bool = False) -> Iterator[Given]:
    """Yield a record per line that is not empty, all of one source and arriving at one instant, by default now.

    `has_keys`: a line is the key, a tab and the value; as key, nothing or `null` stands for none. Raise ValueError for one without a tab.
    """
    arrival = at or datetime.now(UTC)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        key, tab, value = line.partition(b"\t") if has_keys else (b"", b"", line)
        if has_keys and not tab:
            raise ValueError(f"line {number} has no tab behind a key")
        yield Given(value.strip(), arrival, key=None if key in _NO_KEY else key, source=source)


def frames_of(records: Iterable[Given], sources: Sequence[KafkaSource], until: timedelta | None = None) -> list[Arrived]:
    """Return the records as raw frames in their order: one for each run of records of one partition and one arrival.

    `until`: the time behind the last record at which a frame without records arrives. An arrival never steps back: a record that is given
    an earlier one arrives with the record before it. Each names one of `sources`.
    """
    given, by_id = list(records), {"": sources[0], **{source.source_id: source for source in sources}}
    messages: list[Message] = []
    for source, partition in sorted({(record.source, record.partition) for record in given}):
        _append(messages, RAW_SCHEMA.empty_table(), partition, given[0].at, by_id[source])
    offsets: dict[tuple[str, int], int] = {}
    run: list[Given] = []

    def close() -> None:
        if run:
            place = run[0].source, run[0].partition
            first = offsets.get(place, 0)
            offsets[place] = first + len(run)
            _append(messages, _table(run, first), run[0].partition, run[0].at, by_id[run[0].source])
            run.clear()

    for record in given:
        if run and (_run_of(record) != _run_of(run[0]) or len(run) == FRAME_RECORDS):
            close()
        run.append(record)
    close()
    if until is not None:
        _append(messages, RAW_SCHEMA.empty_table(), 0, messages[-1].time + until, sources[0])
    return list(arrivals(messages, 0))


def _run_of(record: Given) -> tuple[str, int, datetime]:
    return record.source, record.partition, record.at


def newest_frames(opened: Iterable[tuple[KafkaSource, Source]], count: int) -> list[Arrived]:
    """Return the newest records of sources as raw frames, as if they arrived now, source by source: `count` of each partition at most.

    No consumer group is used. Raise RetryableError while a source is away, HaltError if one does not exist.
    """
    now = datetime.now(UTC)
    blocks, messages = [], list[Message]()
    for source, reader in opened:
        partitions = reader.facts(PATIENCE_SECONDS).partitions
        starts, ends = reader.starts(partitions), reader.ends(partitions)
        ranges = {partition: (max(starts[partition], end - count), end) for partition, end in ends.items()}
        ranges = {partition: (first, end) for partition, (first, end) in ranges.items() if first < end}
        for partition in sorted(ranges):
            _append(messages, RAW_SCHEMA.empty_table(), partition, now, source)
        blocks += [(source, block) for block in reader.read(ranges) if block.records.num_rows]
    for source, block in blocks:
        _append(messages, block.records, block.partition, now, source)
    return list(arrivals(messages, 0))


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


def _append(messages: list[Message], records: pa.Table, partition: int, at: datetime, source: KafkaSource) -> None:
    """Append records of one partition as a frame, behind those before."""
    last = records.column("offset")[-1].as_py() if records.num_rows else -1
    headers = {HEADER_TOPIC: source.topic, HEADER_PARTITION: str(partition), HEADER_LAST: str(last), HEADER_BYTES: str(records.nbytes)}
    subject = Names("preview").raw(source.source_id, partition)
    messages.append(Message(subject, len(messages) + 1, at, encode_frame(records), headers))
