"""ClickHouse over HTTP: what a table is, its creation, and one insert per chunk.

Every insert carries a deduplication token and says all settings that its meaning rests on, because server defaults move between releases
(reference/reliability.md section 2.2).
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, Error, OperationalError
from urllib3.exceptions import HTTPError

from pipelines.columns import quote_identifier
from pipelines.config import ClickHouseConnection, ClickHouseSink
from pipelines.error_classes import ErrorClasses
from pipelines.errors import HaltError, RefusedError, RetryableError, TallyflowError
from pipelines.statements import filled, statement

# The driver logs what it also raises, with a traceback; unless the program asks for logs, the raised error is enough.
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())

CONNECT_TIMEOUT_SECONDS = 5
RESPONSE_TIMEOUT_SECONDS = 60

_PUSHING_TO_VIEW = "while pushing to view"
"""An insert that a view refuses has stored the block in the table all the same (measured, 26.9)."""
_SERVER = re.compile(r"DB::\w*Exception: ")
_TABLE_ID = re.compile(r" \([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\)")
_AT_ROW = re.compile(r"is violated at row (\d+)")

_TABLE_CLASSES = ErrorClasses("clickhouse")

INSERT_SETTINGS: dict[str, Any] = {
    "async_insert": 0,
    "wait_end_of_query": 1,
    "insert_deduplicate": 1,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "input_format_null_as_default": 1,
    "max_insert_threads": 1,
    # One block per chunk: the same token with another split loses rows silently (reliability.md 2.1, row 7q).
    "max_insert_block_size": 4_000_000,
    "min_insert_block_size_rows": 0,
    "min_insert_block_size_bytes": 0,
}


_NAME = r"(?:`(?:[^`\\]|\\.)+`|\w+)"
_VIEW_TARGET = re.compile(rf"CREATE MATERIALIZED VIEW (?:{_NAME}\.)?{_NAME} (?:UUID '[^']+' )?TO (?:({_NAME})\.)?({_NAME})")
"""Target of a view in `system.tables.create_table_query`, which is written by the server: names in backticks where they must be."""


def _unquoted(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name[1:-1]) if name.startswith("`") else name


def map_error(doing: str, error: Exception, classes: ErrorClasses = _TABLE_CLASSES) -> TallyflowError:
    """The driver's exception as one of ours. Network trouble is retryable; a code that is not known is a halt, never a drop."""
    if isinstance(error, TallyflowError):
        return error
    if not isinstance(error, ClickHouseError):
        if isinstance(error, HTTPError | OSError):
            return RetryableError(f"{doing}: ClickHouse did not answer ({type(error).__name__})")
        return HaltError(f"{doing}: {type(error).__name__}: {error}")
    code = error.code if isinstance(error, Error) else None
    text = _first_line(str(error))
    if code is None and isinstance(error, OperationalError) and error.__cause__ is not None:
        # urllib3 wraps why it could not connect into what it tried and how often.
        reason = _first_line(str(getattr(error.__cause__, "reason", error.__cause__)))
        return RetryableError(f"{doing}: ClickHouse did not answer ({reason})")
    if code is None:
        return RetryableError(f"{doing}: {text}") if _may_pass(error, text) else HaltError(f"{doing}: {text}")
    return _of_the_server(doing, str(error), code, classes)


def _of_the_server(doing: str, full_text: str, code: int, classes: ErrorClasses) -> TallyflowError:
    row = classes.row(code, full_text)
    text = _first_line(full_text)
    if row is None:
        return HaltError(f"{doing}: ClickHouse error {code}: {text}; nothing was dropped: mend the cause and start again")
    if classes.of(row) == "retryable":
        return RetryableError(f"{doing}: ClickHouse error {code} ({row.name}): {text}; {row.remedy}")
    if _PUSHING_TO_VIEW in full_text:
        return HaltError(
            f"{doing}: ClickHouse error {code}: {text}; a materialized view on the table refuses these rows, which the table itself may "
            "hold already. Mend the view, or detach it, and start again: the same chunk is sent with its token, and nothing is doubled"
        )
    return HaltError(f"{doing}: ClickHouse error {code}: {text}; {row.remedy}")


def _refusal(error: Exception, classes: ErrorClasses = _TABLE_CLASSES) -> RefusedError | None:
    """The error of an insert that a smaller block may survive; None for any other. The message holds no value of the row."""
    text = str(error)
    if not isinstance(error, Error) or _PUSHING_TO_VIEW in text:
        return None
    row = classes.row(error.code, text)
    if row is None or classes.of(row) != "record":
        return None
    words = row.words or _TABLE_ID.sub("", _first_line(text).partition(". Column values: ")[0])
    at = _AT_ROW.search(words)
    return RefusedError(f"ClickHouse error {error.code} ({row.name}): {words}", int(at[1]) - 1 if at else None)


def _may_pass(error: ClickHouseError, text: str) -> bool:
    """Whether an error without a code is the network's or an overloaded proxy's; the driver's other errors are misuse."""
    status = re.search(r"HTTP status (\d{3})\b", text)
    if status:
        return status[1] in ("408", "429") or status[1] >= "500"
    return isinstance(error, OperationalError)


def _first_line(text: str) -> str:
    """The server's own words where the driver has wrapped them."""
    words = _SERVER.split(text, maxsplit=1)[-1]
    return words.strip().splitlines()[0][:500] if words.strip() else "no message"


@dataclass(frozen=True)
class TableColumn:
    """One column as `system.columns` tells it; `default_kind` is '', DEFAULT, MATERIALIZED, ALIAS or EPHEMERAL."""

    name: str
    type: str
    default_kind: str


@dataclass(frozen=True)
class Table:
    """What the sink needs to know about a target: its columns, engine (`definition`: with its clauses and settings), and how many insert
    tokens it remembers (0: none).
    """

    database: str
    name: str
    engine: str
    definition: str
    columns: tuple[TableColumn, ...]
    dedup_window: int

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"


@dataclass(frozen=True)
class View:
    """A materialized view: its definition in the server's words, and the table that it fills; None where that is gone, or where the server
    does not tell it: chdb 26.9 gives no uuid to a view of the database `default`.
    """

    full_name: str
    definition: str
    target: Table | None


def open_client(connection: ClickHouseConnection, classes: ErrorClasses = _TABLE_CLASSES) -> Client:
    """A client that has connected. Raises RetryableError or HaltError."""
    try:
        return clickhouse_connect.get_client(
            host=connection.host,
            port=connection.http_port_effective,
            username=connection.username,
            password=connection.password.get_secret_value(),
            secure=connection.secure,
            verify=not connection.skip_certificate_verification,
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            send_receive_timeout=RESPONSE_TIMEOUT_SECONDS,
            autogenerate_session_id=False,
            query_retries=0,
            # The server's words without address and version.
            show_clickhouse_errors="scrub",
            client_name="tallyflow",
        )
    except Exception as error:
        doing = f"connecting to ClickHouse at {connection.host}:{connection.http_port_effective}"
        raise map_error(doing, error, classes) from error


class ClickHouse:
    """One HTTP client for one sink. Methods raise RetryableError (send again) or HaltError; no method retries by itself.

    `classes`: which of the server's errors is what; without it the table decides.
    """

    def __init__(self, sink: ClickHouseSink, classes: ErrorClasses = _TABLE_CLASSES) -> None:
        self._sink, self._classes = sink, classes
        self._client: Client | None = None

    def connect(self) -> "ClickHouse":
        """Connects now. Idempotent."""
        if self._client is None:
            self._client = open_client(self._sink.connection_params, self._classes)
        return self

    @property
    def _connected(self) -> Client:
        self.connect()
        assert self._client is not None
        return self._client

    def rows(self, doing: str, sql: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Rows of a SELECT. `{name:Type}` in the text takes `parameters[name]` on the server's side."""
        try:
            return [tuple(row) for row in self._connected.query(sql, parameters=parameters).result_rows]
        except Exception as error:
            raise map_error(doing, error, self._classes) from error

    def command(self, doing: str, sql: str) -> None:
        """A statement without rows, such as DDL. Its text must be built from validated identifiers and types only."""
        try:
            self._connected.command(sql)
        except Exception as error:
            raise map_error(doing, error, self._classes) from error

    def inspect(self, database: str, name: str) -> Table | None:
        """The table's facts; None when it does not exist."""
        doing = f"inspecting table {database}.{name}"
        names = {"database": database, "name": name}
        found = self.rows(doing, statement("clickhouse/table"), names)
        if not found:
            return None
        engine, definition = found[0]
        return Table(database, name, engine, definition, self.columns(database, name), self._dedup_window(engine, definition))

    def columns(self, database: str, name: str) -> tuple[TableColumn, ...]:
        """The table's columns as they are now, in their order; none when it does not exist."""
        names = {"database": database, "name": name}
        found = self.rows(f"reading the columns of {database}.{name}", statement("clickhouse/columns"), names)
        return tuple(TableColumn(*column) for column in found)

    def stored_positions(self, database: str, name: str, first: int, last: int) -> list[tuple[Any, ...]]:
        """(sequence, ordinal) of the table's rows between two raw sequences, inclusive. `database` and `name` are checked identifiers."""
        text = filled("clickhouse/stored_positions", database=database, table=name)
        return self.rows(f"looking for rows in {database}.{name}", text, {"first": first, "last": last})

    def _dedup_window(self, engine: str, definition: str) -> int:
        """Insert tokens that the table remembers: its own setting, else the server's default; 0 for engines without deduplication."""
        if "MergeTree" not in engine:
            return 0
        replicated = engine.startswith(("Replicated", "Shared"))
        setting = "replicated_deduplication_window" if replicated else "non_replicated_deduplication_window"
        own = re.search(rf"(?<![a-z_]){setting} = (\d+)", definition)
        if own:
            return int(own[1])
        doing = "reading the server's default deduplication window"
        default = self.rows(doing, statement("clickhouse/merge_tree_setting"), {"name": setting})
        return int(default[0][0]) if default else 0

    def view_targets(self, database: str, name: str) -> list[Table]:
        """Tables that materialized views fill from this one, followed through views on views."""
        targets: list[Table] = []
        sources = [(database, name)]
        while sources:
            for view in self.views_on(*sources.pop()):
                if view.target is not None and all(view.target.full_name != known.full_name for known in targets):
                    targets.append(view.target)
                    sources.append((view.target.database, view.target.name))
        return targets

    def views_on(self, database: str, name: str) -> list[View]:
        """The materialized views that an insert into this table feeds, without views on views."""
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
        """Creates a MergeTree with a deduplication window. Column types must come from `columns.parse_type`."""
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

    def insert(self, table: str, columns: Sequence[str], block: bytes, token: str, max_execution_seconds: int) -> None:
        """Inserts one Arrow IPC stream of one record batch as one block with `token`.

        Raises RetryableError when the outcome is unknown or the server asks to wait: the caller sends the same block with the same
        token until the answer is definite; RefusedError when the table takes none of it because of rows in it. `table` is
        `database.name`, validated.
        """
        settings = {**INSERT_SETTINGS, "insert_deduplication_token": token, "max_execution_time": max_execution_seconds}
        try:
            self._connected.raw_insert(table, list(columns), insert_block=block, settings=settings, fmt="ArrowStream")
        except Exception as error:
            raise _refusal(error, self._classes) or map_error(f"inserting a chunk into {table}", error, self._classes) from error

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
