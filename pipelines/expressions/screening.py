"""The statements that find the rows for which an expression raises."""

from functools import lru_cache

import duckdb

from pipelines.expressions.result_types import NO_FIELDS
from pipelines.expressions.tree import Node, map_children, parse, render
from pipelines.types.duckdb import open_engine

_RAISES = f"CASE WHEN CAST({NO_FIELDS} AS BOOLEAN) THEN NULL END"
"""Raises where `error` would: DuckDB allows no `error` within TRY, and evaluates a constant cast that fails wherever it stands."""


@lru_cache(maxsize=1024)
def raising_sql(sql: str) -> str:
    """Return `sql` with `error` replaced by an equivalent that TRY takes; it reads the column `_tf_error`, which holds no BOOLEAN."""
    with open_engine() as engine:
        return render(engine.connection, _without_error(engine.connection, parse(engine.connection, sql)))


def _without_error(connection: duckdb.DuckDBPyConnection, node: Node) -> Node:
    if node.get("function_name") == "error":
        return parse(connection, _RAISES)
    return map_children(node, lambda child: _without_error(connection, child))
