"""A look-up table in ClickHouse: the rows of one SELECT, which reads one state of each table and may change nothing."""

from typing import Any

import pyarrow as pa

from pipelines.config.tables.clickhouse import ClickHouseTable
from pipelines.connectors.clickhouse.connection import RESPONSE_TIMEOUT_SECONDS, open_client
from pipelines.connectors.clickhouse.errors import map_error
from pipelines.connectors.clickhouse.settings import known_settings
from pipelines.connectors.tables import doing
from pipelines.errors import HaltError
from pipelines.lookups.spec import TableSpec


def fetch(name: str, table: Any, spec: TableSpec) -> pa.Table:
    """Return the columns of the query's rows."""
    assert isinstance(table, ClickHouseTable)
    seconds = max(1, int(table.timeout.total_seconds()))
    try:
        client = open_client(table.connection, response_seconds=seconds + RESPONSE_TIMEOUT_SECONDS)
    except ValueError as error:
        raise HaltError(f"{doing(name)}: {error}") from error
    settings = {
        "readonly": 1,
        "max_execution_time": seconds,
        "timeout_overflow_mode": "throw",
        # An answer that is too large ends at the server. One row more, so that the limit itself is reached.
        "max_result_rows": table.max_rows + 1,
        "max_result_bytes": table.max_bytes,
        "result_overflow_mode": "throw",
        # An error in the middle of the answer is an error, and no shorter answer.
        "wait_end_of_query": 1,
        "limit": 0,
        "offset": 0,
        "log_comment": f"tallyflow lookup {name}",
    }
    try:
        text = table.query.strip().rstrip(";")
        found = client.query_arrow(text, settings=known_settings(client.server_settings, settings), use_strings=True)
    except Exception as error:
        raise map_error(f"{doing(name)}, its query", error) from error
    finally:
        client.close()
    if missing := [column for column in spec.names if column not in found.column_names]:
        raise HaltError(f"{doing(name)}: its query gives no column {missing[0]!r}; it gives {', '.join(found.column_names)[:500]}")
    return found.select(list(spec.names))


FETCH = fetch
