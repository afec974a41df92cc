"""`tallyflow init` on real servers: topics that give no file, a table that exists, the statement of one that does not."""

import json
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import Result
from support.pipeline_case import PipelineCase
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.config import load
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.sinks.clickhouse import check_columns

pytestmark = pytest.mark.integration

CLICKS = [
    {
        "event_id": f"e{n}",
        "at": 1_769_903_999_000 + n,
        "amount": f"{n}.90",
        "kind": ("view", "buy")[n % 2],
        "seen": f"{n % 28 + 1:02}/Jan/2026:10:00:00 +0100",
        "items": [{"sku": "a", "count": str(n)}],
        "score": n / 4,
        "note": None if n % 2 else "x",
        "session": {"id": str(UUID(int=n)), "isNew": n % 7 == 0, "geo": {"lat": 52.5 + n, "lon": 13}},
        "user_id": None if n % 3 == 0 else n,
        "sentAt": f"176990{n:04}.5",
        "quantity": str(n % 5),
        "zip": f"0{n:04}",
        "url": f"https://shop.example/p/{n}",
        "campaign": n if n % 2 else "none",
    }
    for n in range(60)
]
"""Sixteen fields, as producers write them: milliseconds, decimals and counts as texts, a field of two types, a UUID."""


def send(case: PipelineCase) -> None:
    case.create_topic(2)
    case.send([json.dumps(click).encode() for click in CLICKS], partitions=2)


def init(case: PipelineCase, *options: str) -> Result:
    file = str(case.directory / "made.yaml")
    return case.invoke("init", file, "--topic", case.topic, "--table", case.table, "--yes", "--json", *options)


def test_an_empty_topic_and_a_missing_one_are_named(case: PipelineCase) -> None:
    missing = init(case)
    assert missing.exit_code == 1
    assert "UNKNOWN_TOPIC_OR_PART" in missing.output
    case.create_topic(1)
    empty = init(case)
    assert empty.exit_code == 1
    assert f"sampling topic {case.topic}: it holds no records" in empty.output


def test_a_topic_of_keys_alone_and_of_bytes_are_named(case: PipelineCase) -> None:
    case.create_topic(1)
    case.send([None, None], partitions=1)
    assert "2 records, none with a value: keys alone make no rows" in init(case).output
    case.send([b"\0\1avro"], partitions=1)
    assert "none of 3 records is a JSON object" in init(case).output


def test_the_proposed_table_takes_the_rows_and_they_verify(case: PipelineCase) -> None:
    send(case)
    made = init(case)
    assert made.exit_code == 0, made.output
    assert {field["name"]: field["column_type"] for field in json.loads(made.stdout)["fields"]} == {
        "event_id": "String",
        "at": "DateTime64(3)",
        "amount": "Decimal(18, 2)",
        "kind": "LowCardinality(String)",
        "seen": "DateTime",
        "items": "Array(Tuple(sku String, count String))",
        "score": "Float64",
        "note": "LowCardinality(Nullable(String))",
        "session.id": "UUID",
        "session.isNew": "Bool",
        "session.geo.lat": "Float64",
        "session.geo.lon": "Int64",
        "user_id": "Nullable(Int64)",
        "sentAt": "DateTime64(6)",
        "quantity": "Int64",
        "zip": "String",
        "url": "String",
        "campaign": "String",
    }
    case.file = case.directory / "made.yaml"
    case.client().command(Path(case.directory / "made.sql").read_text().rstrip(";\n"))
    config = load(case.file, case.environment())
    server = ClickHouse(config.sink)
    table = server.inspect("default", case.table)
    server.close()
    assert table is not None
    check_columns(config, table)
    assert table.dedup_window == 10_000
    assert "PARTITION BY toYYYYMM(at)" in table.definition
    assert "`at` DateTime64(3) CODEC(Delta" in case.client().command(f"SHOW CREATE TABLE {case.table}")
    run = case.invoke("run", str(case.file), "--until-caught-up")
    assert run.exit_code == 0, run.output
    rows = case.client().query(f"SELECT sum(amount), max(items[1].count), countIf(isNull(note)), min(seen) FROM {case.table}").result_rows
    assert [str(value) for value in rows[0]] == ["1824.00", "9", "30", "2026-01-01 09:00:00"]
    verified = case.invoke("verify", str(case.file))
    assert verified.exit_code == 0, verified.output
    assert "records 60, rows 60, copies 0, rejected 0" in verified.output


def test_a_table_that_exists_decides_the_types(case: PipelineCase) -> None:
    send(case)
    case.client().command(
        f"CREATE TABLE {case.table} (eventId String, at DateTime64(6, 'UTC'), amount Float64, Kind LowCardinality(String), "
        "seen DateTime, score String, missing UInt8 DEFAULT 7) "
        "ENGINE = MergeTree ORDER BY at SETTINGS non_replicated_deduplication_window = 1000"
    )
    made = init(case)
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    assert found["statement"] is None
    columns = {field["name"]: (field["column"], field["column_type"], field["notation"]) for field in found["fields"]}
    of_table = ("event_id", "at", "amount", "kind", "seen", "score", "items", "note")
    assert {name: columns[name] for name in of_table} == {
        "event_id": ("eventId", "String", ""),
        "at": ("at", "DateTime64(6, 'UTC')", "ms"),
        "amount": ("amount", "Float64", ""),
        "kind": ("Kind", "LowCardinality(String)", ""),
        "seen": ("seen", "DateTime", "%d/%b/%Y:%H:%M:%S %z"),
        "score": ("score", "String", ""),
        "items": (None, None, ""),
        "note": (None, None, ""),
    }
    text = (case.directory / "made.yaml").read_text()
    assert "create_table" not in text
    assert "# No field fills these columns of the table: missing" in text
    case.file = case.directory / "made.yaml"
    run = case.invoke("run", str(case.file), "--until-caught-up")
    assert run.exit_code == 0, run.output
    rows = case.client().query(f"SELECT count(), sum(amount), max(score), any(missing), max(seen) FROM {case.table}").result_rows[0]
    assert (rows[0], round(rows[1], 2), rows[2], rows[3]) == (60, 1824.0, "9.75", 7)


def test_servers_that_run_are_found_without_exports(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(case.directory)
    send(case)
    # The home of the servers, and none of their variables.
    bare = {"TALLYFLOW_HOME": str(case.stack.home), "CLICKSTREAM_TOPIC": case.topic, **dict.fromkeys(case.addresses.environment())}
    made = CliRunner().invoke(app, ["init", "made.yaml", "--topic", case.topic, "--table", case.table, "--yes"], env=bare)
    assert made.exit_code == 0, made.output
    kafka, clickhouse = case.addresses.kafka_bootstrap, f"{case.addresses.clickhouse_host}:{case.addresses.clickhouse_port}"
    assert made.stderr.splitlines()[:2] == [
        f"Kafka: the local one at {kafka}, as KAFKA_BOOTSTRAP is not set",
        f"ClickHouse: the local one at {clickhouse}, as CLICKHOUSE_HOST and CLICKHOUSE_PORT are not set",
    ]
    assert "60 records of topic" in made.stdout
    text = (case.directory / "made.yaml").read_text()
    assert 'brokers: ["${KAFKA_BOOTSTRAP}"]' in text
    assert case.addresses.kafka_password not in text + made.output
    named = CliRunner().invoke(app, ["init", "--topic", "x", "--yes"], env={**bare, "KAFKA_BOOTSTRAP": "127.0.0.1:1"})
    assert "Kafka: the local one" not in named.stderr
    assert named.exit_code == 1
    sent = CliRunner().invoke(app, ["produce", "--example", "clickstream", "--count", "10"], env=bare)
    assert sent.exit_code == 0, sent.output
    assert f"Kafka: the local one at {kafka}" in sent.stderr
    assert len(case.records()) == 70


def test_a_table_that_no_field_fits_is_named(case: PipelineCase) -> None:
    send(case)
    case.client().command(f"CREATE TABLE {case.table} (other String) ENGINE = MergeTree ORDER BY other")
    refused = init(case)
    assert refused.exit_code == 1
    assert "no field fills one of its columns (other); name another table with --table" in refused.output
