"""Every column type, from JSON through parse and transform into the real engine and back."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from support.programs import program

from pipelines.process.mapping.convert import integer_bounds
from pipelines.process.mapping.step import TargetColumn, check_mapping, map_columns
from pipelines.process.parse.step import parse
from pipelines.proof.verification.plain_form import duckdb_type, plain_sql
from pipelines.proof.verification.reference import FRAME_SCHEMA, Bounds, Reference, compared_columns
from pipelines.proof.verification.values import is_compared
from pipelines.protocol.records import HEADERS_TYPE, INSTANT, OVERSIZE_TYPE, POSITION_COLUMNS
from pipelines.sink.fit import keeps_values
from pipelines.types.columns import arrow_type, parse_type, value_type
from pipelines.types.duckdb import open_database, open_engine
from pipelines.types.engine import Engine
from pipelines.types.fields import ParsedField
from pipelines.types.record_columns import RecordColumn

chdb = pytest.importorskip("chdb", reason="the extra `local` is not installed")
pytestmark = pytest.mark.integration

ENUM = "Enum8('on' = 1, 'it\\'s\\\\off' = -128)"
UUID = "c0ffee00-1234-5678-9abc-def012345678"
CASES: list[tuple[str, str, Any, str]] = [
    ("Bool", "bool", True, "true"),
    ("Bool", "bool", False, "false"),
    *((f"{sign}Int{bits}", "int64", 127, "127") for sign in ("", "U") for bits in (8, 16, 32, 64, 128, 256)),
    *((f"Int{bits}", "int64", -128, "-128") for bits in (8, 16, 32, 64, 128, 256)),
    ("UInt64", "uint64", 2**64 - 1, "18446744073709551615"),
    ("UInt128", "uint64", 2**64 - 1, "18446744073709551615"),
    ("Int256", "uint64", 2**64 - 1, "18446744073709551615"),
    ("Int128", "int64", -(2**63), "-9223372036854775808"),
    ("Int256", "int64", -(2**63), "-9223372036854775808"),
    ("Float32", "float64", 0.5, "0.5"),
    ("Float64", "float64", 0.1, "0.1"),
    ("Float64", "float64", 7, "7"),
    ("Float64", "int64", -7, "-7"),
    ("String", "string", "a\0é'\\😀", "a\0é'\\😀"),
    ("String", "bytes", "é", "é"),
    ("String", "array", [1, {"a": "é"}], '[1,{"a":"é"}]'),
    ("String", "object", {"b": 1, "a": None}, '{"b":1,"a":null}'),
    ("FixedString(4)", "string", "abcd", "abcd"),
    ("FixedString(4)", "string", "é", "é"),
    (ENUM, "string", "on", "on"),
    (ENUM, "string", "it's\\off", "it's\\off"),
    ("Enum16('x' = -32768, 'y' = 32767)", "string", "y", "y"),
    ("UUID", "string", UUID.upper(), UUID),
    ("Date", "string", "1970-01-01", "1970-01-01"),
    ("Date", "string", "2149-06-06", "2149-06-06"),
    ("Date32", "string", "1900-01-01", "1900-01-01"),
    ("Date32", "string", "2299-12-31", "2299-12-31"),
    ("DateTime", "string", "2026-01-31T23:59:59+02:00", "2026-01-31 21:59:59"),
    ("DateTime('Europe/Berlin')", "string", "2026-01-31 21:59:59", "2026-01-31 22:59:59"),
    ("DateTime('UTC')", "string", "2106-02-07T06:28:15Z", "2106-02-07 06:28:15"),
    ("DateTime('UTC')", "int64", 0, "1970-01-01 00:00:00"),
    ("DateTime64(0, 'UTC')", "string", "2026-01-31T23:59:59.999Z", "2026-01-31 23:59:59"),
    ("DateTime64(1, 'UTC')", "string", "2026-01-31T23:59:59.987654321Z", "2026-01-31 23:59:59.9"),
    ("DateTime64(3, 'UTC')", "string", "1900-01-01T00:00:00.001Z", "1900-01-01 00:00:00.001"),
    ("DateTime64(3, 'UTC')", "float64", 1.5, "1970-01-01 00:00:01.500"),
    ("DateTime64(3, 'UTC')", "float32", 123_456_792, "1973-11-29 21:33:12.000"),
    ("DateTime('UTC')", "float32", 4_294_967_040, "2106-02-07 06:24:00"),
    ("DateTime64(5, 'UTC')", "string", "2026-01-31T23:59:59.123456Z", "2026-01-31 23:59:59.12345"),
    *(
        (f"DateTime64({precision}, 'UTC')", "string", "1969-12-31T23:59:58.987654321Z", f"1969-12-31 23:59:58.{fraction}".rstrip("."))
        for precision, fraction in enumerate(
            ["", "9", "98", "987", "9876", "98765", "987654", "9876543", "98765432", "987654321"]
        )
    ),
    ("DateTime64(2, 'UTC')", "float64", -1.877, "1969-12-31 23:59:58.12"),
    ("Array(DateTime64(1, 'UTC'))", "array", ["1969-12-31T23:59:58.987Z"], "['1969-12-31 23:59:58.9']"),
    ("DateTime64(6, 'UTC')", "string", "2299-12-31 23:59:59.999999", "2299-12-31 23:59:59.999999"),
    ("DateTime64(9, 'UTC')", "string", "2262-04-11T23:47:15.123456789Z", "2262-04-11 23:47:15.123456789"),
    ("Decimal(9, 2)", "string", "-1234567.89", "-1234567.89"),
    ("Decimal(9, 2)", "float64", 12.345, "12.35"),
    ("Decimal(9, 2)", "float64", 9999999.995, "9999999.99"),
    ("Decimal(23, 0)", "float64", 1e23, "99999999999999991611392"),
    ("Decimal(30, 30)", "float64", 0.9999999999999999, "0.999999999999999888977697537484"),
    ("Decimal(18, 4)", "int64", -7, "-7"),
    ("Decimal(38, 0)", "string", "9" * 38, "9" * 38),
    ("Decimal(76, 10)", "string", "9" * 66 + ".0123456789", "9" * 66 + ".0123456789"),
    ("LowCardinality(String)", "string", "x", "x"),
    ("LowCardinality(Nullable(String))", "string", None, "NULL"),
    ("LowCardinality(Nullable(String))", "string", "x", "x"),
    ("LowCardinality(FixedString(3))", "string", "abc", "abc"),
    ("IPv4", "string", "192.168.0.255", "192.168.0.255"),
    ("IPv6", "string", "2001:db8::1", "2001:db8::1"),
    ("IPv6", "string", "1.2.3.4", "::ffff:1.2.3.4"),
    ("JSON", "object", {"a": 1, "b": {"c": "x"}}, '{"a":1,"b":{"c":"x"}}'),
    ("Array(Int64)", "array", [1, -2], "[1,-2]"),
    ("Array(Int8)", "array", [], "[]"),
    ("Array(Nullable(String))", "array", ["a", None], "['a',NULL]"),
    ("Array(Array(UInt64))", "array", [[1], [], [2**64 - 1]], "[[1],[],[18446744073709551615]]"),
    ("Array(UUID)", "array", [UUID], f"['{UUID}']"),
    (f"Array({ENUM})", "array", ["on"], "['on']"),
    ("Array(LowCardinality(String))", "array", ["a", "a"], "['a','a']"),
    ("Array(IPv4)", "array", ["1.2.3.4"], "['1.2.3.4']"),
    ("Array(IPv6)", "array", ["::1"], "['::1']"),
    ("Array(Date)", "array", ["2026-01-31"], "['2026-01-31']"),
    ("Array(DateTime64(3, 'UTC'))", "array", ["2026-01-31T00:00:00.5Z"], "['2026-01-31 00:00:00.500']"),
    ("Array(Decimal(9, 2))", "array", [1.5], "[1.5]"),
    ("Array(Nullable(Decimal(9, 2)))", "array", [1.5, "1.50", "7", None], "[1.5,1.5,7,NULL]"),
    ("Map(String, Decimal(18, 2))", "object", {"a": "12345678901234.56"}, "{'a':12345678901234.56}"),
    ("Tuple(a Decimal(9, 2))", "object", {"a": "-0.05"}, "(-0.05)"),
    ("Array(Int128)", "array", [-1], "[-1]"),
    ("Array(Bool)", "array", [True, False], "[true,false]"),
    ("Array(Float32)", "array", [0.5, 1], "[0.5,1]"),
    ("Array(FixedString(2))", "array", ["ab"], "['ab']"),
    ("Array(Map(String, Int64))", "array", [{"a": 1}, {}], "[{'a':1},{}]"),
    ("Array(Tuple(a String, b Nullable(Int8)))", "array", [{"b": 1, "a": "x"}, {"a": ""}], "[('x',1),('',NULL)]"),
    ("Map(String, String)", "object", {"a": "x", "b": 1.5, "c": True, "d": [1]}, "{'a':'x','b':'1.5','c':'true','d':'[1]'}"),
    ("Map(String, Nullable(Int64))", "map", {"a": 1, "b": None}, "{'a':1,'b':NULL}"),
    ("Map(LowCardinality(String), Array(String))", "map", {"a": ["x"], "b": []}, "{'a':['x'],'b':[]}"),
    ("Map(UUID, UInt8)", "map", {UUID: 1}, f"{{'{UUID}':1}}"),
    ("Tuple(a String, b Tuple(c Int64, d Array(Int8)))", "object", {"b": {"d": [1], "c": 2}, "a": "x"}, "('x',(2,[1]))"),
    *(
        (f"{sign}Int{bits}", "string", str(bound), str(bound))
        for sign in ("", "U") for bits in (128, 256) for bound in integer_bounds(f"{sign}Int{bits}")
    ),
    ("Int256", "string", "-0007", "-7"),
    ("UInt128", "string", "-0", "0"),
    ("Nullable(Int256)", "string", None, "NULL"),
    ("Map(UInt256, Int8)", "object", {str(2**256 - 1): 1}, f"{{{2**256 - 1}:1}}"),
    ("Time", "string", "23:59:59.000", "23:59:59"),
    ("Time", "string", "-999:59:59", "-999:59:59"),
    *((f"Time64({digits})", "string", "-0:00:00" + ".000000005"[: digits + 1 if digits else 0], text) for digits, text in
      ((0, "00:00:00"), (3, "00:00:00.000"), (9, "-00:00:00.000000005"))),
    ("Time64", "string", "999:59:59.999", "999:59:59.999"),
    ("Array(Time64(3))", "array", ["-0:00:00.005", "1:02:03.4"], "['-00:00:00.005','01:02:03.400']"),
    ("Map(Time, Int8)", "object", {"00:00:05": 1}, "{'00:00:05':1}"),
    ("Tuple(Int8, Nullable(String))", "array", [1, None], "(1,NULL)"),
    ("Tuple(a Tuple(String, Bool), b Array(Tuple(Int8)))", "object", {"a": ["x", True], "b": [[1], [2]]}, "(('x',true),[(1),(2)])"),
    ("Nullable(Tuple(a Int8, b Nullable(String)))", "object", {"a": 1}, "(1,NULL)"),
    ("Nullable(Tuple(Int8, String))", "array", None, "NULL"),
    ("Nullable(Tuple(a Int8))", "object", None, "NULL"),
    ("Array(Nullable(Tuple(a Int8)))", "array", [{"a": 1}, None], "[(1),NULL]"),
    ("Point", "array", [13.4, 52], "(13.4,52)"),
    ("Ring", "array", [[0, 0], [1.5, 0], [1, 1]], "[(0,0),(1.5,0),(1,1)]"),
    ("LineString", "array", [], "[]"),
    ("MultiPoint", "array", [[1, 2]], "[(1,2)]"),
    ("Polygon", "array", [[[0, 0], [1, 0]], []], "[[(0,0),(1,0)],[]]"),
    ("MultiLineString", "array", [[[0, 0], [1, 0]]], "[[(0,0),(1,0)]]"),
    ("MultiPolygon", "array", [[[[0, 0], [1, 0]]]], "[[[(0,0),(1,0)]]]"),
    ("Tuple(at Point, name String)", "object", {"at": [1, 2], "name": "x"}, "((1,2),'x')"),
    ("SimpleAggregateFunction(sum, Int64)", "int64", -7, "-7"),
    ("SimpleAggregateFunction(anyLast, LowCardinality(Nullable(String)))", "string", None, "NULL"),
    ("SimpleAggregateFunction(groupUniqArrayArray, Array(String))", "array", ["a"], "['a']"),
    ("Decimal", "int64", 7, "7"),
    ("DateTime32('UTC')", "int64", 7, "1970-01-01 00:00:07"),
    ("DateTime64", "string", "2026-01-31T23:59:59.1234Z", "2026-01-31 23:59:59.123"),
    *(
        (f"Nullable({kind})", source, None, "NULL")
        for kind, source in [
            ("Bool", "bool"), ("Int8", "int8"), ("UInt256", "uint64"), ("Int128", "int64"), ("Float32", "float32"), ("String", "string"),
            ("FixedString(3)", "string"), (ENUM, "string"), ("UUID", "string"), ("Date", "string"), ("Date32", "string"),
            ("DateTime", "string"), ("DateTime64(9)", "string"), ("Decimal(9, 2)", "float64"), ("Decimal(60, 2)", "string"),
            ("IPv4", "string"), ("IPv6", "string"), ("Time", "string"), ("Time64(3)", "string"),
        ]
    ),
]  # fmt: skip
DEFAULTS = [
    ("Bool", "bool", "true", "true"),
    ("Int64", "int64", "7", "7"),
    ("Int128", "int64", "7", "7"),
    ("UInt256", "uint64", "7", "7"),
    ("UInt256", "string", "7", "7"),
    ("Float64", "float64", "7", "7"),
    ("String", "string", "'d'", "d"),
    ("String", "bytes", "'d'", "d"),
    ("FixedString(3)", "string", "'ddd'", "ddd"),
    (ENUM, "string", "'on'", "on"),
    ("UUID", "string", f"'{UUID}'", UUID),
    ("Date", "string", "'2026-01-31'", "2026-01-31"),
    ("Date32", "string", "'1901-01-31'", "1901-01-31"),
    ("DateTime('UTC')", "string", "'2026-01-31 00:00:00'", "2026-01-31 00:00:00"),
    ("DateTime64(3, 'UTC')", "string", "'2026-01-31 00:00:00'", "2026-01-31 00:00:00.000"),
    ("Decimal(9, 2)", "string", "1.5", "1.5"),
    ("Decimal(60, 2)", "string", "1.5", "1.5"),
    ("LowCardinality(String)", "string", "'d'", "d"),
    ("IPv4", "string", "'1.2.3.4'", "1.2.3.4"),
    ("IPv6", "string", "'::1'", "::1"),
    ("Tuple(a String, b Int8)", "object", "('d', 7)", "('d',7)"),
    ("Point", "array", "(1, 2)", "(1,2)"),
    ("Time", "string", "toTime('00:00:07')", "00:00:07"),
    ("Time64(3)", "string", "toTime64('00:00:07', 3)", "00:00:07.000"),
    ("SimpleAggregateFunction(max, Int64)", "int64", "7", "7"),
]


@pytest.fixture(scope="module")
def clickhouse() -> Iterator[Any]:
    connection = chdb.connect(":memory:")
    connection.query("SET session_timezone = 'UTC'")
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with open_engine() as opened:
        yield opened


def raw_records(values: list[bytes]) -> pa.Table:
    rows = len(values)
    instant = datetime(2026, 1, 31, tzinfo=UTC)
    return pa.table(
        {
            "key": pa.array([b"\xff"] * rows),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array([[(b"h", "Zoë".encode()), (b'q"', b"0"), (b'q"', b"1")]] * rows, HEADERS_TYPE),
            "timestamp": pa.array([instant] * rows, INSTANT),
            "oversize": pa.nulls(rows, OVERSIZE_TYPE),
            "_tf_sequence": pa.array([1] * rows, pa.uint64()),
            "_tf_ordinal": pa.array(range(rows), pa.uint32()),
            "_tf_topic": pa.array(["orders"] * rows).dictionary_encode(),
            "_tf_partition": pa.array([0] * rows, pa.int32()),
            "_tf_offset": pa.array(range(rows), pa.int64()),
            "_tf_arrival": pa.array([instant] * rows, INSTANT),
        }
    )


def store(clickhouse: Any, rows: pa.Table, declarations: str, encoding: str = "utf-8") -> list[str]:
    """Inserts the rows as the sink does; the stored value of column c per row, as text."""
    clickhouse.query("DROP TABLE IF EXISTS t")
    clickhouse.query(f"CREATE TABLE t (position UInt32, {declarations}) ENGINE = Memory")
    buffer = pa.BufferOutputStream()
    renamed = rows.select(["_tf_ordinal", "c"]).rename_columns(["position", "c"])
    with pa.ipc.new_stream(buffer, renamed.schema) as writer:
        writer.write_table(renamed)
    with clickhouse.send_insert("INSERT INTO t (position, c) SETTINGS input_format_null_as_default = 1", "ArrowStream") as insert:
        insert.append(buffer.getvalue().to_pybytes())
        insert.finish()
    answer = clickhouse.query("SELECT ifNull(toString(c), 'NULL') AS c FROM t ORDER BY position", "JSONEachRow").bytes()
    return [json.loads(line.decode(encoding))["c"] for line in answer.splitlines()]


@pytest.mark.parametrize(("column", "source", "value", "stored"), CASES, ids=lambda value: str(value)[:40])
def test_value_arrives_in_column(
    clickhouse: Any, engine: duckdb.DuckDBPyConnection, column: str, source: str, value: Any, stored: str
) -> None:
    field = ParsedField("c", source)
    target = TargetColumn("c", "c", value_type(column), has_default=False)
    assert check_mapping([field], [target]) == []
    parsed = parse(engine, raw_records([json.dumps({"c": value}).encode()] * 3), [field])
    mapped = map_columns(engine, parsed.accepted, [target])
    assert mapped.rejected.num_rows == 0 and parsed.rejected.num_rows == 0
    assert mapped.accepted.column_names == ["c", *POSITION_COLUMNS]
    if source != "bytes":
        assert mapped.accepted["c"].type == arrow_type(target.type)
    assert store(clickhouse, mapped.accepted, f"c {parse_type(column)}") == [stored] * 3


@pytest.mark.parametrize(("column", "source", "value", "stored"), CASES, ids=lambda value: str(value)[:40])
def test_a_verification_calls_for_the_value_that_is_stored(
    clickhouse: Any, engine: duckdb.DuckDBPyConnection, column: str, source: str, value: Any, stored: str
) -> None:
    """Both sides in their plain form: what the reference makes of the JSON, and what ClickHouse says of the row that the stages made."""
    kind = value_type(column)
    if not is_compared(kind):
        assert column == "JSON"
        return
    target = TargetColumn("c", "c", kind, has_default=False)
    text = json.dumps({"c": value}).encode()
    parsed = parse(engine, raw_records([text]), [ParsedField("c", source)])
    store(clickhouse, map_columns(engine, parsed.accepted, [target]).accepted, f"c {parse_type(column)}")
    settings = "output_format_arrow_low_cardinality_as_dictionary = 0, output_format_arrow_string_as_string = 0"
    answer = clickhouse.query(f"SELECT {plain_sql(kind, 'c')} AS c FROM t SETTINGS {settings}", "ArrowStream").bytes()
    config = program([("c", source)], [("c", "c", column, False)], position_columns=())
    with open_database(":memory:", {}) as own:
        reference = Reference(own, compared_columns(config))
        frame = {
            "position": 1,
            "partition": 0,
            "offset": 0,
            "arrival_us": 0,
            "value": text,
            "is_oversize": False,
            "is_past": False,
            "sink": None,
        }
        reference.load(iter([pa.RecordBatch.from_pylist([frame], schema=FRAME_SCHEMA)]), config)
        reference.evaluate(config, Bounds(0, 2))
        own.register("stored", pa.ipc.open_stream(answer).read_all())
        plain = f"c::{duckdb_type(kind)}"
        same = own.execute(f"SELECT v0 IS NOT DISTINCT FROM {plain}, hash(v0) = hash({plain}) FROM expected, stored").fetchall()
    assert same == [(True, True)]


@pytest.mark.parametrize(("column", "source", "default", "stored"), DEFAULTS, ids=lambda value: str(value)[:40])
def test_null_takes_the_default(
    clickhouse: Any, engine: duckdb.DuckDBPyConnection, column: str, source: str, default: str, stored: str
) -> None:
    target = TargetColumn("c", "c", value_type(column), has_default=True)
    parsed = parse(engine, raw_records([b"{}", b'{"c":null}']), [ParsedField("c", source)])
    mapped = map_columns(engine, parsed.accepted, [target])
    assert mapped.rejected.num_rows == 0
    assert store(clickhouse, mapped.accepted, f"c {parse_type(column)} DEFAULT {default}") == [stored] * 2


@pytest.mark.parametrize(
    ("origin", "header", "source", "column", "stored"),
    [
        ("key", "", "bytes", "String", "\xff"),
        ("key", "", "bytes", "FixedString(2)", "\xff"),
        ("headers", "h", "string", "LowCardinality(Nullable(String))", "Zoë"),
        ("headers", "none", "string", "Nullable(String)", "NULL"),
        ("headers", "", "map", "Map(String, String)", """{'h':'Zoë','q"':'1'}"""),
        ("headers", "", "map", "JSON", '{"h":"Zoë","q\\"":"1"}'),
        ("topic", "", "string", "LowCardinality(String)", "orders"),
        ("offset", "", "int64", "UInt64", "0"),
        ("partition", "", "int32", "UInt8", "0"),
        ("timestamp", "", "timestamp", "DateTime('UTC')", "2026-01-31 00:00:00"),
        ("arrival", "", "timestamp", "DateTime64(3, 'UTC')", "2026-01-31 00:00:00.000"),
        ("value", "", "string", "String", '{"a": 1}'),
        ("value", "", "bytes", "String", '{"a": 1}'),
    ],
)
def test_a_column_beside_the_json_arrives(
    clickhouse: Any, engine: Engine, origin: Any, header: str, source: Any, column: str, stored: str
) -> None:
    target = TargetColumn("c", "c", parse_type(column), has_default=False)
    assert check_mapping([ParsedField("c", source)], [target]) == []
    parsed = parse(engine, raw_records([b'{"a": 1}']), [], columns=[RecordColumn("c", origin, header, source)])
    mapped = map_columns(engine, parsed.accepted, [target])
    assert mapped.rejected.num_rows == 0 and parsed.rejected.num_rows == 0
    assert store(clickhouse, mapped.accepted, f"c {column}", "utf-8" if source != "bytes" else "latin-1") == [stored]


@pytest.mark.parametrize(
    "text",
    [
        *("Tuple(a String, b LowCardinality(Nullable(String)))", "Decimal64(3)", "Enum('a\\'' = 1, 'b')", "DateTime64(3, 'UTC')"),
        *("Decimal", "DateTime32", "DateTime64", "Polygon", "SimpleAggregateFunction(sum, Int64)", "Nullable(Tuple(Int8, Point))"),
    ],
)
def test_canonical_text_is_the_engines(clickhouse: Any, text: str) -> None:
    clickhouse.query("DROP TABLE IF EXISTS t")
    clickhouse.query(f"CREATE TABLE t (c {text}) ENGINE = Memory")
    answer = clickhouse.query("SELECT type FROM system.columns WHERE database = currentDatabase() AND table = 't'", "JSONEachRow").bytes()
    assert str(parse_type(text)) == json.loads(answer)["type"]


WIDER = [
    *((f"{sign}Int{a}", f"{sign}Int{b}") for sign in ("", "U") for a in (8, 16, 32) for b in (16, 32, 64) if a < b),
    *((f"UInt{a}", f"Int{b}") for a in (8, 16, 32) for b in (16, 32, 64) if a < b),
    ("Float32", "Float64"),
    ("Date", "Date32"),
    ("Decimal(9, 2)", "Decimal(18, 2)"),
    ("Decimal(18, 2)", "Decimal(38, 2)"),
    ("Decimal(38, 2)", "Decimal(76, 2)"),
    ("DateTime64(0)", "DateTime64(3)"),
    ("DateTime64(3)", "DateTime64(6)"),
    ("DateTime64(6)", "DateTime64(8)"),
    ("Enum8('a' = 1, 'b' = -128)", "Enum8('a' = 1, 'b' = -128, 'c' = 127)"),
    ("Enum16('a' = 1, 'b' = -32768)", "Enum16('a' = 1, 'b' = -32768, 'c' = 7)"),
    ("DateTime", "DateTime('Europe/Berlin')"),
    ("String", "LowCardinality(String)"),
    ("LowCardinality(Nullable(String))", "Nullable(String)"),
    ("Array(LowCardinality(String))", "Array(String)"),
]
"""(what rows were made for, what the column has become)"""
EXTREMES: dict[str, list[Any]] = {
    "Float32": [0.1, -3.4e38, float("inf")],
    "Date": [date(1970, 1, 1), date(2149, 6, 6)],
    "Decimal": [Decimal("-1234567.89"), Decimal("0.01")],
    "DateTime64": [datetime(1900, 1, 1, tzinfo=UTC), datetime(2299, 12, 31, 23, 59, 59, tzinfo=UTC)],
    "Enum8": [1, -128],
    "Enum16": [1, -32768],
    "DateTime": [datetime(1970, 1, 1, tzinfo=UTC), datetime(2106, 2, 7, tzinfo=UTC)],
    "String": ["", "x"],
    "Array": [["", "x"], []],
}


@pytest.mark.parametrize(("made_for", "now"), WIDER)
def test_a_widened_column_keeps_narrower_rows(clickhouse: Any, made_for: str, now: str) -> None:
    kind = parse_type(made_for)
    assert keeps_values(now, kind)
    values = EXTREMES.get(kind.name) or list(integer_bounds(kind.name))
    ordinals = pa.array(range(len(values)), pa.uint32())
    rows = pa.table({"_tf_ordinal": ordinals, "c": pa.array(values, arrow_type(kind))})
    assert len(store(clickhouse, rows, f"c {made_for}")) == len(values)
    answer = clickhouse.query(f"SELECT toString(c::{now}) AS c FROM t ORDER BY position", "JSONEachRow").bytes()
    assert store(clickhouse, rows, f"c {now}") == [json.loads(line)["c"] for line in answer.splitlines()]


@pytest.mark.parametrize(
    ("made_for", "now"),
    [
        *(("Int64", "Int32"), ("Int8", "UInt16"), ("UInt64", "Int64"), ("Int64", "Int128"), ("Float64", "Float32"), ("Date32", "Date")),
        *(("Decimal(9, 2)", "Decimal(9, 3)"), ("Decimal(18, 2)", "Decimal(9, 2)"), ("DateTime64(6)", "DateTime64(3)")),
        *(("DateTime64(3)", "DateTime64(9)"), ("DateTime", "DateTime64(3)"), ("FixedString(3)", "String"), ("String", "Int64")),
        *(("Enum8('a' = 1)", "Enum8('b' = 1)"), ("Array(Int32)", "Array(Int64)"), ("Array(Nullable(Int32))", "Array(Int32)")),
        ("Int64", "AggregateFunction(sum, Int64)"),
    ],
)
def test_a_column_of_another_type_is_not_believed_to_keep_values(made_for: str, now: str) -> None:
    assert not keeps_values(now, parse_type(made_for))


@pytest.mark.parametrize(
    ("made_for", "now"),
    [
        *(("SimpleAggregateFunction(sum, Int32)", "SimpleAggregateFunction(sum, Int64)"), ("Point", "Tuple(Float64, Float64)")),
        *(("Tuple(a Int8)", "Nullable(Tuple(a Int8))"), ("Polygon", "MultiLineString")),
    ],
)
def test_a_column_of_the_same_values_keeps_the_rows(made_for: str, now: str) -> None:
    assert keeps_values(now, value_type(made_for))
