"""The process leg: raw frames to typed out frames and dead letters. A work item is some buckets' share of a range of raw sequences.

Without dedup or join a bucket holds the records of its Kafka partitions, so one task has all of a bucket in position order and no
exchange is needed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from pipelines.append import Appender, Tail, append_rows, last_position
from pipelines.connectors.jetstream import check_contiguous
from pipelines.connectors.ranges import MAX_FRAMES_PER_BATCH
from pipelines.dlq import letters
from pipelines.errors import HaltError, RetryableError
from pipelines.failpoints import reach
from pipelines.ledger import Entry
from pipelines.legs.connections import Connections
from pipelines.legs.execute import Item, Report, run_in_tasks
from pipelines.legs.leg import Leg, check_input, input_mark
from pipelines.legs.stage_config import StageConfig
from pipelines.naming import bucket_of_partition
from pipelines.parse import parse
from pipelines.records import HEADER_PARTITION, HEADER_TOPIC, Message, Position, decode_frame, with_positions
from pipelines.transform import map_columns, reject_wide

FRAMES_PER_STEP = 12
DRIVER_FRAMES = 16
"""Ranges of at most this many frames are processed in the driver, unless the run says otherwise."""
MAX_EMIT = 2**32 - 1


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

    Publishing runs on a thread of its own, one step behind the stages. Counts are those of the stages, so a replay reports the same.
    """
    appenders = _Appenders(connections, config.buckets, item)
    counts: dict[str, int] = {"rows_in": 0, "rows_out": 0, "rows_rejected": 0, "frames": 0}
    with ThreadPoolExecutor(1, "append") as publisher:
        last: Future[None] | None = None
        for step in _steps(frames):
            rows, rejected = _stages(connections, config, item["config"], step, counts)
            if last is not None:
                last.result()
            last = publisher.submit(appenders.append, rows, rejected)
        if last is not None:
            last.result()
    reach("process.after-publish")
    return {"counts": counts, "tails": appenders.tails()}


class _Appenders:
    """The out and the dead-letter subjects of the buckets that an item touches. `append` takes rows of any buckets in position order."""

    def __init__(self, connections: Connections, buckets: int, item: Item) -> None:
        self._connections, self._buckets, self._item = connections, buckets, item
        self._by_subject: dict[str, Appender[Position]] = {}

    def append(self, rows: pa.Table, rejected: pa.Table) -> None:
        names = self._connections.names
        for bucket, share in _shares(rows, self._buckets):
            append_rows(self._appender("out", names.out(bucket)), share)
        reach("process.between-frames")
        for bucket, share in _shares(rejected, self._buckets):
            append_rows(self._appender("dlq", names.dead_letters("process", bucket)), share)

    def tails(self) -> dict[str, Any]:
        """The subjects' ends as the next plan remembers them."""
        known = {subject: appender.known_tail for subject, appender in self._by_subject.items()}
        return {
            subject: [tail.sequence, str(tail.position) if tail.position is not None else ""]
            for subject, tail in known.items()
            if tail is not None
        }

    def _appender(self, role: str, subject: str) -> Appender[Position]:
        if subject not in self._by_subject:
            known = self._item["tails"].get(subject)
            tail = Tail(known[0], Position.parse(known[1]) if known[1] else None) if known else None
            limit = Position(self._item["to"], MAX_EMIT, MAX_EMIT)
            stream = self._connections.names.stream(role)
            self._by_subject[subject] = Appender(self._connections.log, stream, subject, last_position, limit, tail)
        return self._by_subject[subject]


def _shares(rows: pa.Table, buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each bucket, in their order."""
    owners = bucket_of_partition(rows.column("_tf_partition").to_numpy(), buckets)
    found = np.unique(owners)
    for bucket in found:
        yield int(bucket), rows if len(found) == 1 else rows.filter(pa.array(owners == bucket))


def _steps(frames: Iterable[Arrived]) -> Iterator[list[Arrived]]:
    iterator = iter(frames)
    while step := list(islice(iterator, FRAMES_PER_STEP)):
        yield step


def _stages(
    connections: Connections, config: StageConfig, version: str, step: list[Arrived], counts: dict[str, int]
) -> tuple[pa.Table, pa.Table]:
    """(out rows, dead letters) of some frames; adds to `counts`."""
    records = pa.concat_tables([_records(frame) for frame in step], promote_options="default").unify_dictionaries()
    parsed = parse(connections.engine, records, config.parsed_fields)
    mapped = map_columns(connections.engine, parsed.accepted, config.targets)
    fitting = reject_wide(mapped.accepted, pc.max(pc.binary_length(records.column("value"))).as_py() or 0)
    rejected = pa.concat_tables([parsed.rejected, mapped.rejected, fitting.rejected])
    counts["frames"] += len(step)
    counts["rows_in"] += records.num_rows
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


class ProcessLeg(Leg):
    """Offset is {"sequence": last raw sequence}."""

    name = "process"

    def start_offset(self) -> dict[str, int]:
        check_input(self.connections.log, self.connections.names.stream("raw"), self.chain.state.done)
        return {"sequence": self.chain.state.to or 0}

    def covers(self, end: dict[str, int]) -> bool:
        return (self.chain.state.to or 0) >= end["sequence"]

    def propose(self, end: dict[str, int]) -> tuple[Any, Any, dict[str, Any]]:
        start = self.chain.state.to or 0
        return start, min(end["sequence"], start + MAX_FRAMES_PER_BATCH), {"config": self.connections.run.stage_config}

    def execute(self, session: SparkSession, plan: Entry) -> tuple[dict[str, int], dict[str, Any]]:
        done = self.chain.state.done
        log, stream = self.connections.log, self.connections.names.stream("raw")
        check_input(log, stream, done)
        start, to = plan.body["from"], plan.body["to"]
        item = {"from": start, "to": to, "config": plan.body["config"], "tails": done.body["tails"] if done else {}}
        clock_us = done.body["clock_us"] if done else 0
        run = self._in_driver if to - start <= self.connections.run.driver_frames else self._in_tasks
        reports, arrived, last = run(session, item, clock_us)
        counts: Counter[str] = Counter()
        tails = dict(item["tails"])
        for report in reports.values():
            counts.update(report["counts"])
            tails.update(report["tails"])
        return dict(counts), {
            "clock_us": arrived[-1].arrival_us,
            "input": input_mark(last),
            "tails": tails,
            "arrivals": [[frame.message.sequence, frame.arrival_us] for frame in arrived],
        }

    def _in_driver(self, session: SparkSession, item: Item, clock_us: int) -> tuple[dict[str, Report], list[Arrived], Message]:
        log, names = self.connections.log, self.connections.names
        config = self.connections.stage_config(item["config"])
        messages = list(log.fetch(names.stream("raw"), names.subjects("raw"), item["from"], item["to"]))
        check_contiguous(names.stream("raw"), [m.sequence for m in messages], item["from"], item["to"])
        arrived = list(arrivals(messages, clock_us))
        # All buckets at once: a step through the stages costs 9 ms, however few rows it has.
        return {"all": process_frames(self.connections, config, item, arrived)}, arrived, messages[-1]

    def _in_tasks(self, session: SparkSession, item: Item, clock_us: int) -> tuple[dict[str, Report], list[Arrived], Message]:
        log, stream = self.connections.log, self.connections.names.stream("raw")
        config = self.connections.stage_config(item["config"])
        arrived = list(arrivals(log.scan(stream, item["from"], item["to"]), clock_us))
        shares = {
            str(bucket): {
                "subjects": sorted({frame.message.subject for frame in frames}),
                "frames": [[frame.message.sequence, frame.arrival_us] for frame in frames],
            }
            for bucket, frames in _by_bucket(arrived, config.buckets).items()
        }
        items = [{**item, "buckets": group} for group in _balanced(shares, session.sparkContext.defaultParallelism)]
        reports = run_in_tasks(session, self.run_path, process, items)
        last = log.get(stream, item["to"])
        if last is None:
            raise RetryableError(f"reading {stream}: sequence {item['to']} is not there")
        return {bucket: report for reports_of_item in reports for bucket, report in reports_of_item.items()}, arrived, last


def _by_bucket(arrived: list[Arrived], buckets: int) -> dict[int, list[Arrived]]:
    grouped: dict[int, list[Arrived]] = {}
    for frame in arrived:
        grouped.setdefault(bucket_of(frame.message, buckets), []).append(frame)
    return grouped


def _balanced(shares: dict[str, dict[str, Any]], tasks: int) -> list[dict[str, dict[str, Any]]]:
    """The buckets in at most `tasks` groups, the largest first into the emptiest group."""
    groups: list[dict[str, dict[str, Any]]] = [{} for _ in range(min(tasks, len(shares)))]
    loads = [0] * len(groups)
    for bucket, share in sorted(shares.items(), key=lambda entry: -len(entry[1]["frames"])):
        lightest = loads.index(min(loads))
        groups[lightest][bucket] = share
        loads[lightest] += len(share["frames"])
    return groups
