"""The rows of a function over DataFrames: how they reach one plan of Spark, again and again, and how its columns come back.

In: batches of Arrow. Out: the answers of the plan, and the rows at fault. Kept: the place in the JVM from which the plan reads its rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j import java_gateway, protocol
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from pipelines.functions.child import RowsError

POSITION = "_tf_row"
_SLICE = 16
"""Rows that are looked at together while faults are looked for."""
_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}
"""The types of Spark that hold unsigned numbers, which it has not."""


def to_spark(schema: pa.Schema) -> pa.Schema:
    """Return a schema in types that Spark has."""
    return pa.schema([pa.field(field.name, _WIDER.get(field.type, field.type)) for field in schema])


def to_declared(column: Any, field: pa.Field) -> Any:
    """Return a column of Spark in its declared type. Raise RowsError for a value outside of it."""
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise RowsError(f"returns {field.name!r} outside of {field.type}: {' '.join(str(error).split())}") from error


class Rows:
    """The rows that a plan reads: one batch of Arrow in the memory of the JVM, replaced by each call."""

    def __init__(self, session: SparkSession, inputs: pa.Schema, scratch: Path) -> None:
        self._session, self._path = session, scratch / "rows.arrow"
        self._schema = to_spark(inputs).insert(0, pa.field(POSITION, pa.int32()))
        jvm = session._jvm
        assert jvm is not None
        self._jvm: Any = jvm
        # Each name of the JVM that is looked up is a round trip.
        self._system, self._context = jvm.java.lang.System, _singleton(jvm, "org.apache.spark", "TaskContext").empty()
        self._arrow = _singleton(jvm, "org.apache.spark.sql.execution.arrow", "ArrowConverters")
        self._write(self._schema.empty_table())
        # A batch of no rows would be no batch; the plan reads one partition with one batch, whatever it is.
        batches = jvm.PythonSQLUtils.readArrowStreamFromFile(str(self._path))
        made = jvm.PythonSQLUtils.toDataFrame(batches, from_arrow_schema(self._schema).json(), session._jsparkSession)
        self._made = made.queryExecution().analyzed()
        self.position = self._made.output().head()
        """The attribute of the positions."""
        self._partition = self._made.rdd().dependencies().apply(0).rdd().partitions()[0]
        self._batch = self._partition.values().unsafeArray()

    def leaf(self, attributes: list[Any]) -> Any:
        """Return the node of a plan that reads the rows, with `attributes` for the inputs."""
        option = self._jvm.scala.Option
        made, session = self._made, self._session._jsparkSession
        output = self._jvm.PythonUtils.toSeq([self.position, *attributes])
        return self._jvm.org.apache.spark.sql.execution.LogicalRDD(
            *(output, made.rdd(), made.outputPartitioning(), made.outputOrdering(), False),
            *(option.empty(), session, option.empty(), option.empty(), False),
        )

    def frame(self, plan: Any) -> DataFrame:
        """Return a plan as a DataFrame that is planned now, and executed by each call."""
        dataset = _singleton(self._jvm, "org.apache.spark.sql.classic", "Dataset").ofRows(self._session._jsparkSession, plan)
        dataset.queryExecution().executedPlan()
        return DataFrame(dataset, self._session)

    def numbered(self, batch: pa.RecordBatch) -> pa.Table:
        """Return a batch in Spark's types, with the numbers of its rows first."""
        columns = [column.cast(field.type) for column, field in zip(batch.columns, list(self._schema)[1:], strict=True)]
        return pa.table([pa.array(range(batch.num_rows), pa.int32()), *columns], schema=self._schema)

    def run(self, frame: DataFrame, table: pa.Table) -> pa.Table:
        """Execute a plan over the rows of a table."""
        self._write(table)
        self._take(self._batches(), 0)
        return frame.toArrow()

    def faults(self, frame: DataFrame, table: pa.Table) -> dict[int, Py4JJavaError]:
        """Return the errors that the plan raises over the rows of a table, each by itself, by the place of the row.

        They are read in this thread: a job that fails costs 70 ms, a row here one or two. A plan with UDFs works in jobs only.
        """
        self._write(table, rows=_SLICE)
        slices, rows = self._batches(), frame._jdf.queryExecution().toRdd()
        with _errors_as_they_are():
            failing = [first for index, first in enumerate(range(0, table.num_rows, _SLICE)) if self._fault(rows, slices, index)]
            self._write(table, rows=1)
            single = self._batches()
            places = [place for first in failing for place in range(first, min(first + _SLICE, table.num_rows))]
            found = {place: self._fault(rows, single, place) for place in places}
        return {place: fault for place, fault in found.items() if fault is not None}

    def _fault(self, rows: Any, batches: Any, number: int) -> Py4JJavaError | None:
        self._take(batches, number)
        try:
            rows.iterator(self._partition, self._context).size()
        except Py4JJavaError as error:
            return error
        return None

    def _write(self, table: pa.Table, rows: int | None = None) -> None:
        with pa.OSFile(str(self._path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            for batch in table.combine_chunks().to_batches(max_chunksize=rows) or [pa.RecordBatch.from_pylist([], table.schema)]:
                writer.write_batch(batch)

    def _batches(self) -> Any:
        return self._arrow.readArrowStreamFromFile(str(self._path))

    def _take(self, batches: Any, number: int) -> None:
        self._system.arraycopy(batches, number, self._batch, 0, 1)


@contextmanager
def _errors_as_they_are() -> Iterator[None]:
    """Leave errors of the JVM as they are: pyspark asks it 25 questions to make one its own, 15 to 40 ms."""
    own = java_gateway.get_return_value
    java_gateway.get_return_value = protocol.get_return_value
    try:
        yield
    finally:
        java_gateway.get_return_value = own


def _singleton(jvm: Any, package: str, name: str) -> Any:
    found = jvm
    for part in package.split("."):
        found = getattr(found, part)
    return getattr(getattr(found, f"{name}$"), "MODULE$")
