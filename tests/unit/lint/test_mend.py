"""`lint --fix`: what is certain is written into the file, and all other text stays; what a rule only suspects is left."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.lint.mend import mended
from pipelines.lint.run import Finding, Mend

FILE = """\
# The clicks of the shop.
version: v3
pipeline_id: clicks
resources:            # of GlassFlow
  sink:
    replicas: 2       # two
  transform: [{replicas: 1}]
sources:
  - type: kafka
    topic: clicks     # one partition
    connection_params: {brokers: ["localhost:9092"], protocol: PLAINTEXT}
    consumer_group_initial_offset: earliest
    schema_version: "3"
    schema_fields:
      - {name: id, type: int}   # tallyflow: ignore TF002, TF004
      - {name: user, type: string}  # kept; tallyflow: ignore TF002
      - {name: spare, type: string}  # tallyflow: ignore TF002, TF003

sink:
  type: clickhouse
  connection_params: {host: localhost, port: 8123}
  table: clicks
  # Made by hand.
  order_by: [id]
  create_rollups: true
  mapping:
    - {name: id, column_name: id, column_type: Int64}
    - {name: user, column_name: user, column_type: String}
"""
FIXED = """\
# The clicks of the shop.
version: v3
pipeline_id: clicks
sources:
  - type: kafka
    topic: clicks     # one partition
    connection_params: {brokers: ["localhost:9092"], protocol: PLAINTEXT}
    consumer_group_initial_offset: earliest
    schema_fields:
      - {name: id, type: int}
      - {name: user, type: string}  # kept; tallyflow: ignore TF002
      - {name: spare, type: string}  # tallyflow: ignore TF002

sink:
  type: clickhouse
  connection_params: {host: localhost, port: 8123}
  table: clicks
  # Made by hand.
  order_by: [id]
  mapping:
    - {name: id, column_name: id, column_type: Int64}
    - {name: user, column_name: user, column_type: String}
"""


def fixed(directory: Path, text: str, *arguments: str) -> tuple[Any, str]:
    file = directory / "clicks.yaml"
    file.write_bytes(text.encode())
    return CliRunner().invoke(app, ["lint", str(file), "--fix", *arguments]), file.read_bytes().decode()


def test_what_is_certain_is_removed_and_all_other_text_stays(tmp_path: Path) -> None:
    shown, text = fixed(tmp_path, FILE)
    assert text == FIXED
    assert shown.exit_code == 1
    lines = shown.stdout.splitlines()
    assert [line for line in lines if line.startswith("-") and not line.startswith("---")] == [
        f"-{line}" for line in FILE.splitlines() if line not in FIXED.splitlines()
    ]
    assert "clicks.yaml:19: TF013 sink.order_by: is ignored without create_table" in shown.stdout
    assert lines[-2:] == ["1 finding", "7 findings fixed"]


def test_a_second_fix_changes_nothing(tmp_path: Path) -> None:
    shown, text = fixed(tmp_path, FIXED)
    assert (text, shown.stdout.splitlines()[-1]) == (FIXED, "0 findings fixed")
    assert "---" not in shown.stdout


def test_nothing_is_written_without_the_option(tmp_path: Path) -> None:
    file = tmp_path / "clicks.yaml"
    file.write_text(FILE)
    shown = CliRunner().invoke(app, ["lint", str(file)])
    assert file.read_text() == FILE
    assert shown.stdout.count("(--fix does it)") == 7


def test_json_has_the_diff_what_was_fixed_and_what_is_left(tmp_path: Path) -> None:
    shown, text = fixed(tmp_path, FILE, "--json")
    document = json.loads(shown.stdout)
    assert text == FIXED
    assert [(one["code"], one["path"]) for one in document["fixed"]] == [
        ("TF013", "resources.sink"),
        ("TF013", "resources.transform"),
        ("TF013", "sources[0].schema_version"),
        ("TF000", ""),
        ("TF000", ""),
        ("TF000", ""),
        ("TF013", "sink.create_rollups"),
    ]
    assert [(one["code"], one["path"], one["is_certain"]) for one in document["findings"]] == [("TF013", "sink.order_by", False)]
    assert "-    schema_version: " in document["diff"]


def test_a_suspicion_is_left_alone(tmp_path: Path) -> None:
    suspect = FIXED.replace("  # tallyflow: ignore TF002\n\n", "\n\n").replace("consumer_group_initial_offset: earliest\n    ", "")
    shown, text = fixed(tmp_path, suspect)
    assert text == suspect
    assert [code for code in ("TF002", "TF010", "TF013") if code in shown.stdout] == ["TF002", "TF010", "TF013"]


def test_a_file_in_json_and_ends_of_lines_stay_what_they_are(tmp_path: Path) -> None:
    tree = yaml.safe_load(FILE)
    text = json.dumps(tree, indent="\t")
    _, after = fixed(tmp_path, text)
    del tree["resources"], tree["sources"][0]["schema_version"], tree["sink"]["create_rollups"]
    assert json.loads(after) == tree
    _, after = fixed(tmp_path, FILE.replace("\n", "\r\n"))
    assert after == FIXED.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("a: {b: 1, c: 2}\nd: 3\n", "a: {c: 2}\nd: 3\n"),
        ("a: {c: 2, b: 1}\nd: 3\n", "a: {c: 2}\nd: 3\n"),
        ("a: {b: 1}\nd: 3\n", "d: 3\n"),
        ("a:\n  c: 2\n  b:\n    - x\n\n  # of d\nd: 3\n", "a:\n  c: 2\n\n  # of d\nd: 3\n"),
        ("a:\n  b: |\n    x\n  c: 2\n", "a:\n  c: 2\n"),
        ('"a": {"b": 1, "c": {}}', '"a": {"c": {}}'),
        ("a: {b: 1, # why\n  c: 2}\n", None),
        ("a: &x {b: 1, c: 2}\nd: *x\n", None),
        ("x: &x {b: 1}\na: {<<: *x, c: 2}\n", None),
        ("a: {c: 2}\n", None),
    ],
)
def test_a_member_goes_only_where_nothing_else_changes(text: str, after: str | None) -> None:
    found = [Finding(1, "TF013", "a.b", "", "", Mend(("a", "b")))]
    edited, done = mended(text, found)
    assert (edited, done) == ((text, []) if after is None else (after, found))


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("a: 1  # tallyflow: ignore TF004\n", "a: 1\n"),
        ("# tallyflow: ignore TF004\na: 1\n", "a: 1\n"),
        ("a: 1  # tallyflow: ignore TF004, TF002\n", "a: 1  # tallyflow: ignore TF002\n"),
        ("a: 1  # tallyflow: ignore TF004 because of b\n", "a: 1  # tallyflow: ignore because of b\n"),
        ("a: 'x # tallyflow: ignore TF004'\n", None),
    ],
)
def test_a_code_goes_and_other_words_of_the_comment_stay(text: str, after: str | None) -> None:
    found = [Finding(1, "TF000", "", "", "", Mend(ignored="TF004"))]
    edited, done = mended(text, found)
    assert (edited, done) == ((text, []) if after is None else (after, found))
