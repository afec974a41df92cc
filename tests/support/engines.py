"""Engines of DuckDB that are opened once per process: to open one takes 15 ms of CPU, and a test may ask hundreds of times."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count

import duckdb

from pipelines.types.duckdb import open_database, open_engine
from pipelines.types.engine import Engine

_numbers = count()


@cache
def stage_engine() -> Engine:
    """The engine of the stages. Nobody closes it."""
    return open_engine()


@contextmanager
def fresh_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a database of its own, without a table or a macro, which is gone behind."""
    name = f"fresh_{next(_numbers)}"
    with _opened().cursor() as connection:
        connection.execute(f"ATTACH ':memory:' AS {name}; USE {name}")
        try:
            yield connection
        finally:
            connection.execute(f"USE memory; DETACH {name}")


@cache
def _opened() -> duckdb.DuckDBPyConnection:
    return open_database(":memory:", {})
