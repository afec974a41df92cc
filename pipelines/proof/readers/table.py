"""The sink's table, read with a client of its own: the client that inserts could hide its own faults.

Functions raise RetryableError or HaltError as ClickHouse answers. `where` is a condition over position columns and numbers; no part of it
comes from outside.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import numpy as np
import pyarrow as pa
from clickhouse_connect.driver.client import Client

from pipelines.config import ClickHouseSink
from pipelines.connectors.clickhouse.connection import open_client
from pipelines.connectors.clickhouse.errors import map_error
from pipelines.protocol.positions import SEQUENCE_AND_ORDINAL, position_keys
from pipelines.protocol.records import EMIT_FIELD
from pipelines.types.columns import quote_identifier

_RESPONSE_SECONDS = 300.0
"""The whole table is read."""


def full_name(sink: ClickHouseSink) -> str:
    """Return the quoted name of the sink's table, for a statement."""
    return f"{quote_identifier(sink.connection_params.database)}.{quote_identifier(sink.table)}"


def table_batches(sink: ClickHouseSink, columns: Sequence[str], where: str = "true") -> Iterator[pa.Table]:
    """Yield these columns of the rows, as the server streams them. Text columns are text."""
    names = ", ".join(quote_identifier(name) for name in columns)
    yield from stream_rows(sink, f"SELECT {names} FROM {full_name(sink)} WHERE {where}", as_text=True)  # noqa: S608


def position_batches(sink: ClickHouseSink, where: str = "true") -> Iterator[np.ndarray]:
    """Yield the positions of the rows as `records.position_keys`, as the server streams them."""
    yield from map(position_keys, table_batches(sink, SEQUENCE_AND_ORDINAL, where))


def row_batches(sink: ClickHouseSink, where: str = "true") -> Iterator[pa.Table]:
    """Yield `position`, as `position_batches`, and `emit`, the number among the rows of the record, as the server streams the rows."""
    for found in table_batches(sink, (*SEQUENCE_AND_ORDINAL, EMIT_FIELD.name), where):
        yield pa.table({"position": position_keys(found), "emit": found.column(EMIT_FIELD.name)})


def stream_rows(sink: ClickHouseSink, sql: str, as_text: bool = False) -> Iterator[pa.Table]:
    """Yield the rows of a SELECT of checked identifiers and numbers, as the server streams them; nothing if there is no row.

    Strings are bytes unless `as_text`.
    """
    # A column of the table may be called as an expression of ours is.
    settings = {"output_format_arrow_low_cardinality_as_dictionary": 0, "prefer_column_name_to_alias": 1}
    with _client(sink) as client, client.query_arrow_stream(sql, settings=settings, use_strings=as_text) as batches:
        for batch in batches:
            yield pa.Table.from_batches([batch])


def count_rows(sink: ClickHouseSink, where: str) -> int:
    with _client(sink) as client:
        return int(client.query(f"SELECT count() FROM {full_name(sink)} WHERE {where}").result_rows[0][0])  # noqa: S608


def count_rows_of(sink: ClickHouseSink, table: str, where: str) -> int:
    """Count rows of another table of the sink's server; its name is one of ours."""
    with _client(sink) as client:
        return int(client.query(f"SELECT count() FROM {table} WHERE {where}").result_rows[0][0])  # noqa: S608


@contextmanager
def _client(sink: ClickHouseSink) -> Iterator[Client]:
    try:
        with closing(open_client(sink.connection_params, response_seconds=_RESPONSE_SECONDS, settings=sink.read_settings)) as client:
            yield client
    except Exception as error:
        raise map_error(f"verifying table {full_name(sink)}", error) from error
