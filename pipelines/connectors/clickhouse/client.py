"""ClickHouse over HTTP: table inspection and creation, and one insert per chunk.

Every insert carries a deduplication token and every setting that its guarantee depends on, because server defaults change between releases
(reference/reliability.md section 2.2).
"""

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import Error

from pipelines.config import ClickHouseSink
from pipelines.config.sinks import PIPELINE_COLUMN
from pipelines.connectors.clickhouse.connection import RESPONSE_TIMEOUT_SECONDS, open_client
from pipelines.connectors.clickhouse.errors import TABLE_CLASSES, insert_error, map_error
from pipelines.connectors.clickhouse.nested import together, written_as
from pipelines.connectors.clickhouse.settings import (
    DELETE_SETTINGS,
    INSERT_SETTINGS,
    MAX_PARTITIONS_PER_INSERT,
    READ_SETTINGS,
    ROLLUP_INSERT_SETTINGS,
    insert_log_comment,
    known_settings,
)
from pipelines.connectors.sinks import Table, TableColumn, View
from pipelines.connectors.sql import filled, statement
from pipelines.error_classes import ErrorClasses
from pipelines.errors import HaltError, RetryableError
from pipelines.types.columns import quote_identifier, quote_string

# The driver logs the errors that it also raises, with a traceback; unless the program asks for logs, the raised error is enough.
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())

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


class ClickHouse:
    """One HTTP client for one sink; its methods that `connectors.sinks.Sink` has, too, keep that contract. The others raise as they do.

    `classes`: overrides of the error classes; without it the error table applies.
    """

    def __init__(self, sink: ClickHouseSink, classes: ErrorClasses = TABLE_CLASSES) -> None:
        self._sink, self._classes = sink, classes
        self._client: Client | None = None
        self._written_as: dict[str, dict[str, tuple[str, ...]]] = {}
        """By table, the columns that it holds in parts, when its columns were last read."""

    def connect(self) -> "ClickHouse":
        """Connect now. Idempotent."""
        if self._client is None:
            # The server must abort an insert before our timeout.
            seconds = self._sink.max_insert_time.total_seconds() + RESPONSE_TIMEOUT_SECONDS
            self._client = open_client(self._sink.connection_params, self._classes, seconds, self._sink.read_settings)
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

    def command(self, doing: str, sql: str, parameters: dict[str, Any] | None = None, settings: Mapping[str, Any] | None = None) -> None:
        """Run a statement without rows, such as DDL. Its text must be built from validated identifiers and types only.

        `settings`: those that the server knows are set.
        """
        client = self._connected
        known = known_settings(client.server_settings, settings or {})
        try:
            client.command(sql, parameters=parameters, settings=known)
        except Exception as error:
            raise map_error(doing, error, self._classes) from error

    def inspect(self, database: str, name: str) -> Table | None:
        doing = f"inspecting table {database}.{name}"
        names = {"database": database, "name": name}
        found = self.rows(doing, statement("clickhouse/table"), names)
        if not found:
            return None
        engine, definition, partition_key, columns, views = found[0]
        return Table(
            database,
            name,
            engine,
            definition,
            # The server looks for columns before it looks for the table: of one that was made in between it found none.
            self._noted(database, name, columns) if columns else self.columns(database, name),
            *self._dedup_memory(engine, definition),
            is_partitioned=bool(partition_key),
            keeps_rows=_KEEPS_ROWS.fullmatch(engine) is not None and " GROUP BY " not in definition,
            views=tuple(views),
        )

    def columns(self, database: str, name: str) -> tuple[TableColumn, ...]:
        names = {"database": database, "name": name}
        return self._noted(database, name, self.rows(f"reading the columns of {database}.{name}", statement("clickhouse/columns"), names))

    def _noted(self, database: str, name: str, found: Iterable[tuple[str, str, str]]) -> tuple[TableColumn, ...]:
        columns = together(TableColumn(*column) for column in found)
        self._written_as[f"{database}.{name}"] = written_as(columns)
        return columns

    def _dedup_memory(self, engine: str, definition: str) -> tuple[int, int | None]:
        """Return how many insert tokens the table remembers, 0 without deduplication, and for how many seconds, None if only they count.

        Its own settings, else the server's defaults.
        """
        if "MergeTree" not in engine:
            return 0, None
        if engine.startswith(("Replicated", "Shared")):
            names = ("replicated_deduplication_window", "replicated_deduplication_window_seconds")
            tokens, seconds = (self._table_setting(name, definition, "clickhouse/replicated_setting") for name in names)
            return tokens, seconds
        return self._table_setting("non_replicated_deduplication_window", definition, "clickhouse/merge_tree_setting"), None

    def _table_setting(self, setting: str, definition: str, default: str) -> int:
        own = re.search(rf"(?<![a-z_]){setting} = (\d+)", definition)
        if own:
            return int(own[1])
        found = self.rows(f"reading the server's default of {setting}", statement(default), {"name": setting})
        return int(found[0][0]) if found else 0

    def view_targets(self, database: str, name: str) -> list[Table]:
        """List the tables that materialized views fill from this one, including views on views."""
        return self.filled_from(self._names_of_views(database, name))

    def filled_from(self, views: Sequence[tuple[str, str]]) -> list[Table]:
        """List the tables that these materialized views fill, by database and name of a view, including views on views."""
        targets: list[Table] = []
        sources = [views]
        while sources:
            for view in self._views(sources.pop()):
                if view.target is not None and all(view.target.full_name != known.full_name for known in targets):
                    targets.append(view.target)
                    sources.append(view.target.views)
        return targets

    def views_on(self, database: str, name: str) -> list[View]:
        """List the materialized views that an insert into this table feeds, without views on views."""
        return self._views(self._names_of_views(database, name))

    def _names_of_views(self, database: str, name: str) -> list[tuple[str, str]]:
        doing = f"listing the materialized views on {database}.{name}"
        found = self.rows(doing, statement("clickhouse/views_on"), {"database": database, "name": name})
        return [(database_of_view, view) for database_of_view, view in found]

    def _views(self, names: Iterable[tuple[str, str]]) -> list[View]:
        """Return the materialized views of these names that are there."""
        return [view for name in names if (view := self._view(*name)) is not None]

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

    def drop_table(self, database: str, name: str) -> None:
        text = filled("clickhouse/drop_table", database=quote_identifier(database), table=quote_identifier(name))
        self.command(f"dropping table {database}.{name}", text)

    @property
    def _insert_settings(self) -> Mapping[str, Any]:
        return ROLLUP_INSERT_SETTINGS if self._sink.rollups else INSERT_SETTINGS

    def check_insert_settings(self) -> None:
        """Raise HaltError if the server rejects, or overrides, a setting that makes an insert one deduplicated block."""
        doing = "checking the settings of inserts"
        settings = known_settings(self._connected.server_settings, self._insert_settings)
        settings |= {"max_execution_time": math.ceil(self._sink.max_insert_time.total_seconds()), **insert_log_comment("tallyflow")}
        # In the text: the driver looks at each character of an address, which the settings fill already, in Python.
        sql = filled("clickhouse/settings", names=", ".join(map(quote_string, settings)))
        try:
            found = self._connected.query(sql, settings=settings)
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

    def delete_rows(self, table: Table, sequences: tuple[int, int], owner: str, work: str) -> None:
        """Delete the rows of these raw sequences, both inclusive; return once the server has noted it, before it has done it.

        `owner`: the pipeline whose rows these are in a shared table; empty for any other table. `work` names the statement in
        `system.processes`. Rows that are inserted afterwards stay, whenever the server deletes the others.
        """
        names = {"database": quote_identifier(table.database), "table": quote_identifier(table.name)}
        # A pipeline's id holds no quotes.
        owned = f" AND {PIPELINE_COLUMN} = '{owner}'" if owner else ""
        sql = filled("clickhouse/delete_rows", **names, first=sequences[0], last=sequences[1], owned=owned)
        doing = f"deleting the rows of raw {sequences[0]}..{sequences[1]} from {table.full_name}"
        self.command(doing, sql, settings={**DELETE_SETTINGS, **insert_log_comment(work)})

    def deletions_at_work(self, table: Table) -> int:
        """Count the mutations of a table that the server has not done yet. Raise HaltError for one that fails again and again."""
        names = {"database": table.database, "name": table.name}
        found = self.rows(f"reading the mutations of {table.full_name}", statement("clickhouse/mutations_at_work"), names)
        failed = [reason for reason, _ in found if reason]
        if failed:
            raise HaltError(
                f"waiting for the mutations of {table.full_name}: one of them fails: {failed[0][:500]}; mend its cause, or end it with "
                "KILL MUTATION"
            )
        return sum(int(count) for _, count in found)

    def insert(
        self,
        table: str,
        columns: Sequence[str],
        block: bytes,
        token: str,
        max_execution_seconds: int,
        work: str = "",
        max_partitions: int = MAX_PARTITIONS_PER_INSERT,
    ) -> None:
        """Insert the block as one, with `token`; `work` names it in `system.processes`. `table` is validated.

        A block that touches more than `max_partitions`, 0 for no limit, is refused.
        """
        client = self._connected
        if table not in self._written_as:
            self.columns(*table.split("."))
        names = [part for column in columns for part in self._written_as[table].get(column, (column,))]
        settings = {**known_settings(client.server_settings, self._insert_settings), "insert_deduplication_token": token}
        settings |= {"max_execution_time": max_execution_seconds, **insert_log_comment(work)}
        settings["max_partitions_per_insert_block"] = max_partitions
        try:
            client.raw_insert(table, names, insert_block=block, settings=settings, fmt="ArrowStream")
        except Exception as error:
            found = insert_error(f"inserting a chunk into {table}", error, self._classes)
            # A traceback would show the server's message, with the value that it cannot read.
            raise found from (None if isinstance(error, Error) and error.code is not None else error)

    def inserts_at_work(self, work: str) -> int | None:
        try:
            found = self.rows("looking for running inserts", statement("clickhouse/inserts_at_work"), insert_log_comment(work))
        except HaltError:
            return None
        return int(found[0][0])

    def count_rows(self, database: str, name: str, with_positions: bool) -> int:
        where = " WHERE _tf_sequence > 0" if with_positions else ""
        table = f"{quote_identifier(database)}.{quote_identifier(name)}"
        return int(self.rows(f"counting the rows of {database}.{name}", f"SELECT count() FROM {table}{where}")[0][0])  # noqa: S608

    def count_unowned(self, database: str, name: str) -> int:
        table = f"{quote_identifier(database)}.{quote_identifier(name)}"
        # The rows of all pipelines, whatever the client is to see.
        sql = f"SELECT count() FROM {table} WHERE {PIPELINE_COLUMN} = '' SETTINGS additional_table_filters = {{}}"  # noqa: S608
        return int(self.rows(f"counting the rows of {database}.{name}", sql)[0][0])

    def stored_positions(self, table: Table, sequences: tuple[int, int], arrivals_us: tuple[int, int] | None = None) -> pa.Table:
        """Read the positions of the rows within these bounds, of a shared table those of this pipeline.

        For a replicated table the result includes inserts into any replica: without a quorum, this needs a wait for our replica.
        """
        parameters: dict[str, str | int] = {"database": table.database, "table": table.name, "first": sequences[0], "last": sequences[1]}
        settings = known_settings(self._connected.server_settings, {**READ_SETTINGS, **self._sink.read_settings})
        if arrivals_us is not None:
            parameters |= {"since": arrivals_us[0], "until": arrivals_us[1]}
        parts = _EMIT_AND_ARRIVAL if arrivals_us is not None else {"emit_and_arrival": "", "within": ""}
        if table.is_replicated:
            where = {"database": quote_identifier(table.database), "table": quote_identifier(table.name)}
            self.command(f"waiting for the replica of {table.full_name}", filled("clickhouse/sync_replica", **where))
            settings["select_sequential_consistency"] = 1
        try:
            return self._connected.query_arrow(filled("clickhouse/stored_positions", **parts), parameters=parameters, settings=settings)
        except Exception as error:
            raise map_error(f"reading which rows are in {table.full_name}", error, self._classes) from error

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
