"""Keys, headers and positions of Kafka's records as fields: in rows, as a key of dedup, through dead letters, proofs, a rebuilt store."""

import json
import shutil
from collections.abc import Sequence
from datetime import UTC
from typing import Any

import pytest
from support.columns_case import RECORDS, SENT, Sent, with_columns
from support.pipeline_case import PipelineCase
from support.producer import make_producer

from pipelines.errors import StateDamagedError

pytestmark = pytest.mark.integration


def send(case: PipelineCase, records: Sequence[Sent], first: int = 0) -> None:
    producer = make_producer(case.addresses.kafka_client)
    for number, (key, headers) in enumerate(records, first):
        producer.produce(case.topic, b'{"id": %d}' % number, key, 0, headers=headers, timestamp=int(SENT.timestamp() * 1000))
    assert producer.flush(60) == 0


def rows(case: PipelineCase) -> list[dict[str, Any]]:
    found = case.client().query(f"SELECT * FROM {case.table} ORDER BY id", query_formats={"String": "bytes"})
    return list(found.named_results())


def assert_match(case: PipelineCase) -> dict[str, int]:
    for command in ("audit", "verify"):
        ended = case.invoke(command, str(case.file), "--json")
        assert ended.exit_code == 0, ended.output
    answer = json.loads(ended.stdout)
    assert answer["not_compared"] == []
    counts: dict[str, int] = answer["counts"]
    return counts


def dead_letters(case: PipelineCase) -> list[tuple[int, str, str, str]]:
    return sorted((one["_tf_offset"], one["stage"], one["code"], one["field"]) for one in case.dead_letters())


def test_keys_and_headers_pass_through_the_whole_pipeline(case: PipelineCase) -> None:
    case.write_file(with_columns())
    case.create_topic(1)
    send(case, RECORDS)
    case.warm_run()
    assert dead_letters(case) == [(2, "parse", "wrong_type", "key"), (4, "dedup", "null_key", "trace"), (5, "parse", "wrong_type", "trace")]
    first, second = rows(case)
    assert (first["key"], first["trace"], first["headers"]) == (b"a", b"1", {b"trace": b"1", b"who": "Zoë".encode()})
    assert (second["key"], second["trace"], second["headers"]) == (None, b"2", {b"trace": b"2", b"none": None})
    for row, offset in ((first, 0), (second, 1)):
        assert (row["topic"], row["partition"], row["offset"]) == (case.topic.encode(), 0, offset)
        assert (row["sent_at"].replace(tzinfo=UTC), row["at"], row["value"]) == (SENT, row["_tf_arrival"], b'{"id": %d}' % offset)
    counts = assert_match(case)
    assert (counts["rows"], counts["copies"], counts["rejected"]) == (2, 1, 3)


def test_a_header_of_a_unit_since_1970_becomes_an_instant(case: PipelineCase) -> None:
    def change(document: dict[str, Any]) -> None:
        source = document["sources"][0]
        source["schema_fields"] = [{"name": "id", "type": "int"}]
        source["columns"] = [
            {"name": "key", "from": "key", "unit": "s"},
            {"name": "made_at", "from": "headers", "header": "made-at", "unit": "ms"},
        ]
        columns = {"id": "Int64", "key": "DateTime", "made_at": "DateTime64(3)"}
        document["sink"]["mapping"] = [{"name": name, "column_name": name, "column_type": kind} for name, kind in columns.items()]
        dedup = {"key": "id", "time_window": "1h", "time": "event", "time_field": "made_at", "max_ahead": "10000h"}
        document["transforms"] = [{"type": "dedup", "source_id": source.get("source_id", source["topic"]), "config": dedup}]

    case.write_file(change)
    case.create_topic(1)
    texts = [(b"1769860800", b"1769860800250"), (b"noon", b"1769860800251"), (b"1769860800", b"2026-01-31T12:00:00Z")]
    send(case, [(key, [("made-at", header)]) for key, header in texts])
    case.warm_run()
    (row,) = rows(case)
    assert (row["key"].replace(tzinfo=UTC), row["made_at"].replace(tzinfo=UTC)) == (SENT.replace(microsecond=0), SENT)
    assert [(offset, stage, field) for offset, stage, _, field in dead_letters(case)] == [(1, "transform", "key"), (2, "dedup", "made_at")]
    counts = assert_match(case)
    assert (counts["rows"], counts["rejected"]) == (1, 2)


def test_a_dead_letter_keeps_its_key_headers_and_time(case: PipelineCase) -> None:
    case.write_file(with_columns())
    case.create_topic(1)
    send(case, RECORDS)
    case.warm_run()
    case.write_file(with_columns("bytes"))
    rehearsed = case.invoke("dlq", "reprocess", str(case.file), "--all", "--dry-run", "--json")
    assert (rehearsed.exit_code, json.loads(rehearsed.stdout)["passed"]) == (0, 1), rehearsed.output
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    entered = rows(case)[2]
    assert (entered["key"], entered["trace"], entered["offset"], entered["sent_at"].replace(tzinfo=UTC)) == (b"\xff", b"3", 2, SENT)
    assert entered["at"] == entered["_tf_arrival"] > rows(case)[0]["at"]
    assert_match(case)


def test_a_store_of_keys_from_headers_is_rebuilt(case: PipelineCase) -> None:
    case.write_file(with_columns())
    case.create_topic(1)
    send(case, RECORDS)
    case.warm_run()
    shutil.rmtree(case.names.directory(case.home) / "state")
    send(case, RECORDS[:2], first=len(RECORDS))
    with pytest.raises(StateDamagedError, match="tallyflow rebuild-state"):
        case.warm_run()
    assert case.invoke("rebuild-state", str(case.file)).exit_code == 0
    case.warm_run()
    assert [row["offset"] for row in rows(case)] == [0, 1]
    found = case.invoke("why", str(case.file), "1", "--json")
    assert found.exit_code == 0, found.output
    history = json.loads(found.stdout)
    assert (history["key"], history["accepted"]["offset"], history["duplicates"]) == ({"trace": "1"}, 0, 2)
    assert_match(case)
