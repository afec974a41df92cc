"""Evaluate expressions of expr-lang by their translation, over records, in plain DuckDB."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from pipelines.expressions.expr_lang.translate import translate
from pipelines.types.fields import SOURCE_TYPES

FAILED = "failed"
"""The outcome of a record whose evaluation fails, or gives a number that JSON cannot hold."""


def evaluated(
    connection: duckdb.DuckDBPyConnection, expression: str, fields: Mapping[str, str], records: Sequence[Mapping[str, Any]]
) -> list[Any]:
    """Return, for each record, the value, or `(FAILED,)`. Raises ValueError if it cannot be translated, duckdb.Error if planning fails."""
    connection.register("_tf_rows", _table(fields, records))
    # Within a lambda: DuckDB 2.0 lifts what stands twice out of TRY, where it raises.
    tried = f"TRY(list_transform([1], lambda _tf_once: struct_pack(v := ({translate(expression, fields)})))[1])"
    rows = connection.execute(f"SELECT t IS NULL, t.v, to_json(t.v) FROM (SELECT {tried} AS t FROM _tf_rows)").fetchall()
    return [(FAILED,) if failed or _is_infinite(value) else None if text is None else json.loads(text) for failed, value, text in rows]


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _table(fields: Mapping[str, str], records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the columns that parse would make of the records."""
    columns = {
        name: pa.array([_column(kind, _read(record, name)) for record in records], SOURCE_TYPES[kind].arrow)
        for name, kind in fields.items()
    }
    return pa.table({**columns, "_tf_record": list(range(len(records)))})


def _column(kind: str, value: Any) -> Any:
    if SOURCE_TYPES[kind].is_json_text and value is not None:
        return json.dumps(value, ensure_ascii=False)
    return value.encode() if kind == "bytes" and value is not None else value


def _read(record: Mapping[str, Any], name: str) -> Any:
    value: Any = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
