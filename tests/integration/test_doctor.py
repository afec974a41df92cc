"""`tallyflow doctor`, and `validate --connect`: what a start needs is looked at without a start, and every fault is told at once."""

import json
import resource
from typing import Any

import pytest
from support.pipeline_case import PipelineCase

from resources.local.java import INSTALL_JAVA

pytestmark = pytest.mark.integration


def looks(case: PipelineCase, code: int, **environment: str) -> dict[str, dict[str, Any]]:
    found = case.invoke("doctor", str(case.file), "--json", **environment)
    assert found.exit_code == code, found.output
    return {look["what"]: look for look in json.loads(found.stdout)}


def faults(case: PipelineCase, **environment: str) -> dict[str, str]:
    return {what: " | ".join(look["faults"]) for what, look in looks(case, 1, **environment).items() if look["faults"]}


def test_a_pipeline_that_can_start_has_no_fault(case: PipelineCase) -> None:
    case.create_topic(partitions=3)
    case.send_events(40)
    found = looks(case, 0)
    assert [*found] == ["Kafka, source events", "NATS", "ClickHouse", "Java", "disk", "file descriptors"]
    assert found["Kafka, source events"]["found"] == f"topic {case.topic}: 3 partitions, 40 offsets"
    assert found["NATS"]["found"] == "JetStream answers; the first start makes the pipeline's streams"
    assert found["ClickHouse"]["found"] == f"table default.{case.table}: the first start makes it"
    case.warm_run()
    assert looks(case, 0)["ClickHouse"]["found"].startswith(f"table default.{case.table}: MergeTree, ")
    shown = case.invoke("validate", str(case.file), "--connect")
    assert (shown.exit_code, shown.output.splitlines()[-1]) == (0, "0 faults")


def test_it_starts_and_changes_nothing(case: PipelineCase) -> None:
    case.create_topic()
    looks(case, 0)
    log = case.log()
    assert all(log.state(case.names.stream(role)) is None for role in ("raw", "out", "ledger"))
    log.close()
    assert not case.names.directory(case.home).exists()


def test_every_system_that_is_away_is_told(case: PipelineCase) -> None:
    found = faults(case, KAFKA_BOOTSTRAP="127.0.0.1:2181", NATS_URL="nats://127.0.0.1:8222", CLICKHOUSE_PORT="9000")
    assert [*found] == ["Kafka, source events", "NATS", "ClickHouse"]
    assert "2181 is ZooKeeper's port" in found["Kafka, source events"]
    assert "8222 is NATS's monitoring port" in found["NATS"]
    assert "9000 is ClickHouse's native port" in found["ClickHouse"]


def test_a_topic_that_is_not_there_is_told(case: PipelineCase) -> None:
    assert "create the topic" in faults(case)["Kafka, source events"]


def test_a_fault_names_its_line_and_the_way_on(case: PipelineCase) -> None:
    case.create_topic()
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} MODIFY SETTING non_replicated_deduplication_window = 0")
    case.client().command(f"ALTER TABLE {case.table} DROP COLUMN name")
    lines = case.file.read_text().splitlines()
    table = looks(case, 1)["ClickHouse"]
    assert (table["path"], lines[table["line"] - 1].strip().split(":")[0]) == ("sink.table", "table")
    assert len(table["faults"]) == 2, "both at once"
    assert "has no column 'name'" in table["faults"][0]
    assert "MODIFY SETTING non_replicated_deduplication_window" in table["faults"][1]


def test_rows_of_another_pipeline_are_told(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(5)
    case.warm_run()
    assert "6 of 6 streams" in looks(case, 0)["NATS"]["found"]
    case.write_file(lambda document: document.update(pipeline_id=f"{case.pipeline}-2"))
    assert "holds 5 rows" in faults(case)["ClickHouse"]


def test_a_file_of_another_shape_is_told(case: PipelineCase) -> None:
    case.create_topic()
    case.warm_run()
    case.write_file(lambda document: document.update(buckets=7))
    assert "buckets was" in faults(case)["NATS"]


def test_a_missing_table_is_no_fault_if_a_start_makes_it(case: PipelineCase) -> None:
    case.create_topic()
    case.write_file(lambda document: document["sink"].update(create_table=False))
    assert "it does not exist; create it" in faults(case)["ClickHouse"]
    case.write_file()
    assert looks(case, 0)["ClickHouse"]["found"] == f"table default.{case.table}: the first start makes it"


def test_a_host_without_java_is_told(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case.create_topic()
    monkeypatch.setenv("JAVA_HOME", str(case.directory))
    assert faults(case) == {"Java": f"looking for Java: no java in JAVA_HOME ({case.directory}); {INSTALL_JAVA}"}


def test_a_low_limit_of_open_files_is_told_as_a_start_tells_it(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case.create_topic()
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (128, 128))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: None)
    told = faults(case)["file descriptors"]
    assert told.startswith("starting on this host: a process may open 128 files here, this pipeline needs ")


def test_a_soft_limit_that_a_start_raises_is_no_fault(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case.create_topic()
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (128, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: None)
    assert looks(case, 0)["file descriptors"]["found"] == "4,096 may be open"


def test_the_right_port_of_a_system_that_is_away_is_no_hint(case: PipelineCase) -> None:
    found = faults(case, KAFKA_BOOTSTRAP="127.0.0.1:9092", NATS_URL="nats://127.0.0.1:4222")
    assert "is Kafka's port" not in found["Kafka, source events"]
    assert "is NATS's port" not in found["NATS"]


def test_a_faulty_file_is_told_before_anything_is_asked(case: PipelineCase) -> None:
    case.write_file(lambda document: document["sink"].pop("table"))
    found = case.invoke("doctor", str(case.file))
    assert found.exit_code == 2
    assert "sink.table" in found.output
