"""`tallyflow diff`: what an edit changes of literal records, and what is said of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipelines.cli.app import app

FILE = """
version: v3
pipeline_id: clicks
sources:
  - type: kafka
    topic: clicks
    connection_params: {brokers: ["${BROKERS}"], protocol: PLAINTEXT}
    schema_fields: [{name: id, type: int}, {name: name, type: string}, {name: tags, type: array}]
transforms:
  - {type: filter, config: {expression: id < 90}}
  - {type: dedup, config: {key: id, time_window: 1h}}
sink:
  type: clickhouse
  connection_params: {host: "${HOST}", port: 8123}
  table: clicks
  mapping:
    - {name: id, column_name: id, column_type: Int64}
    - {name: name, column_name: name, column_type: Nullable(String)}
    - {name: tags, column_name: tags, column_type: "Array(Nullable(Int64))"}
"""
ROW = "default.clicks"
RECORDS = [
    {"id": 1, "name": "a", "tags": [1]},
    {"id": 1, "name": "A", "tags": [1]},
    {"id": 2, "name": None, "tags": []},
    {"id": 95, "name": "b", "tags": [3]},
    {"id": 3, "name": "c", "tags": ["x"]},
    "{",
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "old.yaml").write_text(FILE)
    (tmp_path / "sample.ndjson").write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in RECORDS))
    return tmp_path


def run(directory: Path, *edits: tuple[str, str], arguments: tuple[str, ...] = ()) -> Any:
    text = FILE
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (directory / "new.yaml").write_text(text)
    files = [str(directory / name) for name in ("old.yaml", "new.yaml")]
    return CliRunner().invoke(app, ["diff", *files, "--input", str(directory / "sample.ndjson"), *arguments])


def found(directory: Path, *edits: tuple[str, str]) -> dict[str, Any]:
    shown = run(directory, *edits, arguments=("--json", "--examples", "9"))
    document: dict[str, Any] = json.loads(shown.stdout)
    assert shown.exit_code == (0 if document["is_same"] else 1)
    return document


def test_the_same_program_makes_no_difference(directory: Path) -> None:
    document = found(directory, ("pipeline_id: clicks", "pipeline_id: other"))
    assert (document["is_same"], document["records"], document["changes"]) == (True, 6, [])
    assert document["rows"] == {"old": 2, "new": 2, "gained": 0, "lost": 0, "changed": 0, "no row, otherwise": 0}
    assert run(directory, ("pipeline_id: clicks", "pipeline_id: other")).exit_code == 0


@pytest.mark.parametrize(
    ("edit", "counts", "ends"),
    [
        (("id < 90", "id < 99"), (1, 0, 0, 0), [("dropped", "filter", "row", ROW)]),
        (("id < 90", "id < 2"), (0, 1, 0, 1), [("rejected", "mapping", "dropped", "filter"), ("row", ROW, "dropped", "filter")]),
        (("key: id", "key: [id, name]"), (1, 1, 0, 0), [("duplicate", "first of key", "row", ROW), ("row", ROW, "rejected", "dedup")]),
        (("Nullable(String)", "String"), (0, 1, 0, 0), [("row", ROW, "rejected", "mapping")]),
        (
            ("{name: name, column_name: name, column_type: Nullable(String)", "{name: id, column_name: name, column_type: Nullable(Int64)"),
            (0, 0, 2, 0),
            [("row", ROW, "row", ROW)],
        ),
        (('"Array(Nullable(Int64))"', "String"), (1, 0, 2, 0), [("rejected", "mapping", "row", ROW), ("row", ROW, "row", ROW)]),
    ],
)
def test_records_that_end_otherwise_are_counted(directory: Path, edit: Any, counts: Any, ends: Any) -> None:
    document = found(directory, edit)
    names = ("gained", "lost", "changed", "no row, otherwise")
    assert tuple(document["rows"][name] for name in names) == counts
    changes = [(one["old"]["outcome"], one["old"]["step"], one["new"]["outcome"], one["new"]["step"]) for one in document["changes"]]
    assert sorted(changes) == ends


def test_changed_values_are_shown_by_column(directory: Path) -> None:
    computed = "  - {type: compute, config: {fields: [{name: name, expression: upper(name)}]}}\n  - {type: dedup"
    document = found(directory, ("  - {type: dedup", computed))
    assert document["changed_columns"] == {"name": 1}
    (change,) = document["changes"]
    (example,) = change["examples"]
    assert (example["partition"], example["offset"], example["values"]) == (0, 0, {"name": ["a", "A"]})


def test_a_null_that_becomes_a_value_is_a_change(directory: Path) -> None:
    computed = "  - {type: compute, config: {fields: [{name: name, expression: \"coalesce(name, '-')\"}]}}\n  - {type: dedup"
    (change,) = found(directory, ("  - {type: dedup", computed))["changes"]
    assert [example["values"] for example in change["examples"]] == [{"name": [None, "-"]}]


def test_columns_that_come_go_and_change_their_type_are_named(directory: Path) -> None:
    document = found(
        directory,
        ("{name: name, column_name: name", "{name: name, column_name: title"),
        ("column_name: id, column_type: Int64", "column_name: id, column_type: Float64"),
    )
    assert document["columns"] == {
        "added": {"title": "Nullable(String)"},
        "dropped": {"name": "Nullable(String)"},
        "retyped": {"id": ["Int64", "Float64"]},
    }
    assert (document["is_same"], document["changes"]) == (False, [])


def test_the_text_names_counts_causes_and_an_example(directory: Path) -> None:
    shown = run(directory, ("Nullable(String)", "String"))
    assert shown.exit_code == 1
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert lines[0] == "6 records; rows 2 before, 1 now"
    assert "1 record: a row of default.clicks, now rejected by mapping: null_in_non_nullable of name" in lines
    assert 'raw 2.2, partition 0 offset 2: {"id": 2, "name": null, "tags": []}' in lines
    assert lines[-1] == "Dedup knows no record before the first."


@pytest.mark.parametrize(
    ("edit", "said"),
    [(("id < 90", "idd < 90"), "new.yaml: 1 fault"), (("pipeline_id: clicks\n", "pipeline_id: clicks\nlanes: 9\n"), "new.yaml")],
)
def test_a_faulty_file_is_refused(directory: Path, edit: tuple[str, str], said: str) -> None:
    shown = run(directory, edit)
    assert (shown.exit_code, said in shown.stderr) == (2, True)


def test_each_table_is_compared_with_itself(directory: Path) -> None:
    one, mapping = FILE[FILE.index("sink:\n") :], FILE[FILE.index("  mapping:") :].rstrip().replace("\n", "\n    ")
    sink = "  - id: {id}\n    when: {when}\n    type: clickhouse\n    connection_params: {{host: h, port: 8123}}\n    table: {id}\n  "
    conditions = {"clicks": "id > 1", "odd": "id = 1"}
    several = "sinks:\n" + "".join(sink.format(id=name, when=when) + mapping + "\n" for name, when in conditions.items())
    document = found(directory, (one, several))
    assert document["columns"]["added"] == {"odd.id": "Int64", "odd.name": "Nullable(String)", "odd.tags": "Array(Nullable(Int64))"}
    assert [(one["old"]["step"], one["new"]["step"], one["records"]) for one in document["changes"]] == [(ROW, "default.odd", 1)]
    (directory / "old.yaml").write_text((directory / "new.yaml").read_text())
    upper = "  - {type: compute, config: {fields: [{name: name, expression: upper(name)}]}}\n  - {type: dedup"
    document = found(directory, (one, several), ("  - {type: dedup", upper))
    assert (document["changed_columns"], document["rows"]["changed"]) == ({"odd.name": 1}, 1)
