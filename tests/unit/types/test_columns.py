"""ClickHouse type texts: what is accepted, how it is written again, and what is refused with a position."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.types.arrow_types import arrow_type
from pipelines.types.columns import ColumnType, EnumMember, parse_type, quote_identifier, quote_string, value_type


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        *(
            (name, name)
            for name in ("Bool", "Int8", "UInt256", "Float32", "String", "UUID", "Date", "Date32", "IPv4", "IPv6", "JSON", "DateTime")
        ),
        ("  Nullable ( String ) ", "Nullable(String)"),
        ("FixedString(16)", "FixedString(16)"),
        ("LowCardinality(Nullable(String))", "LowCardinality(Nullable(String))"),
        ("DateTime('Europe/Berlin')", "DateTime('Europe/Berlin')"),
        ("DateTime64(3)", "DateTime64(3)"),
        ("DateTime64( 9,'UTC' )", "DateTime64(9, 'UTC')"),
        ("Decimal(10)", "Decimal(10, 0)"),
        ("Decimal(76,76)", "Decimal(76, 76)"),
        ("Decimal32(2)", "Decimal(9, 2)"),
        ("Decimal64(2)", "Decimal(18, 2)"),
        ("Decimal128(2)", "Decimal(38, 2)"),
        ("Decimal256(2)", "Decimal(76, 2)"),
        ("Enum8('a'=1,'b'=-128)", "Enum8('b' = -128, 'a' = 1)"),
        ("Enum('a', 'b' = 5, 'c')", "Enum8('a' = 1, 'b' = 5, 'c' = 6)"),
        ("Enum('a' = 1000)", "Enum16('a' = 1000)"),
        ("Array(Array(Nullable(Int8)))", "Array(Array(Nullable(Int8)))"),
        ("Map(LowCardinality(String),Array(UUID))", "Map(LowCardinality(String), Array(UUID))"),
        ("Tuple(a String, `b` Tuple(Int8,Date))", "Tuple(a String, b Tuple(Int8, Date))"),
        ("Tuple(String, DateTime('UTC'))", "Tuple(String, DateTime('UTC'))"),
        ("Nullable(Tuple(Int8))", "Nullable(Tuple(Int8))"),
        ("Map(String, MultiPolygon)", "Map(String, MultiPolygon)"),
        ("Decimal", "Decimal(10, 0)"),
        ("DateTime32('UTC')", "DateTime('UTC')"),
        ("Array(DateTime64)", "Array(DateTime64(3))"),
        ("Time", "Time"),
        ("Tuple(Time64, Time64( 9 ))", "Tuple(Time64(3), Time64(9))"),
        ("SimpleAggregateFunction( anyLast,Nullable(String) )", "SimpleAggregateFunction(anyLast, Nullable(String))"),
        (
            "SimpleAggregateFunction(any, LowCardinality(Nullable(String)))",
            "SimpleAggregateFunction(any, LowCardinality(Nullable(String)))",
        ),
        ("Variant(String, Int8, Array(String))", "Variant(Array(String), Int8, String)"),
        ("Dynamic( max_types = 8 )", "Dynamic(max_types=8)"),
        ("Dynamic(max_types=32)", "Dynamic"),
        ("Nested(a Int8, `b` Nested(c String))", "Nested(a Int8, b Nested(c String))"),
        ("QBit(Float32,3)", "QBit(Float32, 3)"),
        ("Nullable(IntervalDay)", "Nullable(IntervalDay)"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert str(parse_type(text)) == canonical
    assert parse_type(canonical) == parse_type(text)


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("", 1, "a type name"),
        ("Strin", 1, "a supported type, got 'Strin'"),
        ("string", 1, "a supported type, got 'string'"),
        ("Nested(String)", 7, "a name for every column of the Nested"),
        ("Nullable(Nested(a String))", 9, "a type that can be Nullable"),
        ("Nullable(Dynamic)", 9, "a type that can be Nullable"),
        ("Dynamic(max_types=255)", 19, "a number of types between 0 and 254"),
        ("Dynamic(types=1)", 9, "max_types"),
        ("Variant(String, UUID)", 8, "members of a Variant that differ in JSON"),
        ("Variant(String, Nullable(Int8))", 8, "got Nullable(Int8)"),
        ("Variant(Int8, String, Int64)", 8, "one member of a Variant for whole numbers"),
        ("Variant(Array(Float32), Array(Float64))", 8, "one member of a Variant for arrays of numbers"),
        ("LowCardinality(BFloat16)", 15, "a type that can be LowCardinality"),
        ("Map(BFloat16, Int8)", 4, "a type that can be a Map key"),
        ("Array(Geometry)", 7, "only a whole column can be a Geometry"),
        ("Array(QBit(Float32, 3))", 7, "only a whole column can be a QBit"),
        ("QBit(String, 3)", 6, "an element of QBit"),
        ("Time64(10)", 8, "a precision between 0 and 9"),
        ("IntervalFortnight", 1, "a supported type, got 'IntervalFortnight'"),
        ("AggregateFunction(sum, Int8)", 1, "let a materialized view fill it"),
        ("Array(SimpleAggregateFunction(sum, Int8))", 7, "only a whole column"),
        ("SimpleAggregateFunction(1, Int8)", 25, "an aggregate function"),
        ("SimpleAggregateFunction(sum; Int8)", 28, "unexpected text"),
        ("Nullable(Ring)", 9, "a type that can be Nullable"),
        ("String; DROP TABLE t", 7, "unexpected text"),
        ("String)", 7, "the end of the type"),
        ("Array(String", 13, "')'"),
        ("Array()", 7, "a type name"),
        ("Array(Int8, Int8)", 18, "1 type in the parentheses"),
        ("FixedString(0)", 13, "a length between 1"),
        ("FixedString('1')", 13, "a length"),
        ("Decimal(77, 2)", 9, "a precision between 1 and 76"),
        ("Decimal(10, 11)", 13, "a scale between 0 and 10"),
        ("DateTime64(10)", 12, "a precision between 0 and 9"),
        ("DateTime('a b')", 10, "a time zone"),
        ("DateTime('x\\') ENGINE=')", 10, "a time zone"),
        ("Nullable(Nullable(Int8))", 9, "a type that can be Nullable"),
        ("Nullable(Array(Int8))", 9, "a type that can be Nullable"),
        ("Nullable(LowCardinality(String))", 9, "a type that can be Nullable"),
        ("LowCardinality(Decimal(9, 2))", 15, "a type that can be LowCardinality"),
        ("Map(Nullable(String), Int8)", 4, "a type that can be a Map key"),
        ("Enum8('a' = 128)", 17, "values of Enum8"),
        ("Enum8('a' = 1, 'a' = 2)", 23, "distinct enum members"),
        ("Enum8('a' = 1, 'b' = 1)", 23, "distinct enum members"),
        ("Enum8()", 7, "an enum member"),
        ("Enum8('a\\x41' = 1)", 7, "a known escape"),
        ("Enum8('a = 1)", 7, "unexpected text"),
        ("Tuple(a String, Int8)", 21, "a name for every member"),
        ("Tuple(a String, a Int8)", 19, "distinct member names"),
        ("Tuple(`a b` String)", 10, "'`'"),
        ("Int8 -- x", 6, "unexpected text"),
    ],
)
def test_fault_names_position_and_expectation(text: str, position: int, expected: str) -> None:
    with pytest.raises(ValueError, match="position") as raised:
        parse_type(text)
    assert f"position {position}: " in str(raised.value)
    assert expected in str(raised.value)


def test_nesting_is_bounded() -> None:
    with pytest.raises(ValueError, match="at most 16 nested types"):
        parse_type("Array(" * 5000 + "Int8" + ")" * 5000)


@given(st.text(min_size=1, max_size=20))
def test_enum_members_survive_quoting(name: str) -> None:
    column = ColumnType("Enum8", (EnumMember(name, 1), EnumMember(name + "x", 2)))
    assert parse_type(str(column)) == column


def test_string_literal_cannot_be_left() -> None:
    assert quote_string("a'b\\c\n\0") == "'a\\'b\\\\c\\n\\0'"


@pytest.mark.parametrize("name", ["", "a b", "1a", "a-b", "a`b", "ä", "a\n", "a;"])
def test_only_plain_identifiers_are_taken(name: str) -> None:
    assert quote_identifier("_Col_1") == "_Col_1"
    with pytest.raises(ValueError, match="not a plain name"):
        quote_identifier(name)


@pytest.mark.parametrize(
    ("text", "wire"),
    [
        ("Nullable(Int8)", pa.int8()),
        ("UInt128", pa.binary(16)),
        ("LowCardinality(String)", pa.string()),
        ("FixedString(3)", pa.binary()),
        ("DateTime('UTC')", pa.timestamp("s", "UTC")),
        ("DateTime64(3)", pa.timestamp("ms", "UTC")),
        ("DateTime64(4)", pa.timestamp("us", "UTC")),
        ("DateTime64(7)", pa.timestamp("ns", "UTC")),
        ("Decimal(38, 2)", pa.decimal128(38, 2)),
        ("Decimal(39, 2)", pa.decimal256(39, 2)),
        ("Enum16('a' = 1)", pa.int16()),
        ("Array(UUID)", pa.list_(pa.binary(16))),
        ("Map(String, IPv4)", pa.map_(pa.string(), pa.uint32())),
        ("Tuple(a Date, b JSON)", pa.struct([("a", pa.date32()), ("b", pa.string())])),
    ],
)
def test_wire_type(text: str, wire: pa.DataType) -> None:
    assert arrow_type(parse_type(text)) == wire


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("Nullable(Point)", "Nullable(Tuple(Float64, Float64))"),
        ("Map(String, Polygon)", "Map(String, Array(Array(Tuple(Float64, Float64))))"),
        ("SimpleAggregateFunction(sum, Nullable(Int64))", "Nullable(Int64)"),
        ("Tuple(a LowCardinality(String))", "Tuple(a LowCardinality(String))"),
    ],
)
def test_a_type_of_values_is_made_of_what_is_sent(text: str, values: str) -> None:
    assert str(value_type(text)) == values
