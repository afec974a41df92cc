"""The engine of expressions: DuckDB asked about the columns of a batch, with every question prepared once.

For some rows a plan costs ten times what its execution does. So a statement is prepared at its first use, over a registered source whose
table is replaced from call to call: a table that is registered anew would have all statements planned anew. Kept: a source per schema,
and the names of the prepared statements.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa

from pipelines.types.vectors import one_chunk

ENDS_THE_ENGINE = (duckdb.FatalException, duckdb.InternalException)
"""A fault of DuckDB's own: behind it a database answers nothing more."""
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


@dataclass(frozen=True)
class Database:
    """A database in memory, with what has been prepared in it: sources by schema, statements by source and text."""

    connection: duckdb.DuckDBPyConnection
    sources: dict[pa.Schema, tuple[str, _Source]] = field(default_factory=dict)
    statements: dict[tuple[str, str], str] = field(default_factory=dict)


class Engine:
    """Answers questions about columns; serves one thread at a time. The caller closes it.

    Closed, it gives its database back to whoever opened it; behind an error that may have damaged it the caller discards both. A closed one
    raises duckdb.ConnectionException when it is asked.
    """

    def __init__(self, database: Database, give_back: Callable[[Database], None]) -> None:
        self._database: Database | None = database
        self._give_back = give_back

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection, for other questions. They may leave tables behind, so no other engine has this database then."""
        self._give_back = _end
        return self._opened.connection

    @property
    def _opened(self) -> Database:
        if self._database is None:
            raise duckdb.ConnectionException("this engine is closed")
        return self._database

    def ask(self, sql: str, values: pa.Array) -> list[pa.Array]:
        """Run `sql`, a SELECT from `_tf_values` (its only column `v` is `values`), and return its columns, rows in order."""
        return self.select(sql, pa.table({"v": values}))

    def select(self, sql: str, rows: pa.Table) -> list[pa.Array]:
        """Run `sql`, a SELECT from `_tf_values`, which is `rows`, and return its columns, rows in order."""
        name, source = self._source(rows.schema)
        source.table = rows
        try:
            if rows.nbytes > _PREPARED_BYTES:
                answer = self._opened.connection.sql(_over(name, sql)).to_arrow_table()
            else:
                answer = self._opened.connection.execute(f"EXECUTE {self._statement(name, sql)}").to_arrow_table()
        except ENDS_THE_ENGINE:
            self._give_back = _end
            raise
        finally:
            source.table = source.empty
        return [one_chunk(column) for column in answer.columns]

    def _source(self, schema: pa.Schema) -> tuple[str, _Source]:
        sources = self._opened.sources
        if schema not in sources:
            name, source = f"_tf_values_{len(sources)}", _Source(schema)
            self._opened.connection.register(name, source)
            sources[schema] = name, source
        return sources[schema]

    def _statement(self, name: str, sql: str) -> str:
        """Return the name of the prepared statement."""
        statements = self._opened.statements
        if (name, sql) not in statements:
            statement = f"_tf_statement_{len(statements)}"
            self._opened.connection.execute(f"PREPARE {statement} AS {_over(name, sql)}")
            statements[name, sql] = statement
        return statements[name, sql]

    def close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            self._give_back(database)

    def discard(self) -> None:
        """Close the engine and its database: an error may have left it unusable."""
        database, self._database = self._database, None
        if database is not None:
            _end(database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.discard()


def _end(database: Database) -> None:
    with suppress(duckdb.Error):
        database.connection.close()


def _over(name: str, sql: str) -> str:
    return f"WITH _tf_values AS (FROM {name}) {sql}"
