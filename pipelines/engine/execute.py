"""Runs the work items of batch work: in this process, or as Spark tasks. The same functions, items and reports either way.

Items and reports are small, and travel as JSON (`protocol.codec`); record data never passes here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from pipelines.engine.connections import Connections, batch_connections
from pipelines.engine.failures import from_failure, last_message, to_failure
from pipelines.engine.run_spec import RunSpec
from pipelines.errors import HaltError, InvariantError, TallyflowError
from pipelines.protocol.codec import Form, FormError, from_text, to_text

ItemT = TypeVar("ItemT", bound=Form)
SharedT = TypeVar("SharedT", bound=Form)
ReportT = TypeVar("ReportT", bound=Form)
Parcel = tuple[int, str, bytes]
"""A message across the exchange: the bucket that receives it, its kind, its content."""
Connect = Callable[[], Connections]


@dataclass(frozen=True)
class Work(Generic[ItemT, ReportT]):
    """A task's work on its item, and the types of item and report."""

    run: Callable[[Connections, ItemT], ReportT]
    item: type[ItemT]
    report: type[ReportT]


@dataclass(frozen=True)
class Exchange(Generic[ItemT, SharedT, ReportT]):
    """The parcels that a first task sends for its item, and the report of a bucket's task.

    The bucket's task receives the shared item and all parcels sent to it.
    """

    send: Callable[[Connections, ItemT], Iterator[Parcel]]
    receive: Callable[[Connections, SharedT, int, list[tuple[str, bytes]]], ReportT]
    item: type[ItemT]
    shared: type[SharedT]
    report: type[ReportT]


_FAILED = "failed"
"""Kind of the parcel that notifies every bucket of an error of ours in a first task."""
_REPORTS = pa.schema([("report", pa.string()), ("failure", pa.string())])
_NUMBERED_REPORTS = pa.schema([("item", pa.int64()), *_REPORTS])
_PARCELS = pa.schema([("bucket", pa.int32()), ("kind", pa.string()), ("payload", pa.binary())])


def run_here(connections: Connections, work: Work[ItemT, ReportT], items: Sequence[ItemT]) -> list[ReportT]:
    """Run the items in this process, one after the other: no task, no worker round trip (a small batch through tasks costs 0.3 s)."""
    return [work.run(connections, item) for item in items]


def _in_tasks(session: SparkSession, connect: Connect, work: Work[ItemT, ReportT], items: Sequence[ItemT]) -> list[ReportT]:
    texts = [to_text(item) for item in items]

    def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                report, failure = _attempt(connect, work, texts[index])
                yield pa.RecordBatch.from_pydict({"item": [index], "report": [report], "failure": [failure]}, schema=_NUMBERED_REPORTS)

    try:
        rows = session.range(0, len(texts), 1, len(texts)).mapInArrow(tasks, "item long, report string, failure string").collect()
    except PySparkException as error:
        raise HaltError(f"running {len(texts)} tasks: {last_message(str(error))}") from error
    if sorted(row["item"] for row in rows) != list(range(len(texts))):
        raise InvariantError(f"running {len(texts)} tasks: {len(rows)} reports came back")
    return _reports(work.report, sorted(rows, key=lambda row: row["item"]))


def _reports(report: type[ReportT], rows: Iterable[Row]) -> list[ReportT]:
    rows = list(rows)
    for row in rows:
        if row["failure"]:
            raise from_failure(row["failure"])
    try:
        return [from_text(report, row["report"]) for row in rows]
    except FormError as error:
        raise InvariantError(f"running tasks: a {report.__name__} came back that is none ({error}); use workers of this release") from error


def _exchanged(
    session: SparkSession, connect: Connect, work: Exchange[ItemT, SharedT, ReportT], items: Sequence[ItemT], shared: SharedT, buckets: int
) -> list[ReportT]:
    texts, shared_text = [to_text(item) for item in items], to_text(shared)

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                for bucket, kind, payload in _sent(work, connect, texts[index], buckets):
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
            failure = payloads[kinds.index(_FAILED)].decode()
            yield pa.RecordBatch.from_pydict({"report": [None], "failure": [failure]}, schema=_REPORTS)
            return

        def of_bucket(connections: Connections, item: SharedT) -> ReportT:
            return work.receive(connections, item, bucket, list(zip(kinds, payloads, strict=True)))

        report, failed = _attempt(connect, Work(of_bucket, work.shared, work.report), shared_text)
        yield pa.RecordBatch.from_pydict({"report": [report], "failure": [failed]}, schema=_REPORTS)

    sent = session.range(0, len(texts), 1, len(texts)).mapInArrow(send, "bucket int, kind string, payload binary")
    try:
        rows = sent.repartitionById(buckets, "bucket").mapInArrow(receive, "report string, failure string").collect()
    except PySparkException as error:
        raise HaltError(f"running {len(texts) + buckets} tasks: {last_message(str(error))}") from error
    return _reports(work.report, rows)


class Tasks:
    """Work as Spark tasks on a given session; `connect` gives a worker its connections.

    An error of ours in a task is raised here unchanged; any other error is a halt with the task's last words.
    """

    def __init__(self, session: SparkSession, connect: Connect) -> None:
        self._session, self._connect = session, connect

    @property
    def slots(self) -> int:
        """The number of tasks that run in parallel."""
        return self._session.sparkContext.defaultParallelism

    def run(self, work: Work[ItemT, ReportT], items: Sequence[ItemT]) -> list[ReportT]:
        """Run one Spark task per item.

        If a worker dies, Spark tries its task again; the position rule makes a second attempt harmless.
        """
        return _in_tasks(self._session, self._connect, work, items)

    def exchange(self, work: Exchange[ItemT, SharedT, ReportT], items: Sequence[ItemT], shared: SharedT, buckets: int) -> list[ReportT]:
        """Run one Spark task per item that sends parcels to buckets, then one per bucket with all its parcels; return the buckets' reports.

        An error in a first task reaches every bucket, or fails the whole job, so no bucket processes a part of the range.
        """
        return _exchanged(self._session, self._connect, work, items, shared, buckets)


def batch_tasks(session: SparkSession, run: RunSpec, variables: Mapping[str, str]) -> Tasks:
    """Return the tasks of batch work beside the stream.

    They may run on other machines: everything that a worker must know of the run is sent with them, without a file. `variables`: variables
    of the pipeline file whose value here differs from a worker's environment.
    """
    return Tasks(session, partial(batch_connections, run.text(), tuple(sorted(variables.items()))))


def _sent(work: Exchange[ItemT, SharedT, ReportT], connect: Connect, text: str, buckets: int) -> Iterator[Parcel]:
    """Yield an item's parcels; after an error of ours, which another attempt would only repeat, yield one more to each bucket."""
    try:
        yield from work.send(connect(), from_text(work.item, text))
    except TallyflowError as error:
        yield from ((bucket, _FAILED, to_failure(error).encode()) for bucket in range(buckets))


def _attempt(connect: Connect, work: Work[ItemT, ReportT], text: str) -> tuple[str | None, str | None]:
    """Return (an item's report, the error of ours that ended it), one of the two; any other error fails the task, and Spark tries again."""
    try:
        return to_text(work.run(connect(), from_text(work.item, text))), None
    except TallyflowError as error:
        return None, to_failure(error)
