"""The ClickHouse engine (chdb) on one data directory, one private connection per request.

In: a statement, its settings, its data. Out: encoded results with figures, or an `EngineError` with the engine's own code and text. A
connection costs 0.07 ms (measured), and its SET statements end with it: this isolates the settings of one request from all others. Kept:
the data directory, locked by this process. An insert is acknowledged after fsync of file and part directory (2 ms, measured).
"""

import errno
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import filelock

NOT_IMPLEMENTED = 48
UNKNOWN_SETTING = 115
NOT_ENOUGH_SPACE = 243
UNKNOWN_EXCEPTION = 1002

_ERROR = re.compile(
    r"(?:Code: (?P<code>\d+)\. DB::\w*Exception: )+(?P<text>.*?)\.? \((?P<name>[A-Z0-9_]+)\)(?: \(version [^)]*\))?\s*$", re.DOTALL
)
_NESTED_END = re.compile(r"\.? \([A-Z0-9_]+\) \(version [^)]*\)$")
_CARRIER = re.compile(r": \(in file/uri [^)]*\)|(?:: While executing File)?: data for INSERT was parsed from file")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# clickhouse-local's defaults that a server does not have: `selec 1` must be a syntax error.
_SERVER_DEFAULTS = {"implicit_select": "0", "allow_introspection_functions": "0"}

# With 2 threads in the pool a mutation of 105 partitions took 27 s instead of 11, of the same CPU: each waits for the disk.
_CONFIG = """<clickhouse>
  <logger><level>fatal</level></logger>
  <merge_tree><fsync_after_insert>1</fsync_after_insert><fsync_part_directory>1</fsync_part_directory></merge_tree>
  <max_server_memory_usage>{memory_bytes}</max_server_memory_usage>
  <mark_cache_size>268435456</mark_cache_size>
  <background_pool_size>8</background_pool_size>
  <background_schedule_pool_size>2</background_schedule_pool_size>
  <asynchronous_metrics_update_period_s>60</asynchronous_metrics_update_period_s>
  <async_insert_threads>1</async_insert_threads>
  <users_config>{users}</users_config>
</clickhouse>
"""
# chdb is clickhouse-local, which restricts nothing: without this, `file()` reads and writes everything that the account may. Our own
# inserts come from files, too, and need no such right. Names that the grants do not cover are rejected in statements
# (`clickhouse_statement`).
_USERS = """<clickhouse>
  <profiles><default></default></profiles>
  <quotas><default></default></quotas>
  <users><default>
    <password></password>
    <networks><ip>::/0</ip></networks>
    <profile>default</profile>
    <quota>default</quota>
    <grants>
      <query>GRANT ALL ON *.*</query>
      <query>REVOKE READ, WRITE ON FILE</query>
      <query>REVOKE READ, WRITE ON SQLITE</query>
    </grants>
  </default></users>
</clickhouse>
"""


class EngineError(Exception):
    """A statement that the engine refused or gave up. `code` is ClickHouse's, `text` the whole message as a server sends it."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(text)


class DirectoryInUseError(Exception):
    """Another process has the data directory."""


@dataclass(frozen=True)
class Options:
    """The settings of a request for its own statement. `setup` are SET and USE statements of its session, run first."""

    settings: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    database: str = ""
    is_read_only: bool = False
    setup: tuple[str, ...] = ()
    tag: str = ""


@dataclass(frozen=True)
class Answer:
    """A finished statement. `body` stays valid as long as the answer; counts as far as the engine reports them."""

    body: memoryview
    read_rows: int = 0
    read_bytes: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    result_rows: int = 0


class Engine:
    """The engine. Thread-safe: any number of threads may run statements at once, and the engine runs them in parallel."""

    def __init__(self, directory: Path, memory_bytes: int) -> None:
        """Open or create `directory`. Raise DirectoryInUseError, or EngineError if the engine cannot start on it."""
        if "?" in str(directory):
            raise EngineError(UNKNOWN_EXCEPTION, f"opening data directory {directory}: its path must not contain a question mark")
        self.spool = directory / "spool"
        for path in (directory / "store", directory / "files", self.spool):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = filelock.FileLock(directory / "lock")
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout as error:
            raise DirectoryInUseError(f"another ClickHouse server already uses {directory}") from error
        for left_over in self.spool.iterdir():
            left_over.unlink()
        config, users = directory / "config.xml", directory / "users.xml"
        config.write_text(_CONFIG.format(memory_bytes=memory_bytes, users=escape(str(users))))
        users.write_text(_USERS)
        # A file name of our own statements is looked up from here, not from the directory in which the server was started.
        os.chdir(directory / "files")
        self._path = str(directory / "store")
        self._connect = _load_engine()
        try:
            self._anchor = self._connect(f"{self._path}?config-file={config}")
        except RuntimeError as error:
            raise _engine_error(error, "") from error
        self._close_default()
        self.version, self.display_name, self.timezone = self._text("SELECT version(), displayName(), timezone()").split("\t")

    def _text(self, sql: str) -> str:
        return bytes(self._anchor.query(sql, "TabSeparated").bytes()).decode().rstrip("\n")

    def _close_default(self) -> None:
        """Make `default` the database of a server: in clickhouse-local the files of the whole host overlay its tables."""
        engine, identifier = self._text("SELECT engine, uuid FROM system.databases WHERE name = 'default'").split("\t")
        if engine == "Overlay":
            self._anchor.query("DETACH DATABASE default", "Null")
            self._anchor.query(f"ATTACH DATABASE default UUID '{identifier}' ENGINE = Atomic", "Null")

    def check(self, sql: str) -> tuple[str, int]:
        """Return the engine's class of the text, and the number of statements.

        The class is READ_ONLY, MUTATING, ... or UNKNOWN if it cannot parse the text.
        """
        connection = self._connect(self._path)
        try:
            found = connection.classify_query(sql)
        finally:
            connection.close()
        return found["query_class"].name, found["statement_count"]

    def run(self, sql: str, output: str, options: Options) -> Answer:
        """Run the statement to its end. Raise EngineError."""
        connection = self._open(options)
        try:
            result = connection.query(sql, output)
            return _answer(result)
        except RuntimeError as error:
            raise _engine_error(error, self.version) from error
        finally:
            connection.close()

    def insert(self, target: str, clauses: str, data_format: str, pieces: Iterable[bytes], options: Options) -> Answer:
        """Insert one whole body: `target` as in `INSERT INTO t (a, b)`, `clauses` its SETTINGS. Raise EngineError, or as `pieces`.

        The data is passed in a file. `send_insert` of chdb 4.4.0 reports success when a constraint, a view or a partition limit fails while
        the last block is written (measured: 0 of 200 rows stored, no error), and data after the statement ends at a semicolon.
        """
        try:
            with tempfile.NamedTemporaryFile(dir=self.spool) as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                # Relative to the working directory, so that no character of the data directory's path is read as a pattern.
                source = f"FROM INFILE '../{self.spool.name}/{Path(file.name).name}' COMPRESSION 'none'"
                answer = self.run(f"{target} {source} {clauses} FORMAT {data_format}", "Null", options)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            text = f"Cannot write to {self.spool}: {error.strerror}"
            raise server_error(NOT_ENOUGH_SPACE, text, "NOT_ENOUGH_SPACE", self.version) from error
        return replace(answer, read_rows=answer.written_rows, read_bytes=answer.written_bytes)

    def stream(self, sql: str, output: str, options: Options) -> "Stream":
        """Start a SELECT whose result is fetched block by block. Raise EngineError; code 36 if the statement cannot be streamed."""
        connection = self._open(options)
        try:
            return Stream(self, connection, connection.send_query(sql, output), options.tag)
        except RuntimeError as error:
            connection.close()
            raise _engine_error(error, self.version) from error

    def kill(self, tag: str) -> None:
        """Ask the engine to give up the statements with this tag; return at once."""
        self._control(f"KILL QUERY WHERE Settings['log_comment'] = {quote(tag)} ASYNC")

    def kill_all(self) -> None:
        self._control("KILL QUERY WHERE query_id != queryID() ASYNC")

    def _control(self, sql: str) -> None:
        connection = self._connect(self._path)
        try:
            connection.query(sql, "Null")
        finally:
            connection.close()

    def close(self) -> None:
        """Close the engine; every other connection must be closed before."""
        self._anchor.close()
        self._lock.release()

    def _open(self, options: Options) -> Any:
        settings = {**_SERVER_DEFAULTS, **({"log_comment": options.tag} if options.tag else {}), **options.settings}
        for name in [*settings, *options.parameters]:
            if not _IDENTIFIER.fullmatch(name):
                raise server_error(UNKNOWN_SETTING, f"Unknown setting {name!r}", "UNKNOWN_SETTING", self.version)
        settings |= {f"param_{name}": value for name, value in options.parameters.items()}
        if options.is_read_only:
            settings["readonly"] = "2"
        connection = self._connect(self._path)
        try:
            for sql in options.setup:
                connection.query(sql, "Null")
            if options.database:
                connection.query(f"USE {quote(options.database, '`')}", "Null")
            connection.query("SET " + ", ".join(f"{name} = {quote(value)}" for name, value in settings.items()), "Null")
        except RuntimeError as error:
            connection.close()
            raise _engine_error(error, self.version) from error
        return connection


def _load_engine() -> Callable[[str], Any]:
    """Return the engine's `connect`, in a process whose time zone is UTC: chdb reads the zone of the environment once, at its load."""
    os.environ["TZ"] = "UTC"
    from chdb import _chdb

    # The public Connection hides the last block (totals) and `classify_query`, so this module uses the extension's own class.
    connect: Callable[[str], Any] = _chdb.connect  # type: ignore[attr-defined]
    return connect


class Stream:
    """A running SELECT. `fetch` and `close` may be called from any thread; they wait for each other."""

    def __init__(self, engine: Engine, connection: Any, result: Any, tag: str) -> None:
        self._engine = engine
        self._connection = connection
        self._result = result
        self._tag = tag
        self._lock = threading.Lock()
        self._is_open = True
        self.read_rows = 0
        self.read_bytes = 0
        self.result_rows = 0

    def fetch(self) -> tuple[bytes, bool]:
        """Return the next block, encoded as if it were alone, and whether it is the last one (then with totals only, or empty)."""
        with self._lock:
            if not self._is_open:
                return b"", True
            try:
                block = self._connection.streaming_fetch_result(self._result)
            except RuntimeError as error:
                raise _engine_error(error, self._engine.version) from error
            rows = block.rows_read()
            self.result_rows += rows
            self.read_rows += block.storage_rows_read()
            self.read_bytes += block.storage_bytes_read()
            return bytes(block.bytes()), rows == 0

    def cancel(self) -> None:
        """Stop the statement, even in the middle of a `fetch` of another thread."""
        if self._is_open and self._tag:
            self._engine.kill(self._tag)
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._connection.streaming_cancel_query(self._result)
                self._connection.close()


def quote(text: str, mark: str = "'") -> str:
    """Return `text` as a ClickHouse string literal, or with another mark as an identifier."""
    return mark + text.replace("\\", "\\\\").replace(mark, "\\" + mark) + mark


def server_error(code: int, text: str, name: str, version: str) -> EngineError:
    """Return an error of our own in the words of a server."""
    return EngineError(code, f"Code: {code}. DB::Exception: {text.rstrip('.')}. ({name}) (version {version})")


def _engine_error(error: RuntimeError, version: str) -> EngineError:
    """Return the engine's error as a server words it: one code, one name, the version, and no trace of the file that carried the data."""
    found = _ERROR.search(str(error))
    if not found:
        return server_error(UNKNOWN_EXCEPTION, str(error), "UNKNOWN_EXCEPTION", version)
    text = _CARRIER.sub("", found.group("text"))
    while nested := _NESTED_END.search(text):
        text = text[: nested.start()]
    return server_error(int(found.group("code")), text, found.group("name"), version)


def _answer(result: Any) -> Answer:
    # A copy: the buffer behind `get_memview` ends with its connection (measured under load: answers held other requests' bytes).
    body = memoryview(bytes(result.bytes())) if result.size() else memoryview(b"")
    written = result.rows_written()
    return Answer(
        body,
        result.storage_rows_read(),
        result.storage_bytes_read(),
        written,
        result.bytes_written(),
        written or result.rows_read(),
    )
