"""`preview`, `test` and `diff` of a function that makes several rows of a record."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipelines.cli.app import app

FILE = """
version: v3
pipeline_id: carts
sources:
  - type: kafka
    topic: carts
    connection_params: {brokers: ["127.0.0.1:1"], protocol: PLAINTEXT}
    schema_fields: [{name: id, type: int}, {name: items, type: array}]
transforms:
  - {type: dedup, config: {key: id, time_window: 1h}}
  - type: python
    config: {function: "own:f", mode: row, rows: many, input: [items], output: [{name: item, type: string}]}
  - {type: filter, config: {expression: "coalesce(item, '') <> 'x'"}}
sink:
  type: clickhouse
  connection_params: {host: localhost, port: 8123}
  table: carts
  mapping:
    - {name: id, column_name: id, column_type: Int64}
    - {name: item, column_name: item, column_type: String}
"""
CODE = "import json\ndef f(record):\n    return [{'item': item} for item in json.loads(record['items'])]\n"
RECORDS = [
    {"id": 1, "items": ["a", "x", "b"]},
    {"id": 1, "items": ["a", "b"]},
    {"id": 2, "items": []},
    {"id": 3, "items": ["x"]},
    {"id": 4, "items": ["c", None]},
    {"id": 5, "items": ["d"]},
]
CASES = """
tests:
  - name: each item is a row
    given: [{value: {id: 1, items: [a, x, b]}}, {value: {id: 2, items: []}}, {value: {id: 1, items: [c]}}]
    expect:
      rows: [{id: 1, item: a}, {id: 1, item: b}]
      ordered: true
      dropped: 1
      duplicates: 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(CODE)
    (tmp_path / "carts.yaml").write_text(FILE)
    (tmp_path / "records").write_text("\n".join(map(json.dumps, RECORDS)))
    return tmp_path / "carts.yaml"


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def test_a_record_is_shown_with_each_of_its_rows(file: Path) -> None:
    shown = invoke("preview", str(file), "--input", str(file.with_name("records")), "--json")
    found = json.loads(shown.stdout)
    assert [one["outcome"] for one in found] == ["row", "duplicate", "dropped", "dropped", "rejected", "row"]
    by_step = {step["step"]: step for step in found[0]["steps"]}
    assert [row["item"] for row in by_step["python"]["rows"]] == ["a", "x", "b"]
    rows = [(row["_tf_emit"], row["item"]) for row in by_step["first of key"]["rows"]]
    assert rows == [(0, "a"), (2, "b")]
    assert by_step["dedup"]["fields"]["id"] == 1
    assert found[5]["steps"][-1]["fields"]["item"] == "d"


def test_rows_of_one_record_have_its_number(file: Path) -> None:
    shown = invoke("preview", str(file), "--input", str(file.with_name("records")))
    assert "3 rows for default.carts:" in shown.stdout
    assert [line.split() for line in shown.stdout.splitlines()[-3:]] == [["1", "1", "a"], ["1", "1", "b"], ["6", "5", "d"]]
    explained = invoke("preview", str(file), "--input", str(file.with_name("records")), "--explain", "1")
    assert '"item": "a"' in explained.stdout.splitlines()[-1]
    assert '"item": "b"' in explained.stdout.splitlines()[-1]


def test_cases_see_each_row(file: Path) -> None:
    cases = file.with_name("carts.tests.yaml")
    cases.write_text(CASES)
    assert invoke("test", str(file)).exit_code == 0
    cases.write_text(CASES.replace("{id: 1, item: b}", "{id: 1, item: c}"))
    assert "missing row" in invoke("test", str(file)).output
    cases.write_text(CASES.partition("    expect:")[0])
    assert invoke("test", str(file), "--record").exit_code == 0
    assert cases.read_text().count("item: ") == 2


def test_an_edit_is_compared_row_by_row(file: Path) -> None:
    edited = file.with_name("new.yaml")
    edited.write_text(FILE.replace("own:f", "new:f"))
    file.with_name("new.py").write_text(CODE.replace("{'item': item}", "{'item': 'B' if item == 'b' else item}"))
    records = str(file.with_name("records"))
    shown = json.loads(invoke("diff", str(file), str(edited), "--input", records, "--json").stdout)
    assert (shown["rows"]["changed"], shown["changed_columns"]) == (1, {"item": 1})
    (change,) = shown["changes"]
    assert change["examples"][0]["values"] == {"item": ["b", "B"]}
    file.with_name("new.py").write_text(CODE.replace("json.loads(record['items'])", "json.loads(record['items'])[:2]"))
    shown = json.loads(invoke("diff", str(file), str(edited), "--input", records, "--json").stdout)
    assert shown["changed_columns"] == {"number of rows": 1}
    file.with_name("new.py").write_text(CODE)
    assert invoke("diff", str(file), str(edited), "--input", records).exit_code == 0
