"""`tallyflow test --record`: expectations are written into the file of cases, and nothing else of it changes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.errors import HaltError
from pipelines.preview.recording import with_expectations

FILE = """
version: v3
pipeline_id: clicks
sources:
  - type: kafka
    topic: clicks
    connection_params: {brokers: ["127.0.0.1:1"], protocol: PLAINTEXT}
    schema_fields: [{name: id, type: int}, {name: price, type: string}, {name: at, type: string}, {name: big, type: string}]
    columns: [{name: key, from: key, type: bytes}]
transforms:
  - {type: filter, config: {expression: id < 90}}
  - {type: dedup, config: {key: id, time_window: 1h}}
sink:
  type: clickhouse
  connection_params: {host: localhost, port: 8123}
  table: clicks
  mapping:
    - {name: id, column_name: id, column_type: Int64}
    - {name: price, column_name: price, column_type: "Nullable(Decimal(9, 2))"}
    - {name: at, column_name: at, column_type: "Nullable(DateTime64(3))"}
    - {name: big, column_name: big, column_type: Nullable(UInt256)}
    - {name: key, column_name: key, column_type: Nullable(String)}
"""
CASES = """# Cases of the clicks.
tests:
  - name: all that can happen   # to a record
    # The records.
    given:
      - {value: {id: 1, price: "1.50", at: "2026-01-31T12:00:00Z"}}   # a row
      - {value: {id: 1}}
      - {value: {id: 95}}
      - value: "{"

      # The last one.
      - {value: {id: 2, price: free}}

  # By hand.
  - name: a case of mine
    given: [{value: {id: 3}}]
    expect: {rows: [{id: 3}]}   # mine
  - {name: one line, given: [{value: {id: 4, price: "4"}, key: é}]}
  - {name: nothing, given: [{value: {id: 99}}], }
"""
RECORDED = """
    expect:
      rows:
        - {id: 1, price: '1.50', at: '2026-01-31T12:00:00Z', big: null, key: null}
      rejected:
        - {stage: parse, code: invalid_json}
        - {stage: transform, code: invalid_value, field: price}
      dropped: 1
      duplicates: 1
"""


def run(directory: Path, cases: str, *arguments: str) -> tuple[Any, str]:
    (directory / "clicks.yaml").write_text(FILE)
    file = directory / "clicks.tests.yaml"
    file.write_text(cases)
    shown = CliRunner().invoke(app, ["test", str(directory / "clicks.yaml"), *arguments])
    return shown, file.read_text()


def without(text: str, *lines: str) -> str:
    for line in lines:
        assert text.count(line) == 1, line
        text = text.replace(line, "")
    return text


def test_cases_without_an_expectation_get_one(tmp_path: Path) -> None:
    shown, written = run(tmp_path, CASES, "--record")
    assert (shown.exit_code, shown.stdout.splitlines()[0].split()[:2]) == (0, ["3", "expectations"])
    assert shown.stdout.splitlines()[-1] == "4 cases, 0 failed"
    one_line = "{rows: [{id: 4, price: '4.00', at: null, big: null, key: é}]}"
    assert without(written, RECORDED.removeprefix("\n"), f", expect: {one_line}", "expect: {rows: [], dropped: 1}") == CASES


def test_recorded_expectations_are_not_recorded_again(tmp_path: Path) -> None:
    _, written = run(tmp_path, CASES, "--record")
    shown, again = run(tmp_path, written, "--record")
    assert (shown.stdout.split()[0], again) == ("0", written)


def test_a_case_without_an_expectation_fails(tmp_path: Path) -> None:
    shown, written = run(tmp_path, CASES)
    assert (shown.exit_code, written) == (1, CASES)
    assert "nothing is expected: write `expect`, or let --record write it" in shown.stdout


def test_overwrite_replaces_what_was_written_by_hand(tmp_path: Path) -> None:
    wrong = CASES.replace("rows: [{id: 3}]", "rows: [{id: 4}]")
    shown, written = run(tmp_path, wrong, "--record")
    assert (shown.exit_code, "rows: [{id: 4}]" in written) == (1, True)
    shown, written = run(tmp_path, wrong, "--record", "--overwrite")
    assert shown.exit_code == 0
    assert yaml.safe_load(written)["tests"][1]["expect"] == {"rows": [{"id": 3, "price": None, "at": None, "big": None, "key": None}]}
    assert "  # By hand.\n" in written
    shown, again = run(tmp_path, written, "--record", "--overwrite")
    assert (shown.exit_code, again) == (0, written)


def test_a_recorded_case_fails_when_the_program_changes(tmp_path: Path) -> None:
    _, written = run(tmp_path, CASES, "--record")
    (tmp_path / "clicks.yaml").write_text(FILE.replace("id < 90", "id < 4"))
    shown = CliRunner().invoke(app, ["test", str(tmp_path / "clicks.yaml")])
    assert (shown.exit_code, "failed  one line" in shown.stdout) == (1, True)
    assert "dropped: expected 0" not in written


def test_values_that_no_file_can_hold_are_left_out(tmp_path: Path) -> None:
    cases = 'tests: [{name: odd, given: [{value: {id: 1, big: "DIGITS"}}]}]\n'
    shown, written = run(tmp_path, cases.replace("DIGITS", str(2**256 - 1)), "--record")
    assert shown.exit_code == 0, shown.output
    assert yaml.safe_load(written)["tests"][0]["expect"]["rows"] == [{"id": 1, "price": None, "at": None, "key": None}]


def test_a_file_of_json_stays_json(tmp_path: Path) -> None:
    shown, written = run(tmp_path, json.dumps(yaml.safe_load(CASES)), "--record")
    assert shown.exit_code == 0
    assert json.loads(written)["tests"][3]["expect"] == {"rows": [], "dropped": 1}


@pytest.mark.parametrize("value", ["'{\"id\": 7}'", '{"id": 7}', '|\n      {"id": 7}\n'])
def test_a_case_at_the_end_of_the_file_is_recorded(value: str, tmp_path: Path) -> None:
    shown, written = run(tmp_path, f"tests:\n- name: last\n  given:\n  - value: {value}", "--record")
    assert shown.exit_code == 0, shown.output
    assert yaml.safe_load(written)["tests"][0]["expect"]["rows"][0]["id"] == 7


def test_text_that_cannot_be_edited_alone_is_left_as_it_is(tmp_path: Path) -> None:
    aliased = "tests:\n  - &one\n    name: one\n    given: [{value: {id: 1}}]\n  - {<<: *one, name: two}\n"
    with pytest.raises(HaltError, match="nothing was written"):
        with_expectations(tmp_path / "a.yaml", aliased, {0: {"rows": []}})
    shown, written = run(tmp_path, aliased, "--record")
    assert (shown.exit_code, written) == (0, written)


def test_overwrite_alone_is_refused(tmp_path: Path) -> None:
    shown, written = run(tmp_path, CASES, "--overwrite")
    assert (shown.exit_code, written) == (2, CASES)
