"""The process leg's work on raw frames, in the driver or in a task: through the stages, and on to their buckets.

Without dedup a bucket holds the records of its Kafka partitions, so one task has all of a bucket in position order and no exchange is
needed. With dedup a bucket holds keys: tasks take frames through the stages, rows cross an exchange by bucket, as whole frames, and the
bucket's task does the rest.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.dedup import KEY_COLUMNS, with_keys
from pipelines.dlq import letters
from pipelines.errors import HaltError, RetryableError
from pipelines.failpoints import reach
from pipelines.legs.buckets import Buckets, key_owners, partition_owners, shares
from pipelines.legs.connections import Connections
from pipelines.legs.execute import Item, Parcel, Report
from pipelines.legs.stage_config import StageConfig
from pipelines.naming import bucket_of_partition
from pipelines.parse import parse
from pipelines.records import HEADER_PARTITION, HEADER_TOPIC, Message, decode_frame, encode_frame, in_position_order, with_positions
from pipelines.transform import map_columns, reject_wide

FRAMES_PER_STEP = 12
BUCKET_THREADS = 8
ROWS, LETTERS, COUNTS = "rows", "letters", "counts"
"""Kinds of parcels that cross the exchange."""


@dataclass(frozen=True)
class Arrived:
    """A raw frame with its arrival: the running maximum of the frames' server times in sequence order, in microseconds."""

    message: Message
    arrival_us: int


def arrivals(messages: Iterable[Message], clock_us: int) -> Iterator[Arrived]:
    """`messages` must be all frames of the stream from where `clock_us` was taken, in sequence order: the server's time may step back."""
    for message in messages:
        clock_us = max(clock_us, _microseconds(message.time))
        yield Arrived(message, clock_us)


def _microseconds(instant: datetime) -> int:
    return int(instant.timestamp()) * 1_000_000 + instant.microsecond


def bucket_of(message: Message, buckets: int) -> int:
    return bucket_of_partition(int(message.headers[HEADER_PARTITION]), buckets)


def process(connections: Connections, item: Item) -> Report:
    """One item in a task: its buckets one after the other, each with the frames that it fetches itself."""
    config = connections.stage_config(item["config"])
    return {
        bucket: process_frames(connections, config, item, _fetched(connections, item, share)) for bucket, share in item["buckets"].items()
    }


def before_exchange(connections: Connections, item: Item) -> Iterator[Parcel]:
    """One item in a task, with dedup: its frames through the stages; rows with their keys to their bucket, letters to theirs.

    What it counted goes to bucket 0.
    """
    config = connections.stage_config(item["config"])
    counts = new_counts()
    for share in item["buckets"].values():
        for step in steps(_fetched(connections, item, share)):
            rows, rejected = stages(connections.engine, config, item["config"], step, counts)
            for bucket, part in shares(rows, key_owners(rows, config.buckets)):
                yield bucket, ROWS, encode_frame(part)
            for bucket, part in shares(rejected, partition_owners(rejected, config.buckets)):
                yield bucket, LETTERS, encode_frame(part)
    yield 0, COUNTS, json.dumps(counts).encode()


def after_exchange(connections: Connections, item: Item, bucket: int, parcels: list[tuple[str, bytes]]) -> Report:
    """One bucket of the plan in a task: all that was sent to it, in position order; the only writer of the bucket's subjects and store."""
    config = connections.stage_config(item["config"])
    buckets = Buckets(connections, config, item)
    counts: Counter[str] = Counter()
    for kind, payload in parcels:
        if kind == COUNTS:
            counts.update(json.loads(payload))
    rows, rejected = ([decode_frame(payload) for kind, payload in parcels if kind == wanted] for wanted in (ROWS, LETTERS))
    if rows:
        counts.update(buckets.append_first_of_keys(bucket, _together(rows)))
    reach("process.between-frames")
    if rejected:
        buckets.append_letters(in_position_order(_together(rejected)))
    reach("process.after-publish")
    return {"counts": dict(counts), "tails": buckets.tails(), "runs": buckets.runs}


def _together(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="default").unify_dictionaries()


def new_counts() -> dict[str, int]:
    return {"rows_in": 0, "rows_out": 0, "rows_rejected": 0, "frames": 0}


def _fetched(connections: Connections, item: Item, share: dict[str, Any]) -> Iterator[Arrived]:
    """The bucket's frames, exactly those that the driver's scan named: a gap must stop the task before it writes beyond it."""
    stream = connections.names.stream("raw")
    subjects = (connections.log.fetch(stream, subject, item["from"], item["to"]) for subject in share["subjects"])
    found = merge(*subjects, key=lambda message: message.sequence)
    for sequence, arrival_us in share["frames"]:
        message = next(found, None)
        if message is None or message.sequence != sequence:
            raise RetryableError(f"reading {stream}: sequence {sequence} is not served yet by the replica that answered")
        yield Arrived(message, arrival_us)


def process_frames(connections: Connections, config: StageConfig, item: Item, frames: Iterable[Arrived]) -> Report:
    """All frames of some buckets in sequence order through the stages; appends what the buckets' subjects do not hold yet.

    With dedup they must be all frames of the plan. Publishing runs on a thread of its own, one step behind the stages. Counts are those
    of the stages, so a replay reports the same.
    """
    buckets = Buckets(connections, config, item)
    counts = Counter(new_counts())
    with ThreadPoolExecutor(1, "append") as publisher:
        last: Future[None] | None = None
        held: list[pa.Table] = []
        for step in steps(frames):
            rows, rejected = stages(connections.engine, config, item["config"], step, counts)
            if config.dedup_key:
                held.append(rows)
                rows = rows.slice(0, 0)
            if last is not None:
                last.result()
            last = publisher.submit(buckets.append, rows, rejected)
        if last is not None:
            last.result()
    if held:
        rows = _together(held)
        # Side by side: a bucket mostly waits for the disk.
        with ThreadPoolExecutor(BUCKET_THREADS, "bucket") as workers:
            owned = shares(rows, key_owners(rows, config.buckets))
            for done in [workers.submit(buckets.append_first_of_keys, bucket, share) for bucket, share in owned]:
                counts.update(done.result())
    reach("process.after-publish")
    return {"counts": dict(counts), "tails": buckets.tails(), "runs": buckets.runs}


def steps(frames: Iterable[Arrived]) -> Iterator[list[Arrived]]:
    """Frames in the portions that go through the stages together."""
    iterator = iter(frames)
    while step := list(islice(iterator, FRAMES_PER_STEP)):
        yield step


def stages(
    engine: duckdb.DuckDBPyConnection, config: StageConfig, version: str, step: Sequence[Arrived], counts: dict[str, int]
) -> tuple[pa.Table, pa.Table]:
    """(out rows, dead letters) of some frames; adds to `counts`. With dedup, rows have KEY_COLUMNS and are not counted as out yet."""
    records = pa.concat_tables([_records(frame) for frame in step], promote_options="default").unify_dictionaries()
    parsed = parse(engine, records, config.parsed_fields)
    refused = [parsed.rejected]
    keep: tuple[str, ...] = ()
    if config.dedup_key:
        parsed = with_keys(engine, parsed.accepted, config.dedup_key)
        refused.append(parsed.rejected)
        keep = KEY_COLUMNS
    mapped = map_columns(engine, parsed.accepted, config.targets, keep)
    fitting = reject_wide(mapped.accepted, pc.max(pc.binary_length(records.column("value"))).as_py() or 0)
    rejected = pa.concat_tables([*refused, mapped.rejected, fitting.rejected])
    counts["frames"] += len(step)
    counts["rows_in"] += records.num_rows
    if not config.dedup_key:
        counts["rows_out"] += fitting.accepted.num_rows
    counts["rows_rejected"] += rejected.num_rows
    reasons = pc.value_counts(pc.binary_join_element_wise("rejected", rejected.column("stage"), rejected.column("code"), "."))
    for reason in reasons.to_pylist():
        counts[reason["values"]] = counts.get(reason["values"], 0) + reason["counts"]
    return fitting.accepted, letters(records, rejected, version)


def _records(frame: Arrived) -> pa.Table:
    message = frame.message
    try:
        table = decode_frame(message.payload)
    except pa.ArrowInvalid as error:
        raise HaltError(f"decoding {message.subject} at {message.sequence}: {error}; only Tallyflow may write to its streams") from error
    return with_positions(table, message.sequence, message.headers[HEADER_TOPIC], frame.arrival_us)
