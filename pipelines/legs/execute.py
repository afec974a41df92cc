"""Runs a leg's work items: in this process, or as Spark tasks. The same functions, items and reports either way.

Items and reports are small JSON values; record data never passes here.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipelines import errors
from pipelines.errors import HaltError, InvariantError, TallyflowError
from pipelines.legs.connections import Connections, worker_connections

Item = dict[str, Any]
Report = dict[str, Any]
Work = Callable[[Connections, Item], Report]
Parcel = tuple[int, str, bytes]
"""What crosses the exchange: the bucket it goes to, its kind, its content."""
FirstWork = Callable[[Connections, Item], Iterator[Parcel]]
SecondWork = Callable[[Connections, Item, int, list[tuple[str, bytes]]], Report]
_FAILED = "failed"
"""Kind of the parcel that tells every bucket of an error of ours in a first task."""
_PARCELS = pa.schema([("bucket", pa.int32()), ("kind", pa.string()), ("payload", pa.binary())])


def run_here(connections: Connections, work: Work, items: Sequence[Item]) -> list[Report]:
    """In this process, one after the other: no task, no worker round trip (a small batch through tasks costs 0.3 s)."""
    return [work(connections, item) for item in items]


def run_in_tasks(session: SparkSession, run_path: str, work: Work, items: Sequence[Item]) -> list[Report]:
    """One Spark task per item. Spark tries a task again when its worker dies; the position rule makes a second attempt harmless.

    An error of ours in a task is raised here as itself; any other error is a halt, with the task's last words.
    """
    texts = [json.dumps(item) for item in items]

    def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pydict({"item": [index], "report": [_attempt(run_path, work, texts[index])]})

    try:
        rows = session.range(0, len(texts), 1, len(texts)).mapInArrow(tasks, "item long, report string").collect()
    except PySparkException as error:
        raise HaltError(f"running {len(texts)} tasks: {_last_words(error)}") from error
    if sorted(row["item"] for row in rows) != list(range(len(texts))):
        raise InvariantError(f"running {len(texts)} tasks: {len(rows)} reports came back")
    reports: list[Report] = [json.loads(row["report"]) for row in sorted(rows, key=lambda row: row["item"])]
    for report in reports:
        if "error" in report:
            raise _revive(report)
    return reports


def run_with_exchange(
    session: SparkSession, run_path: str, first: FirstWork, items: Sequence[Item], second: SecondWork, shared: Item, buckets: int
) -> list[Report]:
    """One Spark task per item that sends parcels to buckets, then one per bucket with all that was sent to it; the buckets' reports.

    An error in a first task reaches every bucket, or fails the whole job, so no bucket works on a part of the range. Errors as in
    `run_in_tasks`.
    """
    texts, shared_text = [json.dumps(item) for item in items], json.dumps(shared)

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                for bucket, kind, payload in _sent(first, run_path, texts[index], buckets):
                    yield pa.RecordBatch.from_pydict({"bucket": [bucket], "kind": [kind], "payload": [payload]}, schema=_PARCELS)

    def receive(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        here = [batch for batch in batches if batch.num_rows]
        if not here:
            return
        (bucket,) = {bucket for batch in here for bucket in batch.column("bucket").to_pylist()}
        context = TaskContext.get()
        assert context is not None
        assert context.partitionId() == bucket, f"the task of partition {context.partitionId()} was given bucket {bucket}"
        kinds = [kind for batch in here for kind in batch.column("kind").to_pylist()]
        payloads = [payload for batch in here for payload in batch.column("payload").to_pylist()]
        if _FAILED in kinds:
            yield pa.RecordBatch.from_pydict({"report": [payloads[kinds.index(_FAILED)].decode()]})
            return

        def work(connections: Connections, item: Item) -> Report:
            return second(connections, item, bucket, list(zip(kinds, payloads, strict=True)))

        yield pa.RecordBatch.from_pydict({"report": [_attempt(run_path, work, shared_text)]})

    sent = session.range(0, len(texts), 1, len(texts)).mapInArrow(send, "bucket int, kind string, payload binary")
    try:
        rows = sent.repartitionById(buckets, "bucket").mapInArrow(receive, "report string").collect()
    except PySparkException as error:
        raise HaltError(f"running {len(texts) + buckets} tasks: {_last_words(error)}") from error
    reports = [json.loads(row["report"]) for row in rows]
    for report in reports:
        if "error" in report:
            raise _revive(report)
    return reports


def _sent(first: FirstWork, run_path: str, text: str, buckets: int) -> Iterator[Parcel]:
    """An item's parcels; after an error of ours, which another attempt would only repeat, one more to each bucket."""
    try:
        yield from first(worker_connections(run_path), json.loads(text))
    except TallyflowError as error:
        yield from ((bucket, _FAILED, _failure(error).encode()) for bucket in range(buckets))


def _attempt(run_path: str, work: Work, text: str) -> str:
    """An item's report, or the error of ours it ended with; anything else fails the task, and Spark tries again."""
    try:
        return json.dumps(work(worker_connections(run_path), json.loads(text)))
    except TallyflowError as error:
        return _failure(error)


def _failure(error: TallyflowError) -> str:
    return json.dumps({"error": type(error).__name__, "message": str(error)})


def _revive(report: Report) -> TallyflowError:
    kind = getattr(errors, report["error"], HaltError)
    if not issubclass(kind, HaltError | errors.RetryableError | errors.ConflictError):
        kind = HaltError
    revived: TallyflowError = kind(report["message"])
    return revived


def _last_words(error: PySparkException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line and not line.startswith(("File", "at "))]
    return (telling or lines or [type(error).__name__])[-1][:500]
