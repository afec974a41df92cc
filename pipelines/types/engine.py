"""The engine of expressions: DuckDB asked about the columns of a batch, with every question prepared once.

For some rows a plan costs ten times what its execution does. So a statement is prepared at its first use, over a registered source whose
table is replaced from call to call: a table that is registered anew would have all statements planned anew. Kept: a source per schema,
and the names of the prepared statements.
"""

import warnings
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa

from pipelines.types.vectors import one_chunk

_PREPARED_BYTES = 4 * 1024 * 1024
"""Larger columns are asked without a prepared statement: its answer is held twice for a moment, and its plan costs next to nothing."""
# DuckDB 2.0 has no other public way from a prepared statement to Arrow.
warnings.filterwarnings("ignore", "Arrow output on a DB-API result", UserWarning)


class _Source:
    """A registered source: whatever `table` is when a statement reads it, `empty` between statements: a slice would keep all its memory."""

    def __init__(self, schema: pa.Schema) -> None:
        self.table = self.empty = schema.empty_table()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


class Engine:
    """Answers questions about columns; serves one thread at a time. The caller closes it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection
        self._sources: dict[pa.Schema, tuple[str, _Source]] = {}
        self._statements: dict[tuple[str, str], str] = {}

    def ask(self, sql: str, values: pa.Array) -> list[pa.Array]:
        """Run `sql`, a SELECT from `_tf_values` (its only column `v` is `values`), and return its columns, rows in order."""
        return self.select(sql, pa.table({"v": values}))

    def select(self, sql: str, rows: pa.Table) -> list[pa.Array]:
        """Run `sql`, a SELECT from `_tf_values`, which is `rows`, and return its columns, rows in order."""
        name, source = self._source(rows.schema)
        source.table = rows
        try:
            if rows.nbytes > _PREPARED_BYTES:
                answer = self.connection.sql(_over(name, sql)).to_arrow_table()
            else:
                answer = self.connection.execute(f"EXECUTE {self._statement(name, sql)}").to_arrow_table()
        finally:
            source.table = source.empty
        return [one_chunk(column) for column in answer.columns]

    def _source(self, schema: pa.Schema) -> tuple[str, _Source]:
        if schema not in self._sources:
            name, source = f"_tf_values_{len(self._sources)}", _Source(schema)
            self.connection.register(name, source)
            self._sources[schema] = name, source
        return self._sources[schema]

    def _statement(self, name: str, sql: str) -> str:
        """Return the name of the prepared statement."""
        if (name, sql) not in self._statements:
            statement = f"_tf_statement_{len(self._statements)}"
            self.connection.execute(f"PREPARE {statement} AS {_over(name, sql)}")
            self._statements[name, sql] = statement
        return self._statements[name, sql]

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _over(name: str, sql: str) -> str:
    return f"WITH _tf_values AS (FROM {name}) {sql}"
