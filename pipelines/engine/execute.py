"""Runs the work items of batch work: in this process, or as Spark tasks. The same functions, items and reports either way.

Items and reports are small, and travel as JSON (`protocol.codec`); record data never passes here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from pipelines.engine.connections import Connections, batch_connections
from pipelines.engine.failures import from_failure, last_message, to_failure
from pipelines.engine.run_spec import RunSpec
from pipelines.errors import HaltError, InvariantError, TallyflowError
from pipelines.protocol.codec import Form, FormError, from_text, to_text

ItemT = TypeVar("ItemT", bound=Form)
ReportT = TypeVar("ReportT", bound=Form)
Connect = Callable[[], Connections]


@dataclass(frozen=True)
class Work(Generic[ItemT, ReportT]):
    """A task's work on its item, and the types of item and report."""

    run: Callable[[Connections, ItemT], ReportT]
    item: type[ItemT]
    report: type[ReportT]


_REPORTS = pa.schema([("item", pa.int64()), ("report", pa.string()), ("failure", pa.string())])


def run_here(connections: Connections, work: Work[ItemT, ReportT], items: Sequence[ItemT]) -> list[ReportT]:
    """Run the items in this process, one after the other: no task, no worker round trip (a small batch through tasks costs 0.3 s)."""
    return [work.run(connections, item) for item in items]


def _reports(report: type[ReportT], rows: Sequence[Row]) -> list[ReportT]:
    for row in rows:
        if row["failure"]:
            raise from_failure(row["failure"])
    try:
        return [from_text(report, row["report"]) for row in rows]
    except FormError as error:
        raise InvariantError(f"running tasks: a {report.__name__} came back that is none ({error}); use workers of this release") from error


class Tasks:
    """Work as Spark tasks on a given session; `connect` gives a worker its connections.

    An error of ours in a task is raised here unchanged; any other error is a halt with the task's last words.
    """

    def __init__(self, session: SparkSession, connect: Connect) -> None:
        self._session, self._connect = session, connect

    def run(self, work: Work[ItemT, ReportT], items: Sequence[ItemT]) -> list[ReportT]:
        """Run one Spark task per item.

        If a worker dies, Spark tries its task again; the position rule makes a second attempt harmless.
        """
        connect, texts = self._connect, [to_text(item) for item in items]

        def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    report, failure = _attempt(connect, work, texts[index])
                    yield pa.RecordBatch.from_pydict({"item": [index], "report": [report], "failure": [failure]}, schema=_REPORTS)

        numbers = self._session.range(0, len(texts), 1, len(texts))
        try:
            rows = numbers.mapInArrow(tasks, "item long, report string, failure string").collect()
        except PySparkException as error:
            raise HaltError(f"running {len(texts)} tasks: {last_message(str(error))}") from error
        if sorted(row["item"] for row in rows) != list(range(len(texts))):
            raise InvariantError(f"running {len(texts)} tasks: {len(rows)} reports came back")
        return _reports(work.report, sorted(rows, key=lambda row: row["item"]))


def batch_tasks(session: SparkSession, run: RunSpec, variables: Mapping[str, str]) -> Tasks:
    """Return the tasks of batch work beside the stream.

    They may run on other machines: everything that a worker must know of the run is sent with them, without a file. `variables`: variables
    of the pipeline file whose value here differs from a worker's environment.
    """
    return Tasks(session, partial(batch_connections, run.text(), tuple(sorted(variables.items()))))


def _attempt(connect: Connect, work: Work[ItemT, ReportT], text: str) -> tuple[str | None, str | None]:
    """Return (an item's report, the error of ours that ended it), one of the two; any other error fails the task, and Spark tries again."""
    try:
        return to_text(work.run(connect(), from_text(work.item, text))), None
    except TallyflowError as error:
        return None, to_failure(error)
