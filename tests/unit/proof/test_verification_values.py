"""The reference's values: what a JSON value becomes in a column of each type, and which values have no place there."""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pytest

from pipelines.connectors.sql import statement
from pipelines.proof.verification.plain_form import duckdb_type, plain_sql, text_sql
from pipelines.proof.verification.values import MACROS, is_sound, reading
from pipelines.types.columns import parse_type
from pipelines.types.duckdb import open_database

REJECTED, UNREADABLE = "no place", "another type"
UUID = "c0ffee00-1234-5678-9abc-def012345678"


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with open_database(":memory:", {}) as opened:
        for macro in MACROS:
            opened.execute(statement(f"reference/{macro}"))
        yield opened


def value_of(engine: duckdb.DuckDBPyConnection, source: str, column: str, text: str) -> Any:
    """The plain form of the JSON value `text`, or REJECTED, or UNREADABLE as a field of this type."""
    kind = parse_type(column)
    one = reading(source, kind, "k", "t")
    sql = (
        f"SELECT {is_sound(source, 'k', 't')}, {one.fits}, ({one.value})::{duckdb_type(kind)} FROM "
        "(SELECT json_type(j) AS k, json_extract_string(j, '$') AS t FROM (SELECT ?::JSON AS j))"
    )
    ((is_readable, fits, value),) = engine.execute(sql, [text]).fetchall()
    return UNREADABLE if not is_readable else value if fits else REJECTED


@pytest.mark.parametrize(
    ("source", "column", "text", "wanted"),
    [
        ("bool", "Bool", "true", True),
        ("int", "Int8", "-128", -128),
        ("int", "Int8", "128", REJECTED),
        ("int8", "Int8", "128", UNREADABLE),
        ("int", "Int64", "9223372036854775807", 2**63 - 1),
        ("int", "Int64", "9223372036854775808", UNREADABLE),
        ("uint", "UInt64", "18446744073709551615", 2**64 - 1),
        ("int", "UInt128", "-1", REJECTED),
        ("int", "Int256", "-1", b"-1"),
        ("int", "Int64", "1.0", UNREADABLE),
        ("int", "Int64", '"1"', UNREADABLE),
        ("float", "Float64", "7", 7.0),
        ("float", "Float64", "1e400", UNREADABLE),
        ("float", "Float64", "NaN", UNREADABLE),
        ("float", "Float32", "1e39", REJECTED),
        ("string", "String", '"\\u00e9"', "é".encode()),
        ("string", "LowCardinality(String)", '""', b""),
        ("array", "String", '[1, {"a" : null}]', b'[1,{"a":null}]'),
        ("array", "String", "[1e400]", UNREADABLE),
        ("array", "String", '["1e400"]', b'["1e400"]'),
        ("string", "FixedString(2)", '"é"', "é".encode()),
        ("array", "Tuple(Int8, Nullable(Int8))", "[1, null]", {"1": 1, "2": None}),
        *(("string", "Int128", f'"{text}"', REJECTED) for text in ("", "-", "1.0", "1e3", "+1", "٣", str(2**127), str(-(2**127) - 1))),
        *(("string", "Int128", f'"{text}"', text.encode()) for text in (str(2**127 - 1), str(-(2**127)), "0")),
        *(("string", "UInt256", f'"{text}"', REJECTED) for text in ("-1", str(2**256), "9" * 5000)),
        ("string", "UInt256", f'"000{2**256 - 1}"', str(2**256 - 1).encode()),
        ("string", "UInt256", '"-00"', b"0"),
        ("string", "Time", '"-0:00:05.00"', -5),
        *(("string", "Time", f'"{text}"', REJECTED) for text in ("24", "1:2:03", "00:60:00", "1000:00:00", "00:00:00.", "00:00:00.1", "")),
        ("string", "Time64(2)", '"999:59:59.9900"', Decimal("3599999.99")),
        ("string", "Time64(2)", '"-0:00:00.05"', Decimal("-0.05")),
        ("string", "Time64(9)", '"00:00:00.1234567890"', REJECTED),
        ("array", "Tuple(Int8, Int8)", "[1, null]", REJECTED),
        ("array", "Tuple(Int8, Int8)", "[1]", REJECTED),
        ("array", "Tuple(Int8, Int8)", "[1, 2, 3]", REJECTED),
        ("array", "Tuple(Int8, Int8)", "[1, 300]", REJECTED),
        ("array", "Array(Tuple(Int8))", "[[1], [1, 2]]", REJECTED),
        ("array", "Array(Nullable(Tuple(Int8)))", "[null, [2]]", [None, {"1": 2}]),
        ("array", "Array(Tuple(Int8))", "[null]", REJECTED),
        ("string", "FixedString(2)", '"ab\\u0000"', REJECTED),
        ("string", "FixedString(3)", '"ab\\u0000"', b"ab"),
        ("string", "Enum8('on' = 1)", '"on"', b"on"),
        ("string", "Enum8('on' = 1)", '"off"', REJECTED),
        ("string", "UUID", f'"{UUID.upper()}"', UUID.encode()),
        ("string", "UUID", '"c0ffee"', REJECTED),
        ("string", "IPv4", '"192.168.0.255"', b"192.168.0.255"),
        ("string", "IPv4", '"192.168.0.256"', REJECTED),
        ("string", "Date", '"1970-01-02"', 1),
        ("string", "Date", '"1969-12-31"', REJECTED),
        ("string", "Date32", '"1900-01-01"', -25_567),
        ("string", "Date32", '"2026-02-29"', REJECTED),
        ("string", "DateTime", '"1970-01-01T00:00:01.999+00:00"', 1),
        ("string", "DateTime", '"1970-01-01 02:00:01+0200"', 1),
        ("string", "DateTime", '"2106-02-07T06:28:16Z"', REJECTED),
        ("int", "DateTime", "4294967295", 4_294_967_295),
        ("int", "DateTime", "4294967296", REJECTED),
        ("float", "DateTime64(3)", "1.5", 1_500),
        ("float32", "DateTime64(3)", "123456792", 123_456_792_000),
        ("float32", "DateTime", "4294967040", 4_294_967_040),
        ("float32", "DateTime", "4294967296", REJECTED),
        ("float32", "DateTime64(6)", "10413792256", REJECTED),
        ("string", "DateTime64(0)", '"1969-12-31T23:59:59.5Z"', -1),
        ("float", "DateTime64(2)", "-1.877", -188),
        ("string", "DateTime64(5)", '"1969-12-31T23:59:58.123456Z"', -187_655),
        ("string", "DateTime64(8)", '"1969-12-31T23:59:58.123456789Z"', -187_654_322),
        ("string", "DateTime64(9)", '"1970-01-01T00:00:00.123456789Z"', 123_456_789),
        ("string", "DateTime64(9)", '"2262-04-11T23:47:16Z"', REJECTED),
        ("string", "DateTime64(3)", '"1970-01-01T24:00:00Z"', REJECTED),
        ("string", "Decimal(60, 2)", '"-007.50"', b"-7.5"),
        ("string", "Decimal(9, 2)", '"1.555"', REJECTED),
        ("string", "Decimal(9, 2)", '"1e3"', REJECTED),
        ("array", "Array(Int8)", "[1, -2]", [1, -2]),
        ("array", "Array(Int8)", "[300]", REJECTED),
        ("array", "Array(Int8)", "[null]", REJECTED),
        ("array", "Array(Nullable(Int8))", "[null]", [None]),
        ("array", "Array(Array(String))", '[["a"], []]', [[b"a"], []]),
        ("array", "Array(IPv6)", '["::1"]', [b"0" * 31 + b"1"]),
        ("object", "Map(String, Int8)", '{"b": 1, "a": 2}', [{"1": b"a", "2": 2}, {"1": b"b", "2": 1}]),
        ("object", "Map(String, Int8)", '{"a": 1, "a": 2}', REJECTED),
        ("object", "Map(String, String)", '{"a": 1.5, "b": [1]}', [{"1": b"a", "2": b"1.5"}, {"1": b"b", "2": b"[1]"}]),
        ("object", "Map(String, String)", '{"a": null}', REJECTED),
        ("object", "Tuple(a String, b Nullable(Int8))", '{"a": "x", "c": 0}', {"1": b"x", "2": None}),
        ("object", "Tuple(a String)", "{}", REJECTED),
        ("object", "JSON", '{"a": 1}', None),
        ("string", "JSON", '"[1]"', REJECTED),
    ],
)  # fmt: skip
def test_a_value_has_its_plain_form_or_no_place(
    engine: duckdb.DuckDBPyConnection, source: str, column: str, text: str, wanted: Any
) -> None:
    assert value_of(engine, source, column, text) == wanted


@pytest.mark.parametrize(
    ("number", "wanted"), [("1.115", "1.11"), ("2.675", "2.67"), ("0.125", "0.12"), ("12.345", "12.35"), ("-7", "-7.00")]
)
def test_a_float_becomes_the_nearest_decimal_of_the_exact_number(engine: duckdb.DuckDBPyConnection, number: str, wanted: str) -> None:
    assert str(value_of(engine, "float", "Decimal(9, 2)", number)) == wanted


@pytest.mark.parametrize(("number", "wanted"), [("9999999.995", "9999999.99"), ("-9999999.995", "-9999999.99"), ("9999999.996", REJECTED)])
def test_a_float_at_a_decimals_edge_counts_as_the_nearest(engine: duckdb.DuckDBPyConnection, number: str, wanted: str) -> None:
    assert str(value_of(engine, "float", "Decimal(9, 2)", number)) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("::", "0" * 32),
        ("1::", "0001" + "0" * 28),
        ("1:2:3:4:5:6:7:8", "00010002000300040005000600070008"),
        ("1:2:3:4:5:6:7::", "00010002000300040005000600070000"),
        ("2001:DB8::aBc", "20010DB8" + "0" * 20 + "0ABC"),
        ("::ffff:1.2.3.4", "0" * 20 + "FFFF01020304"),
        ("1.2.3.4", "0" * 20 + "FFFF01020304"),
        ("1:2:3:4:5:6:7:8::", None),
        ("1::2::3", None),
        ("1:2", None),
        (":1", None),
        ("12345::", None),
        ("fe80::1%eth0", None),
        ("01.2.3.4", None),
        ("", None),
    ],
)
def test_an_address_is_32_digits(engine: duckdb.DuckDBPyConnection, text: str, wanted: str | None) -> None:
    assert engine.execute("SELECT tf_ipv6_hex(?)", [text]).fetchall() == [(wanted,)]


@pytest.mark.parametrize(
    ("text", "wanted"), [("0012.500", "12.5"), ("-0.00", "0"), ("100", "100"), ("-0.5", "-0.5"), ("0", "0"), ("10.0", "10")]
)
def test_a_decimal_has_one_text(engine: duckdb.DuckDBPyConnection, text: str, wanted: str) -> None:
    assert engine.execute("SELECT tf_plain_decimal(?)", [text]).fetchall() == [(wanted,)]


@pytest.mark.parametrize(("n", "d", "wanted"), [(7, 2, 3), (-7, 2, -4), (-8, 2, -4), (0, 5, 0)])
def test_instants_are_cut_towards_the_past(engine: duckdb.DuckDBPyConnection, n: int, d: int, wanted: int) -> None:
    assert engine.execute(f"SELECT tf_floor_divide({n}::BIGINT, {d}::BIGINT)").fetchall() == [(wanted,)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[1, 2.5e10]", True),
        ('{"a": [1e400]}', False),
        ("[-Infinity]", False),
        ("[NaN]", False),
        ('["NaN", "\\"Infinity", "1e999"]', True),
        (f"[{'9' * 400}]", False),
        ("[1e300, 5e99]", True),
    ],
)
def test_a_number_that_is_not_finite_is_seen_outside_of_strings(engine: duckdb.DuckDBPyConnection, text: str, wanted: bool) -> None:
    assert engine.execute("SELECT tf_is_finite_json(?)", [text]).fetchall() == [(wanted,)]


def test_members_of_an_enum_are_literals() -> None:
    assert "'it''s'" in reading("string", parse_type("Enum8('it\\'s' = 1)"), "k", "t").value


def test_clickhouse_is_asked_for_the_plain_form() -> None:
    kind = parse_type("Array(Tuple(a Nullable(DateTime64(3)), b Map(UUID, Int8)))")
    assert plain_sql(kind, "c") == (
        "arrayMap(e0 -> tuple(reinterpret(tupleElement(e0, 1), 'Int64'), arraySort(e1 -> e1.1, arrayMap((k1, v1) -> "
        "tuple(toString(k1), v1), mapKeys(tupleElement(e0, 2)), mapValues(tupleElement(e0, 2))))), c)"
    )


@pytest.mark.parametrize(
    ("column", "plain", "wanted"),
    [
        ("String", "'a'::BLOB", "a"),
        ("Date32", "-1", "1969-12-31"),
        ("DateTime64(3)", "1500", "1970-01-01 00:00:01.5Z"),
        ("DateTime64(9)", "1500000000", "1970-01-01 00:00:01.5Z"),
        ("Int8", "7", "7"),
        ("Array(Int8)", "[1, 2]", "[1, 2]"),
    ],
)
def test_people_see_days_and_instants(engine: duckdb.DuckDBPyConnection, column: str, plain: str, wanted: str) -> None:
    assert engine.execute(f"SELECT {text_sql(parse_type(column), plain)}").fetchall() == [(wanted,)]


def test_json_is_read_as_it_stands(engine: duckdb.DuckDBPyConnection) -> None:
    assert value_of(engine, "object", "String", json.dumps({"é": "\\", "b": [True]})) == '{"é":"\\\\","b":[true]}'.encode()
