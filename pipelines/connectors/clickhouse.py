"""ClickHouse over HTTP: what a table is, its creation, and one insert per chunk.

Every insert carries a deduplication token and says all settings that its meaning rests on, because server defaults move between releases
(reference/reliability.md section 2.2).
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import clickhouse_connect
import pyarrow as pa
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, Error, OperationalError
from urllib3.exceptions import HTTPError

from pipelines.columns import quote_identifier
from pipelines.config import ClickHouseConnection, ClickHouseSink
from pipelines.connectors.clickhouse_settings import INSERT_SETTINGS, READ_SETTINGS, insert_log_comment, known_settings
from pipelines.error_classes import ErrorClasses
from pipelines.error_classes.clickhouse import ONE_BLOCK
from pipelines.error_classes.rows import ErrorRow
from pipelines.errors import HaltError, InsertTooLargeError, RefusedError, RetryableError, TallyflowError
from pipelines.statements import filled, statement

# The driver logs what it also raises, with a traceback; unless the program asks for logs, the raised error is enough.
logging.getLogger("clickhouse_connect").addHandler(logging.NullHandler())

CONNECT_TIMEOUT_SECONDS = 5
RESPONSE_TIMEOUT_SECONDS = 60

_VIOLATED_CONSTRAINT = 469
_PUSHING_TO_VIEW = "while pushing to view"
"""An insert that a view refuses has stored the block in the table all the same (measured, 26.9)."""
_SERVER = re.compile(r"DB::\w*Exception: ")
_TABLE_ID = re.compile(r" \([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\)")
_AT_ROW = re.compile(r"is violated at row (\d+)")
_VIEW = re.compile(r"while pushing to view ([\w.`-]+)")
_EXECUTING = ": while executing 'FUNCTION "

_TABLE_CLASSES = ErrorClasses("clickhouse")
_TOO_LARGE = (159, 160, 241)
"""Codes of an insert that the server gives up for what it takes: a smaller one may pass."""

_KEEPS_ROWS = re.compile(r"(Replicated|Shared)?MergeTree")
_NAME = r"(?:`(?:[^`\\]|\\.)+`|\w+)"
_VIEW_TARGET = re.compile(rf"CREATE MATERIALIZED VIEW (?:{_NAME}\.)?{_NAME} (?:UUID '[^']+' )?TO (?:({_NAME})\.)?({_NAME})")
"""Target of a view in `system.tables.create_table_query`, which is written by the server: names in backticks where they must be."""


def _unquoted(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name[1:-1]) if name.startswith("`") else name


def map_error(doing: str, error: Exception, classes: ErrorClasses = _TABLE_CLASSES, sends_rows: bool = False) -> TallyflowError:
    """The driver's exception as one of ours. Network trouble is retryable; a code that is not known is a halt, never a drop.

    `sends_rows`: the server's words may quote a value of a row, and the message goes without them.
    """
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
    row = classes.row(code, str(error))
    return _of_the_server(doing, str(error), _words(str(error), code, row) if sends_rows else text, code, row, classes)


def _of_the_server(doing: str, full_text: str, text: str, code: int, row: ErrorRow | None, classes: ErrorClasses) -> TallyflowError:
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
    if not isinstance(error, Error) or error.code is None or _PUSHING_TO_VIEW in text:
        return None
    row = classes.row(error.code, text)
    is_known = row is not None and classes.of(row) == "record"
    # One that is not in the table, or says nothing of its cause, may be caused by a row all the same.
    if not is_known and row is not None and not classes.is_vague(row):
        return None
    words = _words(text, error.code, row)
    at = _AT_ROW.search(words)
    name = f" ({row.name})" if row else ""
    # A constraint, and how many partitions there are, is looked at before anything is written (measured, 26.9).
    is_whole = error.code == _VIOLATED_CONSTRAINT or (row is not None and row.words == ONE_BLOCK)
    return RefusedError(f"ClickHouse error {error.code}{name}: {words}", int(at[1]) - 1 if at else None, is_whole, is_known)


def _words(full_text: str, code: int, row: ErrorRow | None) -> str:
    """What the server says, without a value of a row: of an error that may quote one, only what is known to be the table's own words."""
    if row is not None and not row.may_be_record and not row.is_vague:
        return _first_line(full_text)
    if row is not None and row.words:
        return row.words
    if code == _VIOLATED_CONSTRAINT:
        return _TABLE_ID.sub("", _first_line(full_text).partition(". Column values: ")[0])
    _, mark, call = full_text.rpartition(_EXECUTING)
    view = _VIEW.findall(full_text)
    where = f", in {call.partition(' -> ')[0][:200]}" if mark else ""
    where += f", while pushing to view {view[-1]}" if view else ""
    return f"{row.meaning if row else 'an error that is not in the table of errors'}{where}"


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


def _told(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sorted(settings.items()))


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
    dedup_seconds: int | None = None
    """How long a token is remembered; None where only their number counts."""
    is_partitioned: bool = False
    keeps_rows: bool = True
    """False where the engine or its TTL makes one row of several: a row that is not there may have been stored all the same."""

    @property
    def is_replicated(self) -> bool:
        return self.engine.startswith(("Replicated", "Shared"))

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


def open_client(
    connection: ClickHouseConnection, classes: ErrorClasses = _TABLE_CLASSES, response_seconds: float = RESPONSE_TIMEOUT_SECONDS
) -> Client:
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
            send_receive_timeout=response_seconds,
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
            # The server is to give an insert up before we do.
            seconds = self._sink.max_insert_time.total_seconds() + RESPONSE_TIMEOUT_SECONDS
            self._client = open_client(self._sink.connection_params, self._classes, seconds)
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
        """The table's columns as they are now, in their order; none when it does not exist."""
        names = {"database": database, "name": name}
        found = self.rows(f"reading the columns of {database}.{name}", statement("clickhouse/columns"), names)
        return tuple(TableColumn(*column) for column in found)

    def _dedup_window(self, engine: str, definition: str) -> int:
        """Insert tokens that the table remembers: its own setting, else the server's default; 0 for engines without deduplication."""
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

    def check_insert_settings(self) -> None:
        """Raises HaltError when the server does not take, or does not obey, the settings that make an insert one deduplicated block."""
        doing = "checking the settings of inserts"
        settings = known_settings(self._connected.server_settings, INSERT_SETTINGS)
        try:
            found = self._connected.query(statement("clickhouse/settings"), parameters={"names": list(settings)}, settings=settings)
        except Exception as error:
            mapped = map_error(doing, error, self._classes)
            if isinstance(mapped, RetryableError):
                raise mapped from error
            raise HaltError(f"{mapped}. Allow the user's profile what these inserts set: {_told(settings)}") from error
        other = {name: value for name, value in found.result_rows if str(settings[name]) != value}
        if other:
            raise HaltError(
                f"{doing}: the server says {_told(other)}, an insert that is one atomic, deduplicated block needs "
                f"{_told({name: settings[name] for name in other})}; take the constraint out of the user's profile and start again"
            )

    def insert(self, table: str, columns: Sequence[str], block: bytes, token: str, max_execution_seconds: int, work: str = "") -> None:
        """Inserts one Arrow IPC stream of one record batch as one block with `token`; `work` names it in `system.processes`.

        Raises RetryableError when the outcome is unknown or the server asks to wait: the caller sends the same block with the same
        token until the answer is definite (InsertTooLargeError: it gave up for what the insert takes); RefusedError when the table
        refuses it because of rows in it. `table` is `database.name`, validated.
        """
        client = self._connected
        settings = {**known_settings(client.server_settings, INSERT_SETTINGS), "insert_deduplication_token": token}
        settings |= {"max_execution_time": max_execution_seconds, **insert_log_comment(work)}
        try:
            client.raw_insert(table, list(columns), insert_block=block, settings=settings, fmt="ArrowStream")
        except Exception as error:
            doing = f"inserting a chunk into {table}"
            found = _refusal(error, self._classes) or map_error(doing, error, self._classes, sends_rows=True)
            if isinstance(found, RetryableError) and isinstance(error, Error) and error.code in _TOO_LARGE:
                found = InsertTooLargeError(str(found))
            raise found from error

    def inserts_at_work(self, work: str) -> int | None:
        """How many inserts of this name the server works on; None where the user may not see that."""
        try:
            found = self.rows("looking for inserts at work", statement("clickhouse/inserts_at_work"), insert_log_comment(work))
        except HaltError:
            return None
        return int(found[0][0])

    def stored_positions(self, table: Table, sequences: tuple[int, int], arrivals_us: tuple[int, int]) -> pa.Table:
        """(sequence, ordinal, emit, arrival in us) of the table's rows within these bounds, inclusive."""
        names = {"database": table.database, "table": table.name}
        bounds = {"first": sequences[0], "last": sequences[1], "since": arrivals_us[0], "until": arrivals_us[1]}
        settings = known_settings(self._connected.server_settings, READ_SETTINGS)
        if table.is_replicated:
            settings["select_sequential_consistency"] = 1
        try:
            return self._connected.query_arrow(statement("clickhouse/stored_positions"), parameters=names | bounds, settings=settings)
        except Exception as error:
            raise map_error(f"reading which rows of a chunk are in {table.full_name}", error, self._classes) from error

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
