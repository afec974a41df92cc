"""Runs a leg's work items: in this process, or as Spark tasks. The same functions, items and reports either way.

Items and reports are small JSON values; record data never passes here.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pipelines import errors
from pipelines.engine.connections import Connections, batch_connections, worker_connections
from pipelines.engine.run_spec import RunSpec
from pipelines.errors import HaltError, InvariantError, TallyflowError, UndecidedError

Item = dict[str, Any]
Report = dict[str, Any]
Work = Callable[[Connections, Item], Report]
Parcel = tuple[int, str, bytes]
"""What crosses the exchange: the bucket it goes to, its kind, its content."""
FirstWork = Callable[[Connections, Item], Iterator[Parcel]]
SecondWork = Callable[[Connections, Item, int, list[tuple[str, bytes]]], Report]
Connect = Callable[[], Connections]
_ERROR = re.compile(r"[A-Za-z_][\w.]*(: .*|(Error|Exception|Exit|Interrupt))$")
"""The line at which a traceback tells its error."""
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
    return _in_tasks(session, partial(worker_connections, run_path), work, items)


def _in_tasks(session: SparkSession, connect: Connect, work: Work, items: Sequence[Item]) -> list[Report]:
    texts = [json.dumps(item) for item in items]

    def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pydict({"item": [index], "report": [_attempt(connect, work, texts[index])]})

    try:
        rows = session.range(0, len(texts), 1, len(texts)).mapInArrow(tasks, "item long, report string").collect()
    except PySparkException as error:
        raise HaltError(f"running {len(texts)} tasks: {last_words(str(error))}") from error
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
    return _exchanged(session, partial(worker_connections, run_path), (first, items), (second, shared), buckets)


def _exchanged(
    session: SparkSession, connect: Connect, sending: tuple[FirstWork, Sequence[Item]], receiving: tuple[SecondWork, Item], buckets: int
) -> list[Report]:
    (first, items), (second, shared) = sending, receiving
    texts, shared_text = [json.dumps(item) for item in items], json.dumps(shared)

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                for bucket, kind, payload in _sent(first, connect, texts[index], buckets):
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

        yield pa.RecordBatch.from_pydict({"report": [_attempt(connect, work, shared_text)]})

    sent = session.range(0, len(texts), 1, len(texts)).mapInArrow(send, "bucket int, kind string, payload binary")
    try:
        rows = sent.repartitionById(buckets, "bucket").mapInArrow(receive, "report string").collect()
    except PySparkException as error:
        raise HaltError(f"running {len(texts) + buckets} tasks: {last_words(str(error))}") from error
    reports = [json.loads(row["report"]) for row in rows]
    for report in reports:
        if "error" in report:
            raise _revive(report)
    return reports


class Tasks:
    """Batch work beside the stream, as Spark tasks on a session that is given. Errors as in `run_in_tasks`.

    The tasks may run on other machines: what a worker must know of the run goes with them, and no file. `variables`: those of the pipeline
    file that have another value here than in the environment of a worker.
    """

    def __init__(self, session: SparkSession, run: RunSpec, variables: Mapping[str, str]) -> None:
        self._session = session
        self._connect = partial(batch_connections, run.text(), tuple(sorted(variables.items())))
        self.slots: int = session.sparkContext.defaultParallelism
        """How many tasks run side by side."""

    def run(self, work: Work, items: Sequence[Item]) -> list[Report]:
        """As `run_in_tasks`."""
        return _in_tasks(self._session, self._connect, work, items)

    def exchange(self, first: FirstWork, items: Sequence[Item], second: SecondWork, shared: Item, buckets: int) -> list[Report]:
        """As `run_with_exchange`."""
        return _exchanged(self._session, self._connect, (first, items), (second, shared), buckets)


def _sent(first: FirstWork, connect: Connect, text: str, buckets: int) -> Iterator[Parcel]:
    """An item's parcels; after an error of ours, which another attempt would only repeat, one more to each bucket."""
    try:
        yield from first(connect(), json.loads(text))
    except TallyflowError as error:
        yield from ((bucket, _FAILED, _failure(error).encode()) for bucket in range(buckets))


def _attempt(connect: Connect, work: Work, text: str) -> str:
    """An item's report, or the error of ours it ended with; anything else fails the task, and Spark tries again."""
    try:
        return json.dumps(work(connect(), json.loads(text)))
    except TallyflowError as error:
        return _failure(error)


def _failure(error: TallyflowError) -> str:
    places = {"places": error.places} if isinstance(error, UndecidedError) else {}
    return json.dumps({"error": type(error).__name__, "message": str(error), **places})


def _revive(report: Report) -> TallyflowError:
    if "places" in report:
        return UndecidedError(report["message"], report["places"])
    kind = getattr(errors, report["error"], HaltError)
    if not issubclass(kind, HaltError | errors.RetryableError | errors.ConflictError):
        kind = HaltError
    revived: TallyflowError = kind(report["message"])
    return revived


def last_words(text: str) -> str:
    """What the last Python traceback in `text` ends with, the kind of error and its message; without one the first line."""
    told, was_indented = "", False
    for line in text.splitlines():
        if was_indented and _ERROR.match(line):
            told = line
        was_indented = line.startswith(" ") if line.strip() else was_indented
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (told or next((line for line in lines if _ERROR.match(line)), None) or next(iter(lines), ""))[:500]
