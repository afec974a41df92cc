"""A look-up table in PostgreSQL: the rows of one SELECT, in a read-only transaction that sees one state of the database."""

from typing import Any

import psycopg
import pyarrow as pa

from pipelines.config.tables.postgres import PostgresTable
from pipelines.connectors.tables import doing
from pipelines.errors import HaltError, RetryableError
from pipelines.lookups.spec import TableSpec

_CONNECT_SECONDS = 5
_FETCHED_ROWS = 50_000
_AWAY = ("08", "53", "57P")
"""Beginnings of SQLSTATE: the connection, the server's resources, a server that shuts down or starts."""


def fetch(name: str, table: Any, spec: TableSpec) -> pa.Table:
    """Return the columns of the query's rows, `max_rows` and one more at most: the rest is not read."""
    assert isinstance(table, PostgresTable)
    given, milliseconds = table.connection_params, max(1, int(table.timeout.total_seconds() * 1000))
    try:
        with psycopg.connect(
            host=given.host,
            port=given.port,
            dbname=given.database,
            user=given.username,
            password=given.password.get_secret_value() or None,
            sslmode=given.sslmode,
            connect_timeout=_CONNECT_SECONDS,
            options=f"-c statement_timeout={milliseconds} -c default_transaction_read_only=on",
            application_name=f"tallyflow lookup {name}",
        ) as connection:
            connection.read_only, connection.isolation_level = True, psycopg.IsolationLevel.REPEATABLE_READ
            return _rows(connection, name, table, spec)
    except psycopg.Error as error:
        # A first connection that fails has no SQLSTATE, whatever the reason: the server may be starting.
        is_away = error.sqlstate.startswith(_AWAY) if error.sqlstate else isinstance(error, psycopg.OperationalError)
        message = (
            f"{doing(name)}, its query: PostgreSQL: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"
        )
        raise (RetryableError if is_away else HaltError)(message) from error


def _rows(connection: "psycopg.Connection[Any]", name: str, table: PostgresTable, spec: TableSpec) -> pa.Table:
    with connection.cursor(name="tallyflow") as cursor:
        cursor.execute(table.query.strip().rstrip(";").encode())
        given = [column.name for column in cursor.description or ()]
        if missing := [column for column in spec.names if column not in given]:
            raise HaltError(f"{doing(name)}: its query gives no column {missing[0]!r}; it gives {', '.join(given)[:500]}")
        places = [given.index(column) for column in spec.names]
        columns: list[list[Any]] = [[] for _ in places]
        while len(columns[0]) <= table.max_rows and (rows := cursor.fetchmany(_FETCHED_ROWS)):
            for column, place in zip(columns, places, strict=True):
                column.extend(row[place] for row in rows)
    try:
        arrays = [pa.array(column) for column in columns]
    except (pa.ArrowException, OverflowError) as error:
        raise HaltError(
            f"{doing(name)}: a value of its query has a type that cannot be read: {error}; cast it, for example to text"
        ) from error
    return pa.table(arrays, names=list(spec.names))


FETCH = fetch
