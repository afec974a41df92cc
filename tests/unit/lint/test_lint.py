"""Lint: each rule finds its mistake at its line, comments ignore it, and our own files have none."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.preview_joins import BY_TIME, GREETING, joined_orders
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.config import parse
from pipelines.config.text import path_text
from pipelines.lint.docs import TARGET, render
from pipelines.lint.reads import unread
from pipelines.lint.rules import RULES

ROOT = Path(__file__).parents[3]
OURS = [
    *sorted(file for file in ROOT.glob("examples/*/*.yaml") if ".tests." not in file.name),
    ROOT / "deployment/kubernetes/pipeline.yaml",
]
FILE = """
version: v3
pipeline_id: clicks
sources:
  - type: kafka
    topic: clicks
    connection_params: {brokers: ["localhost:9092"], protocol: PLAINTEXT}
    consumer_group_initial_offset: earliest
    schema_fields:
      - {name: id, type: int}
      - {name: user, type: string}
      - {name: price, type: float}
      - {name: ms, type: int, unit: ms}
transforms:
  - type: filter
    config: {expression: price > 0}
  - type: compute
    config:
      fields:
        - {name: total, expression: price * 2}
  - type: dedup
    config:
      key: id
      time_window: 1h
sink:
  type: clickhouse
  connection_params: {host: localhost, port: 8123}
  table: clicks
  create_table: true
  order_by: [id]
  mapping:
    - {name: id, column_name: id, column_type: Int64}
    - {name: user, column_name: user, column_type: String}
    - {name: ms, column_name: at, column_type: DateTime64(3)}
    - {name: total, column_name: total, column_type: Float64}
"""
MISTAKES: list[tuple[str, str, str, str]] = [
    ("expression: price > 0", "expression: 1 > 0", "TF001", "transforms[0].config.expression"),
    ("{name: price, type: float}", "{name: price, type: float}\n      - {name: spare, type: int}", "TF002", "sources[0].schema_fields[3]"),
    ("    schema_fields:", "    columns: [{name: key, from: key}]\n    schema_fields:", "TF002", "sources[0].columns[0]"),
    ("    - {name: total, column_name: total, column_type: Float64}\n", "", "TF003", "transforms[1].config.fields[0]"),
    ("key: id", "key: [id, total]", "TF004", "transforms[2].config.key"),
    ("time_window: 1h", "time_window: 900h", "TF005", "transforms[2].config.time_window"),
    ("time_window: 1h", "time_window: 1h\n      time: event\n      time_field: ms", "TF006", "transforms[2].config.time_field"),
    ("key: id", "key: [id, price]", "TF007", "transforms[2].config.key"),
    ("name: user", "name: created_at", "TF008", "sink.mapping[1].column_type"),
    ("  order_by: [id]\n", "", "TF009", "sink.create_table"),
    ("    consumer_group_initial_offset: earliest\n", "", "TF010", "sources[0]"),
    ("port: 8123", "port: 8123, password: secret", "TF012", "sink.connection_params.password"),
    ("table: clicks\n", "table: clicks\n  create_table: false\n", "TF013", "sink.order_by"),
    (
        "version: v3",
        "version: v3\nbuckets: 999\nresources: {nats: {stream: {max_bytes: 64MiB}}}",
        "TF014",
        "resources.nats.stream.max_bytes",
    ),
    ("port: 8123", "port: 9000", "TF015", "sink.connection_params.port"),
    ("table: clicks\n", "table: clicks\n  delivery: at_least_once\n", "TF016", "sink.delivery"),
]
"""A change of the file, the code that it must give, and where."""


@pytest.fixture(autouse=True)
def without_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No address of a server is set, as earlier tests of this process may have set them."""
    for name in [name for name in os.environ if name.startswith(("KAFKA_", "CLICKHOUSE_", "NATS_"))]:
        monkeypatch.delenv(name)


def changed(old: str, new: str) -> str:
    """Return the file with one mistake; what would be another fault or finding beside it is left out."""
    assert old in FILE
    text = FILE.replace(old, new)
    if "create_table: false" in new:
        text = text.replace("  create_table: true\n", "")
    return text


def run(directory: Path, text: str, *arguments: str) -> Any:
    file = directory / "clicks.yaml"
    file.write_text(text)
    return CliRunner().invoke(app, ["lint", str(file), *arguments])


def found(directory: Path, text: str) -> list[dict[str, Any]]:
    shown = run(directory, text, "--json")
    findings: list[dict[str, Any]] = json.loads(shown.stdout)
    assert shown.exit_code == (1 if findings else 0)
    return findings


def test_a_file_without_a_mistake_has_no_finding(tmp_path: Path) -> None:
    shown = run(tmp_path, FILE)
    assert (shown.exit_code, shown.stdout) == (0, "0 findings\n")


@pytest.mark.parametrize(("old", "new", "code", "path"), MISTAKES, ids=[f"{code} {path}" for _, _, code, path in MISTAKES])
def test_each_rule_finds_its_mistake_at_its_line(old: str, new: str, code: str, path: str, tmp_path: Path) -> None:
    text = changed(old, new)
    findings = [one for one in found(tmp_path, text) if one["code"] == code]
    assert [one["path"] for one in findings] == [path]
    line = text.splitlines()[findings[0]["line"] - 1]
    last = re.sub(r"\[\d+\]$", "", path.rpartition(".")[2])
    assert last in line or line.lstrip().startswith("- ")


@pytest.mark.parametrize(("name", "is_time"), [("eventTime", True), ("sent_at", True), ("format", False), ("candidate", False)])
def test_a_word_that_ends_like_a_time_is_none(name: str, is_time: bool, tmp_path: Path) -> None:
    codes = [one["code"] for one in found(tmp_path, changed("name: user", f"name: {name}"))]
    assert ("TF008" in codes) == is_time


def test_every_rule_has_a_mistake_that_it_finds() -> None:
    codes = [rule.code for rule in RULES]
    assert codes == sorted({code for _, _, code, _ in MISTAKES} | {"TF011", "TF017"})


def test_sinks_that_may_all_leave_a_record_are_found(tmp_path: Path) -> None:
    entry = FILE[FILE.index("sink:\n") + len("sink:\n") :].rstrip().replace("\n  ", "\n    ").strip()
    several = "".join(f"  - id: s{number}\n    when: id > {number}\n    {entry}\n" for number in range(2))
    several = several.replace("table: clicks", "table: other", 1)
    text = FILE[: FILE.index("sink:\n")] + "sinks:\n" + several
    assert [(one["code"], one["path"]) for one in found(tmp_path, text)] == [("TF017", "sinks")]
    unsorted = text.replace("    order_by: [id]\n", "", 1)
    assert [(one["code"], one["path"]) for one in found(tmp_path, unsorted)] == [("TF017", "sinks"), ("TF009", "sinks[0].create_table")]


def test_a_fallback_with_the_reason_is_no_mistake(tmp_path: Path) -> None:
    entry = FILE[FILE.index("sink:\n") + len("sink:\n") :].rstrip().replace("\n  ", "\n    ").strip()
    reason = "\n      - {name: _tf_error, column_name: why, column_type: String}\n"
    other = entry.replace("table: clicks", "table: refused")
    sinks = f"sinks:\n  - id: clicks\n    on_refused: {{sink: rest}}\n    {entry}\n  - id: rest\n    {other}{reason}"
    assert found(tmp_path, FILE[: FILE.index("sink:\n")] + sinks) == []


def test_an_order_that_is_not_the_written_one_is_found(tmp_path: Path) -> None:
    dedup = FILE[FILE.index("  - type: dedup") : FILE.index("sink:")]
    compute = FILE[FILE.index("  - type: compute") : FILE.index("  - type: dedup")]
    text = (
        FILE.replace(dedup, "").replace(compute, "").replace("transforms:\n", f"transforms:\n{dedup}").replace("name: total", "name: price")
    )
    (finding,) = found(tmp_path, text)
    assert (finding["code"], finding["path"]) == ("TF011", "transforms")
    assert found(tmp_path, FILE.replace(compute, "").replace("name: total,", "name: price,")) == []


def test_a_comment_on_the_line_ignores_a_finding(tmp_path: Path) -> None:
    spare = "{name: price, type: float}\n      - {name: spare, type: int}"
    text = changed("{name: price, type: float}", f"{spare}  # kept for later; tallyflow: ignore TF002")
    assert [one["code"] for one in found(tmp_path, text)] == ["TF002"]
    assert found(tmp_path, text.replace("# kept for later; ", "# ")) == []


def test_a_comment_ignores_no_other_code(tmp_path: Path) -> None:
    spare = "{name: price, type: float}\n      - {name: spare, type: int}  # tallyflow: ignore TF004"
    assert [one["code"] for one in found(tmp_path, changed("{name: price, type: float}", spare))] == ["TF000", "TF002"]


def test_a_comment_that_ignores_nothing_is_a_finding(tmp_path: Path) -> None:
    text = FILE.replace("key: id", "key: id  # tallyflow: ignore TF004, TF099").replace(
        "order_by: [id]", "order_by: [id]  # tallyflow: ignore"
    )
    assert [(one["code"], one["message"]) for one in found(tmp_path, text)] == [
        ("TF000", "the comment ignores TF004, which this line has not"),
        ("TF000", "the comment ignores TF099, which this line has not"),
        ("TF000", "the comment names no code to ignore"),
    ]


def test_a_field_that_was_replaced_counts_as_read_only_before(tmp_path: Path) -> None:
    text = FILE.replace(
        "{name: total, expression: price * 2}", "{name: user, expression: \"'x'\"}\n        - {name: total, expression: price}"
    )
    assert [(one["code"], one["path"]) for one in found(tmp_path, text)] == [("TF002", "sources[0].schema_fields[1]")]


def test_connections_without_values_are_left_out(tmp_path: Path) -> None:
    text = FILE.replace("localhost, port: 8123", '"${HOST}", port: 9000')
    shown = run(tmp_path, text)
    assert (shown.exit_code, shown.stdout) == (0, "connections were not looked at: a variable or a file of theirs is missing\n0 findings\n")
    ignored = text.replace("port: 9000}", "port: 9000}  # tallyflow: ignore TF015")
    assert run(tmp_path, ignored).exit_code == 0


def test_an_invalid_file_is_refused_with_its_faults(tmp_path: Path) -> None:
    shown = run(tmp_path, FILE.replace("price > 0", "prize > 0"))
    assert (shown.exit_code, "transforms[0].config.expression" in shown.stderr) == (2, True)


def test_the_text_names_file_line_code_and_fix(tmp_path: Path) -> None:
    lines = run(tmp_path, changed("key: id", "key: [id, total]")).stdout.splitlines()
    place, _, message = lines[0].partition(" transforms[2].config.key: ")
    assert (place.endswith("/clicks.yaml:23: TF004"), message) == (True, "'total' is a float: values that look the same may be two keys")
    assert lines[1] == "    Use an integer or a string as the key, or compute one, such as a rounded decimal."
    assert lines[-1] == "1 finding"


def test_lines_of_json_with_tabs_are_found(tmp_path: Path) -> None:
    text = json.dumps(yaml.safe_load(changed("key: id", "key: [id, total]")), indent="\t")
    (finding,) = found(tmp_path, text)
    assert '"key": [' in text.splitlines()[finding["line"] - 1]


@pytest.mark.parametrize("file", OURS, ids=lambda file: str(file.relative_to(ROOT)))
def test_our_own_files_have_no_finding(file: Path) -> None:
    shown = CliRunner().invoke(app, ["lint", str(file)])
    assert shown.exit_code == 0, shown.output


def test_the_file_of_the_readme_has_no_finding(tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    shown = run(tmp_path, example)
    assert shown.exit_code == 0, shown.output


def test_the_page_is_made_from_the_rules() -> None:
    assert (ROOT / TARGET).read_text(encoding="utf-8") == render(), "run `python -m pipelines.lint.docs`"


@pytest.mark.parametrize(("input_fields", "unread_fields"), [("input: [price], ", ["user", "spare"]), ("", ["spare"])])
def test_a_function_reads_its_input_and_makes_its_outputs(input_fields: str, unread_fields: list[str]) -> None:
    function = f"{{function: 'f:g', {input_fields}output: [{{name: shop, type: string}}, {{name: spare, type: int}}]}}"
    text = FILE.replace("  - type: dedup", f"  - type: python\n    config: {function}\n  - type: dedup").replace(
        "name: user, col", "name: shop, col"
    )
    config = parse(text, name="file", environment={})
    assert [(field.name, field.is_computed) for field in unread(config)] == [(name, name == "spare") for name in unread_fields]


@pytest.mark.parametrize(("lateness", "paths"), [("0s", ["join.time"]), ("10s", [])])
def test_a_join_by_time_that_allows_no_lateness_is_found(lateness: str, paths: list[str]) -> None:
    config, _ = joined_orders({**BY_TIME, "allowed_lateness": lateness}, [GREETING])
    (rule,) = (rule for rule in RULES if rule.code == "TF006")
    assert [path_text(path) for path, _ in rule.find(config)] == paths


def test_a_join_reads_its_keys_and_what_is_read_behind_it() -> None:
    document = yaml.safe_load(FILE)
    (orders,) = document["sources"]
    names = [{"name": name, "type": "string"} for name in ("key", "name", "unread", "taken")]
    document["sources"].append({**orders, "source_id": "users", "topic": "users", "schema_fields": names})
    document["transforms"] = []
    document["sink"]["mapping"] = [one for one in document["sink"]["mapping"] if one["name"] != "total"]
    left = orders.get("source_id", orders["topic"])
    taken = [(left, field["name"]) for field in orders["schema_fields"]] + [("users", "name"), ("users", "taken")]
    document["join"] = {
        "enabled": True,
        "left_source": {"source_id": left, "key": "user", "time_window": "1h"},
        "right_source": {"source_id": "users", "key": "key", "time_window": "1h"},
        "output_fields": [{"source_id": source, "name": name} for source, name in taken],
    }
    document["sink"]["mapping"].append({"name": "name", "column_name": "name", "column_type": "String"})
    found = [(one.name, one.at[1]) for one in unread(parse(json.dumps(document), name="file", environment={}))]
    assert [name for name, source in found if source == 1] == ["unread", "taken"]
