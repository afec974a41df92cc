"""Decimal texts where a number is asked for, at the top and inside of composites: stage, reference and plain Python agree."""

import json
import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.connectors.sql import statement
from pipelines.process.steps.mapping.columns import TargetColumn, map_columns
from pipelines.process.steps.mapping.convert import integer_bounds
from pipelines.process.steps.parse import parse
from pipelines.proof.verification.plain_form import duckdb_type
from pipelines.proof.verification.values import MACROS, is_sound, reading
from pipelines.protocol.records import OVERSIZE_TYPE, POSITION_FIELDS
from pipelines.types.columns import parse_type
from pipelines.types.duckdb import open_engine
from pipelines.types.fields import ParsedField

REFUSED = "refused"
_ENGINE = open_engine()
INTEGERS = st.sampled_from([f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)])


@pytest.fixture(scope="module", autouse=True)
def _macros() -> Iterator[None]:
    for macro in MACROS:
        _ENGINE.connection.execute(statement(f"reference/{macro}"))
    return


def raw_records(values: list[bytes]) -> pa.Table:
    rows = len(values)
    zeros = pa.array([0] * rows, pa.int64())
    positions = {field.name: zeros.cast(field.type) for field in POSITION_FIELDS if field.name != "_tf_topic"}
    columns = {"value": pa.array(values, pa.binary()), "oversize": pa.nulls(rows, OVERSIZE_TYPE), **positions}
    topic = pa.array(["t"] * rows).dictionary_encode()
    return pa.table({**columns, "_tf_topic": topic, "_tf_ordinal": pa.array(range(rows), pa.uint32())})


def stage(source: str, column: str, values: list[Any]) -> list[Any]:
    """The value of the column, or REFUSED, of each value, all in one batch."""
    records = raw_records([json.dumps({"c": value}).encode() for value in values])
    parsed = parse(_ENGINE, records, [ParsedField("c", source)])
    mapped = map_columns(_ENGINE, parsed.accepted, [TargetColumn("c", "c", parse_type(column), False)]).accepted
    found: list[Any] = [REFUSED] * len(values)
    for ordinal, value in zip(mapped.column("_tf_ordinal").to_pylist(), mapped.column("c").to_pylist(), strict=True):
        found[ordinal] = value
    return found


def reference(source: str, column: str, value: Any) -> Any:
    kind = parse_type(column)
    one = reading(source, kind, "k", "t")
    sql = (
        f"SELECT {is_sound(source, 'k', 't')} AND {one.fits}, ({one.value})::{duckdb_type(kind)} FROM "
        "(SELECT json_type(j) AS k, json_extract_string(j, '$') AS t FROM (SELECT ?::JSON AS j))"
    )
    ((fits, found),) = _ENGINE.connection.execute(sql, [json.dumps(value)]).fetchall()
    return found if fits else REFUSED


def near_a_bound(column: str, offset: int) -> tuple[int, Any]:
    low, high = integer_bounds(column)
    number = (low if offset % 2 else high) + offset
    return number, number if low <= number <= high else REFUSED


@settings(deadline=None, max_examples=60)
@given(INTEGERS, st.integers(-(10**4), 10**4), st.integers(0, 3))
@example("Int64", 1, 50)
def test_a_text_of_an_integer_is_that_integer_or_has_no_place(column: str, offset: int, zeros: int) -> None:
    number, wanted = near_a_bound(column, offset)
    text = f"{'-' * (number < 0)}{'0' * zeros}{abs(number)}"
    assert stage("string", column, [text, "7"]) == [wanted, 7]
    assert reference("string", column, text) == wanted
    (nested,) = stage("array", f"Array({column})", [[text]])
    assert nested == (REFUSED if wanted == REFUSED else [wanted]) == reference("array", f"Array({column})", [text])


@settings(deadline=None, max_examples=60)
@given(st.floats(allow_nan=False, allow_infinity=False), st.booleans())
@example(1e22, False)
@example(1.7976931348623157e308, True)
def test_a_text_of_a_float_is_the_nearest_float(number: float, is_narrow: bool) -> None:
    text = repr(number)
    wanted: Any = number
    if is_narrow:
        try:
            (wanted,) = struct.unpack("<f", struct.pack("<f", number))
        except OverflowError:
            wanted = REFUSED
    column = "Float32" if is_narrow else "Float64"
    assert stage("string", column, [text]) == [wanted] == [reference("string", column, text)]


@pytest.mark.parametrize("text", ["", "-", "+1", " 1", "1 ", "0x1", "1_000", "1,5", "NaN", "inf", "٣", "--1"])
def test_a_text_that_is_no_number_has_no_place(text: str) -> None:
    for column in ("Int64", "UInt8", "Float64"):
        assert stage("string", column, [text, "1"]) == [REFUSED, 1], column
        assert reference("string", column, text) == REFUSED, column


@pytest.mark.parametrize("text", ["1.0", "1e3", "9" * 5000])
def test_an_integer_is_never_made_of_a_fraction_or_cut(text: str) -> None:
    assert stage("string", "Int64", [text]) == [REFUSED] == [reference("string", "Int64", text)]


@pytest.mark.parametrize("text", ["1e999", "-1e999", "9" * 400])
def test_a_text_beyond_all_floats_has_no_place(text: str) -> None:
    assert stage("string", "Float64", [text]) == [REFUSED] == [reference("string", "Float64", text)]


NESTED = [
    {"n": 1, "s": "a"},
    {"n": "2", "s": "b"},
    {"n": "x", "s": "c"},
    {"n": "3", "s": 4},
    {"n": None, "s": "d"},
    {"n": True, "s": "e"},
    {"n": "5"},
]


@pytest.mark.parametrize("copies", [1, 150])
def test_a_member_may_be_a_text_among_others_that_are_numbers(copies: int) -> None:
    wanted = [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}, REFUSED, REFUSED, {"n": None, "s": "d"}, REFUSED, REFUSED]
    column = "Tuple(n Nullable(Int32), s String)"
    assert stage("object", column, NESTED * copies) == wanted * copies
    plain = [REFUSED if one == REFUSED else {"1": one["n"], "2": one["s"].encode()} for one in wanted]
    assert [reference("object", column, value) for value in NESTED] == plain


def test_the_keys_of_an_object_may_be_integers() -> None:
    value = {"-7": 1, "8": "2"}
    assert stage("object", "Map(Int64, Int8)", [value, {"x": 1}]) == [[(-7, 1), (8, 2)], REFUSED]
    assert reference("object", "Map(Int64, Int8)", value) == [{"1": -7, "2": 1}, {"1": 8, "2": 2}]
