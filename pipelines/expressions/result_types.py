"""The type of an expression's value: what DuckDB infers, and the conversion to a source type that a column of the batch can have."""

from collections.abc import Iterator, Mapping

import duckdb
import pyarrow as pa

from pipelines.expressions.tree import Node, children, is_constant, render
from pipelines.types.fields import SOURCE_TYPES

VALUE_ERRORS = (duckdb.DataError, duckdb.InvalidInputException)
"""What DuckDB raises for a value: conversion, range, invalid input, division. Not for memory, files, or a fault of its own."""
_BIND_ERRORS = (duckdb.ProgrammingError, duckdb.DataError, duckdb.NotSupportedError)

NO_FIELDS = "_tf_rows"
"""The only column of a table that an expression reads no field of. Its name is no field's."""

_TEXT = "CAST({} AS VARCHAR)"
_JSON = "CAST(to_json({}) AS VARCHAR)"
RESULT_TYPES: dict[str, tuple[str, str]] = {
    "varchar": ("string", "{}"),
    "boolean": ("bool", "{}"),
    "tinyint": ("int8", "{}"),
    "smallint": ("int16", "{}"),
    "integer": ("int32", "{}"),
    "bigint": ("int64", "{}"),
    "utinyint": ("uint8", "{}"),
    "usmallint": ("uint16", "{}"),
    "uinteger": ("uint32", "{}"),
    "ubigint": ("uint64", "{}"),
    "float": ("float32", "{}"),
    "double": ("float64", "{}"),
    "blob": ("bytes", "{}"),
    "decimal": ("decimal", _TEXT),
    "hugeint": ("decimal", _TEXT),
    "uhugeint": ("decimal", _TEXT),
    "date": ("string", _TEXT),
    "time": ("string", _TEXT),
    "time_ns": ("string", _TEXT),
    "timestamp": ("string", _TEXT),
    "timestamp_s": ("string", _TEXT),
    "timestamp_ms": ("string", _TEXT),
    "timestamp_ns": ("string", _TEXT),
    "timestamp with time zone": ("string", _TEXT),
    "timestamptz_ns": ("string", _TEXT),
    "uuid": ("string", _TEXT),
    "enum": ("string", _TEXT),
    "list": ("array", _JSON),
    "array": ("array", _JSON),
    "struct": ("object", _JSON),
    "map": ("object", _JSON),
    "json": ("object", _TEXT),
}
"""The source type of each DuckDB type, and the conversion of a value to it."""

_SAME = {"int": "int64", "uint": "uint64", "float": "float64", "map": "object"}
_ENGINE = {"int64": "BIGINT", "uint64": "UBIGINT", "float64": "DOUBLE"}
_INTEGERS = frozenset(name for name, kind in RESULT_TYPES.items() if kind[0].startswith(("int", "uint")))
_WHOLE = _INTEGERS | {"hugeint", "uhugeint"}


def convert(connection: duckdb.DuckDBPyConnection, sql: str, fields: Mapping[str, str], wanted: str | None) -> tuple[str, str]:
    """Return `sql` with its value converted to a source type, and this type: `wanted`, or None for the one that suits best.

    `fields`: the source types of the fields that `sql` reads. Raises ValueError if DuckDB refuses `sql`, or no conversion is lossless or
    checked.
    """
    connection.register("_tf_fields", _empty(fields))
    engine_type, shown = _inferred(connection, sql)
    if engine_type == "null":
        if wanted is None:
            raise ValueError("its value is always null; give it a type, such as CAST(NULL AS VARCHAR)")
        return f"CAST({sql} AS {_engine_type(wanted)})", wanted
    if engine_type not in RESULT_TYPES:
        raise ValueError(f"its value is of type {shown}, which no field can have; cast it to VARCHAR or another type")
    natural, conversion = RESULT_TYPES[engine_type]
    if wanted is None or _SAME.get(wanted, wanted) == natural:
        return conversion.format(sql), wanted or natural
    if not (cast := _cast(engine_type, natural, _SAME.get(wanted, wanted))):
        raise ValueError(f"its value is of type {natural}, but must be {wanted}; convert it, for example by a cast")
    return cast.format(sql), wanted


def _cast(engine_type: str, natural: str, wanted: str) -> str | None:
    """Return the conversion to another source type: lossless, or one that fails for a value that does not fit."""
    target = f"CAST({{}} AS {_engine_type(wanted)})"
    kind = SOURCE_TYPES[wanted]
    if engine_type in _WHOLE and (kind.is_integer or kind.is_float):
        return target
    if engine_type in _INTEGERS and wanted == "decimal":
        return _TEXT
    if wanted == "float64" and engine_type in ("float", "decimal"):
        return target
    if wanted == "timestamp" and engine_type == "timestamp with time zone":
        return "{}"
    return _TEXT if engine_type == "json" and wanted == "array" else None


def _engine_type(source_type: str) -> str:
    kind = SOURCE_TYPES[source_type]
    return "BLOB" if source_type == "bytes" else "VARCHAR" if kind.is_json_text else kind.engine


def _empty(fields: Mapping[str, str]) -> pa.Table:
    columns = {name: pa.nulls(0, SOURCE_TYPES[kind].arrow) for name, kind in fields.items()}
    return pa.table(columns or {NO_FIELDS: pa.nulls(0, pa.bool_())})


def _inferred(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[str, str]:
    """Return the type of `sql` over the fields: its name in `RESULT_TYPES`, and as DuckDB writes it."""
    try:
        (kind,) = connection.sql(f"SELECT {sql} AS v FROM _tf_fields").types  # noqa: S608
    except _BIND_ERRORS as error:
        raise ValueError(f"it cannot be evaluated: {first_sentence(error)}") from None
    return ("json", "JSON") if str(kind) == "JSON" else (kind.id, str(kind))


def refuse_failing_constants(connection: duckdb.DuckDBPyConnection, node: Node) -> None:
    """Raise ValueError if a part of `node` that reads no field cannot be evaluated: it would fail for every row."""
    for part in _constant_parts(node):
        sql = render(connection, part)
        try:
            connection.execute(f"SELECT {sql}").fetchall()
        except VALUE_ERRORS as error:
            raise ValueError(f"{sql} always fails: {first_sentence(error)}") from None
        except _BIND_ERRORS as error:
            raise ValueError(f"{sql} cannot be evaluated: {first_sentence(error)}") from None


def _constant_parts(node: Node) -> Iterator[Node]:
    """Yield the largest parts of `node` that read no field, but for constants themselves."""
    if node["class"] in ("CONSTANT", "COLUMN_REF"):
        return
    if is_constant(node):
        yield node
        return
    for child in children(node):
        yield from _constant_parts(child)


def first_sentence(error: Exception) -> str:
    """Return what DuckDB says is wrong, without its kind of error, its hints and the line of SQL."""
    line = str(error).splitlines()[0]
    return line.split(" Error: ", 1)[-1].strip().rstrip(".")
