"""Numbers of a unit since 1970 become instants, and decimals may be text inside of composites: stage, reference and plain Python agree."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.connectors.sql import statement
from pipelines.process.dedup import TIME_COLUMN, with_times
from pipelines.process.steps.mapping.columns import TargetColumn, map_columns
from pipelines.process.steps.parse import parse
from pipelines.proof.verification.plain_form import duckdb_type
from pipelines.proof.verification.values import MACROS, is_sound, reading
from pipelines.protocol.records import OVERSIZE_TYPE, POSITION_FIELDS
from pipelines.types.arrow_types import arrow_type
from pipelines.types.columns import parse_type
from pipelines.types.duckdb import open_engine
from pipelines.types.fields import ParsedField

PER_SECOND = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}
REFUSED = "refused"
_ENGINE = open_engine()


FAR_AHEAD_US = 10**17
"""The records of this file arrive in 1970."""


def raw_records(values: list[bytes]) -> pa.Table:
    rows = len(values)
    zeros = pa.array([0] * rows, pa.int64())
    positions = {field.name: zeros.cast(field.type) for field in POSITION_FIELDS if field.name != "_tf_topic"}
    columns = {"value": pa.array(values, pa.binary()), "oversize": pa.nulls(rows, OVERSIZE_TYPE), **positions}
    topic = pa.array(["t"] * rows).dictionary_encode()
    return pa.table({**columns, "_tf_topic": topic, "_tf_ordinal": pa.array(range(rows), pa.uint32())})


def seconds(*date: int) -> int:
    return int(datetime(*date, tzinfo=UTC).timestamp())  # type: ignore[arg-type]


@pytest.fixture(scope="module", autouse=True)
def _macros() -> Iterator[None]:
    for macro in MACROS:
        _ENGINE.connection.execute(statement(f"reference/{macro}"))
    return


def stage(source: str, column: str, texts: list[str], unit: str) -> list[Any]:
    """Ticks of 10 ** -precision seconds, or REFUSED, of each JSON value."""
    kind = parse_type(column)
    records = raw_records([f'{{"c":{text}}}'.encode() for text in texts])
    parsed = parse(_ENGINE, records, [ParsedField("c", source)])
    mapped = map_columns(_ENGINE, parsed.accepted, [TargetColumn("c", "c", kind, False, unit)]).accepted
    found: list[Any] = [REFUSED] * len(texts)
    precision = kind.number(0) if kind.name == "DateTime64" else 0
    ticks = mapped.column("c").cast("int64").to_pylist()
    for ordinal, tick in zip(mapped.column("_tf_ordinal").to_pylist(), ticks, strict=True):
        found[ordinal] = Fraction(tick, PER_SECOND[arrow_type(kind).unit]) * 10**precision
    return found


def reference(source: str, column: str, texts: list[str], unit: str) -> list[Any]:
    kind = parse_type(column)
    one = reading(source, kind, "k", "t", unit=unit)
    sql = (
        f"SELECT {is_sound(source, 'k', 't')} AND {one.fits}, ({one.value})::{duckdb_type(kind)} FROM "
        "(SELECT json_type(j) AS k, json_extract_string(j, '$') AS t FROM (SELECT ?::JSON AS j))"
    )
    found = [_ENGINE.connection.execute(sql, [text]).fetchall()[0] for text in texts]
    return [value if fits else REFUSED for fits, value in found]


def plain(source: str, column: str, text: str, unit: str) -> Any:
    """By exact arithmetic: what docs/pipeline-file.md says."""
    value = json.loads(text)
    if source != "float64" and not (-(2**63) <= value < 2**63 if source == "int64" else 0 <= value < 2**64):
        return REFUSED
    precision = int(column[11]) if column.startswith("DateTime64") else 0
    first, last = (0, seconds(2106, 2, 7, 6, 28, 15)) if column == "DateTime" else (seconds(1900, 1, 1), seconds(2299, 12, 31, 23, 59, 59))
    last = seconds(2262, 4, 11, 23, 47, 15) if precision > 6 else last
    at = Fraction(value) / PER_SECOND[unit]
    if source == "float64":
        if not float(first * PER_SECOND[unit]) <= value <= float(last * PER_SECOND[unit]):
            return REFUSED
        scaled = value * (10**6 // PER_SECOND[unit]) if unit != "ns" else value / 1000
        return Fraction(round(scaled), 10**6) * 10**precision // 1
    return at * 10**precision // 1 if first <= at < last + 1 else REFUSED


EDGES = [seconds(1900, 1, 1), seconds(1970, 1, 1), seconds(2106, 2, 7, 6, 28, 15), seconds(2262, 4, 11, 23, 47, 15), seconds(2300, 1, 1)]
UNITS = st.sampled_from(sorted(PER_SECOND))
COLUMNS = st.sampled_from(["DateTime", *(f"DateTime64({precision})" for precision in range(10))])


@st.composite
def near_an_edge(draw: st.DrawFn) -> tuple[str, int]:
    unit = draw(UNITS)
    return unit, draw(st.sampled_from(EDGES)) * PER_SECOND[unit] + draw(st.integers(-(10**10), 10**10) | st.integers(-3, 3))


@settings(deadline=None, max_examples=100)
@given(near_an_edge(), COLUMNS, st.sampled_from(["int64", "uint64"]))
@example(("ms", 1_769_817_599_123), "DateTime64(3)", "int64")
@example(("ns", 2**63), "DateTime64(3)", "uint64")
def test_an_integer_of_a_unit_is_the_exact_instant(number: tuple[str, int], column: str, source: str) -> None:
    unit, value = number
    wanted = plain(source, column, str(value), unit)
    assert [wanted] == stage(source, column, [str(value)], unit) == reference(source, column, [str(value)], unit)


@settings(deadline=None, max_examples=100)
@given(near_an_edge(), st.floats(-2, 2), COLUMNS)
def test_a_float_of_a_unit_is_the_nearest_microsecond(number: tuple[str, int], part: float, column: str) -> None:
    unit, value = number
    text = repr(float(value) + part)
    assert [plain("float64", column, text, unit)] == stage("float64", column, [text], unit) == reference("float64", column, [text], unit)


@settings(deadline=None, max_examples=100)
@given(near_an_edge(), st.text("0123456789", max_size=9), st.booleans(), COLUMNS)
@example(("us", 1_769_817_599_123_456), "5", False, "DateTime64(9)")
@example(("s", -1), "5", False, "DateTime64(6)")
def test_a_decimal_text_of_a_unit_is_exact(number: tuple[str, int], part: str, is_padded: bool, column: str) -> None:
    unit, value = number
    places = {"s": 9, "ms": 6, "us": 3, "ns": 0}[unit]
    sign, digits, part = "-" * (value < 0), "000" * is_padded + str(abs(value)), part[:places]
    text = json.dumps(f"{sign}{digits}.{part}" if part else f"{sign}{digits}")
    exact = Fraction(Decimal(json.loads(text))) / PER_SECOND[unit]
    precision = int(column[11]) if column.startswith("DateTime64") else 0
    first, last = (0, EDGES[2]) if column == "DateTime" else (EDGES[0], EDGES[3] if precision > 6 else EDGES[4] - 1)
    wanted = exact * 10**precision // 1 if first <= exact < last + 1 else REFUSED
    assert [wanted] == stage("string", column, [text], unit) == reference("string", column, [text], unit)


@pytest.mark.parametrize("text", ['""', '"x"', '"1e3"', '"1."', '".5"', '"+1"', '" 1"', '"1.0000001"', '"--1"', '"0x1"', f'"{"9" * 40}"'])
def test_a_text_that_is_no_number_of_the_unit_has_no_place(text: str) -> None:
    for column in ("DateTime", "DateTime64(3)", "DateTime64(9)"):
        assert [REFUSED] == stage("string", column, [text], "ms") == reference("string", column, [text], "ms")


def test_a_unit_means_nothing_in_a_column_of_no_instant() -> None:
    parsed = parse(_ENGINE, raw_records([b'{"at":1769817599123}']), [ParsedField("at", "int64")])
    targets = [TargetColumn("at", "ms", parse_type("Int64"), False, "ms"), TargetColumn("at", "at", parse_type("DateTime"), False, "ms")]
    row = map_columns(_ENGINE, parsed.accepted, targets).accepted.to_pylist()[0]
    assert (row["ms"], row["at"]) == (1_769_817_599_123, datetime(2026, 1, 30, 23, 59, 59, tzinfo=UTC))


@pytest.mark.parametrize(
    ("source", "text", "unit", "wanted"),
    [
        ("int64", "1769817599123", "ms", 1_769_817_599_123_000),
        ("string", '"1769817599123456789"', "ns", 1_769_817_599_123_456),
        ("float64", "1769817599123.5", "ms", 1_769_817_599_123_500),
        ("int64", "1769817599", "", 1_769_817_599_000_000),
        ("string", '"1970-01-01T00:00:01Z"', "", 1_000_000),
        ("int64", "1769817599123", "s", None),
        ("string", '"1970-01-01T00:00:01Z"', "ms", None),
    ],
)
def test_the_unit_counts_for_the_time_of_a_dedup_window(source: str, text: str, unit: str, wanted: int | None) -> None:
    parsed = parse(_ENGINE, raw_records([f'{{"at":{text}}}'.encode()]), [ParsedField("at", source)])
    timed = with_times(_ENGINE, parsed.accepted, "at", FAR_AHEAD_US, unit)
    assert timed.accepted.column(TIME_COLUMN).to_pylist() == ([] if wanted is None else [wanted])
    assert timed.rejected.column("code").to_pylist() == (["invalid_time"] if wanted is None else [])


DECIMALS = [
    "12.5",
    '"12.50"',
    '"-007.125"',
    "3",
    '"3"',
    "1e2",
    '"1e2"',
    '"x"',
    "true",
    "null",
    '"1.2345"',
    '"99999999999"',
    "1e400",
    "[1]",
    '"\\u0031"',
]


@pytest.mark.parametrize("copies", [1, 200])
def test_a_nested_decimal_may_be_a_text_as_at_the_top(copies: int) -> None:
    wanted = [Decimal("12.500"), Decimal("12.500"), Decimal("-7.125"), 3, 3, 100, *[REFUSED] * 8, 1]
    for source, column, shape in (
        ("array", "Array(Decimal(9, 3))", "[{}]"),
        ("object", "Tuple(d Decimal(9, 3))", '{{"d":{}}}'),
        ("object", "Map(String, Decimal(9, 3))", '{{"d":{}}}'),
    ):
        kind, texts = parse_type(column), [shape.format(text) for text in DECIMALS]
        parsed = parse(_ENGINE, raw_records([f'{{"c":{text}}}'.encode() for text in texts * copies]), [ParsedField("c", source)])
        mapped = map_columns(_ENGINE, parsed.accepted, [TargetColumn("c", "c", kind, False)]).accepted
        found: list[Any] = [REFUSED] * len(texts) * copies
        for ordinal, value in zip(mapped.column("_tf_ordinal").to_pylist(), mapped.column("c").to_pylist(), strict=True):
            found[ordinal] = value["d"] if isinstance(value, dict) else value[0][1] if isinstance(value[0], tuple) else value[0]
        assert found == wanted * copies, column
        reported = [value if value == REFUSED else next(iter(_flat(value))) for value in reference(source, column, texts, "")]
        assert reported == wanted, column


def _flat(value: Any) -> Iterator[Any]:
    """The decimal in a plain form."""
    if isinstance(value, list):
        yield from _flat(value[0])
    elif isinstance(value, dict):
        yield value.get("2", value["1"])
    else:
        yield value
