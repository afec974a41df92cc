"""DuckDB connections: in memory or spilling to a directory, isolated, the same everywhere."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import duckdb

from pipelines.types.engine import ENDS_THE_ENGINE, Database, Engine

_MOST_IDLE = 4
_MOST_PREPARED = 500
"""Statements in a database that is kept."""
MEMORY_LIMIT = "2GiB"
_OVER_LIMIT = f"/{MEMORY_LIMIT.replace('GiB', '.0 GiB')} used)"
"""In the message of DuckDB 2.0 where the limit forbids an allocation; where the host has no memory, it says `bad allocation`."""


def open_engine() -> Engine:
    """Open an in-memory engine for the pure stages.

    No files, no network, no extensions, bounded memory, one thread (a task already has its core), UTC, and no way to change these.

    One engine serves one thread at a time. The caller closes it. To open a database takes 15 ms of CPU, so those of closed engines are used
    again, with what is prepared in them.
    """
    process = os.getpid()
    try:
        database = _idle(process).pop()
    except IndexError:
        database = Database(_opened())
    return Engine(database, partial(_keep, process))


@cache
def _idle(process: int) -> list[Database]:
    """Return the databases that no engine has. A forked process opens its own: another thread may have been within one of its parent's."""
    return []


def _keep(process: int, database: Database) -> None:
    idle = _idle(process)
    if len(idle) < _MOST_IDLE and len(database.statements) < _MOST_PREPARED:
        idle.append(database)
    else:
        database.connection.close()


@contextmanager
def shared_connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a connection to an engine as of `open_engine` that the process keeps: for short questions about no data.

    To open an engine takes tens of milliseconds. What a question registers is its own; it creates nothing else.
    """
    with _usable() as connection:
        try:
            yield connection
        except ENDS_THE_ENGINE:
            _kept.cache_clear()
            raise


def is_over_limit(error: Exception) -> bool:
    """Return True for the error of an engine whose statement takes more memory than MEMORY_LIMIT: no fault of the host."""
    return isinstance(error, duckdb.OutOfMemoryException) and _OVER_LIMIT in str(error)


def _usable() -> duckdb.DuckDBPyConnection:
    """Return a connection to the kept engine. A forked process opens its own: another thread may have been within that of its parent.

    In an engine in which DuckDB has found a fault of its own it answers nothing more.
    """
    connection = _kept(os.getpid()).cursor()
    try:
        connection.execute("SELECT 1").fetchall()
    except duckdb.Error:
        _kept.cache_clear()
        return _kept(os.getpid()).cursor()
    return connection


@cache
def _kept(process: int) -> duckdb.DuckDBPyConnection:
    return _opened()


def _opened() -> duckdb.DuckDBPyConnection:
    engine = open_database(":memory:", {"threads": 1, "max_temp_directory_size": "0KiB", "temp_directory": ""})
    return _locked(engine, keeps_order=True)


def open_spilling_engine(directory: Path, memory_limit: str = MEMORY_LIMIT, threads: int = 2) -> duckdb.DuckDBPyConnection:
    """Open an engine for more than memory holds: its tables and spill files are in `directory`, and it opens nothing else.

    Does not keep the order of rows. The tables are for this engine: nobody may open its file again.
    """
    settings: dict[str, str | int] = {"threads": threads, "temp_directory": str(directory / "spilled"), "memory_limit": memory_limit}
    engine = open_database(str(directory / "engine.duckdb"), settings)
    # Its file goes: to bring it up to date takes 10 ms.
    engine.execute("PRAGMA disable_checkpoint_on_shutdown")
    return _locked(engine, keeps_order=False)


def _locked(engine: duckdb.DuckDBPyConnection, keeps_order: bool) -> duckdb.DuckDBPyConnection:
    engine.execute(f"SET preserve_insertion_order = {keeps_order}")
    engine.execute("SET enable_external_access = false")
    engine.execute("SET lock_configuration = true")
    return engine


def open_database(database: str, settings: Mapping[str, str | int]) -> duckdb.DuckDBPyConnection:
    """Open a database with `settings` that loads no extension by itself. The caller closes it."""
    closed: dict[str, str | int | float | list[str]] = {
        "memory_limit": MEMORY_LIMIT,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "python_enable_replacements": False,
    }
    engine = duckdb.connect(database, config={**closed, **settings})
    # For cursors, too.
    engine.execute("SET GLOBAL TimeZone = 'UTC'")
    # In a notebook without ipywidgets it is off, and DuckDB refuses to set it at all.
    if engine.execute("SELECT current_setting('enable_progress_bar')").fetchall() != [(False,)]:
        engine.execute("SET enable_progress_bar = false")
    return engine
