"""Values that become one of several types, and numbers in narrow forms: stage, reference and plain Python agree."""

import json
import math
import struct
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.connectors.sql import statement
from pipelines.process.steps.mapping.columns import TargetColumn, check_mapping, map_columns
from pipelines.process.steps.mapping.geometry import geojson
from pipelines.process.steps.parse import parse
from pipelines.proof.verification.plain_form import duckdb_type
from pipelines.proof.verification.values import MACROS, is_sound, reading
from pipelines.protocol.records import OVERSIZE_TYPE, POSITION_FIELDS
from pipelines.types.columns import parse_type, value_type
from pipelines.types.duckdb import open_engine
from pipelines.types.fields import ParsedField
from pipelines.types.unions import members_of
from pipelines.types.vectors import one_chunk

REFUSED = "refused"
_ENGINE = open_engine()


@pytest.fixture(scope="module", autouse=True)
def _macros() -> Iterator[None]:
    for macro in MACROS:
        _ENGINE.connection.execute(statement(f"reference/{macro}"))
    return


def mapped(source: str, column: str, texts: list[str]) -> tuple[pa.Table, list[tuple[int, str, str]]]:
    """The rows of JSON texts, and the dead letters: record, code and message."""
    rows = len(texts)
    zeros = pa.array([0] * rows, pa.int64())
    positions = {field.name: zeros.cast(field.type) for field in POSITION_FIELDS if field.name != "_tf_topic"}
    values = pa.array([f'{{"c": {text}}}'.encode() for text in texts], pa.binary())
    topic = pa.array(["t"] * rows).dictionary_encode()
    records = pa.table({"value": values, "oversize": pa.nulls(rows, OVERSIZE_TYPE), **positions, "_tf_topic": topic})
    records = records.set_column(records.schema.names.index("_tf_ordinal"), "_tf_ordinal", pa.array(range(rows), pa.uint32()))
    parsed = parse(_ENGINE, records, [ParsedField("c", source)])
    target = TargetColumn("c", "c", value_type(column), False)
    assert check_mapping([ParsedField("c", source)], [target]) == []
    found = map_columns(_ENGINE, parsed.accepted, [target])
    letters = [(one["_tf_ordinal"], one["code"], one["message"]) for rejected in (parsed, found) for one in rejected.rejected.to_pylist()]
    return found.accepted, letters


def typed(union: pa.UnionArray) -> list[tuple[str, Any] | None]:
    """Each value of a union with the name of its type; None for a null."""
    names = [field.name for field in union.type]
    codes = union.type_codes.to_pylist()
    return [None if value is None else (names[code], value) for code, value in zip(codes, union.to_pylist(), strict=True)]


def stage(column: str, values: list[Any]) -> list[Any]:
    """What becomes of each value in a column of a union, all in one batch."""
    rows, letters = mapped("any", column, [json.dumps(value) for value in values])
    found: list[Any] = [REFUSED] * len(values)
    made = typed(one_chunk(rows.column("c")))
    for ordinal, value in zip(rows.column("_tf_ordinal").to_pylist(), made, strict=True):
        found[ordinal] = value
    assert sorted(ordinal for ordinal, *_ in letters) == [index for index, value in enumerate(found) if value == REFUSED]
    return found


def references(source: str, column: str, texts: list[str]) -> list[Any]:
    """What the reference calls for of each JSON text, in the plain form."""
    fits, found = _ENGINE.select(statement_of(source, column), pa.table({"j": pa.array(texts, pa.string()), "n": range(len(texts))}))
    return [value if fits else REFUSED for fits, value in zip(fits.to_pylist(), found.to_pylist(), strict=True)]


@cache
def statement_of(source: str, column: str) -> str:
    """The engine plans it once, for 100 ms of CPU."""
    kind = value_type(column)
    one = reading(source, kind, "k", "t")
    return (
        f"SELECT k = 'NULL' OR ({is_sound(source, 'k', 't')} AND {one.fits}), ({one.value})::{duckdb_type(kind)} FROM "
        "(SELECT n, json_type(j) AS k, json_extract_string(j, '$') AS t FROM (SELECT j::JSON AS j, n FROM _tf_values)) ORDER BY n"
    )


def reference(source: str, column: str, text: str) -> Any:
    (found,) = references(source, column, [text])
    return found


def references_of_union(column: str, values: list[Any]) -> list[Any]:
    return [_typed_of(column, found) for found in references("any", column, [json.dumps(value) for value in values])]


def _typed_of(column: str, found: Any) -> Any:
    if found in (None, REFUSED):
        return found
    lists = zip(members_of(parse_type(column)), found.values(), strict=True)
    ((member, (one,)),) = [(str(member), values) for member, values in lists if values]
    return member, _texts(one)


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_texts(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def of_dynamic(value: Any) -> Any:
    """What a Dynamic makes of a JSON value, in plain Python."""
    if value is None:
        return None
    if isinstance(value, list):
        kinds = [of_dynamic(item) for item in value if item is not None]
        if any(isinstance(item, list) for item in value) or REFUSED in kinds:
            return REFUSED
        names = {kind[0] for kind in kinds}
        if names <= {"Int64", "UInt64"} and "UInt64" in names:
            names = {"UInt64"} if all(item is None or item >= 0 for item in value) else {REFUSED}
        if names == {"Int64", "Float64"} and all(not isinstance(item, int) or abs(item) < 10**15 for item in value):
            names = {"Float64"}
        name = next(iter(names), "String") if len(names) < 2 else REFUSED
        return REFUSED if name == REFUSED else (f"Array(Nullable({name}))", value)
    if isinstance(value, dict):
        return REFUSED
    if isinstance(value, int) and not isinstance(value, bool):
        return ("Int64", value) if -(2**63) <= value < 2**63 else ("UInt64", value) if 0 < value < 2**64 else REFUSED
    return {bool: "Bool", str: "String", float: "Float64"}[type(value)], value


SCALARS = st.one_of(
    *(
        st.none(),
        st.booleans(),
        st.integers(-(2**66), 2**66),
        st.integers(-9, 9),
        st.text(max_size=4),
        st.sampled_from(["7", "1.5", '"', "["]),
    ),
    *(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([10**14, 10**15, 2**53 + 1, 2**63, 2**64 - 1, -(2**63), 0.5])),
)
ANY = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.lists(st.lists(SCALARS, max_size=2), max_size=2),
    st.dictionaries(st.text(max_size=2), SCALARS),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(ANY, min_size=1, max_size=6))
@example([[], [None], [1, "2"], ["2", None], [1, 2.5], [2**53 + 1, 0.5], [1, 2**63], [-1, 2**63], {"a": 1}, [[1]], 2**64, "", "null", None])
def test_a_dynamic_keeps_a_value_as_its_own_type_or_refuses_it(values: list[Any]) -> None:
    wanted = [of_dynamic(value) for value in values]
    assert stage("Dynamic", values) == wanted
    assert references_of_union("Dynamic", values) == wanted


VARIANT = "Variant(Array(Array(Int8)), Array(Nullable(Float32)), Array(String), Bool, Float64, UInt8)"
OF_VARIANT = [
    *((7, ("UInt8", 7)), (300, ("Float64", 300.0)), (-1, ("Float64", -1.0)), (0.1, ("Float64", 0.1)), (True, ("Bool", True))),
    *((10**15, REFUSED), ("7", REFUSED), ("x", REFUSED), ({"a": 1}, REFUSED), (None, None), ([], ("Array(String)", []))),
    *((["7"], ("Array(String)", ["7"])), ([7, None], ("Array(Nullable(Float32))", [7.0, None])), ([1, "2"], REFUSED)),
    *(([12345678], REFUSED), ([[1], []], ("Array(Array(Int8))", [[1], []])), ([[1], [300]], REFUSED), ([["a"]], REFUSED)),
]


def test_a_variant_takes_a_value_as_the_first_type_that_keeps_it() -> None:
    values = [value for value, _ in OF_VARIANT]
    wanted = [found for _, found in OF_VARIANT]
    assert stage(VARIANT, values) == wanted
    assert references_of_union(VARIANT, values) == wanted


@settings(deadline=None, max_examples=25)
@given(
    st.lists(ANY, min_size=1, max_size=5),
    st.sampled_from([VARIANT, "Variant(Int64, UInt64)", "Variant(Array(Array(Nullable(String))), String)"]),
)
def test_stage_and_reference_of_a_variant_agree(values: list[Any], column: str) -> None:
    assert stage(column, values) == references_of_union(column, values)


def test_a_refused_value_of_a_union_is_named_by_its_column() -> None:
    _, letters = mapped("any", "Variant(Int64, Bool)", ['"secret"', "1"])
    assert letters == [(0, "invalid_value", "column c (Variant(Bool, Int64)): none of its types takes the value unchanged")]


def test_unions_stand_inside_of_composites() -> None:
    value = {"a": [1, "x", None], "b": {"k": 1.5}}
    rows, letters = mapped(
        "object", "Tuple(a Array(Dynamic), b Map(String, Variant(Float64, String)))", [json.dumps(value), '{"a": [{}], "b": {}}']
    )
    assert rows.column("c").to_pylist() == [{"a": [1, "x", None], "b": [("k", 1.5)]}]
    assert [(ordinal, code) for ordinal, code, _ in letters] == [(1, "invalid_value")]


def test_any_value_becomes_its_json_text() -> None:
    texts = ['"é"', "1.5", "true", "[1, {}]", '{"b": 1}', "null", "1e400", "12345678901234567890123"]
    rows, letters = mapped("any", "Nullable(String)", texts)
    assert rows.column("c").to_pylist() == ['"é"', "1.5", "true", "[1,{}]", '{"b":1}', None, "12345678901234567890123"]
    assert letters == [(6, "out_of_range", "a number inside is not finite")]
    assert [reference("any", "Nullable(String)", text) for text in texts[:5]] == [b'"\xc3\xa9"', b"1.5", b"true", b"[1,{}]", b'{"b":1}']
    assert reference("any", "Nullable(String)", "1e400") == REFUSED


RING = [[0, 0], [1.5, 0], [1, 1]]
GEOMETRIES = [
    {"type": "Point", "coordinates": [13.4, -52]},
    {"type": "LineString", "coordinates": RING, "bbox": [0, 0, 1, 1]},
    {"coordinates": [], "type": "LineString"},
    {"type": "MultiPoint", "coordinates": RING},
    {"type": "MultiPoint", "coordinates": []},
    {"type": "Polygon", "coordinates": [RING, RING[:2]]},
    {"type": "Polygon", "coordinates": [[]]},
    {"type": "MultiLineString", "coordinates": [RING, [], RING[:1]]},
    {"type": "MultiPolygon", "coordinates": [[RING], [RING, RING]]},
    {"type": "MultiPolygon", "coordinates": []},
]
NO_GEOMETRIES = [
    {"type": "Polygon", "coordinates": []},
    {"type": "MultiPolygon", "coordinates": [[RING], []]},
    {"type": "Point", "coordinates": [1, 2, 3]},
    {"type": "Point", "coordinates": [1, None]},
    {"type": "Point", "coordinates": [[1, 2]]},
    {"type": "LineString", "coordinates": [1, 2]},
    {"type": "Ring", "coordinates": RING},
    {"type": "GeometryCollection", "geometries": []},
    {"type": "Point"},
    {"type": 1, "coordinates": [1, 2]},
    {"type": "Point", "coordinates": {}},
    {"coordinates": [1, 2]},
    {},
]


def test_geometries_of_all_shapes_in_one_batch_become_wkb() -> None:
    rows, letters = mapped("object", "Geometry", [json.dumps(one) for one in GEOMETRIES + NO_GEOMETRIES] + ["null"])
    made = rows.column("c").to_pylist()
    wanted = [{"type": one["type"], "coordinates": one["coordinates"]} for one in GEOMETRIES]
    assert [geojson(one) for one in made[:-1]] == wanted and made[-1] is None
    assert [ordinal for ordinal, *_ in sorted(letters)] == [len(GEOMETRIES) + index for index in range(len(NO_GEOMETRIES))]
    assert made[0] == struct.pack("<BI2d", 1, 1, 13.4, -52)
    assert made[5] == struct.pack("<BIII6dI4d", 1, 3, 2, 3, 0, 0, 1.5, 0, 1, 1, 2, 0, 0, 1.5, 0)


def test_the_reference_knows_the_same_geometries() -> None:
    for one in GEOMETRIES:
        found = reference("object", "Geometry", json.dumps(one))
        depth = {"Point": 3, "LineString": 2, "MultiPoint": 2, "MultiPolygon": 0}.get(one["type"], 1)
        wanted = one["coordinates"]
        for _ in range(depth):
            wanted = [wanted]
        assert found["1"] == one["type"].encode()
        assert [[[[*point.values()] for point in ring] for ring in polygon] for polygon in found["2"]] == wanted, one
    for one in NO_GEOMETRIES:
        assert reference("object", "Geometry", json.dumps(one)) == REFUSED, one


def test_a_geometry_with_a_key_twice_is_refused() -> None:
    text = '{"type": "Point", "type": "Point", "coordinates": [1, 2]}'
    assert len(mapped("object", "Geometry", [text])[1]) == 1
    assert reference("object", "Geometry", text) == REFUSED


def nearest_bfloat16(number: float) -> Any:
    """The nearer of the two BFloat16 around a number, of two equally near ones the even one: by exact fractions."""
    if not number:
        return number
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", number))
    except OverflowError:
        return REFUSED
    around = [
        (bits >> 16) + step for step in (-1, 0, 1) if (bits >> 16) + step >= 0 and ((bits >> 16) + step) & 0x8000 == bits >> 16 & 0x8000
    ]
    values = [(struct.unpack("<f", struct.pack("<I", one << 16))[0], one) for one in around]
    exact = [
        (Fraction(value) if math.isfinite(value) else Fraction(2) ** 128 * (1 if value > 0 else -1), value, one) for value, one in values
    ]
    return min((abs(Fraction(number) - fraction), one & 1, value) for fraction, value, one in exact)[2]


@settings(deadline=None, max_examples=60)
@given(st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.floats(width=32, allow_nan=False, allow_infinity=False)))
@example(1.00390625)
@example(1.01171875)
@example(3.3961775292304601e38)
@example(3.39e38)
@example(1e-40)
@example(4.6e-41)
@example(-0.0)
@example(65280.00000000001)
def test_a_bfloat16_is_the_nearest(number: float) -> None:
    wanted = nearest_bfloat16(number)
    wanted = REFUSED if wanted != REFUSED and math.isinf(wanted) else wanted
    for source, text in (("float", repr(number)), ("string", json.dumps(repr(number)))):
        rows, letters = mapped(source, "BFloat16", [text])
        found = rows.column("c").to_pylist() or [REFUSED]
        assert repr(found) == repr([wanted]), source
        assert repr(reference(source, "BFloat16", text)) == repr(wanted), source
        assert [code for _, code, _ in letters] == (["out_of_range"] if wanted == REFUSED else [])


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        *(("[1, 0.5, -2]", [1, 0.5, -2]), ("[1, 2]", REFUSED), ("[1, 2, 3, 4]", REFUSED), ("[]", REFUSED), ("[1, 2, null]", REFUSED)),
        *(('["1", 2, 3]', [1, 2, 3]), ("[1e39, 0, 0]", REFUSED), ("null", REFUSED)),
    ],
)
def test_a_vector_has_as_many_numbers_as_its_column(text: str, wanted: Any) -> None:
    rows, letters = mapped("array", "QBit(Float32, 3)", [text, "[7, 7, 7]"])
    assert rows.column("c").to_pylist() == [*([wanted] if wanted != REFUSED else []), [7, 7, 7]]
    assert len(letters) == (wanted == REFUSED)
    if text != "null":
        assert reference("array", "QBit(Float32, 3)", text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"), [("-5", -5), ("9223372036854775807", 2**63 - 1), ('"90"', 90), ('"9223372036854775808"', REFUSED)]
)
def test_an_interval_is_a_whole_number_of_its_unit(text: str, wanted: Any) -> None:
    source = "string" if text.startswith('"') else "int"
    rows, letters = mapped(source, "IntervalDay", [text])
    assert (rows.column("c").to_pylist() or [REFUSED]) == [wanted] == [reference(source, "IntervalDay", text)]
    assert [code for _, code, _ in letters] == (["out_of_range"] if wanted == REFUSED else [])
