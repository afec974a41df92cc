"""A preview of literal records: what became of each, and why; and the command that shows it."""

import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.config import parse
from pipelines.preview.declared import declared_table
from pipelines.preview.given import Given, frames_of, of_lines
from pipelines.preview.readable import readable
from pipelines.preview.run import Preview, preview
from pipelines.process.compile import compile_program
from pipelines.types.columns import parse_type, value_type

FILE = """
version: v3
pipeline_id: clicks
sources:
  - type: kafka
    topic: clicks
    connection_params: {brokers: ["127.0.0.1:1"], protocol: PLAINTEXT}
    schema_fields: [{name: id, type: int}, {name: user, type: string}, {name: at, type: int}]
TRANSFORMS
sink:
  type: clickhouse
  connection_params: {host: localhost, port: 8123}
  table: clicks
  mapping:
    - {name: id, column_name: id, column_type: Int64}
    - {name: user, column_name: user, column_type: "Enum8('a' = 1, 'b' = 2)"}
"""
FILTER = "  - {type: filter, config: {expression: id < 90}}\n"
DEDUP = "  - {type: dedup, config: {key: id, time_window: 1h}}\n"
EVENT_TIME = "  - {type: dedup, config: {key: id, time_window: 1h, time: event, time_field: at, allowed_lateness: 1m}}\n"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def file(*transforms: str) -> str:
    return FILE.replace("TRANSFORMS", "transforms:\n" + "".join(transforms) if transforms else "")


def tried(text: str, *given: Given | dict[str, Any] | bytes) -> Preview:
    config = parse(text, name="file", environment={})
    lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in given if not isinstance(one, Given)]
    frames = frames_of([one for one in given if isinstance(one, Given)] or of_lines(lines, NOON), config.sources)
    return preview(compile_program(config, [declared_table(seen) for seen in config.by_sink]), frames)


def at(hours: float, **event: Any) -> Given:
    return Given(json.dumps(event).encode(), NOON + timedelta(hours=hours))


def outcomes(found: Preview) -> list[tuple[str, str]]:
    return [(record.last.step, record.last.outcome) for record in found.records]


def test_each_record_ends_at_the_step_that_decides() -> None:
    found = tried(
        file(FILTER, DEDUP), {"id": 1, "user": "a"}, {"id": 1, "user": "b"}, {"id": 95, "user": "a"}, b"{", {"id": 2, "user": "c"}
    )
    assert outcomes(found) == [
        ("first of key", "row"),
        ("first of key", "duplicate"),
        ("filter", "dropped"),
        ("parse", "rejected"),
        ("mapping", "rejected"),
    ]
    rejected = found.records[4].last
    assert (rejected.code, rejected.column) == ("invalid_value", "user")
    assert [(name, counts.total()) for name, counts in found.counts()] == [
        *(("parse", 5), ("filter", 4), ("dedup", 3), ("mapping", 3), ("first of key", 2))
    ]


def test_fields_are_shown_after_every_step() -> None:
    (record,) = tried(file(FILTER), {"id": 1, "user": "b", "at": 5}).records
    assert [seen.fields for seen in record.steps[:2]] == [{"id": 1, "user": "b", "at": 5}] * 2
    assert record.steps[2].fields is not None
    assert {name: record.steps[2].fields[name] for name in ("id", "user")} == {"id": 1, "user": 2}


def test_a_window_ends_between_arrivals() -> None:
    found = tried(file(DEDUP), at(0, id=1, user="a"), at(0.5, id=1, user="a"), at(1, id=1, user="a"))
    assert [outcome for _, outcome in outcomes(found)] == ["row", "duplicate", "row"]


def test_a_late_record_is_rejected_with_its_reason() -> None:
    noon = int(NOON.timestamp())
    found = tried(file(EVENT_TIME), at(0, id=1, user="a", at=noon), at(0, id=2, user="a", at=noon - 3600))
    assert outcomes(found) == [("first of key", "row"), ("first of key", "rejected")]
    assert (found.records[1].last.code, found.records[1].last.column) == ("late", "at")


def test_a_partition_makes_no_other_late() -> None:
    noon = int(NOON.timestamp())
    values = [json.dumps({"id": number, "user": "a", "at": noon - 7200 * number}).encode() for number in range(2)]
    found = tried(file(EVENT_TIME), *(Given(value, NOON, partition=number) for number, value in enumerate(values)))
    assert outcomes(found) == [("first of key", "row")] * 2


def test_lines_may_begin_with_the_keys_of_their_records(tmp_path: Path) -> None:
    """As kcat and kafka-console-consumer print them; a value may have tabs of its own."""
    text = (
        file()
        .replace("schema_fields:", "columns: [{name: user, from: key}]\n    schema_fields:")
        .replace("{name: user, type: string}, ", "")
    )
    (tmp_path / "clicks.yaml").write_text(text)
    lines = ['a\t{"id": 1}', "", 'b\t{"id":\t2}', '\t{"id": 3}', 'null\t{"id": 4}', "b\t"]
    shown = json.loads(run(tmp_path, "--input", "-", "--with-keys", "--json", text="\n".join(lines)).stdout)
    rows = [record["steps"][-1]["fields"] for record in shown[:2]]
    assert [(row["id"], row["user"]) for row in rows] == [(1, "a"), (2, "b")]
    codes = [record["steps"][-1].get("code") for record in shown[2:]]
    assert codes == ["null_in_non_nullable", "null_in_non_nullable", "invalid_json"]
    refused = run(tmp_path, "--input", "-", "--with-keys", text='a\t{"id": 1}\n{"id": 2}\n')
    assert (refused.exit_code, "line 2 has no tab behind a key" in refused.output) == (2, True)
    refused = run(tmp_path, "--from-topic", "5", "--with-keys")
    assert (refused.exit_code, "--with-keys is for the lines of --input" in refused.output) == (2, True)


def test_portions_share_their_memory_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.preview.given.FRAME_RECORDS", 1)
    found = tried(file(DEDUP), *({"id": number % 20, "user": "a"} for number in range(60)))
    assert found.outcomes() == {"row": 20, "duplicate": 40}


def test_rows_of_several_tables_are_shown_by_table(tmp_path: Path) -> None:
    text = file(FILTER)
    one = text[text.index("sink:\n") :]
    entry = "\n".join(f"    {line}" for line in one.splitlines()[1:]).replace("    type", "  - id: ID\n      when: WHEN\n      type", 1)
    several = "sinks:\n" + "".join(
        entry.replace("ID", name).replace("WHEN", when).replace("table: clicks", f"table: {name}") + "\n"
        for name, when in (("low", "id < 5"), ("odd", "id % 2 = 1"))
    )
    given = [{"id": 1, "user": "a"}, {"id": 3, "user": "b"}, {"id": 7, "user": "a"}, {"id": 8, "user": "a"}, {"id": 2, "user": "c"}]
    found = tried(text.replace(one, several), *given)
    assert outcomes(found) == [*[("mapping", "row")] * 3, ("mapping", "dropped"), ("mapping", "rejected")]
    assert found.records[0].last.fields is not None
    assert [record.last.fields.keys() for record in found.records[:3] if record.last.fields] == [
        {"sink", "sink:odd"},
        {"sink", "sink:odd"},
        {"sink:odd"},
    ]
    (tmp_path / "clicks.yaml").write_text(text.replace(one, several))
    shown = run(tmp_path, "--input", "-", text="\n".join(map(json.dumps, given)))
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    first, second = lines.index("2 rows for default.low:"), lines.index("3 rows for default.odd:")
    assert lines[first + 1 : first + 4] == ["record id user", "1 1 a", "2 3 b"]
    assert lines[second + 1 :] == ["record id user", "1 1 a", "2 3 b", "3 7 a"]
    (record, *_) = json.loads(run(tmp_path, "--input", "-", "--json", text=json.dumps(given[1])).stdout)
    assert {leg: row["user"] for leg, row in record["steps"][-1]["fields"].items()} == {"sink": "b", "sink:odd": "b"}


def test_enums_and_addresses_are_shown_as_clickhouse_shows_them() -> None:
    assert readable(2, parse_type("Enum8('a' = 1, 'b' = 2)")) == "b"
    assert readable(2130706433, parse_type("IPv4")) == "127.0.0.1"
    assert readable((-5).to_bytes(16, "little", signed=True), parse_type("Int128")) == -5
    assert readable([[1, None]], parse_type("Array(Array(Nullable(Enum8('x' = 1))))")) == [["x", None]]
    assert readable([("k", bytes(16))], parse_type("Map(String, UUID)")) == {"k": "00000000-0000-0000-0000-000000000000"}
    assert readable({"a": b"x\0"}, parse_type("Tuple(a FixedString(2))")) == {"a": "x"}
    assert readable({"1": 1.5, "2": 2.0}, value_type("Point")) == [1.5, 2.0]
    assert [readable(seconds, parse_type("Time")) for seconds in (-5, 3_599_999)] == ["-00:00:05", "999:59:59"]
    assert readable(Decimal("-0.050"), parse_type("Time64(3)")) == "-00:00:00.050"
    assert readable(Decimal("-0.000000005"), parse_type("Time64(9)")) == "-00:00:00.000000005"
    assert readable('{"a":1}', parse_type("JSON")) == {"a": 1}


def test_columns_beside_the_json_are_seen_too() -> None:
    columns = "[{name: key, from: key}, {name: trace, from: headers, header: t}]"
    text = file("  - {type: filter, config: {expression: trace = 'x'}}\n").replace(
        "    schema_fields", f"    columns: {columns}\n    schema_fields"
    )
    given = [Given(b'{"id": 1, "user": "a"}', NOON, b"k", ((b"t", trace),)) for trace in (b"x", b"y", b"\xff")]
    found = tried(text, *given)
    assert outcomes(found) == [("mapping", "row"), ("filter", "dropped"), ("parse", "rejected")]
    assert found.records[0].steps[0].fields == {"id": 1, "user": "a", "at": None, "key": "k", "trace": "x"}


# -- the command --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    (tmp_path / "clicks.yaml").write_text(file(FILTER, DEDUP))
    lines = [json.dumps({"id": number // 2, "user": "a"}) for number in range(200)]
    (tmp_path / "sample.ndjson").write_text("\n".join([*lines, "", "{"]))
    return tmp_path


def run(directory: Path, *arguments: str, text: str | None = None, width: int = 80) -> Any:
    given = ["preview", str(directory / "clicks.yaml"), *arguments]
    return CliRunner().invoke(app, given, input=text, env={"COLUMNS": str(width)})


def test_the_command_shows_counts_reasons_and_rows(sample: Path) -> None:
    shown = run(sample, "--input", str(sample / "sample.ndjson"), "--rows", "2")
    assert shown.exit_code == 0
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert "parse 201 200 . . 1" in lines
    assert "filter 200 180 20 . ." in lines
    assert "first of key 180 90 . 90 ." in lines
    assert "1 rejected by parse: invalid_json: record 201: the value is not JSON" in lines
    assert lines[-3:] == ["record id user", "1 0 a", "3 1 a"]


def test_a_row_that_is_too_wide_has_a_line_for_each_column(tmp_path: Path) -> None:
    columns = "{name: id, column_name: id, column_type: Int64}, {name: user, column_name: the_user, column_type: String}"
    (tmp_path / "clicks.yaml").write_text(re.sub(r"mapping:\n.*", f"mapping: [{columns}]\n", file(), flags=re.S))
    user = "[b]" + "u" * 100 + "\nend"
    records = "\n".join(json.dumps(record) for record in ({"id": 1, "user": user}, {"id": 2, "user": ""}))
    narrow, wide = (run(tmp_path, "--input", "-", text=records, width=width).stdout.splitlines() for width in (80, 200))
    escaped = user.replace("\n", "\\n")
    at = narrow.index("2 rows for default.clicks:")
    assert narrow[at + 1 :] == [" record 1", "   id        1", f"   the_user  {escaped}", " record 2", "   id        2", "   the_user"]
    assert [line.split() for line in wide[-3:]] == [["record", "id", "the_user"], ["1", "1", escaped], ["2", "2"]]


def test_one_record_is_explained_step_by_step(sample: Path) -> None:
    shown = run(sample, "--input", str(sample / "sample.ndjson"), "--explain", "2").stdout.splitlines()
    assert shown[0] == 'record 2: {"id": 0, "user": "a"}'
    assert shown[1:] == [
        *(f'{step}: passed {{"id": 0, "user": "a", "at": null}}' for step in ("parse", "filter", "dedup")),
        'mapping: passed {"id": 0, "user": "a"}',
        "first of key: duplicate",
    ]


def test_json_has_one_object_per_record(sample: Path) -> None:
    records = json.loads(run(sample, "--input", "-", "--json", text='{"id": 1, "user": "b"}\n{\n').stdout)
    assert [(record["offset"], record["outcome"]) for record in records] == [(0, "row"), (1, "rejected")]
    row = records[0]["steps"][-1]["fields"]
    assert (row["id"], row["user"], row["_tf_offset"]) == (1, "b", 0)
    assert records[1]["steps"][-1]["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name the records to try"),
        (("--input", "-", "--from-topic", "3"), "name the records to try"),
        (("--input", "missing.ndjson"), "cannot read missing.ndjson"),
        (("--input", "-"), "there is no record to try"),
        (("--input", "sample", "--explain", "999"), "there are 201 records"),
    ],
)
def test_what_cannot_be_tried_is_told(sample: Path, arguments: tuple[str, ...], message: str) -> None:
    given = [str(sample / "sample.ndjson") if argument == "sample" else argument for argument in arguments]
    shown = run(sample, *given, text="")
    assert (shown.exit_code, message in shown.stderr) == (2, True), shown.output


def test_a_faulty_file_is_refused_with_its_faults(sample: Path) -> None:
    (sample / "clicks.yaml").write_text(file(FILTER.replace("id < 90", "idd < 90")))
    shown = run(sample, "--input", str(sample / "sample.ndjson"))
    assert shown.exit_code == 2
    assert "transforms[0].config.expression" in shown.stderr


def test_ddl_is_the_statement_that_create_table_runs(sample: Path) -> None:
    shown = CliRunner().invoke(app, ["ddl", str(sample / "clicks.yaml")])
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[:3] == ["CREATE TABLE IF NOT EXISTS default.clicks (", "    id Int64,", "    user Enum8('a' = 1, 'b' = 2),"]
    assert "non_replicated_deduplication_window = 10000" in shown.stdout
    assert lines[-1].endswith(";")
