"""ClickHouse column types: text in, a checked tree out, and back to canonical text that is safe in DDL.

`parse_type` accepts the grammar of the types that a sink column may have and nothing else, so text from a pipeline file is safe in a
statement once it has been parsed here.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter

from pipelines.types.type_text import Cursor

INTEGER_BITS = {f"{sign}Int{bits}": bits for sign in ("", "U") for bits in (8, 16, 32, 64, 128, 256)}
"""Width in bits of every integer type, by its ClickHouse name."""
_DECIMAL_PRECISION = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38, "Decimal256": 76}
INTERVALS = tuple(
    f"Interval{unit}"
    for unit in ("Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour", "Day", "Week", "Month", "Quarter", "Year")
)
"""The types of a whole number of one unit of time."""
FLOATS = ("BFloat16", "Float32", "Float64")
_PLAIN = {*INTEGER_BITS, *FLOATS, *INTERVALS, "Bool", "String", "UUID", "Date", "Date32", "Time", "IPv4", "IPv6", "JSON"}
_LOW_CARDINALITY = _PLAIN - {"IPv6", "JSON", "BFloat16", *INTERVALS} | {"FixedString", "DateTime"}
_NULLS_OF_THEIR_OWN = {"Variant", "Dynamic", "Geometry"}
_NEVER_NULLABLE = {"Array", "Map", "QBit", *_NULLS_OF_THEIR_OWN}
_NO_MAP_KEYS = {"Map", "JSON", "QBit", *FLOATS, *_NULLS_OF_THEIR_OWN}
_WAYS = {
    "AggregateFunction": "rows hold no states of aggregates: let a materialized view fill it, or use SimpleAggregateFunction",
    "Nothing": "it holds no values",
}
"""The way on for types that are not supported, by the begin of their names."""
FAMILIES = {
    "String": "texts",
    "Bool": "booleans",
    **{name: "whole numbers" if name.startswith("I") else "unsigned whole numbers" for name, bits in INTEGER_BITS.items() if bits <= 64},
    "Float32": "numbers",
    "Float64": "numbers",
}
"""The types that a member of a Variant, or of its arrays, may have: Arrow names them exactly. Those of a family are the same in JSON."""
_QBIT_ELEMENTS = {"Int8", *FLOATS}
_MAX_QBIT = 0xFFFF
_MAX_DYNAMIC_TYPES = 254
_USUAL_DYNAMIC_TYPES = 32
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
    Decimal (precision, scale), Enum8/Enum16 (EnumMember, ...), Array (ColumnType,), Map (key, value), Tuple, Nested or Variant
    (ColumnType, ...), QBit (ColumnType, length), Dynamic (most types,) or (); else ().
    `fields` names the members of a Nested or a Tuple, and is empty if they have no names. LowCardinality(Nullable(T)) has both flags set.
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
        """The type as which a value is made and sent.

        Shapes are tuples of coordinates, a Nested is an array of tuples, an aggregate is a value like others.
        """
        if self.name in SHAPES:
            return replace(SHAPES[self.name], nullable=self.nullable)
        if self.name == "Nested":
            return ColumnType("Array", (replace(self, name="Tuple"),)).of_values
        arguments = tuple(one.of_values if isinstance(one, ColumnType) else one for one in self.arguments)
        return replace(self, arguments=arguments, aggregate="")

    @property
    def inner(self) -> tuple["ColumnType", ...]:
        """The types inside an Array, Map or Tuple; empty for any other type."""
        return tuple(argument for argument in self.arguments if isinstance(argument, ColumnType))

    @property
    def takes_null(self) -> bool:
        """Whether a null is a value of the type."""
        return self.nullable or self.name in _NULLS_OF_THEIR_OWN

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
        if self.name == "Dynamic":
            return f"(max_types={self.number(0)})"
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


SHAPES = {"Point": ColumnType("Tuple", (ColumnType("Float64"), ColumnType("Float64")))}
"""The types of values of geometric types."""
for _shape, _part in (
    *(("Ring", "Point"), ("LineString", "Point"), ("MultiPoint", "Point"), ("Polygon", "Ring")),
    *(("MultiLineString", "LineString"), ("MultiPolygon", "Polygon")),
):
    SHAPES[_shape] = ColumnType("Array", (SHAPES[_part],))


@lru_cache(maxsize=1024)
def parse_type(text: str) -> ColumnType:
    """Parse a ClickHouse type; raise ValueError with the position (counted from 1) and what was expected there."""
    parser = _Parser(text)
    column = parser.type(depth=0)
    parser.finish()
    return column


@lru_cache(maxsize=1024)
def value_type(text: str) -> ColumnType:
    """Parse a ClickHouse type as `parse_type` does; return the type as which its values are made and sent."""
    return parse_type(text).of_values


def _family(member: ColumnType, is_element: bool = False) -> str:
    """Return the name of the values of a Variant's member, which it shares with the members that are the same in JSON; empty if none."""
    if member.low_cardinality or member.aggregate or (member.nullable and not is_element):
        return ""
    if member.name == "Array":
        inner = _family(member.inner[0], is_element=True)
        return f"arrays of {inner}" if inner else ""
    return FAMILIES.get(member.name, "")


class _Parser(Cursor):
    """Recursive descent over one type text; every method leaves the cursor after the text that it read."""

    def type(self, depth: int) -> ColumnType:
        if depth > _MAX_DEPTH:
            self.fail(f"at most {_MAX_DEPTH} nested types")
        name = self.take("name", "a type name")
        if name == "Geometry" and depth:
            self.fail("the name of a shape, such as Polygon: only a whole column can be a Geometry", at=self.cursor - 1)
        if name in _PLAIN or name in SHAPES or name == "Geometry":
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
            "Nested": self._nested,
            "Variant": self._variant,
            "Dynamic": lambda _: self._dynamic(),
            "QBit": self._qbit,
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
        if key.nullable or key.name in _NO_MAP_KEYS:
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

    def _nested(self, depth: int) -> ColumnType:
        start = self.cursor
        members = self._tuple(depth)
        if not members.fields:
            self.fail("a name for every column of the Nested", at=start)
        return replace(members, name="Nested")

    def _variant(self, depth: int) -> ColumnType:
        start = self.cursor
        members = [self.type(depth + 1) for _ in self._items()]
        families = [_family(member) for member in members]
        if "" in families:
            expected = "members of a Variant that differ in JSON: String, Bool, integers to 64 bits, floats, or Arrays of these"
            self.fail(f"{expected}, got {members[families.index('')]}", at=start)
        if len({*families}) < len(families):
            self.fail(f"one member of a Variant for {max(families, key=families.count)}", at=start)
        # The server shows them by their names.
        return ColumnType("Variant", (*sorted(members, key=str),))

    def _dynamic(self) -> ColumnType:
        if not self.skip("("):
            return ColumnType("Dynamic")
        if self.take("name", "max_types") != "max_types":
            self.fail("max_types", at=self.cursor - 1)
        self.mark("=")
        most = self.number("a number of types", 0, _MAX_DYNAMIC_TYPES)
        self.mark(")")
        # The server does not show the usual number.
        return ColumnType("Dynamic", (most,) if most != _USUAL_DYNAMIC_TYPES else ())

    def _qbit(self, depth: int) -> ColumnType:
        if depth:
            self.fail("a type of values: only a whole column can be a QBit", at=self.cursor - 1)
        self.mark("(")
        element = self.type(depth + 1)
        if str(element) not in _QBIT_ELEMENTS:
            self.fail(f"an element of QBit, {', '.join(sorted(_QBIT_ELEMENTS))}, got {element}", at=self.cursor - 1)
        self.mark(",")
        length = self.number("a length", 1, _MAX_QBIT)
        self.mark(")")
        return ColumnType("QBit", (element, length))

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
