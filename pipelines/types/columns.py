"""ClickHouse column types: text in, a checked tree out, and back to canonical text that is safe in DDL.

`parse_type` accepts the grammar of the types that a sink column may have and nothing else, so text from a pipeline file is safe in a
statement once it has been parsed here. `arrow_type` gives the Arrow type in which a column is sent to ClickHouse (`FORMAT ArrowStream`).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter

import pyarrow as pa

from pipelines.types.type_text import Cursor

INTEGER_BITS = {f"{sign}Int{bits}": bits for sign in ("", "U") for bits in (8, 16, 32, 64, 128, 256)}
"""Width in bits of every integer type, by its ClickHouse name."""
_DECIMAL_PRECISION = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38, "Decimal256": 76}
_PLAIN = {*INTEGER_BITS, "Bool", "Float32", "Float64", "String", "UUID", "Date", "Date32", "Time", "IPv4", "IPv6", "JSON"}
_LOW_CARDINALITY = _PLAIN - {"IPv6", "JSON"} | {"FixedString", "DateTime"}
_NEVER_NULLABLE = {"Array", "Map"}
_WAYS = {
    "AggregateFunction": "rows hold no states of aggregates: let a materialized view fill it, or use SimpleAggregateFunction",
    "Dynamic": "JSON takes any object, String the text of any value",
    "Variant": "JSON takes any object, String the text of any value, Tuple values of several types",
    "Geometry": "name the shape: Point, Ring, LineString, MultiPoint, Polygon, MultiLineString or MultiPolygon",
    "BFloat16": "it keeps three digits of a number: use Float32",
    "QBit": "use Array(Float32)",
    "Interval": "use Int64",
    "Nested": "use Array(Tuple(name Type, ...))",
    "Nothing": "it holds no values",
}
"""The way on for types that are not supported, by the begin of their names."""
_MAX_DEPTH = 16
_MAX_FIXED_STRING = 0xFFFFFF
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)


@dataclass(frozen=True)
class EnumMember:
    name: str
    value: int

    def __str__(self) -> str:
        return f"{quote_string(self.name)} = {self.value}"


@dataclass(frozen=True)
class ColumnType:
    """One ClickHouse type. `str()` gives its canonical text, as `system.columns` shows it.

    `arguments` by `name`: FixedString (length,), DateTime (zone,) or (), DateTime64 (precision,) or (precision, zone), Time64 (precision,),
    Decimal (precision, scale), Enum8/Enum16 (EnumMember, ...), Array (ColumnType,), Map (key, value), Tuple (ColumnType, ...); else ().
    `fields` names the members of a Tuple, and is empty if they have no names. LowCardinality(Nullable(T)) has both flags set.
    `aggregate`: the function of a SimpleAggregateFunction of this type.
    """

    name: str
    arguments: tuple["ColumnType | EnumMember | int | str", ...] = ()
    nullable: bool = False
    low_cardinality: bool = False
    fields: tuple[str, ...] = ()
    aggregate: str = ""

    def __str__(self) -> str:
        text = self.name + self._argument_text()
        if self.nullable:
            text = f"Nullable({text})"
        if self.low_cardinality:
            text = f"LowCardinality({text})"
        return f"SimpleAggregateFunction({self.aggregate}, {text})" if self.aggregate else text

    @property
    def of_values(self) -> "ColumnType":
        """The type as which a value is made and sent: geometric types are tuples of coordinates, an aggregate is a value like others."""
        if self.name in _SHAPES:
            return replace(_SHAPES[self.name], nullable=self.nullable)
        arguments = tuple(one.of_values if isinstance(one, ColumnType) else one for one in self.arguments)
        return replace(self, arguments=arguments, aggregate="")

    @property
    def inner(self) -> tuple["ColumnType", ...]:
        """The types inside an Array, Map or Tuple; empty for any other type."""
        return tuple(argument for argument in self.arguments if isinstance(argument, ColumnType))

    @property
    def members(self) -> tuple[EnumMember, ...]:
        """The members of an Enum; empty for any other type."""
        return tuple(argument for argument in self.arguments if isinstance(argument, EnumMember))

    def number(self, index: int) -> int:
        """Return the numeric argument at `index` (length, precision, scale)."""
        argument = self.arguments[index]
        if not isinstance(argument, int):
            raise TypeError(f"{self}: argument {index} is not a number")
        return argument

    def _argument_text(self) -> str:
        if self.fields:
            return f"({', '.join(f'{quote_identifier(name)} {kind}' for name, kind in zip(self.fields, self.inner, strict=True))})"
        if not self.arguments:
            return ""
        return f"({', '.join(quote_string(a) if isinstance(a, str) else str(a) for a in self.arguments)})"


def quote_identifier(name: str) -> str:
    """Return `name` itself; raise ValueError for a name outside `[A-Za-z_][A-Za-z0-9_]*`, so no quoting is ever needed."""
    if not _IDENTIFIER.match(name):
        raise ValueError(f"{name[:80]!r} is not a plain name: letters, digits and underscores, not starting with a digit")
    return name


def quote_string(text: str) -> str:
    """Quote `text` as a ClickHouse string literal."""
    escaped = (
        text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r").replace("\0", "\\0")
    )
    return f"'{escaped}'"


_SHAPES = {"Point": ColumnType("Tuple", (ColumnType("Float64"), ColumnType("Float64")))}
for _shape, _part in (
    *(("Ring", "Point"), ("LineString", "Point"), ("MultiPoint", "Point"), ("Polygon", "Ring")),
    *(("MultiLineString", "LineString"), ("MultiPolygon", "Polygon")),
):
    _SHAPES[_shape] = ColumnType("Array", (_SHAPES[_part],))


@lru_cache(maxsize=1024)
def parse_type(text: str) -> ColumnType:
    """Parse a ClickHouse type; raise ValueError with the position (counted from 1) and what was expected there."""
    parser = _Parser(text)
    column = parser.type(depth=0)
    parser.finish()
    return column


def value_type(text: str) -> ColumnType:
    """Parse a ClickHouse type as `parse_type` does; return the type as which its values are made and sent."""
    return parse_type(text).of_values


def arrow_type(column: ColumnType) -> pa.DataType:
    """Return the Arrow type in which a value of `column`, a type of values, is sent.

    Source: measured, see tests/integration/test_column_types.py.

    UUID, Enum, IPv4 and wide integers are sent in binary form, a Time in seconds, a Time64 as a Decimal of them: as text a null would fail
    instead of taking the column's DEFAULT. UUID bytes are big-endian (`uuid.bytes`), IPv6 is in network order, [U]Int256 and UInt128 are
    little-endian.
    """
    name = column.name
    if name in _ARROW:
        return _ARROW[name]
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
    if name == "Array":
        return pa.list_(arrow_type(column.inner[0]))
    if name == "Map":
        return pa.map_(arrow_type(column.inner[0]), arrow_type(column.inner[1]))
    if name == "Tuple":
        return pa.struct([pa.field(member, arrow_type(kind)) for member, kind in zip(tuple_fields(column), column.inner, strict=True)])
    raise TypeError(f"no Arrow type for {column}")


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
    "Bool": pa.bool_(),
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
}


class _Parser(Cursor):
    """Recursive descent over one type text; every method leaves the cursor after the text that it read."""

    def type(self, depth: int) -> ColumnType:
        if depth > _MAX_DEPTH:
            self.fail(f"at most {_MAX_DEPTH} nested types")
        name = self.take("name", "a type name")
        if name in _PLAIN or name in _SHAPES:
            return ColumnType(name)
        reader = self._reader(name)
        if reader is None:
            way = next((f"; {way}" for kind, way in _WAYS.items() if name.startswith(kind)), "")
            self.fail(f"a supported type, got {name!r}{way}", at=self.cursor - 1)
        return reader(depth)

    def finish(self) -> None:
        if self.cursor != len(self.tokens):
            self.fail("the end of the type")

    def _reader(self, name: str) -> Callable[[int], ColumnType] | None:
        if name in _DECIMAL_PRECISION:
            return lambda _: self._decimal(_DECIMAL_PRECISION[name])
        if name in ("Enum", "Enum8", "Enum16"):
            return lambda _: self._enum(name)
        readers: dict[str, Callable[[int], ColumnType]] = {
            "FixedString": lambda _: self._fixed_string(),
            "Decimal": lambda _: self._decimal(None),
            "DateTime": lambda _: self._date_time(),
            "DateTime32": lambda _: self._date_time(),
            "DateTime64": lambda _: self._date_time64(),
            "Time64": lambda _: self._time64(),
            "Nullable": self._nullable,
            "LowCardinality": self._low_cardinality,
            "Array": lambda depth: ColumnType("Array", tuple(self._types(depth, 1))),
            "Map": self._map,
            "Tuple": self._tuple,
            "SimpleAggregateFunction": self._simple_aggregate,
        }
        return readers.get(name)

    def _nullable(self, depth: int) -> ColumnType:
        start = self.cursor
        (inner,) = self._types(depth, 1)
        if inner.nullable or inner.low_cardinality or inner.of_values.name in _NEVER_NULLABLE:
            self.fail(f"a type that can be Nullable, got {inner}", at=start)
        return replace(inner, nullable=True)

    def _low_cardinality(self, depth: int) -> ColumnType:
        start = self.cursor
        (inner,) = self._types(depth, 1)
        if inner.low_cardinality or inner.name not in _LOW_CARDINALITY:
            self.fail(f"a type that can be LowCardinality, got {inner}", at=start)
        return ColumnType(inner.name, inner.arguments, nullable=inner.nullable, low_cardinality=True)

    def _simple_aggregate(self, depth: int) -> ColumnType:
        if depth:
            self.fail("a type of values: only a whole column can be a SimpleAggregateFunction", at=self.cursor - 1)
        self.mark("(")
        function = self.take("name", "an aggregate function such as sum")
        self.mark(",")
        column = self.type(depth + 1)
        self.mark(")")
        return replace(column, aggregate=function)

    def _map(self, depth: int) -> ColumnType:
        start = self.cursor
        key, value = self._types(depth, 2)
        if key.nullable or key.name in {"Map", "JSON", "Float32", "Float64"}:
            self.fail(f"a type that can be a Map key, got {key}", at=start)
        return ColumnType("Map", (key, value))

    def _tuple(self, depth: int) -> ColumnType:
        names: list[str] = []
        kinds: list[ColumnType] = []
        for _ in self._items():
            following = self.tokens[self.cursor + 1][0] if self.cursor + 1 < len(self.tokens) else ""
            if self.peek() == "`" or following == "name":
                names.append(self._member_name(names))
            kinds.append(self.type(depth + 1))
            if names and len(names) != len(kinds):
                self.fail("a name for every member of the Tuple, or for none")
        return ColumnType("Tuple", tuple(kinds), fields=tuple(names))

    def _member_name(self, names: list[str]) -> str:
        is_ticked = self.skip("`")
        name = self.take("name", "a plain member name")
        if is_ticked:
            self.mark("`")
        if name in names:
            self.fail(f"distinct member names, got {name!r} twice")
        return name

    def _fixed_string(self) -> ColumnType:
        self.mark("(")
        length = self.number("a length", 1, _MAX_FIXED_STRING)
        self.mark(")")
        return ColumnType("FixedString", (length,))

    def _decimal(self, width: int | None) -> ColumnType:
        if width is None and self.peek() != "(":
            return ColumnType("Decimal", (10, 0))
        self.mark("(")
        precision = width or self.number("a precision", 1, 76)
        scale = self.number("a scale", 0, precision) if width or self.skip(",") else 0
        self.mark(")")
        return ColumnType("Decimal", (precision, scale))

    def _date_time(self) -> ColumnType:
        if not self.skip("("):
            return ColumnType("DateTime")
        zone = self.zone()
        self.mark(")")
        return ColumnType("DateTime", (zone,))

    def _date_time64(self) -> ColumnType:
        if self.peek() != "(":
            return ColumnType("DateTime64", (3,))
        self.mark("(")
        precision = self.number("a precision", 0, 9)
        arguments: tuple[int | str, ...] = (precision, self.zone()) if self.skip(",") else (precision,)
        self.mark(")")
        return ColumnType("DateTime64", arguments)

    def _time64(self) -> ColumnType:
        if self.peek() != "(":
            return ColumnType("Time64", (3,))
        self.mark("(")
        precision = self.number("a precision", 0, 9)
        self.mark(")")
        return ColumnType("Time64", (precision,))

    def _enum(self, name: str) -> ColumnType:
        members: list[EnumMember] = []
        taken: set[str | int] = set()
        for _ in self._items():
            label = self.quoted("an enum member such as 'a' = 1")
            value = members[-1].value + 1 if members else 1
            if self.skip("="):
                value = self.number("an enum value", -0x8000, 0x7FFF)
            if not taken.isdisjoint((label, value)):
                self.fail(f"distinct enum members, got {label[:80]!r} = {value}")
            taken |= {label, value}
            members.append(EnumMember(label, value))
        fits = all(-0x80 <= member.value <= 0x7F for member in members)
        if name == "Enum8" and not fits:
            self.fail("values of Enum8 between -128 and 127")
        if any(member.value > 0x7FFF for member in members):
            self.fail("values of Enum16 between -32768 and 32767")
        width = name if name != "Enum" else "Enum8" if fits else "Enum16"
        # The server shows them by their values.
        return ColumnType(width, (*sorted(members, key=attrgetter("value")),))

    def _types(self, depth: int, count: int) -> list[ColumnType]:
        kinds = [self.type(depth + 1) for _ in self._items()]
        if len(kinds) != count:
            self.fail(f"{count} type{'s' if count > 1 else ''} in the parentheses, got {len(kinds)}")
        return kinds

    def _items(self) -> Iterator[None]:
        """Read the parentheses and commas around items that the caller reads, one per step."""
        self.mark("(")
        yield None
        while self.skip(","):
            yield None
        self.mark(")")
