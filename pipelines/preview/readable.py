"""Rows as people read them: the values that ClickHouse takes in binary form, as ClickHouse shows them."""

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from uuid import UUID

import pyarrow as pa

from pipelines.process.program import Program
from pipelines.process.steps.mapping import MapToTable
from pipelines.process.steps.mapping.geometry import geojson
from pipelines.protocol.positions import position_keys
from pipelines.protocol.records import EMIT_FIELD
from pipelines.types.arrow_types import tuple_fields
from pipelines.types.columns import ColumnType, value_type


def rows_of_records(program: Program, rows: pa.Table) -> list[dict[str, Any]]:
    """Return each of `rows`, which are as the mapping gives them.

    With several sinks it is the row of each sink that takes it, by the sink's leg.
    """
    tables = program.tables
    found: list[dict[str, Any]] = [{} for _ in range(rows.num_rows)]
    index = {place: number for number, place in enumerate(_places(rows))}
    for table in tables.routed:
        mine = tables.rows_for(rows, table.leg)
        for place, row in zip(_places(mine), mine.select(table.insert_columns).to_pylist(), strict=True):
            found[index[place]] |= {table.leg: row} if tables.routes else row
    return found


def _places(rows: pa.Table) -> list[tuple[int, int]]:
    """Return the record of each row, and its number among the rows of it."""
    return list(zip(position_keys(rows).tolist(), rows.column(EMIT_FIELD.name).to_pylist(), strict=True))


def rows_by_table(fields: Mapping[str, Any], program: Program) -> list[tuple[MapToTable, Mapping[str, Any]]]:
    """Return the rows of one record (`rows_of_records`), each with its table."""
    tables = program.tables.routed
    if not program.tables.routes:
        return [(tables[0], fields)]
    return [(table, fields[table.leg]) for table in tables if table.leg in fields]


def readable_rows(fields: Mapping[str, Any], program: Program) -> list[tuple[MapToTable, dict[str, Any]]]:
    """Return the rows of one record in readable form, each with its table."""
    return [(table, readable_row(row, table)) for table, row in rows_by_table(fields, program)]


def readable_row(row: Mapping[str, Any], mapping: MapToTable) -> dict[str, Any]:
    """Return a row of the table with its values in readable form; position columns stay as they are."""
    kinds = {column.name: value_type(column.type) for column in mapping.columns}
    return {name: readable(value, kinds[name]) if name in kinds else value for name, value in row.items()}


def readable(value: Any, kind: ColumnType) -> Any:
    """Return a value of the column type `kind`, given in the Arrow type in which it is sent."""
    if value is None:
        return None
    if kind.name in _READABLE:
        return _READABLE[kind.name](value)
    if kind.members:
        return next(member.name for member in kind.members if member.value == value)
    if kind.name == "Array":
        return [readable(item, kind.inner[0]) for item in value]
    if kind.name == "Map":
        return {str(readable(key, kind.inner[0])): readable(item, kind.inner[1]) for key, item in value}
    if kind.name == "Tuple":
        members = {name: readable(value[name], inner) for name, inner in zip(tuple_fields(kind), kind.inner, strict=True)}
        return members if kind.fields else list(members.values())
    if kind.name in ("Time", "Time64"):
        return _time(Decimal(value))
    return value


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="backslashreplace")


def _time(seconds: Decimal) -> str:
    whole, rest = divmod(abs(seconds), 1)
    minutes, second = divmod(int(whole), 60)
    digits = f"{rest:f}"[1:] if rest.as_tuple().exponent else ""
    return f"{'-' if seconds < 0 else ''}{minutes // 60:02}:{minutes % 60:02}:{second:02}{digits}"


def _integer(is_signed: bool) -> Callable[[bytes], int]:
    return lambda value: int.from_bytes(value, "little", signed=is_signed)


_READABLE: Mapping[str, Callable[[Any], Any]] = {
    "UUID": lambda value: str(UUID(bytes=value)),
    "IPv4": lambda value: str(IPv4Address(value)),
    "IPv6": lambda value: str(IPv6Address(value)),
    "FixedString": _text,
    "JSON": json.loads,
    "Geometry": geojson,
    **{f"Int{bits}": _integer(True) for bits in (128, 256)},
    **{f"UInt{bits}": _integer(False) for bits in (128, 256)},
}
