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
from pipelines.config import ClickHouseSink
from pipelines.errors import HaltError, RefusedError, RetryableError, TallyflowError
from pipelines.statements import filled, statement

# The driver logs what it also raises, with a traceback; unless the program asks for logs, the raised error is enough.
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())

CONNECT_TIMEOUT_SECONDS = 5
RESPONSE_TIMEOUT_SECONDS = 60

RETRYABLE_CODES = {
    3: "UNEXPECTED_END_OF_FILE",
    159: "TIMEOUT_EXCEEDED",
    160: "TOO_SLOW",
    198: "DNS_ERROR",
    201: "QUOTA_EXCEEDED",
    202: "TOO_MANY_SIMULTANEOUS_QUERIES",
    203: "NO_FREE_CONNECTION",
    209: "SOCKET_TIMEOUT",
    210: "NETWORK_ERROR",
    225: "NO_ZOOKEEPER",
    236: "ABORTED",
    241: "MEMORY_LIMIT_EXCEEDED",
    242: "TABLE_IS_READ_ONLY",
    243: "NOT_ENOUGH_SPACE",
    252: "TOO_MANY_PARTS",
    285: "TOO_FEW_LIVE_REPLICAS",
    286: "UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE",
    319: "UNKNOWN_STATUS_OF_INSERT",
    394: "QUERY_WAS_CANCELLED",
    425: "SYSTEM_ERROR",
    439: "CANNOT_SCHEDULE_TASK",
    519: "ALL_REPLICAS_ARE_STALE",
    999: "KEEPER_EXCEPTION",
}
"""Codes after which the same chunk, with the same token, is sent again."""

REFUSAL_CODES = {
    6: "CANNOT_PARSE_TEXT",
    27: "CANNOT_PARSE_INPUT_ASSERTION_FAILED",
    38: "CANNOT_PARSE_DATE",
    41: "CANNOT_PARSE_DATETIME",
    69: "ARGUMENT_OUT_OF_BOUND",
    70: "CANNOT_CONVERT_TYPE",
    72: "CANNOT_PARSE_NUMBER",
    131: "TOO_LARGE_STRING_SIZE",
    153: "ILLEGAL_DIVISION",
    321: "VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE",
    349: "CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN",
    395: "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO",
    407: "DECIMAL_OVERFLOW",
    469: "VIOLATED_CONSTRAINT",
    691: "UNKNOWN_ELEMENT_OF_ENUM",
}
"""Codes of an insert that is refused for what single rows hold; nothing of its block is stored (measured, 26.9)."""

_PUSHING_TO_VIEW = "while pushing to view"
"""An insert that a view refuses has stored the block in the table all the same (measured, 26.9)."""
_ONE_BLOCK = "Too many partitions for single INSERT block"
"""Has the code of too many parts, but waiting does not help: a smaller block does."""
_TABLE_ID = re.compile(r" \([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\)")
_AT_ROW = re.compile(r"is violated at row (\d+)")

_REMEDIES = {
    60: "create the table, or set `create_table: true` in the sink",
    81: "create the database, or correct `database` in the sink's connection_params",
    192: "check `username` in the sink's connection_params",
    193: "check `password` in the sink's connection_params",
    194: "give `password` in the sink's connection_params",
    497: "grant the user the right that the message names",
    516: "check `username` and `password` in the sink's connection_params",
}

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


def map_error(doing: str, error: Exception) -> TallyflowError:
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
    if code in RETRYABLE_CODES:
        return RetryableError(f"{doing}: ClickHouse error {code} ({RETRYABLE_CODES[code]}): {text}")
    if _PUSHING_TO_VIEW in str(error):
        return HaltError(
            f"{doing}: ClickHouse error {code}: {text}; a materialized view on the table refuses these rows, which the table itself may "
            "hold already. Mend the view, or detach it, and start again: the same chunk is sent with its token, and nothing is doubled"
        )
    return HaltError(
        f"{doing}: ClickHouse error {code}: {text}; {_REMEDIES.get(code, 'nothing was dropped: mend the cause and start again')}"
    )


def _refusal(error: Exception) -> RefusedError | None:
    """The error of an insert that a smaller block may survive; None for any other. The message holds no value of the row."""
    text = str(error)
    if not isinstance(error, Error) or _PUSHING_TO_VIEW in text:
        return None
    if error.code == 252 and _ONE_BLOCK in text:
        return RefusedError(f"ClickHouse error 252: {_ONE_BLOCK}", None)
    if error.code not in REFUSAL_CODES:
        return None
    words = _TABLE_ID.sub("", _first_line(text).partition(". Column values: ")[0])
    row = _AT_ROW.search(words)
    return RefusedError(f"ClickHouse error {error.code} ({REFUSAL_CODES[error.code]}): {words}", int(row[1]) - 1 if row else None)


def _may_pass(error: ClickHouseError, text: str) -> bool:
    """Whether an error without a code is the network's or an overloaded proxy's; the driver's other errors are misuse."""
    status = re.search(r"HTTP status (\d{3})\b", text)
    if status:
        return status[1] in ("408", "429") or status[1] >= "500"
    return isinstance(error, OperationalError)


def _first_line(text: str) -> str:
    """The server's own words where the driver has wrapped them."""
    words = text.partition("DB::Exception: ")[2] or text
    return words.strip().splitlines()[0][:500] if words.strip() else "no message"


@dataclass(frozen=True)
class TableColumn:
    """One column as `system.columns` tells it; `default_kind` is '', DEFAULT, MATERIALIZED, ALIAS or EPHEMERAL."""

    name: str
    type: str
    default_kind: str


@dataclass(frozen=True)
class Table:
    """What the sink needs to know about a target: its columns, engine, and how many insert tokens it remembers (0: none)."""

    database: str
    name: str
    engine: str
    columns: tuple[TableColumn, ...]
    dedup_window: int

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"


class ClickHouse:
    """One HTTP client for one sink. Methods raise RetryableError (send again) or HaltError; no method retries by itself."""

    def __init__(self, sink: ClickHouseSink) -> None:
        self._sink = sink
        self._client: Client | None = None

    def connect(self) -> "ClickHouse":
        """Connects now. Idempotent."""
        if self._client is None:
            connection = self._sink.connection_params
            try:
                self._client = clickhouse_connect.get_client(
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
                raise map_error(f"connecting to ClickHouse at {connection.host}:{connection.http_port_effective}", error) from error
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
            raise map_error(doing, error) from error

    def command(self, doing: str, sql: str) -> None:
        """A statement without rows, such as DDL. Its text must be built from validated identifiers and types only."""
        try:
            self._connected.command(sql)
        except Exception as error:
            raise map_error(doing, error) from error

    def inspect(self, database: str, name: str) -> Table | None:
        """The table's facts; None when it does not exist."""
        doing = f"inspecting table {database}.{name}"
        names = {"database": database, "name": name}
        found = self.rows(doing, statement("clickhouse/table"), names)
        if not found:
            return None
        engine, definition = found[0]
        columns = self.rows(doing, statement("clickhouse/columns"), names)
        return Table(database, name, engine, tuple(TableColumn(*column) for column in columns), self._dedup_window(engine, definition))

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
            source = sources.pop()
            for view_database, view in self._views_on(*source):
                target = self._view_target(view_database, view)
                if target is not None and all(target.full_name != known.full_name for known in targets):
                    targets.append(target)
                    sources.append((target.database, target.name))
        return targets

    def _views_on(self, database: str, name: str) -> list[tuple[Any, ...]]:
        doing = f"listing the materialized views on {database}.{name}"
        return self.rows(doing, statement("clickhouse/views_on"), {"database": database, "name": name})

    def _view_target(self, database: str, view: str) -> Table | None:
        doing = f"reading the materialized view {database}.{view}"
        found = self.rows(doing, statement("clickhouse/view"), {"database": database, "name": view})
        if not found:
            return None
        definition, uuid = found[0]
        explicit = _VIEW_TARGET.match(definition)
        if explicit:
            return self.inspect(_unquoted(explicit[1] or database), _unquoted(explicit[2]))
        return self.inspect(database, f".inner_id.{uuid}") or self.inspect(database, f".inner.{view}")

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
            raise _refusal(error) or map_error(f"inserting a chunk into {table}", error) from error

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
