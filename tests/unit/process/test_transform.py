"""transform's mapping: each rule and the edge of each range, with literal values.

What arrives in ClickHouse is tested in tests/integration/test_column_types.py.
"""

import json
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import stage_engine

from pipelines.process.steps.mapping import composites
from pipelines.process.steps.mapping.columns import TargetColumn, check_mapping, map_columns, reject_wide
from pipelines.protocol.records import INSTANT, POSITION_COLUMNS, REJECTED_SCHEMA, StageOutput, cut_frames
from pipelines.types.arrow_types import arrow_type
from pipelines.types.columns import parse_type
from pipelines.types.fields import ParsedField

_ENGINE = stage_engine()
_ARROW = {
    "string": pa.string(), "array": pa.string(), "object": pa.string(), "bytes": pa.binary(), "bool": pa.bool_(), "int64": pa.int64(),
    "uint64": pa.uint64(), "float32": pa.float32(), "float64": pa.float64(), "timestamp": INSTANT,
}  # fmt: skip
UUID = "c0ffee00-1234-5678-9abc-def012345678"


def parsed_table(**columns: pa.Array) -> pa.Table:
    rows = len(next(iter(columns.values())))
    positions = {
        "_tf_sequence": pa.array([9] * rows, pa.uint64()),
        "_tf_ordinal": pa.array(range(rows), pa.uint32()),
        "_tf_topic": pa.array(["orders"] * rows, pa.string()).dictionary_encode(),
        "_tf_partition": pa.array([0] * rows, pa.int32()),
        "_tf_offset": pa.array(range(rows), pa.int64()),
        "_tf_arrival": pa.array([datetime(2026, 1, 31, tzinfo=UTC)] * rows, INSTANT),
    }
    return pa.table({**columns, **positions})


def run(values: Sequence[Any], source: str, column: str, has_default: bool = False) -> StageOutput:
    table = parsed_table(f=pa.array(values, _ARROW[source]))
    return map_columns(_ENGINE, table, [TargetColumn("f", "c", parse_type(column), has_default)])


def one(value: Any, source: str, column: str, has_default: bool = False) -> Any:
    """The value of the column, or (code, message without the column) of the rejection. Null neighbours must not matter."""
    output = run([value], source, column, has_default)
    if output.rejected.num_rows:
        row = output.rejected.to_pylist()[0]
        prefix = f"column c ({parse_type(column)})"
        assert (row["stage"], row["field"]) == ("transform", "c") and row["message"].startswith(prefix)
        return row["code"], row["message"].removeprefix(prefix).lstrip(": ")
    return output.accepted["c"][0].as_py()


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("source", "column", "value", "mapped"),
    [
        ("int64", "UInt8", 255, 255),
        ("uint64", "Int64", 2**63 - 1, 2**63 - 1),
        ("int64", "Int128", -2, (2**128 - 2).to_bytes(16, "little")),
        ("uint64", "UInt256", 2**64 - 1, (2**64 - 1).to_bytes(32, "little")),
        ("int64", "Float64", 2**53 + 1, 2.0**53),
        ("float64", "Float32", 0.1, 0.10000000149011612),
        ("float64", "Float64", -0.0, -0.0),
        ("bytes", "String", b"\xff\0", b"\xff\0"),
        ("string", "FixedString(2)", "é", "é".encode()),
        ("string", "Enum8('a' = -1, 'it\\'s' = 2)", "it's", 2),
        ("string", "Int128", "-002", (2**128 - 2).to_bytes(16, "little")),
        ("string", "UInt256", "0" * 5000 + "7", (7).to_bytes(32, "little")),
        ("string", "Time", "-0:00:05.00", -5),
        ("string", "Time64(2)", "999:59:59.9900", Decimal("3599999.99")),
        ("string", "UUID", UUID, bytes.fromhex(UUID.replace("-", ""))),
        ("string", "IPv4", "255.1.0.9", 0xFF010009),
        ("string", "IPv6", "::1", b"\0" * 15 + b"\1"),
        ("string", "Date", "2149-06-06", date(2149, 6, 6)),
        ("string", "Date32", "1900-01-01", date(1900, 1, 1)),
        ("string", "Date", "2024-02-29", date(2024, 2, 29)),
        ("string", "DateTime", "2026-01-31 23:59:59", utc(2026, 1, 31, 23, 59, 59)),
        ("string", "DateTime", "2026-01-31T23:59:59.999Z", utc(2026, 1, 31, 23, 59, 59)),
        ("string", "DateTime", "2026-01-31T23:59:59-05:30", utc(2026, 2, 1, 5, 29, 59)),
        ("string", "DateTime", "2026-01-31T23:59:59+02", utc(2026, 1, 31, 21, 59, 59)),
        ("string", "DateTime", "2106-02-07T06:28:15.9Z", utc(2106, 2, 7, 6, 28, 15)),
        ("string", "DateTime64(3)", "1969-12-31T23:59:59.9999Z", utc(1969, 12, 31, 23, 59, 59, 999_000)),
        ("string", "DateTime64(0)", "1969-12-31T23:59:58.5Z", utc(1969, 12, 31, 23, 59, 58)),
        ("string", "DateTime64(1)", "1969-12-31T23:59:58.123Z", utc(1969, 12, 31, 23, 59, 58, 100_000)),
        ("string", "DateTime64(1)", "2026-01-31T23:59:59.987654321Z", utc(2026, 1, 31, 23, 59, 59, 900_000)),
        ("string", "DateTime64(5)", "1969-12-31T23:59:58.123456Z", utc(1969, 12, 31, 23, 59, 58, 123_450)),
        ("int64", "DateTime64(2)", -2, utc(1969, 12, 31, 23, 59, 58)),
        ("float64", "DateTime64(2)", -1.877, utc(1969, 12, 31, 23, 59, 58, 120_000)),
        ("timestamp", "DateTime64(4)", utc(1969, 12, 31, 23, 59, 58, 123_456), utc(1969, 12, 31, 23, 59, 58, 123_400)),
        ("array", "Array(DateTime64(1))", '["1969-12-31T23:59:58.123Z"]', [utc(1969, 12, 31, 23, 59, 58, 100_000)]),
        ("string", "DateTime64(6)", "2026-01-31 00:00:00.123456789", utc(2026, 1, 31, 0, 0, 0, 123_456)),
        ("int64", "DateTime", 2**32 - 1, utc(2106, 2, 7, 6, 28, 15)),
        ("float64", "DateTime64(3)", 0.0015, utc(1970, 1, 1, 0, 0, 0, 1000)),
        ("float32", "DateTime", 123_456_792.0, utc(1973, 11, 29, 21, 33, 12)),
        ("float32", "DateTime64(6)", 123_456_792.0, utc(1973, 11, 29, 21, 33, 12)),
        ("float32", "DateTime64(3)", -0.5, utc(1969, 12, 31, 23, 59, 59, 500_000)),
        ("float32", "DateTime", 4_294_967_040.0, utc(2106, 2, 7, 6, 24)),
        ("float32", "DateTime64(6)", -2_208_988_672.0, utc(1900, 1, 1, 0, 2, 8)),
        ("float32", "DateTime64(6)", 10_413_791_232.0, utc(2299, 12, 31, 23, 47, 12)),
        ("timestamp", "DateTime64(6)", utc(2026, 1, 31, 0, 0, 0, 5), utc(2026, 1, 31, 0, 0, 0, 5)),
        ("string", "Decimal(5, 2)", "-999.9900", Decimal("-999.99")),
        ("string", "Decimal(5, 2)", "000001", Decimal("1.00")),
        ("string", "Decimal(2, 2)", "0.25", Decimal("0.25")),
        ("float64", "Decimal(5, 2)", 999.994, Decimal("999.99")),
        ("float64", "Decimal(9, 2)", 9999999.995, Decimal("9999999.99")),
        ("float64", "Decimal(9, 2)", -9999999.995, Decimal("-9999999.99")),
        ("float64", "Decimal(23, 0)", 1e23, Decimal(99999999999999991611392)),
        ("float64", "Decimal(30, 30)", 1 - 2**-53, Decimal("0.999999999999999888977697537484")),
        ("float64", "Decimal(1, 0)", 9.499999999999998, Decimal(9)),
        ("float64", "Decimal(2, 2)", 0.995 - 2**-53, Decimal("0.99")),
        ("int64", "Decimal(76, 50)", 7, Decimal(7)),
        ("bool", "Bool", True, True),
        ("string", "JSON", ' {"a":1}', ' {"a":1}'),
        ("array", "String", "[1]", "[1]"),
        ("array", "Array(UInt8)", "[0,255]", [0, 255]),
        ("array", "Array(Array(String))", '[[],["a\\u0000é"]]', [[], ["a\0é"]]),
        ("array", "Array(Nullable(Float64))", "[1,null,2.5]", [1.0, None, 2.5]),
        ("array", "Array(String)", "[]", []),
        ("object", "Map(String, String)", '{"a":"x","b":1,"c":[true]}', [("a", "x"), ("b", "1"), ("c", "[true]")]),
        ("object", "Map(String, Nullable(Int8))", '{"a":null}', [("a", None)]),
        ("object", "Tuple(a Int8, b Tuple(c Nullable(Date)))", '{"b":{},"a":1,"x":2}', {"a": 1, "b": {"c": None}}),
    ],
)
def test_value_is_mapped(source: str, column: str, value: Any, mapped: Any) -> None:
    assert one(value, source, column) == mapped
    if source not in ("bytes",):
        assert run([value], source, column).accepted["c"].type == arrow_type(parse_type(column))


@pytest.mark.parametrize(
    ("column", "nanoseconds"), [("DateTime64(7)", -1_876_543_300), ("DateTime64(8)", -1_876_543_220), ("DateTime64(9)", -1_876_543_211)]
)
def test_nanoseconds_before_1970_are_cut_towards_the_past(column: str, nanoseconds: int) -> None:
    found = run(["1969-12-31T23:59:58.123456789Z", None], "string", f"Nullable({column})").accepted["c"]
    assert found.cast(pa.int64()).to_pylist() == [nanoseconds, None]


@pytest.mark.parametrize(
    ("source", "column", "value", "code"),
    [
        ("int64", "UInt8", 256, "out_of_range"),
        ("int64", "UInt64", -1, "out_of_range"),
        ("int64", "UInt128", -1, "out_of_range"),
        ("uint64", "Int64", 2**63, "out_of_range"),
        ("int64", "Int8", -129, "out_of_range"),
        ("float64", "Float32", 1e39, "out_of_range"),
        ("string", "FixedString(2)", "éa", "out_of_range"),
        ("string", "Enum8('a' = 1)", "A", "invalid_value"),
        ("string", "UUID", UUID[:-1], "invalid_value"),
        ("string", "UUID", UUID.replace("-", ""), "invalid_value"),
        ("string", "IPv4", "1.2.3.256", "invalid_value"),
        ("string", "IPv4", "1.2.3.04", "invalid_value"),
        ("string", "IPv6", "::g", "invalid_value"),
        ("string", "IPv6", "fe80::1%eth0", "invalid_value"),
        ("string", "Date", "1969-12-31", "out_of_range"),
        ("string", "Date", "2149-06-07", "out_of_range"),
        ("string", "Date32", "2300-01-01", "out_of_range"),
        ("string", "Date", "2026-02-30", "invalid_value"),
        ("string", "Date", "2026-1-1", "invalid_value"),
        ("string", "Date", "2026-01-01T00:00:00", "invalid_value"),
        ("string", "DateTime", "1969-12-31T23:59:59Z", "out_of_range"),
        ("string", "DateTime", "1970-01-01T00:00:00+01:00", "out_of_range"),
        ("string", "DateTime", "2106-02-07T06:28:16Z", "out_of_range"),
        ("string", "DateTime", "2025-02-29T00:00:00Z", "invalid_value"),
        ("string", "DateTime", "0000-00-00 00:00:00", "invalid_value"),
        ("string", "DateTime", "2026-01-31", "invalid_value"),
        ("string", "DateTime", "2026-01-31T24:00:00Z", "invalid_value"),
        ("string", "DateTime", "2026-01-31T23:59:60Z", "invalid_value"),
        ("string", "DateTime", "1769817600", "invalid_value"),
        ("string", "DateTime", "2026-01-31T00:00:00Z\n", "invalid_value"),
        ("string", "DateTime64(3)", "1899-12-31T23:59:59.999Z", "out_of_range"),
        ("string", "DateTime64(3)", "2300-01-01T00:00:00Z", "out_of_range"),
        ("string", "DateTime64(9)", "2262-04-12T00:00:00Z", "out_of_range"),
        ("int64", "DateTime", -1, "out_of_range"),
        ("int64", "DateTime", 2**32, "out_of_range"),
        ("int64", "DateTime64(3)", 2**63 - 1, "out_of_range"),
        ("float64", "DateTime64(3)", 1e300, "out_of_range"),
        ("float32", "DateTime", 4_294_967_296.0, "out_of_range"),
        ("float32", "DateTime64(6)", 10_413_792_256.0, "out_of_range"),
        ("string", "Decimal(5, 2)", "1000", "out_of_range"),
        ("string", "Decimal(5, 2)", "1.001", "out_of_range"),
        ("string", "Decimal(5, 2)", "1e2", "invalid_value"),
        ("string", "Decimal(5, 2)", "", "invalid_value"),
        ("float64", "Decimal(5, 2)", 999.996, "out_of_range"),
        ("float64", "Decimal(5, 2)", -1000.0, "out_of_range"),
        ("float64", "Decimal(9, 2)", 9999999.996, "out_of_range"),
        ("float64", "Decimal(9, 2)", math.nextafter(9999999.995, math.inf), "out_of_range"),
        ("float64", "Decimal(1, 0)", 9.5, "out_of_range"),
        ("float64", "Decimal(22, 0)", 1e22, "out_of_range"),
        ("int64", "Decimal(3, 2)", 10, "out_of_range"),
        ("string", "JSON", "[1]", "invalid_value"),
        ("string", "JSON", "{", "invalid_value"),
        ("array", "Array(UInt8)", "[1,256]", "out_of_range"),
        ("array", "Array(UInt8)", "[true]", "wrong_type"),
        ("array", "Array(UInt8)", '["1.5"]', "invalid_value"),
        ("array", "Array(UInt8)", '["256"]', "out_of_range"),
        ("array", "Array(String)", '["a",null]', "null_in_non_nullable"),
        ("array", "Array(String)", '["a",1]', "wrong_type"),
        ("array", "Array(Array(Int8))", "[[1],[300]]", "out_of_range"),
        ("array", "Array(Array(Int8))", "[1]", "wrong_type"),
        ("array", "Array(Array(Int8))", "[null]", "null_in_non_nullable"),
        ("array", "Array(UUID)", '["x"]', "invalid_value"),
        ("object", "Map(String, Int8)", '{"a":"x"}', "invalid_value"),
        ("object", "Map(Int8, Int8)", '{"128":1}', "out_of_range"),
        ("object", "Map(String, String)", '{"a":null}', "null_in_non_nullable"),
        ("object", "Map(String, Int8)", '{"a":1,"a":1}', "invalid_value"),
        ("object", "Map(UUID, Int8)", '{"a":1}', "invalid_value"),
        ("object", "Tuple(a Int8)", "{}", "null_in_non_nullable"),
        ("object", "Tuple(a Int8)", '{"a":"x"}', "invalid_value"),
        ("object", "Tuple(a Int8, b String)", '{"a":"1","b":2}', "wrong_type"),
        ("object", "Tuple(a Tuple(b Int8))", '{"a":{"b":300}}', "out_of_range"),
        *(("string", "Time", text, "invalid_value") for text in ("24", "1:2:03", "00:60:00", "1000:00:00", "00:00:00.", "+1:00:00", "")),
        *(("string", "Int128", text, "invalid_value") for text in ("", "-", "1.0", "1e3", "+1", "٣")),
        *(("string", "UInt128", text, "out_of_range") for text in ("-1", str(2**128), "9" * 5000)),
        *(("string", "Int256", str(number), "out_of_range") for number in (2**255, -(2**255) - 1)),
        ("string", "Time", "00:00:00.1", "out_of_range"),
        ("string", "Time64(3)", "00:00:00.1234", "out_of_range"),
        ("string", "Time64(9)", "00:00:00.1234567890", "invalid_value"),
        ("array", "Tuple(Int8, Int8)", "[1]", "invalid_value"),
        ("array", "Tuple(Int8, Int8)", "[1,2,3]", "invalid_value"),
        ("array", "Tuple(Int8, Int8)", "[]", "invalid_value"),
        ("array", "Tuple(Int8, Int8)", "[1,null]", "null_in_non_nullable"),
        ("array", "Tuple(Int8, Int8)", "[1,300]", "out_of_range"),
        ("array", "Tuple(Int8, String)", "[1,2]", "wrong_type"),
        ("array", "Array(Tuple(Int8))", "[[1],[1,2]]", "invalid_value"),
        ("array", "Array(Nullable(Tuple(Int8)))", "[null,[null]]", "null_in_non_nullable"),
        ("array", "Array(Tuple(Int8))", "[null]", "null_in_non_nullable"),
    ],
)
def test_value_without_a_place_is_rejected(source: str, column: str, value: Any, code: str) -> None:
    assert one(value, source, column)[0] == code
    mixed = run([None, value, None], source, column)
    assert [row["_tf_ordinal"] for row in mixed.rejected.to_pylist() if row["code"] == code][:3].count(1) == 1


def test_message_names_column_and_type_but_no_value() -> None:
    rejected = run(["s3cret"], "string", "Enum8('a' = 1)").rejected
    assert rejected.schema == REJECTED_SCHEMA
    assert rejected.to_pylist() == [
        {
            "_tf_sequence": 9,
            "_tf_ordinal": 0,
            "stage": "transform",
            "code": "invalid_value",
            "field": "c",
            "message": "column c (Enum8('a' = 1)): the string is no member of the Enum",
        }
    ]
    assert one('{"a":{"b":[[]]}}', "object", "Tuple(a Tuple(b Array(Int8)))") == (
        "wrong_type",
        "member a: member b: an element: expected Int8, found an array",
    )
    assert one('{"a":{"b":["s3cret"]}}', "object", "Tuple(a Tuple(b Array(Int8)))") == (
        "invalid_value",
        "member a: member b: an element: the string is no integer",
    )
    assert one('{"a":"7","b":2}', "object", "Tuple(a Int8, b String)")[1] == "member b: expected string, found an integer"


@pytest.mark.parametrize(
    ("source", "column", "value", "message"),
    [
        ("array", "Array(UInt16)", "[70000]", "an element: the integer does not fit UInt16"),
        ("array", "Array(UInt16)", "[-1]", "an element: the number does not fit UInt16"),
        ("array", "Array(UInt16)", "[1.5]", "an element: expected UInt16, found a number"),
        ("array", "Array(Nullable(Int8))", f"[{2**64}]", "an element: the number does not fit Nullable(Int8)"),
        ("array", "Array(Float32)", "[1e400]", "an element: the number does not fit Float32"),
        ("array", "Array(Float32)", "[true]", "an element: expected Float32, found a boolean"),
        ("array", "Array(Bool)", "[1]", "an element: expected Bool, found an integer"),
        ("array", "Array(Decimal(9, 2))", "[true]", "an element: expected Decimal(9, 2), found a boolean"),
        ("array", "Array(Date)", "[1]", "an element: expected string, found an integer"),
        ("object", "Map(String, UInt8)", '{"k":-1}', "the value of a key: the number does not fit UInt8"),
        ("object", "Tuple(a UInt32)", '{"a":-1}', "member a: the number does not fit UInt32"),
        ("array", "Tuple(UInt32)", "[-1]", "element 1: the number does not fit UInt32"),
    ],
)
def test_a_fault_inside_names_the_type_of_the_table(source: str, column: str, value: str, message: str) -> None:
    assert one(value, source, column)[1] == message


@pytest.mark.parametrize("column", ["Int8", "String", "UUID", "DateTime", "Decimal(5, 2)", "IPv4"])
def test_null_goes_to_nullable_or_default_and_nowhere_else(column: str) -> None:
    source = "int64" if column == "Int8" else "string"
    assert one(None, source, f"Nullable({column})") is None
    assert one(None, source, column, has_default=True) is None
    assert one(None, source, column)[0] == "null_in_non_nullable"


@pytest.mark.parametrize(("source", "column"), [("array", "Array(Int8)"), ("object", "Map(String, Int8)"), ("object", "JSON")])
def test_null_is_refused_where_no_default_would_apply(source: str, column: str) -> None:
    code, message = one(None, source, column, has_default=True)
    assert code == "null_in_non_nullable"
    assert "would apply to a null" in message


def test_columns_come_in_mapping_order_before_the_positions() -> None:
    table = parsed_table(b=pa.array(["x", "y"]), a=pa.array([1, 2]))
    targets = [TargetColumn("a", "n", parse_type("Int64"), False), TargetColumn("b", "s", parse_type("String"), False)]
    accepted = map_columns(_ENGINE, table, [*targets, TargetColumn("_tf_offset", "o", parse_type("UInt64"), False)]).accepted
    assert accepted.column_names == ["n", "s", "o", *POSITION_COLUMNS]
    assert accepted["_tf_emit"].to_pylist() == [0, 0]
    assert accepted["s"].chunk(0).buffers()[2].address == table["b"].chunk(0).buffers()[2].address


def test_first_column_that_refuses_gives_the_reason() -> None:
    table = parsed_table(a=pa.array([300, 1]), b=pa.array(["x", "x"]))
    targets = [TargetColumn("a", "a", parse_type("Int8"), False), TargetColumn("b", "b", parse_type("UUID"), False)]
    output = map_columns(_ENGINE, table, targets)
    assert output.accepted.num_rows == 0
    assert output.rejected["field"].to_pylist() == ["a", "b"]


def test_no_rows_are_fine() -> None:
    for column, source in [
        ("UUID", "string"),
        ("Array(Map(String, Int8))", "array"),
        ("Tuple(a IPv4)", "object"),
        ("Decimal(9, 2)", "float64"),
    ]:
        output = run([], source, column)
        assert (output.accepted.num_rows, output.rejected.num_rows) == (0, 0)
        assert output.accepted["c"].type == arrow_type(parse_type(column))


@pytest.mark.parametrize(
    ("source", "column", "fault"),
    [
        ("string", "Bool", "string cannot become Bool"),
        ("int64", "String", "int64 cannot become String"),
        ("float64", "Int64", "float64 cannot become Int64"),
        ("bool", "UInt8", "bool cannot become UInt8"),
        ("bytes", "UUID", "bytes cannot become UUID"),
        ("array", "JSON", "array cannot become JSON"),
        ("object", "Array(String)", "object cannot become Array(String)"),
        ("object", "Tuple(Int8, Int8)", "named members"),
        ("object", "Map(Bool, Int8)", "keys of an object"),
        ("array", "Tuple(a Int8)", "an array can only become a Tuple without names"),
        ("object", "Map(String, Tuple(Map(Bool, Int8)))", "keys of an object"),
    ],
)
def test_mapping_without_a_way_is_told_at_start(source: str, column: str, fault: str) -> None:
    faults = check_mapping([ParsedField("f", source)], [TargetColumn("f", "c", parse_type(column), False)])
    assert len(faults) == 1 and fault in faults[0] and "column 'c'" in faults[0]


def test_unknown_fields_and_columns_mapped_twice_are_told() -> None:
    target = TargetColumn("nope", "c", parse_type("Int8"), False)
    assert check_mapping([], [target, target]) == [
        "column 'c': no field 'nope'",
        "column 'c' is mapped twice",
        "column 'c': no field 'nope'",
    ]


INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, -1, 127, 128, 255, 256, -128, -129, 2**31, 2**32, 2**53 + 1])


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.none() | INTEGERS, max_size=8), bits=st.sampled_from([8, 16, 32, 64, 128]), unsigned=st.booleans())
def test_integers_agree_with_plain_python(values: list[int | None], bits: int, unsigned: bool) -> None:
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    found = run(values, "int64", f"Nullable({'U' if unsigned else ''}Int{bits})").accepted["c"].to_pylist()
    numbers = [int.from_bytes(value, "little", signed=not unsigned) if isinstance(value, bytes) else value for value in found]
    assert numbers == [value for value in values if value is None or low <= value <= high]


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-2000, max_value=2000), max_size=8))
def test_decimals_agree_with_plain_python(values: list[Decimal]) -> None:
    found = run([f"{value:f}" for value in values], "string", "Decimal(5, 2)").accepted["c"].to_pylist()
    assert found == [value for value in values if abs(value) < 1000 and value == round(value, 2)]


@settings(max_examples=200, deadline=None)
@given(precision=st.integers(1, 76), digits=st.integers(0, 76), steps=st.integers(-3, 3), sign=st.sampled_from([1, -1]))
def test_floats_at_the_edge_of_a_decimal_agree_with_plain_python(precision: int, digits: int, steps: int, sign: int) -> None:
    scale = min(digits, precision)
    value = float(Fraction(10**precision * 2 - 1, 2 * 10**scale))
    for _ in range(abs(steps)):
        value = math.nextafter(value, math.copysign(math.inf, steps))
    value *= sign
    with localcontext(prec=1200):
        nearest = Decimal(value).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_EVEN)
    found = run([value], "float64", f"Decimal({precision}, {scale})").accepted["c"].to_pylist()
    assert found == ([nearest] if len(nearest.as_tuple().digits) <= precision else [])


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.datetimes(datetime(1800, 1, 1), datetime(2400, 1, 1)), max_size=8), offset=st.integers(-14, 14))
def test_instants_agree_with_plain_python(values: list[datetime], offset: int) -> None:
    texts = [f"{value.isoformat(timespec='microseconds')}{offset:+03d}:00" for value in values]
    instants = [datetime.fromisoformat(text).astimezone(UTC) for text in texts]
    found = run(texts, "string", "DateTime64(6)").accepted["c"].to_pylist()
    assert found == [instant for instant in instants if utc(1900, 1, 1) <= instant < utc(2300, 1, 1)]


ELEMENTS = st.none() | st.integers(-300, 300) | st.text(max_size=3).filter(str.isprintable) | st.booleans() | st.just(1.5)


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.lists(ELEMENTS, max_size=3), max_size=6))
def test_arrays_agree_with_plain_python(rows: list[list[Any]]) -> None:
    found = run([json.dumps(row) for row in rows], "array", "Array(Nullable(Int8))").accepted["c"].to_pylist()

    def fits(value: Any) -> bool:
        return value is None or (type(value) is int and -128 <= value <= 127)

    assert found == [row for row in rows if all(map(fits, row))]


def test_a_row_too_large_for_a_frame_is_rejected_alone() -> None:
    wide = "x" * 600_000
    found = reject_wide(with_places({"a": [wide, "small", wide], "b": [wide, "small", "small"]}))
    assert found.accepted.column("_tf_ordinal").to_pylist() == [1, 2]
    assert found.rejected.select(["_tf_ordinal", "stage", "code"]).to_pylist() == [
        {"_tf_ordinal": 0, "stage": "transform", "code": "row_too_large"}
    ]


def test_more_columns_than_a_frame_has_room_for_are_a_fault() -> None:
    fields = [ParsedField("n", "int64")]

    def faults(count: int) -> list[str]:
        return check_mapping(fields, [TargetColumn("n", f"column_{number}", parse_type("Int64"), False) for number in range(count)])

    assert faults(3500) == []
    assert faults(3700) == [
        "a frame with these 3,700 columns has no room for the values of a row; map fewer, or shorten their names",
    ]


def with_places(columns: dict[str, list[Any]]) -> pa.Table:
    count = len(next(iter(columns.values())))
    places = {"_tf_sequence": pa.array([1] * count, pa.uint64()), "_tf_ordinal": pa.array(range(count), pa.uint32())}
    return pa.table({**columns, **places})


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 900), st.integers(0, 40), st.integers(0, 2**31))
def test_what_is_not_rejected_fits_whatever_its_columns(columns: int, name_chars: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    names = [f"{'n' * name_chars}{number}" for number in range(columns)]
    sizes = np.linspace(0, 2_000_000 / columns, 9, dtype=int)
    table = with_places({name: [generator.bytes(size) for size in sizes] for name in names})
    passed = reject_wide(table).accepted
    frames = list(cut_frames(passed))
    assert 0 < passed.num_rows < len(sizes)
    assert sum(part.num_rows for part, _ in frames) == passed.num_rows


_TEXTS = st.text(st.sampled_from(['"', ",", "[", "]", "\\", "a", "é", " ", "\n", "\x7f"]), max_size=6)


@settings(max_examples=150, deadline=None)
@given(rows=st.lists(st.none() | st.lists(_TEXTS, max_size=4), max_size=20), column=st.sampled_from(["String", "Nullable(String)"]))
def test_arrays_of_plain_strings_are_read_as_others_are(rows: list[list[str] | None], column: str) -> None:
    texts = [None if row is None else json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows]
    found = run(texts, "array", f"Array({column})")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(composites, "_PLAIN_STRINGS", "^never$")
        other = run([*texts, "[1]"], "array", f"Array({column})")
    assert found.accepted.column("c").to_pylist() == other.accepted.column("c").to_pylist() == [row for row in rows if row is not None]
    assert found.rejected.to_pylist() == other.rejected.to_pylist()[:-1]
