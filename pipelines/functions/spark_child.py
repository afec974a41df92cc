"""The function host of a function over DataFrames: a process with a Spark session of its own, on this host alone. Run as a module.

In and out: as of `child`. Kept: one physical plan, made of the function's plan at start, which is executed for each batch over other rows
(measured: planning and a DataFrame of new rows cost 90 ms a call, the job alone 13). The JVM ends with this process, also with one that is
killed: its standard input closes then.
"""

import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from threading import Thread
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit, raise_error
from pyspark.sql.pandas.types import from_arrow_type

from pipelines.functions.child import ROW, DescribedError, Failure, RowsError, described, imported, main, texts_of
from pipelines.functions.spark_errors import LOST, NO_ACTION, described_spark
from pipelines.functions.spark_plan import RefusedError, Rewriting, check, items, python_udfs
from pipelines.functions.spark_rows import Rows, to_declared, to_spark
from pipelines.spark_classes import java_option

_HEAP = "1g"
_BATCH_SIZE = "spark.sql.execution.arrow.maxRecordsPerBatch"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "5",
    "spark.ui.retainedStages": "5",
    "spark.ui.retainedTasks": "5",
    "spark.sql.ui.retainedExecutions": "5",
    "spark.authenticate": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": _HEAP,
    "spark.python.daemon.module": "pipelines.functions.spark_daemon",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Spark would evaluate a short list of rows while it plans; ours come with each call.
    "spark.sql.execution.arrow.localRelationThreshold": "0",
    "spark.sql.session.timeZone": "UTC",
}
_LATE_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
"""The JVM's second compiler comes ten times later: a start takes 5.7 s of CPU instead of 8.3, rows cost the same (measured)."""
_ATTEMPTS = 3
"""Calls of one row that must all end a worker of Spark: it may also be killed from outside."""
_ALWAYS_WARNED = b"WARNING: Using incubator modules"
_JVM_HAS_ENDED = 3
"""The exit code of this process when its JVM is gone."""


class DataFrameHost:
    """The function as one plan. Raise RefusedError or RowsError for another plan.

    `schemas`: those of the declared inputs and outputs. `written`: as of `child.Host`; their columns are text.
    """

    def __init__(
        self,
        session: SparkSession,
        function: Callable[[Any], Any],
        schemas: tuple[pa.Schema, pa.Schema],
        scratch: Path,
        written: Mapping[str, str],
    ) -> None:
        (inputs, self._outputs), self._written = schemas, written
        self._answered = self._outputs.insert(0, pa.field(ROW, pa.uint32()))
        argument = session.createDataFrame(pa.table([pa.nulls(1, field.type) for field in to_spark(inputs)], schema=to_spark(inputs)))
        # One row that no action survives: an action at load would make a constant of what it reads.
        argument = argument.where(raise_error(lit(NO_ACTION)).isNull())
        returned = function(argument)
        if not isinstance(returned, DataFrame):
            raise RowsError(f"returns {type(returned).__name__}, no DataFrame")
        if not session._jsparkSession.sharedState().cacheManager().isEmpty():
            raise RefusedError("caches a DataFrame: leave out cache() and persist(), each batch has other rows")
        plan, given = _analyzed(returned), _analyzed(argument)
        check(plan, given)
        self._rows = Rows(session, inputs, scratch)
        rewriting = Rewriting(session._jvm, given, self._rows.leaf(items(given.output())), self._rows.position)
        wanted = rewriting.of(plan, _declared(plan, self._outputs))
        self._whole = self._rows.frame(wanted)
        self._has_udfs, self._conf = next(python_udfs(plan), None) is not None, session.conf
        self._alone = self._rows.frame(wanted) if self._has_udfs else self._whole

    def answer(self, batch: pa.RecordBatch, alone: bool) -> tuple[pa.Table, list[Failure]]:
        """Return the rows that pass, with ROW, and the failures, as `child.Host` does.

        `alone`: a UDF gets one row at a time. Without UDFs no expression of the plan can see another row.
        """
        table = self._rows.numbered(batch)
        with _ending_with_the_jvm():
            return self._each(table) if alone else (self._run(self._whole, table), [])

    def _each(self, table: pa.Table) -> tuple[pa.Table, list[Failure]]:
        """Return what becomes of each row. Raise DescribedError if a row fails in a plan with UDFs: who calls then calls for fewer rows."""
        try:
            # Spark asks for the size when a plan runs, and may keep the first answer: that plan runs with no other.
            self._conf.set(_BATCH_SIZE, "1")
            return self._run(self._alone, table), []
        except DescribedError:
            if self._has_udfs:
                raise
        finally:
            self._conf.unset(_BATCH_SIZE)
        return self._without_failing(table)

    def _without_failing(self, table: pa.Table) -> tuple[pa.Table, list[Failure]]:
        numbers = table.column(0).to_pylist()
        faults = self._rows.faults(self._whole, table)
        kept = [place for place in range(table.num_rows) if place not in faults]
        rows, refused = self._by_type(table.take(pa.array(kept, pa.int64())))
        return rows, [*((numbers[place], *described_spark(fault)) for place, fault in faults.items()), *refused]

    def _by_type(self, table: pa.Table) -> tuple[pa.Table, list[Failure]]:
        """Return what becomes of rows over which Spark itself fails no more; an output may still be outside its declared type."""
        try:
            return self._run(self._whole, table), []
        except DescribedError as error:
            if table.num_rows == 1:
                return self._answered.empty_table(), [self._failure(table, error)]
        half = table.num_rows // 2
        parts = [self._by_type(part) for part in (table.slice(0, half), table.slice(half))]
        return pa.concat_tables([rows for rows, _ in parts]), [failure for _, failures in parts for failure in failures]

    def _failure(self, table: pa.Table, error: DescribedError) -> Failure:
        return table.column(0)[0].as_py(), error.code, error.message

    def _run(self, frame: DataFrame, table: pa.Table) -> pa.Table:
        """Return ROW and the outputs. Raise DescribedError if a row fails, or if a position is lost."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                returned = self._rows.run(frame, table)
                break
            except (PySparkException, Py4JJavaError) as error:
                code, message = described_spark(error)
                if code != "python_died" or table.num_rows > 1 or attempt == _ATTEMPTS:
                    raise DescribedError(code, message) from error
        check_positions(table.column(0).to_pylist(), returned.column(0).to_pylist())
        try:
            columns = [self._as_declared(returned.column(field.name), field) for field in self._outputs]
        except RowsError as error:
            raise DescribedError(*described(error)) from error
        return pa.table([returned.column(0).cast(pa.uint32()), *columns], schema=self._answered)

    def _as_declared(self, column: Any, field: pa.Field) -> Any:
        kind = self._written.get(field.name)
        return to_declared(column, field) if kind is None else texts_of(column, field.name, kind)


def check_positions(given: list[int], returned: list[int]) -> None:
    """Raise DescribedError with LOST unless the rows returned are some of those given, none twice, in order."""
    left = iter(given)
    if not all(number in left for number in returned):
        raise DescribedError(
            LOST, "has lost the positions of its records: Spark returned rows that are not those it was given, in their order"
        )


def _analyzed(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _declared(plan: Any, outputs: pa.Schema) -> list[Any]:
    """Return the attributes of the declared outputs. Raise RowsError for one that is missing, there twice, or of another type."""
    attributes = items(plan.output())
    chosen = []
    for field in outputs:
        found = [attribute for attribute in attributes if attribute.name() == field.name]
        if len(found) != 1:
            columns = ", ".join(attribute.name() for attribute in attributes)
            raise RowsError(f"returns {len(found) or 'no'} column{'s' * (len(found) > 1)} {field.name!r}, of the columns {columns}")
        wanted, kind = to_spark_name(field), found[0].dataType().simpleString()
        if kind != wanted:
            raise RowsError(
                f"returns {field.name!r} as {kind}, declared is {field.type}, which is {wanted} in Spark: cast it, or declare its type"
            )
        chosen.append(found[0])
    return chosen


def to_spark_name(field: pa.Field) -> str:
    """Return Spark's name of the type in which an output must come."""
    return from_arrow_type(to_spark(pa.schema([field])).field(0).type).simpleString()


@contextmanager
def _ending_with_the_jvm() -> Iterator[None]:
    """End this process if its JVM is gone: a new one takes a new process."""
    try:
        yield
    except Py4JJavaError:
        raise
    except (Py4JNetworkError, Py4JError, ConnectionError, EOFError):
        os._exit(_JVM_HAS_ENDED)


@contextmanager
def passing_on_errors() -> Iterator[None]:
    """Give the JVM that starts meanwhile a pipe as its standard error: its lines pass on, without the warning of every start of Spark."""
    ours, (lines, pipe) = os.dup(2), os.pipe()
    Thread(target=_pass_on, args=(lines, ours), name="errors of the JVM", daemon=True).start()
    os.dup2(pipe, 2)
    os.close(pipe)
    try:
        yield
    finally:
        os.dup2(ours, 2)


def _pass_on(lines: int, errors: int) -> None:
    with open(lines, "rb") as said:
        for line in said:
            if not line.startswith(_ALWAYS_WARNED):
                os.write(errors, line)


def start_session(root: Path, scratch: Path) -> SparkSession:
    """Start the session of this process, for one task at a time."""
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    # UDFs travel by the names of their modules.
    os.environ |= {"PYTHONPATH": str(root), "TMPDIR": str(scratch)}
    log = Path(__file__).with_name("log4j2.properties").as_uri()
    options = [
        *("-XX:+UseSerialGC", "-XX:MaxMetaspaceSize=384m", "-XX:ReservedCodeCacheSize=128m", "-XX:+ExitOnOutOfMemoryError"),
        *_LATE_COMPILER,
        f"-Dlog4j2.configurationFile={log}",
        f"-Djava.io.tmpdir={scratch}",
        *shlex.split(java_option()),
    ]
    builder = SparkSession.builder.appName("tallyflow-function").master("local[1]")
    here = {"spark.local.dir": str(scratch), "spark.sql.warehouse.dir": str(scratch / "warehouse")}
    for key, value in {**_SETTINGS, **here, "spark.driver.extraJavaOptions": shlex.join(options)}.items():
        builder = builder.config(key, value)
    with passing_on_errors():
        session = builder.getOrCreate()
    # It writes each error of a record, with the stack of the JVM, to the standard error.
    logging.getLogger("DataFrameQueryContextLogger").disabled = True
    return session


def load(start: dict[str, Any], schemas: tuple[pa.Schema, pa.Schema]) -> DataFrameHost:
    """Return the host of a function, which is imported in its session: UDFs are made with one. Raise DescribedError in Spark's words."""
    scratch = Path(mkdtemp(dir=start["root"], prefix="_tf_"))
    session = start_session(Path(start["root"]), scratch)
    try:
        return DataFrameHost(session, imported(start), schemas, scratch, start["written"])
    except RefusedError as error:
        raise DescribedError("python_rows", str(error)) from error
    except (PySparkException, Py4JJavaError) as error:
        raise DescribedError(*described_spark(error)) from error


if __name__ == "__main__":
    main(load)
