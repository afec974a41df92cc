"""parse: each rule with literal records, and both of its ways (library, engine) against plain Python."""

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.engines import stage_engine
from support.native import build_library, without_library

from pipelines.process.steps.parse import json_reader as reader_module
from pipelines.process.steps.parse import parse
from pipelines.protocol.records import (
    HEADERS_TYPE,
    INSTANT,
    MAX_RECORD_BYTES,
    OVERSIZE_TYPE,
    POSITION_FIELDS,
    REJECTED_SCHEMA,
    UNREADABLE_HEADER,
    StageOutput,
)
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine
from pipelines.types.fields import JSON_TYPES, ParsedField, check_fields

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
_ENGINE = stage_engine()


@pytest.fixture(params=["library", "engine"], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every rule holds with the native library and without."""
    if request.param == "library":
        build_library()
        reader_module.reader_of.cache_clear()
        yield
    else:
        with without_library():
            yield


@pytest.fixture
def engine() -> Iterator[Engine]:
    with open_engine() as opened:
        yield opened


def raw_records(values: list[bytes | None], oversize: list[dict[str, Any] | None] | None = None) -> pa.Table:
    rows = len(values)
    return pa.table(
        {
            "key": pa.array([b"k"] * rows, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array([[(b"h", b"v")]] * rows, HEADERS_TYPE),
            "timestamp": pa.array([NOON] * rows, INSTANT),
            "oversize": pa.array(oversize or [None] * rows, OVERSIZE_TYPE),
            "_tf_sequence": pa.array([9] * rows, pa.uint64()),
            "_tf_ordinal": pa.array(range(rows), pa.uint32()),
            "_tf_topic": pa.array(["orders"] * rows, pa.string()).dictionary_encode(),
            "_tf_partition": pa.array([0] * rows, pa.int32()),
            "_tf_offset": pa.array(range(rows), pa.int64()),
            "_tf_arrival": pa.array([NOON] * rows, INSTANT),
        }
    )


def run(values: list[bytes | None], **fields: str) -> StageOutput:
    return parse(_ENGINE, raw_records(values), [ParsedField(name, kind) for name, kind in fields.items()])


def one(text: str | bytes, kind: str, name: str = "a") -> Any:
    """The value of field `name` in one record, or (code, message) of its rejection."""
    output = parse(_ENGINE, raw_records([text if isinstance(text, bytes) else text.encode()]), [ParsedField(name, kind)])
    assert output.accepted.num_rows + output.rejected.num_rows == 1
    if output.rejected.num_rows:
        row = output.rejected.to_pylist()[0]
        return row["code"], row["message"]
    return output.accepted[name][0].as_py()


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", '"x"', "x"),
        ("string", '""', ""),
        ("string", '"a\\u0000b"', "a\0b"),
        ("string", '"\\ud83d\\ude00é\\/"', "😀é/"),
        ("bytes", '"é"', "é".encode()),
        ("int8", "-128", -128),
        ("int8", "127", 127),
        ("int16", "-32768", -32768),
        ("int32", "2147483647", 2147483647),
        ("int64", "9223372036854775807", 2**63 - 1),
        ("int64", "-9223372036854775808", -(2**63)),
        ("int", "9007199254740993", 2**53 + 1),
        ("int", "-0", 0),
        ("uint8", "255", 255),
        ("uint16", "65535", 65535),
        ("uint32", "4294967295", 2**32 - 1),
        ("uint64", "18446744073709551615", 2**64 - 1),
        ("uint", "0", 0),
        ("float", "1", 1.0),
        ("float64", "0.1", 0.1),
        ("float64", "18446744073709551616", 2.0**64),
        ("float64", "1e308", 1e308),
        ("float32", "0.5", 0.5),
        ("bool", "true", True),
        ("bool", "false", False),
        ("array", '[1, {"b": "é"}, null]', '[1,{"b":"é"},null]'),
        ("array", '["nan", ":inf"]', '["nan",":inf"]'),
        ("array", '[1e308,1e-400,"1e400",":1e400"]', '[1e308,0.0,"1e400",":1e400"]'),
        ("array", f"[{'9' * 300}e-0400]", "[1e-100]"),
        ("object", '{"z": 1, "a": [ ]}', '{"z":1,"a":[]}'),
        ("map", "{}", "{}"),
    ],
)
def test_value_is_read_as_its_type(kind: str, text: str, value: Any) -> None:
    assert one(f'{{"a":{text}}}', kind) == value
    assert run([f'{{"a":{text}}}'.encode()], a=kind).accepted["a"].type == JSON_TYPES[kind].arrow


def test_negative_zero_keeps_its_sign() -> None:
    assert math.copysign(1, one('{"a":-0.0}', "float64")) == -1


@pytest.mark.parametrize("kind", sorted(JSON_TYPES))
def test_absent_and_null_are_null(kind: str) -> None:
    assert one("{}", kind) is None
    assert one('{"a":null}', kind) is None


@pytest.mark.parametrize(
    ("kind", "text", "found"),
    [
        ("int64", '"1"', "a string"),
        ("int64", "1.0", "a number"),
        ("int64", "1e2", "a number"),
        ("int64", "true", "a boolean"),
        ("uint8", "[1]", "an array"),
        ("float64", '"1"', "a string"),
        ("float32", "false", "a boolean"),
        ("bool", "1", "an integer"),
        ("bool", '"true"', "a string"),
        ("string", "5", "an integer"),
        ("string", "1.5", "a number"),
        ("string", "true", "a boolean"),
        ("string", "{}", "an object"),
        ("bytes", "[]", "an array"),
        ("array", "{}", "an object"),
        ("array", '"[]"', "a string"),
        ("object", "[]", "an array"),
        ("map", "-1", "an integer"),
    ],
)
def test_other_json_type_is_rejected(kind: str, text: str, found: str) -> None:
    assert one(f'{{"a":{text}}}', kind) == ("wrong_type", f"expected {kind}, found {found}")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int8", "128"),
        ("int8", "-129"),
        ("int16", "32768"),
        ("int32", "-2147483649"),
        ("int64", "9223372036854775808"),
        ("int64", "-9223372036854775809"),
        ("int64", "1" * 1_000),
        ("uint64", "18446744073709551616"),
        ("uint8", "256"),
        ("uint64", "-1"),
        ("float64", "1e400"),
        ("float64", "-1e400"),
        ("float64", "NaN"),
        ("float64", "1" * 400),
        ("float32", "1e39"),
        ("float32", "Infinity"),
        ("int64", "NaN"),
        ("array", "[1,NaN]"),
        ("object", '{"x":-Infinity}'),
        ("array", "[1e400]"),
        ("array", '["1e5",[-1.5E+0400]]'),
        ("array", f"[{'9' * 400}]"),
        ("array", f"[{'9' * 250}e99]"),
        ("object", '{"x":{"y":1e309}}'),
        ("map", '{"x":1e400}'),
    ],
)
def test_number_that_does_not_fit_is_rejected(kind: str, text: str) -> None:
    assert one(f'{{"a":{text}}}', kind)[0] == "out_of_range"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "the value is not JSON"),
        (b"{", "the value is not JSON"),
        (b'{"a":1}x', "the value is not JSON"),
        (b'{"a":01}', "the value is not JSON"),
        (b"{'a':1}", "the value is not JSON"),
        (b'{"a":"\x01"}', "the value is not JSON"),
        (b'{"a":"\\ud800"}', "the value is not JSON"),
        (b'\xef\xbb\xbf{"a":1}', "the value is not JSON"),
        (b'{"a":"\xff"}', "the value is not UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "the value is not UTF-8"),
        (b"[]", "the value is JSON but not an object"),
        (b" null", "the value is JSON but not an object"),
        (b"5", "the value is JSON but not an object"),
        (b'"{"', "the value is JSON but not an object"),
        (b'{"a":1,"a":1}', "a key stands twice"),
        (b'{"a":1,"x":1,"x":2}', "a key stands twice"),
        (b'{"a":1,"\\u0061":1}', "a key stands twice"),
    ],
)
def test_what_is_no_json_object_is_rejected(value: bytes, message: str) -> None:
    assert one(value, "int64") == ("invalid_json", message)


def test_tombstone_and_oversize_are_rejected_with_their_reason() -> None:
    records = raw_records([None, b'{"a":', b'{"a":1}'], [None, {"bytes": 9_000_000, "sha256": b"s"}, None])
    output = parse(_ENGINE, records, [ParsedField("a", "int64")])
    assert output.accepted["a"].to_pylist() == [1]
    assert [(row["_tf_ordinal"], row["code"], row["message"]) for row in output.rejected.to_pylist()] == [
        (0, "tombstone", "the value is null"),
        (1, "oversize", f"the record has 9000000 bytes, more than the limit of {MAX_RECORD_BYTES}"),
    ]


def test_a_record_that_the_client_could_not_give_says_so() -> None:
    records = raw_records([b'{"a":1}', b'{"a":2}'], [None, {"bytes": 7, "sha256": b"s"}])
    headers = pa.array([[(b"h", b"v")], [(UNREADABLE_HEADER, b"SystemError")]], HEADERS_TYPE)
    output = parse(_ENGINE, records.set_column(2, "headers", headers), [ParsedField("a", "int64")])
    assert output.accepted["a"].to_pylist() == [1]
    assert [(row["_tf_ordinal"], row["code"]) for row in output.rejected.to_pylist()] == [(1, "unreadable")]
    assert "SystemError" in output.rejected["message"][0].as_py()


def test_rejected_rows_name_position_and_field_but_no_value() -> None:
    output = run([b'{"a":1,"b":"s3cret"}', b'{"a":1,"b":2}'], a="int64", b="int64")
    assert output.rejected.schema == REJECTED_SCHEMA
    assert output.rejected.to_pylist() == [
        {
            "_tf_sequence": 9,
            "_tf_ordinal": 0,
            "stage": "parse",
            "code": "wrong_type",
            "field": "b",
            "message": "expected int64, found a string",
        }
    ]


def test_first_field_that_fails_gives_the_reason() -> None:
    output = run([b'{"b":"x","a":300}'], a="int8", b="int64")
    assert (output.rejected["field"][0].as_py(), output.rejected["code"][0].as_py()) == ("a", "out_of_range")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"u.id":1,"u":{"id":2}}', 1),
        ('{"u.id":null,"u":{"id":2}}', 2),
        ('{"u":{"id":2}}', 2),
        ('{"u":{}}', None),
        ('{"u":5}', None),
        ('{"u":[{"id":2}]}', None),
        ('{"u.id":"x","u":{"id":2}}', ("wrong_type", "expected int8, found a string")),
        ('{"u.id":300,"u":{"id":2}}', ("out_of_range", "the number does not fit int8")),
        ('{"u":{"id":300}}', ("out_of_range", "the number does not fit int8")),
        ('{"u":{"id":1,"id":1}}', ("invalid_json", "a key stands twice in 'u'")),
    ],
)
def test_dotted_name_is_the_literal_key_or_else_the_nested_one(text: str, value: Any) -> None:
    assert one(text, "int8", "u.id") == value


def test_names_that_differ_in_case_or_nest_are_all_read() -> None:
    value = b'{"id":1,"ID":2,"u":{"a":{"b":3}},"it\'s":4,"\xc3\xa9":5,"x y":6,"0":7,"$":8}'
    fields = {
        "id": "int64",
        "ID": "int64",
        "u": "object",
        "u.a.b": "int64",
        "it's": "int64",
        "é": "int64",
        "x y": "int64",
        "0": "int64",
        "$": "int64",
    }
    row = run([value], **fields).accepted.select(list(fields)).to_pylist()[0]
    assert list(row.values()) == [1, 2, '{"a":{"b":3}}', 3, 4, 5, 6, 7, 8]


def test_deep_and_long_values_do_no_harm() -> None:
    deep = b'{"a":' + b"[" * 500_000 + b"]" * 500_000 + b"}"
    assert one(deep, "int64") == ("wrong_type", "expected int64, found an array")
    assert one(deep, "array") == deep[5:-1].decode()
    assert one(b'{"x":' * 300_000 + b"1" + b"}" * 300_000, "int64") is None
    assert one(b'{"a":' + b"7" * 1_000_000 + b"}", "int64")[0] == "out_of_range"
    assert one(b'{"a":' + b"[" * 1_000_000, "int64") == ("invalid_json", "the value is not JSON")


def test_kept_and_position_columns_are_passed_on_untouched() -> None:
    records = raw_records([b"{}", b"{}"])
    accepted = parse(_ENGINE, records, [ParsedField("a", "int8")], keep=("key", "headers", "timestamp")).accepted
    assert accepted.column_names == ["a", *(field.name for field in POSITION_FIELDS), "_tf_key", "_tf_headers", "_tf_timestamp"]
    assert accepted["_tf_key"].chunk(0).buffers()[2].address == records["key"].chunk(0).buffers()[2].address
    assert accepted["_tf_headers"].to_pylist() == records["headers"].to_pylist()


def test_streams_with_ever_new_keys_are_read_right() -> None:
    for batch in range(4):
        values = [b'{"a":1,"k%d":1%s}' % (batch * 6000 + i, b',"a":2' if i % 1000 == 999 else b"") for i in range(6000)]
        output = run([b'{"a":1,"k0":1}', *values], a="int8")
        assert (output.accepted.num_rows, output.rejected["code"].to_pylist()) == (5995, ["invalid_json"] * 6)


def test_no_rows_and_no_fields_are_fine() -> None:
    assert run([], a="int8").accepted.num_rows == 0
    output = run([b"{}", b"["])
    assert (output.accepted.num_rows, output.rejected.num_rows) == (1, 1)


def test_fields_that_cannot_be_read_are_told_at_once() -> None:
    fields = [
        ParsedField("a", "date"),
        ParsedField('q"', "int8"),
        ParsedField("_tf_x", "int8"),
        ParsedField("b", "int8"),
        ParsedField("b", "int8"),
    ]
    assert len(check_fields(fields)) == 4
    with pytest.raises(ValueError, match="unknown type 'date'"):
        run([b"{}"], a="date")


ORDER_FIELDS = [
    ParsedField("id", "int64"),
    ParsedField("small", "int8"),
    ParsedField("price", "float64"),
    ParsedField("name", "string"),
    ParsedField("ok", "bool"),
    ParsedField("user.id", "uint64"),
    ParsedField("tags", "array"),
    ParsedField("meta", "object"),
]


def order(index: int, **changes: Any) -> dict[str, Any]:
    order = {"id": index, "small": index % 90, "price": index / 4, "name": f"n{index}", "ok": index % 2 == 0, "noise": [index]}
    return order | {"user": {"id": index, "x": "y"}, "tags": ["a", index], "meta": {"k": index}} | changes


def test_a_mixed_batch_and_its_records_alone_agree() -> None:
    odd = [
        b"{", b"[]", None, b"{}", b'{"id":1,"id":2}', b'{"id":"1"}', b'{"id":1.0}', b'{"id":1,}', b'{"small":300}', b'{"price":1e400}',
        b'{"price":NaN}', b'{"name":"\\ud800"}', b'{"name":"\\u00e9\\n\\ud83d\\ude00"}', b' {"id" : 1 , "small" : -0 } ', b'{"id":01}',
        b'{"user":{"id":1,"id":1}}', b'{"user":null}', b'{"user":{"x":1,"id":2}}', b'{"user.id":7,"user":{"id":8}}', b'{"meta":{"k":NaN}}',
        b'{"noise":NaN,"id":1}', b'{"noise":1,"noise":1}', b'{"small":1,"id":2}', b'{"id":123456789012345678901234567890}', b'{"ok":null}',
        b'{"id":1}}', b'{"id":1} {"id":2}', b'{"id":1,"small":2', b'{"id":9223372036854775807}', b'{"name":"\x01"}', b'{"tags":{}}',
        b'{"tags":[1e400]}', b'{"meta":{"k":-1e400}}', b'{"noise":[1e400],"id":1}', b'{"tags":["1e400"]}',
    ]  # fmt: skip
    values = [value for number, strange in enumerate(odd) for value in (json.dumps(order(number)).encode(), strange)]
    together = parse(_ENGINE, raw_records(values), ORDER_FIELDS)
    alone = [parse(_ENGINE, raw_records([value]), ORDER_FIELDS) for value in values]
    fields, reasons = [field.name for field in ORDER_FIELDS], ["code", "field", "message"]
    assert together.accepted.select(fields).to_pylist() == pa.concat_tables([one.accepted for one in alone]).select(fields).to_pylist()
    assert together.rejected.select(reasons).to_pylist() == pa.concat_tables([one.rejected for one in alone]).select(reasons).to_pylist()
    assert 20 < together.rejected.num_rows < len(odd)


def test_a_non_finite_number_is_found_in_a_large_batch_too() -> None:
    values = [json.dumps(order(i)).encode() for i in range(2000)]
    values[7] = json.dumps(order(7, tags=[1])).encode().replace(b"[1]", b"[1e400]")
    values[8] = json.dumps(order(8, meta={"k": 1})).encode().replace(b'{"k": 1}', b'{"k": 1e400}')
    values[9] = json.dumps(order(9, noise=[1])).encode().replace(b"[1]", b"[1e400]")
    rejected = parse(_ENGINE, raw_records(values), ORDER_FIELDS).rejected
    assert rejected.select(["_tf_ordinal", "code", "field"]).to_pylist() == [
        {"_tf_ordinal": 7, "code": "out_of_range", "field": "tags"},
        {"_tf_ordinal": 8, "code": "out_of_range", "field": "meta"},
    ]


def test_objects_of_very_many_members_are_read() -> None:
    wide = {f"m{number}": number for number in range(1_101)}
    values = [json.dumps({"c": {"id": row, **wide}}).encode() if row % 12 == 0 else b'{"c":{"id":%d}}' % row for row in range(600)]
    accepted = parse(_ENGINE, raw_records(values), [ParsedField("c.id", "int64")]).accepted
    assert accepted["c.id"].to_pylist() == list(range(600))


KEYS = ["a", "b", "c", "d.e", "zz"]
NUMBERS = st.sampled_from(
    [0, -1, 127, 128, -129, 255, 256, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64 - 1, 2**64, 0.5, -0.0, 1e39, 1e300]
)
SCALARS = (
    st.none() | st.booleans() | NUMBERS | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5).filter(str.isprintable)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["e", "x"]), inner, max_size=2), max_leaves=4
)
OBJECTS = st.dictionaries(st.sampled_from([*KEYS, "d"]), VALUES, max_size=6)
FIELDS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(sorted(JSON_TYPES))), min_size=1, max_size=4, unique_by=lambda pair: pair[0]
)
RANGES = {f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)} | {
    f"uint{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)
}
RANGES |= {"int": RANGES["int64"], "uint": RANGES["uint64"]}


def oracle(text: str, fields: list[tuple[str, str]]) -> list[Any] | tuple[str, str]:
    """The values of one record, or (code, field): json.loads and the rules, spelled out."""
    document = json.loads(text)
    values = []
    for name, kind in fields:
        value = document.get(name)
        if value is None and "." in name:
            outer, inner = name.split(".")
            value = document.get(outer, {}).get(inner) if isinstance(document.get(outer), dict) else None
        if value is None:
            values.append(None)
            continue
        right: dict[str, Any] = {"string": str, "bytes": str, "bool": bool, "array": list, "object": dict, "map": dict, "any": object}
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if kind in right:
            if not isinstance(value, right[kind]):
                return "wrong_type", name
        elif kind == "decimal":
            if not is_number and not isinstance(value, str):
                return "wrong_type", name
        elif kind.startswith("float"):
            if not is_number:
                return "wrong_type", name
            if kind == "float32" and abs(value) >= 3.4028235677973366e38:
                return "out_of_range", name
            value = float(pa.scalar(float(value), pa.float32()).as_py()) if kind == "float32" else float(value)
        else:
            if not is_number or isinstance(value, float):
                return "wrong_type", name
            if not RANGES[kind][0] <= value <= RANGES[kind][1]:
                return "out_of_range", name
        values.append(value.encode() if kind == "bytes" else value)
    return values


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(objects=st.lists(OBJECTS, min_size=1, max_size=8), pairs=FIELDS)
def test_parse_agrees_with_plain_python(objects: list[dict[str, Any]], pairs: list[tuple[str, str]]) -> None:
    reader_module.reader_of.cache_clear()
    texts = [json.dumps(value, ensure_ascii=index % 2 == 0) for index, value in enumerate(objects)]
    output = parse(_ENGINE, raw_records([text.encode() for text in texts]), [ParsedField(*pair) for pair in pairs])
    accepted = {row["_tf_ordinal"]: row for row in output.accepted.to_pylist()}
    rejected = {row["_tf_ordinal"]: (row["code"], row["field"]) for row in output.rejected.to_pylist()}
    for index, text in enumerate(texts):
        expected = oracle(text, pairs)
        if isinstance(expected, tuple):
            assert rejected.get(index) == expected
            continue
        row = accepted[index]
        found = [json.loads(row[name]) if JSON_TYPES[kind].is_json_text and row[name] else row[name] for name, kind in pairs]
        assert repr(found) == repr(expected)
