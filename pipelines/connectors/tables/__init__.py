"""Look-up tables as a system has them now: one consistent read, of the columns that are asked for.

Each kind is a module of this package, whose `FETCH` reads a table of the pipeline file; the table's `type` there names the module. A new
kind is three files: its module here, its model in `config/tables`, and its test.
"""

from collections.abc import Callable
from importlib import import_module

import pyarrow as pa

from pipelines.config.table_model import TableModel
from pipelines.errors import HaltError
from pipelines.lookups.snapshot import snapshot_of
from pipelines.lookups.spec import TableSpec
from pipelines.types.duckdb import open_engine

Fetch = Callable[[str, TableModel, TableSpec], pa.Table]
"""Returns the columns of a spec, by their names, in any order. Raises RetryableError while the system is away, HaltError for the rest."""


def fetch(name: str, table: TableModel, spec: TableSpec) -> pa.RecordBatch:
    """Return a snapshot of the table as it is now.

    Raise RetryableError while its system is away, HaltError for a table that cannot be read, does not fit its limits, or is ambiguous.
    """
    rows = _kind(name, table)(name, table, spec)
    if rows.num_rows > table.max_rows or rows.nbytes > table.max_bytes:
        raise HaltError(
            f"{doing(name)}: it has {rows.num_rows:,} rows and takes {rows.nbytes:,} bytes, more than max_rows ({table.max_rows:,}) or "
            f"max_bytes ({table.max_bytes:,}); read fewer, or raise the limit"
        )
    try:
        with open_engine() as engine:
            found = snapshot_of(spec, rows, engine)
    except (ValueError, TypeError) as error:
        raise HaltError(f"{doing(name)}: {error}") from error
    if found.num_rows < table.min_rows:
        raise HaltError(
            f"{doing(name)}: it has {found.num_rows:,} rows with a key, fewer than min_rows ({table.min_rows:,}): a table that is being "
            "loaded would leave records without values; lower min_rows if that is intended"
        )
    return found


def _kind(name: str, table: TableModel) -> Fetch:
    """Return the reader of a table. Raise HaltError if its driver is an extra that is not installed."""
    kind: str = table.type  # type: ignore[attr-defined]
    try:
        found: Fetch = import_module(f"{__name__}.{kind}").FETCH
    except ModuleNotFoundError as error:
        raise HaltError(
            f"{doing(name)}: tables of type {kind} need the Python package {error.name}, which is not installed here: install the extra "
            f"{kind} (pip install 'tallyflow[{kind}]')"
        ) from error
    return found


def doing(name: str) -> str:
    """Return the beginning of a message about a table."""
    return f"fetching table {name}"
