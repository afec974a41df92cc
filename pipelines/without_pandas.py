"""PyArrow without pandas, which it imports at its first conversion if it is installed: 0.3 s and 45 MB of a process that never uses it.

A process may still import pandas, and PyArrow finds it then at the first conversion to or from a data frame.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from typing import Any

import pyarrow as pa


class _NoPandas(MetaPathFinder):
    """Finds no pandas."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


@contextmanager
def no_pandas() -> Iterator[None]:
    """Let imports go on as if pandas were not installed, unless this process has imported it.

    The list of finders is replaced, never changed: an import of another thread, which goes through it, would miss the next one.
    """
    finder = _NoPandas()
    sys.meta_path = [finder, *sys.meta_path]
    try:
        yield
    finally:
        sys.meta_path = [other for other in sys.meta_path if other is not finder]


def leave_out_pandas() -> None:
    """Let PyArrow convert without pandas in this process. Before its first conversion; later it changes nothing."""
    with no_pandas():
        pa.array([0])


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table of the schema without rows, for a module: `schema.empty_table()` is a conversion."""
    return pa.table([pa.nulls(0, kind) for kind in schema.types], schema=schema)
