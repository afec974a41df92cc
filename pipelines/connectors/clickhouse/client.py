"""ClickHouse over HTTP: table inspection and creation, and one insert per chunk.

Every insert carries a deduplication token and every setting that its guarantee depends on, because server defaults change between releases
(reference/reliability.md section 2.2).
"""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import Error

from pipelines.config import ClickHouseConnection, ClickHouseSink
from pipelines.connectors.clickhouse.answers import pool_for
from pipelines.connectors.clickhouse.errors import TABLE_CLASSES, insert_error, map_error
from pipelines.connectors.clickhouse.settings import INSERT_SETTINGS, READ_SETTINGS, insert_log_comment, known_settings
from pipelines.connectors.sinks import Table, TableColumn, View
from pipelines.connectors.sql import filled, statement
from pipelines.error_classes import ErrorClasses
from pipelines.errors import HaltError, RetryableError
from pipelines.types.columns import quote_identifier

# The driver logs the errors that it also raises, with a traceback; unless the program asks for logs, the raised error is enough.
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())

CONNECT_TIMEOUT_SECONDS = 5
RESPONSE_TIMEOUT_SECONDS = 60

_KEEPS_ROWS = re.compile(r"(Replicated|Shared)?MergeTree")
_NAME = r"(?:`(?:[^`\\]|\\.)+`|\w+)"
_VIEW_TARGET = re.compile(rf"CREATE MATERIALIZED VIEW (?:{_NAME}\.)?{_NAME} (?:UUID '[^']+' )?TO (?:({_NAME})\.)?({_NAME})")
"""Target of a view in `system.tables.create_table_query`. The server writes this text, with names in backticks where needed."""
_EMIT_AND_ARRIVAL = {
    "emit_and_arrival": ", _tf_emit AS emit, toUnixTimestamp64Micro(_tf_arrival) AS arrival_us",
    "within": "\n  AND _tf_arrival BETWEEN fromUnixTimestamp64Micro({since:Int64}, 'UTC') "
    "AND fromUnixTimestamp64Micro({until:Int64}, 'UTC')",
}
"""Parts of `stored_positions` for pipelines whose arrivals distinguish their rows from those of an earlier pipeline of the name."""


def _unquoted(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name[1:-1]) if name.startswith("`") else name


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sorted(settings.items()))


def open_client(
    connection: ClickHouseConnection, classes: ErrorClasses = TABLE_CLASSES, response_seconds: float = RESPONSE_TIMEOUT_SECONDS
) -> Client:
    """Open a connected client. Raise RetryableError or HaltError."""
    try:
        return clickhouse_connect.get_client(
            host=connection.host,
            port=connection.http_port_effective,
            username=connection.username,
            password=connection.password.get_secret_value(),
            secure=connection.secure,
            verify=not connection.skip_certificate_verification,
            pool_mgr=pool_for(connection),
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            send_receive_timeout=response_seconds,
            autogenerate_session_id=False,
            query_retries=0,
            # The server's message without address and version.
            show_clickhouse_errors="scrub",
            client_name="tallyflow",
        )
    except Exception as error:
        doing = f"connecting to ClickHouse at {connection.host}:{connection.http_port_effective}"
        raise map_error(doing, error, classes) from error


class ClickHouse:
    """One HTTP client for one sink. Methods raise RetryableError (send again) or HaltError; no method retries by itself.

    `classes`: overrides of the error classes; without it the error table applies.
    """

    def __init__(self, sink: ClickHouseSink, classes: ErrorClasses = TABLE_CLASSES) -> None:
        self._sink, self._classes = sink, classes
        self._client: Client | None = None

    def connect(self) -> "ClickHouse":
        """Connect now. Idempotent."""
        if self._client is None:
            # The server must abort an insert before our timeout.
            seconds = self._sink.max_insert_time.total_seconds() + RESPONSE_TIMEOUT_SECONDS
            self._client = open_client(self._sink.connection_params, self._classes, seconds)
        return self

    @property
    def _connected(self) -> Client:
        self.connect()
        assert self._client is not None
        return self._client

    def rows(self, doing: str, sql: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a SELECT and return its rows. The server fills in `{name:Type}` with `parameters[name]`."""
        try:
            return [tuple(row) for row in self._connected.query(sql, parameters=parameters).result_rows]
        except Exception as error:
            raise map_error(doing, error, self._classes) from error

    def command(self, doing: str, sql: str) -> None:
        """Run a statement without rows, such as DDL. Its text must be built from validated identifiers and types only."""
        try:
            self._connected.command(sql)
        except Exception as error:
            raise map_error(doing, error, self._classes) from error

    def inspect(self, database: str, name: str) -> Table | None:
        """Return the table's facts; None if it does not exist."""
        doing = f"inspecting table {database}.{name}"
        names = {"database": database, "name": name}
        found = self.rows(doing, statement("clickhouse/table"), names)
        if not found:
            return None
        engine, definition, partition_key = found[0]
        return Table(
            database,
            name,
            engine,
            definition,
            self.columns(database, name),
            self._dedup_window(engine, definition),
            self._dedup_seconds(engine, definition),
            is_partitioned=bool(partition_key),
            keeps_rows=_KEEPS_ROWS.fullmatch(engine) is not None and " GROUP BY " not in definition,
        )

    def columns(self, database: str, name: str) -> tuple[TableColumn, ...]:
        """Return the table's current columns, in their order; empty if it does not exist."""
        names = {"database": database, "name": name}
        found = self.rows(f"reading the columns of {database}.{name}", statement("clickhouse/columns"), names)
        return tuple(TableColumn(*column) for column in found)

    def _dedup_window(self, engine: str, definition: str) -> int:
        """Return the insert tokens that the table remembers: its own setting, else the server's default; 0 without deduplication."""
        if "MergeTree" not in engine:
            return 0
        if engine.startswith(("Replicated", "Shared")):
            return self._table_setting("replicated_deduplication_window", definition, "clickhouse/replicated_setting")
        return self._table_setting("non_replicated_deduplication_window", definition, "clickhouse/merge_tree_setting")

    def _dedup_seconds(self, engine: str, definition: str) -> int | None:
        if not engine.startswith(("Replicated", "Shared")):
            return None
        return self._table_setting("replicated_deduplication_window_seconds", definition, "clickhouse/replicated_setting")

    def _table_setting(self, setting: str, definition: str, default: str) -> int:
        own = re.search(rf"(?<![a-z_]){setting} = (\d+)", definition)
        if own:
            return int(own[1])
        found = self.rows(f"reading the server's default of {setting}", statement(default), {"name": setting})
        return int(found[0][0]) if found else 0

    def view_targets(self, database: str, name: str) -> list[Table]:
        """List the tables that materialized views fill from this one, including views on views."""
        targets: list[Table] = []
        sources = [(database, name)]
        while sources:
            for view in self.views_on(*sources.pop()):
                if view.target is not None and all(view.target.full_name != known.full_name for known in targets):
                    targets.append(view.target)
                    sources.append((view.target.database, view.target.name))
        return targets

    def views_on(self, database: str, name: str) -> list[View]:
        """List the materialized views that an insert into this table feeds, without views on views."""
        doing = f"listing the materialized views on {database}.{name}"
        found = self.rows(doing, statement("clickhouse/views_on"), {"database": database, "name": name})
        return [view for database_of_view, view_name in found if (view := self._view(database_of_view, view_name)) is not None]

    def _view(self, database: str, view: str) -> View | None:
        doing = f"reading the materialized view {database}.{view}"
        found = self.rows(doing, statement("clickhouse/view"), {"database": database, "name": view})
        if not found:
            return None
        definition, uuid = found[0]
        explicit = _VIEW_TARGET.match(definition)
        if explicit:
            target = self.inspect(_unquoted(explicit[1] or database), _unquoted(explicit[2]))
        else:
            target = self.inspect(database, f".inner_id.{uuid}") or self.inspect(database, f".inner.{view}")
        return View(f"{database}.{view}", definition, target)

    def create_table(self, database: str, name: str, columns: Sequence[tuple[str, str]], order_by: Sequence[str], window: int) -> None:
        """Create a MergeTree with a deduplication window. Column types must come from `columns.parse_type`."""
        texts: dict[str, str | int] = {
            "database": quote_identifier(database),
            "table": quote_identifier(name),
            "columns": ", ".join(f"{quote_identifier(column)} {kind}" for column, kind in columns),
            "order_by": ", ".join(quote_identifier(column) for column in order_by),
            "window": int(window),
        }
        self.command(f"creating table {database}.{name}", filled("clickhouse/create_table", **texts))

    def drop_table(self, database: str, name: str) -> None:
        text = filled("clickhouse/drop_table", database=quote_identifier(database), table=quote_identifier(name))
        self.command(f"dropping table {database}.{name}", text)

    def check_insert_settings(self) -> None:
        """Raise HaltError if the server rejects, or overrides, a setting that makes an insert one deduplicated block."""
        doing = "checking the settings of inserts"
        settings = known_settings(self._connected.server_settings, INSERT_SETTINGS)
        settings |= {"max_execution_time": math.ceil(self._sink.max_insert_time.total_seconds()), **insert_log_comment("tallyflow")}
        try:
            found = self._connected.query(statement("clickhouse/settings"), parameters={"names": list(settings)}, settings=settings)
        except Exception as error:
            mapped = map_error(doing, error, self._classes)
            if isinstance(mapped, RetryableError):
                raise mapped from error
            raise HaltError(f"{mapped}. Allow the user's profile what these inserts set: {_listed(settings)}") from error
        other = {name: value for name, value in found.result_rows if str(settings[name]) != value}
        if other:
            raise HaltError(
                f"{doing}: the server uses {_listed(other)}, an insert that is one atomic, deduplicated block needs "
                f"{_listed({name: settings[name] for name in other})}; remove the constraint from the user's profile and start again"
            )

    def insert(self, table: str, columns: Sequence[str], block: bytes, token: str, max_execution_seconds: int, work: str = "") -> None:
        """Insert one Arrow IPC stream of one record batch as one block with `token`; `work` names it in `system.processes`.

        Raises RetryableError if the outcome is unknown or the server asks to wait: the caller sends the same block with the same token
        until the answer is definite (InsertTooLargeError: the server aborted it for its time or memory). Raises RefusedError if the table
        refuses the block because of its rows. `table` is `database.name`, validated.
        """
        client = self._connected
        settings = {**known_settings(client.server_settings, INSERT_SETTINGS), "insert_deduplication_token": token}
        settings |= {"max_execution_time": max_execution_seconds, **insert_log_comment(work)}
        try:
            client.raw_insert(table, list(columns), insert_block=block, settings=settings, fmt="ArrowStream")
        except Exception as error:
            found = insert_error(f"inserting a chunk into {table}", error, self._classes)
            # A traceback would show the server's message, with the value that it cannot read.
            raise found from (None if isinstance(error, Error) and error.code is not None else error)

    def inserts_at_work(self, work: str) -> int | None:
        """Count the inserts of this name that the server is running; None if the user may not see them."""
        try:
            found = self.rows("looking for running inserts", statement("clickhouse/inserts_at_work"), insert_log_comment(work))
        except HaltError:
            return None
        return int(found[0][0])

    def count_rows(self, database: str, name: str, with_positions: bool) -> int:
        """Count the rows of a table; `with_positions`: only rows that a pipeline has written, in a table with position columns."""
        where = " WHERE _tf_sequence > 0" if with_positions else ""
        table = f"{quote_identifier(database)}.{quote_identifier(name)}"
        return int(self.rows(f"counting the rows of {database}.{name}", f"SELECT count() FROM {table}{where}")[0][0])  # noqa: S608

    def stored_positions(self, table: Table, sequences: tuple[int, int], arrivals_us: tuple[int, int] | None = None) -> pa.Table:
        """Read (sequence, ordinal) of the rows within these bounds, inclusive; with `arrivals_us` also (emit, arrival in us).

        For a replicated table the result includes inserts into any replica: without a quorum, this needs a wait for our replica.
        """
        parameters: dict[str, str | int] = {"database": table.database, "table": table.name, "first": sequences[0], "last": sequences[1]}
        settings = known_settings(self._connected.server_settings, READ_SETTINGS)
        if arrivals_us is not None:
            parameters |= {"since": arrivals_us[0], "until": arrivals_us[1]}
        asked = _EMIT_AND_ARRIVAL if arrivals_us is not None else {"emit_and_arrival": "", "within": ""}
        if table.is_replicated:
            where = {"database": quote_identifier(table.database), "table": quote_identifier(table.name)}
            self.command(f"waiting for the replica of {table.full_name}", filled("clickhouse/sync_replica", **where))
            settings["select_sequential_consistency"] = 1
        try:
            return self._connected.query_arrow(filled("clickhouse/stored_positions", **asked), parameters=parameters, settings=settings)
        except Exception as error:
            raise map_error(f"reading which rows are in {table.full_name}", error, self._classes) from error

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
