"""The Arrow type in which a column is sent to ClickHouse (`FORMAT ArrowStream`)."""

import pyarrow as pa

from pipelines.types.columns import INTERVALS, ColumnType
from pipelines.types.unions import is_union, members_of


def arrow_type(column: ColumnType) -> pa.DataType:
    """Return the Arrow type in which a value of `column`, a type of values, is sent.

    Source: measured, see tests/integration/test_column_types.py.

    UUID, Enum, IPv4 and wide integers are sent in binary form, a Time in seconds, a Time64 as a Decimal of them: as text a null would fail
    instead of taking the column's DEFAULT. UUID bytes are big-endian (`uuid.bytes`), IPv6 is in network order, [U]Int256 and UInt128 are
    little-endian. A Geometry is sent as WKB: ClickHouse reads nothing else into one. A Variant is sent as a union, in which a null is null:
    of a column of one type ClickHouse makes its 0 or ''.
    """
    name = column.name
    if name in _ARROW:
        return _ARROW[name]
    if is_union(column):
        return pa.dense_union([pa.field(str(member), _exact(member)) for member in members_of(column)])
    if name in ("Array", "QBit"):
        return pa.list_(arrow_type(column.inner[0]))
    if name == "FixedString":
        return pa.binary()
    if name == "DateTime64":
        precision = column.number(0)
        return pa.timestamp("ms" if precision <= 3 else "us" if precision <= 6 else "ns", tz="UTC")
    if name == "Time64":
        return pa.decimal128(18, column.number(0))
    if name == "Decimal":
        precision, scale = column.number(0), column.number(1)
        return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    if name == "Map":
        return pa.map_(arrow_type(column.inner[0]), arrow_type(column.inner[1]))
    if name == "Tuple":
        return pa.struct([pa.field(member, arrow_type(kind)) for member, kind in zip(tuple_fields(column), column.inner, strict=True)])
    raise TypeError(f"no Arrow type for {column}")


def _exact(member: ColumnType) -> pa.DataType:
    """Return the Arrow type that ClickHouse reads as this very type: it takes elements for Nullable unless Arrow rules nulls out."""
    if member.name != "Array":
        return arrow_type(member)
    (element,) = member.inner
    return pa.list_(pa.field("item", _exact(element), nullable=element.nullable))


def tuple_fields(column: ColumnType) -> tuple[str, ...]:
    """Return the member names of a Tuple; ClickHouse calls the members of an unnamed one '1', '2', ..."""
    return column.fields or tuple(str(index) for index in range(1, len(column.inner) + 1))


_ARROW: dict[str, pa.DataType] = {
    **{f"Int{bits}": kind for bits, kind in zip((8, 16, 32, 64), (pa.int8(), pa.int16(), pa.int32(), pa.int64()), strict=True)},
    **{f"UInt{bits}": kind for bits, kind in zip((8, 16, 32, 64), (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()), strict=True)},
    "Int128": pa.binary(16),
    "UInt128": pa.binary(16),
    "Int256": pa.binary(32),
    "UInt256": pa.binary(32),
    **dict.fromkeys(INTERVALS, pa.int64()),
    "Bool": pa.bool_(),
    "BFloat16": pa.float32(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "String": pa.string(),
    "JSON": pa.string(),
    "UUID": pa.binary(16),
    "Enum8": pa.int8(),
    "Enum16": pa.int16(),
    "IPv4": pa.uint32(),
    "IPv6": pa.binary(16),
    "Date": pa.date32(),
    "Date32": pa.date32(),
    "DateTime": pa.timestamp("s", tz="UTC"),
    "Time": pa.int32(),
    "Geometry": pa.binary(),
}
