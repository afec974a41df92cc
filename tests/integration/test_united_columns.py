"""Columns that a table holds in parts, or whose values are of several types: written, proven and found changed, on a real server."""

import json
from typing import Any

import pytest
from support.dedup_case import keyed_by
from support.pipeline_case import PipelineCase

from pipelines.config import load
from pipelines.proof import put_back as repair
from pipelines.proof.verification.run import Request

pytestmark = pytest.mark.integration

FIELDS = {
    "id": "int",
    "items": "array",
    "payload": "any",
    "reading": "any",
    "shape": "object",
    "embedding": "array",
    "weight": "float",
    "wait": "int",
    "extra": "object",
}
COLUMNS = {
    "id": "Int64",
    "items": "Nested(sku String, count UInt16, tags Array(String))",
    "payload": "Dynamic",
    "reading": "Variant(Array(Float64), Bool, Int64, String)",
    "shape": "Geometry",
    "embedding": "QBit(BFloat16, 3)",
    "weight": "Nullable(BFloat16)",
    "wait": "IntervalSecond",
    "extra": "Map(String, Dynamic)",
}
ITEMS = [{"sku": "a", "count": 2, "tags": ["x"]}, {"count": "3", "sku": "b", "tags": []}]


def record(number: int, **other: Any) -> dict[str, Any]:
    polygon = {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1]]]}
    values = {"items": ITEMS, "payload": number, "reading": "x", "shape": polygon, "embedding": [1, 0.1, -2], "weight": 0.1, "wait": 90}
    return {"id": number, **values, "extra": {"a": 1, "b": "1", "c": [True, None]}, **other}


RECORDS = [
    record(0),
    record(1, items=[], payload="1", reading=[1, 2.5], shape={"type": "Point", "coordinates": [1, 2]}, weight=None),
    record(2, payload=None, reading=None, shape=None, extra={}),
    record(3, payload=[1, 2], reading=True, shape={"type": "LineString", "coordinates": []}, wait=-1),
    record(4, payload=18446744073709551615, reading=7, shape={"type": "MultiPoint", "coordinates": [[1, 2]]}),
    record(5, payload=0.5, reading=[]),
]
REFUSED = {
    "items": (record(6, items=[{"sku": "a", "count": -1, "tags": []}]), "out_of_range"),
    "payload": (record(7, payload=[1, "a"]), "invalid_value"),
    "reading": (record(8, reading=1.5), "invalid_value"),
    "shape": (record(9, shape={"type": "Ring", "coordinates": []}), "invalid_value"),
    "embedding": (record(10, embedding=[1, 2]), "invalid_value"),
    "weight": (record(11, weight=3.4e38), "out_of_range"),
    "wait": (record(12, wait=None), "null_in_non_nullable"),
    "extra": (record(13, extra={"a": {}}), "invalid_value"),
}


def with_types(document: dict[str, Any]) -> None:
    document["sources"][0]["schema_fields"] = [{"name": name, "type": kind} for name, kind in FIELDS.items()]
    document["sink"]["mapping"] = [{"name": name, "column_name": name, "column_type": kind} for name, kind in COLUMNS.items()]


def rows(case: PipelineCase) -> list[dict[str, Any]]:
    """The rows as the server writes them as JSON, each with the types of its values."""
    selected = "id, items, payload, dynamicType(payload) AS of_payload, reading, toString(variantType(reading)) AS of_reading, shape"
    selected += ", toString(variantType(shape)) AS of_shape, embedding, toFloat64(weight) AS weight, toInt64(wait) AS wait, extra"
    settings = "output_format_json_quote_64bit_integers = 0, output_format_json_named_tuples_as_objects = 1"
    answer = case.client().raw_query(f"SELECT {selected} FROM {case.table} ORDER BY id SETTINGS {settings}", fmt="JSONEachRow")
    return [json.loads(line) for line in answer.splitlines()]


def assert_rows(case: PipelineCase) -> None:
    found = rows(case)
    assert [row["items"] for row in found[:2]] == [[{**ITEMS[0]}, {**ITEMS[1], "count": 3}], []]
    payloads = [(0, "Int64"), ("1", "String"), (None, "None"), ([1, 2], "Array(Nullable(Int64))"), (2**64 - 1, "UInt64"), (0.5, "Float64")]
    assert [(row["payload"], row["of_payload"]) for row in found] == payloads
    readings = [("x", "String"), ([1, 2.5], "Array(Float64)"), (None, "None"), (True, "Bool"), (7, "Int64"), ([], "Array(Float64)")]
    assert [(row["reading"], row["of_reading"]) for row in found] == readings
    assert [row["of_shape"] for row in found] == ["Polygon", "Point", "None", "LineString", "MultiPoint", "Polygon"]
    assert [row["shape"] for row in found[:4]] == [[[[0, 0], [1, 0], [1, 1]]], [1, 2], None, []]
    assert [row["weight"] for row in found[:2]] == [0.10009765625, None]
    assert (found[0]["embedding"], found[3]["wait"], found[0]["extra"]) == ([1, 0.100097656, -2], -1, {"a": 1, "b": "1", "c": [True, None]})


def send(case: PipelineCase, records: list[dict[str, Any]]) -> None:
    case.create_topic(1)
    case.send([json.dumps(one).encode() for one in records], partitions=1)


def create(case: PipelineCase, **settings: int) -> None:
    """Makes the table as the file says."""
    ddl = case.invoke("ddl", str(case.file))
    assert ddl.exit_code == 0, ddl.output
    case.client().command(ddl.stdout.strip().rstrip(";"), settings=settings)


def proven(case: PipelineCase) -> dict[str, Any]:
    audit = case.invoke("audit", str(case.file), "--json")
    assert audit.exit_code == 0, audit.output
    verify = case.invoke("verify", str(case.file), "--json")
    assert verify.exit_code == 0, verify.output
    answer: dict[str, Any] = json.loads(verify.stdout)
    assert answer["not_compared"] == []
    return answer


@pytest.mark.parametrize(("way", "flatten_nested"), [("in tasks", 1), ("in the runner", 0)], indirect=["way"])
def test_each_value_is_stored_as_its_type_and_proven(case: PipelineCase, way: None, flatten_nested: int) -> None:
    case.write_file(with_types)
    if not flatten_nested:
        create(case, flatten_nested=0)
    send(case, RECORDS + [refused for refused, _ in REFUSED.values()])
    case.warm_run()
    names = {name for name, _ in case.client().query(f"SELECT name, type FROM system.columns WHERE table = '{case.table}'").result_rows}
    assert ("items.sku" in names, "items" in names) == (bool(flatten_nested), not flatten_nested)
    assert_rows(case)
    letters = {one["field"]: one["code"] for one in case.dead_letters()}
    assert letters == {name: code for name, (_, code) in REFUSED.items()}
    assert proven(case)["counts"]["rows"] == len(RECORDS)


CHANGED = {
    "items": "`items.count` = arrayMap(n -> n + 1, `items.count`)",
    "payload": "payload = toString(payload)::String::Dynamic",
    "reading": "reading = false::Variant(Array(Float64), Bool, Int64, String)",
    "shape": "shape = (1, 2.5)::Point",
    "weight": "weight = 0.1015625",
    "wait": "wait = toIntervalSecond(91)",
    "extra": "extra = mapUpdate(extra, map('a', 1.5::Dynamic))",
}
"""A change of each column."""
SHOWN = {
    "payload": ("Int64 0", "String 0"),
    "reading": ("String x", "Bool false"),
    "shape": ("Polygon [[[{'1': 0.0, '2': 0.0}, {'1': 1.0, '2': 0.0}, {'1': 1.0, '2': 1.0}]]]", "Point [[[{'1': 1.0, '2': 2.5}]]]"),
}


def test_each_changed_value_is_found(case: PipelineCase) -> None:
    case.write_file(with_types)
    send(case, [record(number, payload=0) for number in range(len(CHANGED) + 1)])
    case.warm_run()
    for number, change in enumerate(CHANGED.values()):
        case.client().command(f"ALTER TABLE {case.table} UPDATE {change} WHERE id = {number}", settings={"mutations_sync": 1})
    ended = case.invoke("verify", str(case.file), "--json")
    assert ended.exit_code == 4, ended.output
    findings = json.loads(ended.stdout)["findings"]
    assert sorted((one["column"], one["kind"], one["count"]) for one in findings) == [(name, "different", 1) for name in sorted(CHANGED)]
    examples = {one["column"]: one["examples"][0] for one in findings}
    assert {name: list(CHANGED)[example["offset"]] for name, example in examples.items()} == {name: name for name in CHANGED}
    assert {name: (examples[name]["expected"], examples[name]["found"]) for name in SHOWN} == SHOWN


def test_a_nested_that_gains_a_part_no_longer_fits(case: PipelineCase) -> None:
    case.write_file(with_types)
    create(case)
    case.create_topic(1)
    case.client().command(f"ALTER TABLE {case.table} ADD COLUMN `items.price` Array(Float64)")
    with pytest.raises(Exception, match="column 'items' is Nested\\("):
        case.warm_run()


def test_init_fits_the_records_to_a_table_of_such_columns(case: PipelineCase) -> None:
    """Objects are fields of their own there (`shape.type`), so a column of whole objects is mapped by hand."""
    case.write_file(with_types)
    create(case)
    send(case, RECORDS)
    made = case.invoke("init", str(case.directory / "made.yaml"), "--topic", case.topic, "--table", case.table, "--yes", "--json")
    assert made.exit_code == 0, made.output
    found = {field["name"]: field["column_type"] for field in json.loads(made.stdout)["fields"]}
    names = ("id", "items", "payload", "reading", "embedding", "weight", "wait")
    assert {name: found[name] for name in names} == {name: COLUMNS[name] for name in names}
    text = (case.directory / "made.yaml").read_text()
    assert "{name: payload, type: any}" in text and "{name: reading, type: any}" in text


def test_a_preview_shows_the_values_as_they_are_sent(case: PipelineCase) -> None:
    case.write_file(with_types)
    file = case.directory / "records.ndjson"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in [RECORDS[1], REFUSED["shape"][0]]))
    ended = case.invoke("preview", str(case.file), "--input", str(file), "--json")
    assert ended.exit_code == 0, ended.output
    first, second = (record["steps"][-1] for record in json.loads(ended.stdout))
    row = first["fields"]
    assert (row["payload"], row["reading"], row["shape"]) == ("1", [1.0, 2.5], {"type": "Point", "coordinates": [1.0, 2.0]})
    assert (row["items"], row["embedding"], row["extra"]) == ([], [1.0, 0.10009765625, -2.0], {"a": 1, "b": "1", "c": [True, None]})
    assert second["outcome"] == "rejected" and "column shape (Geometry)" in second["reason"]


@pytest.mark.usefixtures("brief_inserts")
def test_lost_rows_come_back_into_such_columns(case: PipelineCase) -> None:
    case.write_file(with_types)
    send(case, RECORDS)
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE id IN (0, 2, 4) SETTINGS mutations_sync = 2")
    config, log = load(case.file, case.environment()), case.log()
    try:
        found = repair.put_back(config, log, Request(case.names.directory(case.home)))
    finally:
        log.close()
    assert (found.missing, found.rows, found.after.is_clean) == (3, 3, True)
    assert_rows(case)


def test_a_key_of_any_value_keeps_texts_and_numbers_apart(case: PipelineCase) -> None:
    def change(document: dict[str, Any]) -> None:
        with_types(document)
        keyed_by("payload")(document)

    case.write_file(change)
    payloads = [1, "1", 1, "1", [1], [1], "é", "é", 1.5, None]
    send(case, [record(number, payload=payload) for number, payload in enumerate(payloads)])
    case.warm_run()
    assert [row["id"] for row in rows(case)] == [0, 1, 4, 6, 8]
    counts = proven(case)["counts"]
    assert (counts["rows"], counts["copies"], counts["rejected"]) == (5, 4, 1)
