"""`tallyflow tap`: what passes a stream, compared with Kafka by a plain consumer, with the table by SQL, and with the dead letters."""

import json
import signal
import sys
from typing import Any

import pytest
from support.dedup_case import event, keyed_by
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase

from pipelines.preview.tap import json_value

pytestmark = pytest.mark.integration

STORED = ("--from", "start", "--until-now")


def tapped(case: PipelineCase, *arguments: str) -> list[dict[str, Any]]:
    shown = case.invoke("tap", str(case.file), *STORED, "--json", *arguments)
    assert shown.exit_code == 0, shown.output
    return [json.loads(line) for line in shown.stdout.splitlines()]


@pytest.fixture
def filled(case: PipelineCase) -> PipelineCase:
    """A pipeline with 60 records, every tenth broken; the Kafka key of a record is its number."""
    case.create_topic()
    case.send_events(60, bad_every=10)
    case.warm_run()
    return case


def consumers(case: PipelineCase) -> int:
    log = case.log()
    streams = [case.names.stream(role) for role in ("raw", "out", "dlq")]
    count = sum(log._wait("asking", log._js.stream_info(stream)).state.consumer_count for stream in streams)
    log.close()
    return count


def test_raw_shows_what_kafka_holds(filled: PipelineCase) -> None:
    records = tapped(filled, "--at", "raw")
    assert {(r["partition"], r["offset"]): r["value"].encode() for r in records} == filled.records()
    assert len(records) == 60
    assert {(r["topic"], r["source"]) for r in records} == {(filled.topic, "events")}


def test_out_shows_the_rows_of_the_table(filled: PipelineCase) -> None:
    records = tapped(filled, "--at", "out")
    rows = [((r["partition"], r["offset"]), *r["row"].values()) for r in records]
    assert sorted(rows) == sorted(filled.rows())
    assert len(rows) == 54


def test_dlq_shows_the_dead_letters_with_their_reasons(filled: PipelineCase) -> None:
    records = tapped(filled, "--at", "dlq")
    shown = sorted((r["partition"], r["offset"], r["code"], r["value"].encode()) for r in records)
    assert shown == sorted((d["_tf_partition"], d["_tf_offset"], d["code"], d["value"]) for d in filled.dead_letters())
    lines = filled.invoke("tap", str(filled.file), "--at", "dlq", *STORED).stdout.splitlines()
    assert len(lines) == 6
    assert all("  parse: invalid_json  key " in line for line in lines)


def test_a_tap_leaves_nothing_in_nats(filled: PipelineCase) -> None:
    for at in ("raw", "out", "dlq"):
        assert tapped(filled, "--at", at, "--limit", "1")
    assert consumers(filled) == 0


def test_a_key_is_the_kafka_key_or_the_dedup_key(case: PipelineCase) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    case.send([event(number, number % 7) for number in range(21)])
    case.warm_run()
    by_kafka = case.invoke("tap", str(case.file), "--at", "raw", *STORED, "--json", "--key", "13")
    assert "--key is compared with the Kafka key" in by_kafka.stderr
    assert [json.loads(json.loads(line)["value"])["name"] for line in by_kafka.stdout.splitlines()] == ["record 13"]
    by_dedup = case.invoke("tap", str(case.file), "--at", "out", *STORED, "--json", "--key", "3")
    assert "--key is compared with the dedup key, column id" in by_dedup.stderr
    assert [json.loads(line)["row"]["name"] for line in by_dedup.stdout.splitlines()] == ["record 3"]
    assert tapped(case, "--at", "raw", "--key", "nobody") == []


def test_a_key_that_cannot_be_compared_is_refused(filled: PipelineCase) -> None:
    refused = filled.invoke("tap", str(filled.file), "--at", "out", "--key", "3")
    assert (refused.exit_code, "the pipeline has no dedup" in refused.stderr) == (2, True)
    twice = filled.invoke("tap", str(filled.file), "--at", "raw", "--key", "3", "--key", "4")
    assert (twice.exit_code, "give --key once" in twice.stderr) == (2, True)


def test_sources_and_sinks_are_named_by_their_ids(filled: PipelineCase) -> None:
    assert len(tapped(filled, "--at", "raw", "--source", "events")) == 60
    assert len(tapped(filled, "--at", "dlq", "--source", "events")) == 6
    unknown = filled.invoke("tap", str(filled.file), "--at", "raw", "--source", "clicks")
    assert (unknown.exit_code, "no source 'clicks': events" in unknown.stderr) == (2, True)
    for arguments in (["--at", "out", "--source", "events"], ["--at", "raw", "--sink", "every"], ["--at", "out", "--sink", "nosuch"]):
        assert filled.invoke("tap", str(filled.file), *arguments).exit_code == 2


def test_rows_of_one_of_several_tables_are_shown(case: PipelineCase) -> None:
    def into_two(document: dict[str, Any]) -> None:
        sink = document.pop("sink")
        document["sinks"] = [{**sink, "id": "every"}, {**sink, "id": "few", "table": f"{case.table}_few", "when": "id < 5"}]

    case.write_file(into_two)
    case.create_topic()
    case.send_events(30)
    case.warm_run()
    assert sorted(record["row"]["id"] for record in tapped(case, "--at", "out", "--sink", "few")) == [0, 1, 2, 3, 4]
    assert len(tapped(case, "--at", "out", "--sink", "every")) == 30
    unclear = case.invoke("tap", str(case.file), "--at", "out")
    assert (unclear.exit_code, "several sinks, so one must be named: every, few" in unclear.stderr) == (2, True)


def test_from_now_on_shows_only_what_comes(filled: PipelineCase) -> None:
    filled.in_background(filled.warm_runner(until_caught_up=False))
    tap = filled.begin([sys.executable, "-m", "pipelines.cli", "tap", str(filled.file), "--at", "out", "--limit", "3"])
    # Until one comes behind the moment at which the tap has looked for the end.
    with filled.load(count=30, bad_every=0):
        assert tap.wait(PATIENCE_SECONDS) == 0
    assert tap.stdout is not None
    lines = tap.stdout.read().splitlines()
    assert len(lines) == 3
    assert all(int(line.partition('"id": ')[2].partition(",")[0]) >= 60 for line in lines)


def test_ctrl_c_ends_a_tap_without_a_word(filled: PipelineCase) -> None:
    tap = filled.begin([sys.executable, "-m", "pipelines.cli", "tap", str(filled.file), "--at", "raw", "--from", "start"])
    assert tap.stdout is not None
    assert tap.stdout.readline()
    tap.send_signal(signal.SIGINT)
    assert tap.wait(PATIENCE_SECONDS) == 0
    assert "Traceback" not in tap.communicate()[1]


def test_values_that_json_lacks_are_text() -> None:
    assert json_value({"a": float("nan"), "b": b"\xff", "c": [(b"name", b"value")]}) == {
        "a": "nan",
        "b": "hex:ff",
        "c": [["name", "value"]],
    }
