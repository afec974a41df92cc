"""Every column type, from JSON through parse and transform into the real engine and back."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from support.column_values import CASES, ENUM, UUID
from support.programs import program

from pipelines.process.steps.mapping.columns import TargetColumn, check_mapping, map_columns
from pipelines.process.steps.mapping.convert import integer_bounds
from pipelines.process.steps.mapping.matrix import matrix
from pipelines.process.steps.parse import parse
from pipelines.proof.verification.plain_form import duckdb_type, plain_sql
from pipelines.proof.verification.reference import FRAME_SCHEMA, Bounds, Reference, compared_columns
from pipelines.proof.verification.values import is_compared
from pipelines.protocol.records import HEADERS_TYPE, INSTANT, OVERSIZE_TYPE, POSITION_COLUMNS
from pipelines.sink.fit import keeps_values
from pipelines.types.arrow_types import arrow_type
from pipelines.types.columns import parse_type, value_type
from pipelines.types.duckdb import open_database, open_engine
from pipelines.types.engine import Engine
from pipelines.types.fields import ParsedField
from pipelines.types.record_columns import RecordColumn

chdb = pytest.importorskip("chdb", reason="the extra `local` is not installed")
pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Sample:
    """A field's type and JSON text, the column that takes it, in which notation, and what ClickHouse then shows."""

    source: str
    column: str
    text: str
    stored: str
    notation: str = ""


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
    ("IntervalSecond", "int64", "toIntervalSecond(7)", "7"),
    ("BFloat16", "float64", "7", "7"),
]


@pytest.fixture(scope="module")
def clickhouse() -> Iterator[Any]:
    connection = chdb.connect(":memory:")
    connection.query("SET session_timezone = 'UTC'")
    # A Nested is one column here; tests/integration/test_united_columns.py holds the tables that keep its parts apart.
    connection.query("SET flatten_nested = 0")
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


def store(clickhouse: Any, rows: pa.Table, declarations: Mapping[str, str]) -> dict[str, list[str]]:
    """Inserts the rows as the sink does; the stored values of each declared column, as text: a byte that is no UTF-8 is a surrogate."""
    declared = ", ".join(f"{name} {declaration}" for name, declaration in declarations.items())
    clickhouse.query("DROP TABLE IF EXISTS t")
    clickhouse.query(f"CREATE TABLE t (position UInt32, {declared}) ENGINE = Memory")
    buffer = pa.BufferOutputStream()
    renamed = rows.select(["_tf_ordinal", *declarations]).rename_columns(["position", *declarations])
    with pa.ipc.new_stream(buffer, renamed.schema) as writer:
        writer.write_table(renamed)
    names = ", ".join(renamed.column_names)
    with clickhouse.send_insert(f"INSERT INTO t ({names}) SETTINGS input_format_null_as_default = 1", "ArrowStream") as insert:
        insert.append(buffer.getvalue().to_pybytes())
        insert.finish()
    return shown(clickhouse, {name: f"t.{name}" for name in declarations})


def shown(clickhouse: Any, expressions: Mapping[str, str]) -> dict[str, list[str]]:
    """The values of each expression over the rows of the table, as text."""
    texts = ", ".join(f"if({text} IS NULL, 'NULL', toString({text})) AS {name}" for name, text in expressions.items())
    answer = clickhouse.query(f"SELECT {texts} FROM t ORDER BY position", "JSONEachRow").bytes()
    found = [json.loads(line.decode("utf-8", "surrogateescape")) for line in answer.splitlines()]
    return {name: [row[name] for row in found] for name in expressions}


def disagreeing(clickhouse: Any, samples: Mapping[str, Sample], record: bytes) -> dict[str, Sample]:
    """Those of which the reference makes other values of the record than ClickHouse has stored in its rows, both in their plain form."""
    kinds = {name: value_type(sample.column) for name, sample in samples.items()}
    settings = "output_format_arrow_low_cardinality_as_dictionary = 0, output_format_arrow_string_as_string = 0"
    plain = ", ".join(f"{plain_sql(kind, f't.{name}')} AS {name}" for name, kind in kinds.items())
    answer = clickhouse.query(f"SELECT {plain} FROM t SETTINGS {settings}", "ArrowStream").bytes()
    fields = [(name, sample.source) for name, sample in samples.items()]
    config = program(fields, [(name, name, one.column, False, one.notation) for name, one in samples.items()], position_columns=())
    with open_database(":memory:", {}) as own:
        reference = Reference(own, compared_columns(config))
        frame = {
            "position": 1,
            "partition": 0,
            "offset": 0,
            "arrival_us": 0,
            "value": record,
            "is_oversize": False,
            "is_past": False,
            "sink": None,
        }
        reference.load(iter([pa.RecordBatch.from_pylist([frame], schema=FRAME_SCHEMA)]), config)
        reference.evaluate(config, Bounds(0, 2))
        own.register("stored", pa.ipc.open_stream(answer).read_all())
        both = [(f"v{number}", f"{name}::{duckdb_type(kind)}") for number, (name, kind) in enumerate(kinds.items())]
        same = ", ".join(f"bool_and({ours} IS NOT DISTINCT FROM {theirs} AND hash({ours}) = hash({theirs}))" for ours, theirs in both)
        (agree,) = own.execute(f"SELECT {same} FROM expected, stored").fetchall()
    return {name: sample for (name, sample), is_same in zip(samples.items(), agree, strict=True) if not is_same}


def union_of(kind: pa.DataType, value: Any) -> pa.UnionArray:
    """A union of whole numbers and another type, with one value, of that type."""
    children = [pa.array([], pa.int64()), pa.array([value], kind)]
    return pa.UnionArray.from_dense(pa.array([1], pa.int8()), pa.array([0], pa.int32()), children, ["Int64", "other"])


SAMPLES = [
    *(Sample(one.source, form.column_type(one.column), form.example, form.stored, form.notation)
      for one in matrix() for form in one.forms if form.example),
    *(Sample(source, column, json.dumps(value), stored) for column, source, value, stored in CASES),
]  # fmt: skip
"""The example of each form of each pair of the matrix, and values at the edges of the types."""
ROWS = 3


def made_of(engine: Engine, samples: Mapping[str, Sample], record: bytes) -> pa.Table:
    """The rows that the stages make of a record that is sent ROWS times."""
    fields = [ParsedField(name, sample.source) for name, sample in samples.items()]
    targets = [TargetColumn(name, name, value_type(one.column), has_default=False, unit=one.notation) for name, one in samples.items()]
    assert check_mapping(fields, targets) == []
    parsed = parse(engine, raw_records([record] * ROWS), [field for field in fields if field.type != "decimal"])
    assert parsed.rejected.num_rows == 0, parsed.rejected.to_pylist()
    rows = parsed.accepted
    for name, sample in samples.items():
        if sample.source == "decimal":
            # An expression's value is the bare text.
            rows = rows.append_column(name, pa.array([json.loads(sample.text)] * ROWS))
    mapped = map_columns(engine, rows, targets)
    assert mapped.rejected.num_rows == 0, mapped.rejected.to_pylist()
    assert mapped.accepted.column_names == [*samples, *POSITION_COLUMNS]
    sent = {target.name: (mapped.accepted[target.name].type, arrow_type(target.type)) for target in targets}
    assert {name: types for name, types in sent.items() if types[0] != types[1] and samples[name].source != "bytes"} == {}
    return mapped.accepted


# A record holds fields of one type: each type is read in the way that is its own.
@pytest.mark.parametrize("source", dict.fromkeys(sample.source for sample in SAMPLES))
def test_each_value_arrives_in_its_column_and_is_verified(clickhouse: Any, engine: Engine, source: str) -> None:
    samples = {f"c{number}": sample for number, sample in enumerate(SAMPLES) if sample.source == source}
    members = ", ".join(f'"{name}": {sample.text}' for name, sample in samples.items())
    record = f"{{{members}}}".encode()
    stored = store(clickhouse, made_of(engine, samples, record), {name: str(parse_type(one.column)) for name, one in samples.items()})
    assert {one: stored[name] for name, one in samples.items() if stored[name] != [one.stored] * ROWS} == {}
    compared = {name: one for name, one in samples.items() if is_compared(value_type(one.column))}
    assert {one.column for name, one in samples.items() if name not in compared} <= {"JSON"}
    # No record has a decimal.
    assert source == "decimal" or disagreeing(clickhouse, compared, record) == {}


def test_null_takes_the_default(clickhouse: Any, engine: Engine) -> None:
    names = {f"c{number}": default for number, default in enumerate(DEFAULTS)}
    targets = [TargetColumn(name, name, value_type(column), has_default=True) for name, (column, *_) in names.items()]
    records = [b"{}", json.dumps(dict.fromkeys(names)).encode()]
    parsed = parse(engine, raw_records(records), [ParsedField(name, source) for name, (_, source, _, _) in names.items()])
    mapped = map_columns(engine, parsed.accepted, targets)
    assert (parsed.rejected.num_rows, mapped.rejected.num_rows) == (0, 0)
    declared = {name: f"{parse_type(column)} DEFAULT {default}" for name, (column, _, default, _) in names.items()}
    assert store(clickhouse, mapped.accepted, declared) == {name: [stored] * 2 for name, (*_, stored) in names.items()}


BESIDE: list[tuple[Any, str, Any, str, str]] = [
    ("key", "", "bytes", "String", "\udcff"),
    ("key", "", "bytes", "FixedString(2)", "\udcff"),
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
]


def test_columns_beside_the_json_arrive(clickhouse: Any, engine: Engine) -> None:
    names = {f"c{number}": beside for number, beside in enumerate(BESIDE)}
    targets = [TargetColumn(name, name, parse_type(column), has_default=False) for name, (_, _, _, column, _) in names.items()]
    assert check_mapping([ParsedField(name, source) for name, (_, _, source, _, _) in names.items()], targets) == []
    columns = [RecordColumn(name, origin, header, source) for name, (origin, header, source, _, _) in names.items()]
    parsed = parse(engine, raw_records([b'{"a": 1}']), [], columns=columns)
    mapped = map_columns(engine, parsed.accepted, targets)
    assert (parsed.rejected.num_rows, mapped.rejected.num_rows) == (0, 0)
    stored = store(clickhouse, mapped.accepted, {name: column for name, (*_, column, _) in names.items()})
    assert stored == {name: [text] for name, (*_, text) in names.items()}


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("AggregateFunction(sum, Int64)", pa.array([7]), "Conversion from Int64 to AggregateFunction"),
        ("AggregateFunction(sum, Int64)", pa.array(["7"]), "Cannot read all data"),
        ("Variant(Int64, UUID)", union_of(pa.binary(16), b"0" * 16), "Cannot convert type Variant(FixedString(16), Int64)"),
        ("Variant(Date, Int64)", union_of(pa.date32(), 1), "Cannot convert type Variant(Date32, Int64)"),
        ("Array(Geometry)", pa.array([[b"\x01"]]), "Cannot convert type String to Geometry"),
        ("Array(QBit(Float32, 1))", pa.array([[[1.0]]]), "same-dimensional array types"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "",
)
@pytest.mark.parametrize("aggregate_input", ["state", "value", "array"])
def test_what_arrow_cannot_write_is_refused_by_clickhouse(
    clickhouse: Any, column: str, values: pa.Array, reason: str, aggregate_input: str
) -> None:
    """These types stay refused at load; docs/types.md names the reasons."""
    rows = pa.table({"_tf_ordinal": pa.array([0], pa.uint32()), "c": values})
    clickhouse.query(f"SET aggregate_function_input_format = '{aggregate_input}'")
    try:
        with pytest.raises(RuntimeError, match=re.escape(reason)):
            store(clickhouse, rows, {"c": column})
    finally:
        clickhouse.query("SET aggregate_function_input_format = 'state'")


def test_a_null_of_one_type_would_be_a_value_of_a_variant(clickhouse: Any) -> None:
    """So a union is sent: see `arrow_types.arrow_type`."""
    ordinals = pa.array([0, 1], pa.uint32())
    rows = pa.table({"_tf_ordinal": ordinals, "c": pa.array([1, None], pa.int64())})
    assert store(clickhouse, rows, {"c": "Variant(Int64, String)"}) == {"c": ["1", "0"]}
    rows = pa.table({"_tf_ordinal": ordinals, "c": pa.concat_arrays([union_of(pa.string(), "x"), union_of(pa.string(), None)])})
    assert store(clickhouse, rows, {"c": "Variant(Int64, String)"}) == {"c": ["x", "NULL"]}


@pytest.mark.parametrize(
    "text",
    [
        *("Tuple(a String, b LowCardinality(Nullable(String)))", "Decimal64(3)", "Enum('a\\'' = 1, 'b')", "DateTime64(3, 'UTC')"),
        *(
            "Nested(a Int8, b Nested(c String))",
            "Variant(String, Int8, Array(Nullable(String)))",
            "Dynamic",
            "Dynamic(max_types=32)",
            "Dynamic(max_types=8)",
        ),
        *("QBit(Float32, 3)", "Nullable(IntervalDay)", "Nullable(BFloat16)", "Geometry"),
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
    assert len(store(clickhouse, rows, {"c": made_for})["c"]) == len(values)
    wider = shown(clickhouse, {"c": f"t.c::{now}"})
    assert store(clickhouse, rows, {"c": now}) == wider


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
