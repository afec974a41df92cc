"""DuckDB as an expression engine: in memory, closed to the outside, the same everywhere."""

import duckdb

_MEMORY_LIMIT = "2GiB"


def open_engine(threads: int = 1) -> duckdb.DuckDBPyConnection:
    """An in-memory engine for the pure stages: no files, no network, no extensions, bounded memory, UTC, and no way to change that.

    `threads` counts worker threads; 1 suits a task, which already has its core. One engine serves one thread at a time.
    The caller closes it.
    """
    engine = duckdb.connect(
        ":memory:",
        config={
            "threads": threads,
            "memory_limit": _MEMORY_LIMIT,
            "max_temp_directory_size": "0KiB",
            "temp_directory": "",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,
        },
    )
    engine.execute("SET TimeZone = 'UTC'")
    engine.execute("SET enable_progress_bar = false")
    engine.execute("SET preserve_insertion_order = true")
    engine.execute("SET enable_external_access = false")
    engine.execute("SET lock_configuration = true")
    return engine
