"""`tallyflow test`: cases that pass, and what is said of those that do not."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.preview.cases import is_equal

EXAMPLES = Path(__file__).parents[3] / "examples"
FILE = """
version: v3
pipeline_id: clicks
sources:
  - type: kafka
    topic: clicks
    connection_params: {brokers: ["127.0.0.1:1"], protocol: PLAINTEXT}
    schema_fields: [{name: id, type: int}, {name: price, type: string}]
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
"""
SOUND = """
tests:
  - name: copies within the window are dropped
    given:
      - {value: {id: 1, price: "1.50"}}
      - {value: {id: 1}, after: 59m}
      - {value: {id: 1}, at: "2026-01-01T01:00:00Z"}
      - {value: {id: 95}}
      - {value: "{"}
    expect:
      rows: [{id: 1, price: 1.5}, {id: 1, price: null}]
      ordered: true
      rejected: [{stage: parse, code: invalid_json}]
      dropped: 1
      duplicates: 1
"""


def run(directory: Path, cases: str, *arguments: str) -> Any:
    (directory / "clicks.yaml").write_text(FILE)
    (directory / "clicks.tests.yaml").write_text(cases)
    return CliRunner().invoke(app, ["test", str(directory / "clicks.yaml"), *arguments])


def test_a_case_passes_when_its_records_end_as_expected(tmp_path: Path) -> None:
    shown = run(tmp_path, SOUND)
    assert (shown.exit_code, shown.stdout.splitlines()) == (0, ["passed  copies within the window are dropped", "1 case, 0 failed"])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("price: 1.5}", "price: 1.6}", 'missing row: {"id": 1, "price": 1.6}'),
        (", {id: 1, price: null}", "", 'unexpected row: {"id": 1, "price": null}'),
        ("[{id: 1, price: 1.5}, {id: 1, price: null}]", "[{id: 1, price: null}, {id: 1, price: 1.5}]", "missing row"),
        ("dropped: 1", "dropped: 2", "dropped: expected 2, found 1"),
        ("duplicates: 1", "duplicates: 0", "duplicates: expected 0, found 1"),
        ("code: invalid_json", "code: wrong_type", 'missing dead letter: {"stage": "parse", "code": "wrong_type"}'),
        ("[{stage: parse, code: invalid_json}]", "[]", "unexpected dead letter: parse: invalid_json"),
        ("      rejected: [{stage: parse, code: invalid_json}]\n", "", "unexpected dead letter: parse: invalid_json"),
        ('at: "2026-01-01T01:00:00Z"', 'at: "2026-01-01T00:59:59Z"', "duplicates: expected 1, found 2"),
    ],
)
def test_a_case_fails_with_what_differs(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in SOUND
    shown = run(tmp_path, SOUND.replace(old, new))
    assert shown.exit_code == 1
    assert "failed  copies within the window are dropped" in shown.stdout
    assert said in shown.stdout


def test_rows_are_compared_in_any_order_by_the_named_columns(tmp_path: Path) -> None:
    given = "{value: {id: 1, price: 1}}, {value: {id: 2, price: 2}}, {value: {id: 3, price: 2}}"
    case = "tests: [{name: any order, given: [%s], expect: {rows: [{price: 2}, {id: 1}, {id: 2, price: 2.00}]}}]"
    assert run(tmp_path, (case % given).replace("price: 1}", 'price: "1"}').replace("price: 2}}", 'price: "2"}}')).exit_code == 0


def test_results_are_written_as_junit(tmp_path: Path) -> None:
    shown = run(tmp_path, SOUND.replace("dropped: 1", "dropped: 3"), "--junit", str(tmp_path / "junit.xml"))
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (shown.exit_code, suite.attrib["tests"], suite.attrib["failures"]) == (1, "1", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.attrib["message"] == "dropped: expected 3, found 1"


def test_every_fault_of_the_cases_is_named(tmp_path: Path) -> None:
    shown = run(tmp_path, "tests:\n  - {name: a, given: [], expect: {row: []}}\n  - {name: b, given: [{at: noon}], expect: {dropped: x}}\n")
    assert shown.exit_code == 2
    for path in ("tests[0].given", "tests[0].expect.row", "tests[1].given[0].value", "tests[1].given[0].at", "tests[1].expect.dropped"):
        assert path in shown.stderr
    assert "unknown field" in shown.stderr


def test_missing_cases_are_told(tmp_path: Path) -> None:
    (tmp_path / "clicks.yaml").write_text(FILE)
    shown = CliRunner().invoke(app, ["test", str(tmp_path / "clicks.yaml")])
    assert shown.exit_code == 2
    assert "clicks.tests.yaml" in shown.stderr
    assert "No such file" in shown.stderr


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*/*.tests.yaml")), ids=lambda file: file.parent.name)
def test_the_cases_of_the_examples_pass(file: Path) -> None:
    pipeline = file.with_name(file.name.replace(".tests.yaml", ".yaml"))
    shown = CliRunner().invoke(app, ["test", str(pipeline)])
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [
        (Decimal("1.50"), 1.5, True),
        (Decimal("1.50"), "1.500", True),
        (Decimal(1), True, False),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T13:00:00+01:00", True),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31 12:00:00", True),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "noon", False),
        (date(2026, 1, 31), "2026-01-31", True),
        (b"x", "x", True),
        ([1, [2]], [1, [2]], True),
        ([1], [1, 2], False),
        ({"a": Decimal(1)}, {"a": 1}, True),
        ({"a": 1}, {"b": 1}, False),
        (1, True, False),
        (None, None, True),
        (1.5, "1.5", False),
    ],
)
def test_values_are_equal_by_their_meaning(found: Any, wanted: Any, same: bool) -> None:
    assert is_equal(found, wanted) is same


SINKS = """
sinks:
  - &clicks
    id: every
    type: clickhouse
    connection_params: {host: localhost, port: 8123}
    table: clicks
    mapping: [{name: id, column_name: id, column_type: Int64}]
  - {<<: *clicks, id: odd, table: odd_clicks, when: id % 2 = 1}
"""
OF_TABLES = """
tests:
  - name: each table has its rows
    given: [{value: {id: 1}}, {value: {id: 2}}]
    expect: {rows: {every: [{id: 1}, {id: 2}], odd: [{id: 1}]}}
"""


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        (OF_TABLES, "passed"),
        (OF_TABLES.replace("odd: [{id: 1}]", "odd: []"), 'odd: unexpected row: {"id": 1'),
        (OF_TABLES.replace("odd: [{id: 1}]", "odd: [{id: 2}]"), 'odd: missing row: {"id": 2}'),
        (OF_TABLES.replace("odd:", "even:"), "rows: there is no sink 'even'; the sinks are every, odd"),
        (OF_TABLES.replace("{every: [{id: 1}, {id: 2}], odd: [{id: 1}]}", "[{id: 1}, {id: 2}, {id: 1}]"), "passed"),
    ],
)
def test_rows_may_be_expected_table_by_table(cases: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "clicks.yaml").write_text(FILE[: FILE.index("sink:")] + SINKS)
    (tmp_path / "clicks.tests.yaml").write_text(cases)
    shown = CliRunner().invoke(app, ["test", str(tmp_path / "clicks.yaml")])
    assert said in shown.stdout
    assert shown.exit_code == (said != "passed")


def test_expectations_of_several_tables_are_recorded_by_sink(tmp_path: Path) -> None:
    (tmp_path / "clicks.yaml").write_text(FILE[: FILE.index("sink:")] + SINKS)
    (tmp_path / "clicks.tests.yaml").write_text("tests:\n  - name: two\n    given: [{value: {id: 1}}, {value: {id: 2}}]\n")
    shown = CliRunner().invoke(app, ["test", str(tmp_path / "clicks.yaml"), "--record"])
    assert (shown.exit_code, shown.stdout.splitlines()[-1]) == (0, "1 case, 0 failed")
    (case,) = yaml.safe_load((tmp_path / "clicks.tests.yaml").read_text())["tests"]
    assert case["expect"] == {"rows": {"every": [{"id": 1}, {"id": 2}], "odd": [{"id": 1}]}}
