"""Filters and computed fields from Kafka to ClickHouse: every record is a row, dropped, or a dead letter, and every proof agrees."""

import json
import shutil
from collections import Counter
from typing import Any

import pytest
from support.computed_case import COMPUTE, DEDUP, FILTER, accounts, assert_proven, event, events, outcome, with_transforms
from support.pipeline_case import PipelineCase, wait_until

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("way", ["in tasks"], indirect=True)
def test_every_record_is_a_row_dropped_or_a_dead_letter(case: PipelineCase, way: None) -> None:
    case.write_file(with_transforms(FILTER, COMPUTE))
    case.create_topic()
    for first in (0, 300):
        case.send(events(300, first))
        case.warm_run()
    fate, of_process = accounts(case)
    expected = Counter(outcome(value) for value in case.records().values())
    assert fate == expected
    assert of_process == {
        "written to out": expected["row"],
        "duplicates dropped": 0,
        "dropped by filter": expected["dropped"],
        "dead letters": expected["parse"] + expected["compute"],
    }
    rows = case.client().query(f"SELECT _tf_partition, _tf_offset, name, amount, total, code FROM {case.table}").result_rows
    records = case.records()
    for partition, offset, name, amount, total, code in rows:
        record = json.loads(records[partition, offset] or b"")
        assert (name, amount, code, total) == (record["name"], record["amount"], int(name), record["amount"] * 2)
    assert_proven(case, rows=expected["row"], dropped_by_filter=expected["dropped"])


def test_a_failing_expression_is_named_and_may_be_corrected(case: PipelineCase) -> None:
    case.write_file(with_transforms(COMPUTE))
    case.create_topic(1)
    failing = [event(n, "twelve", float(n)) for n in range(2, 22)]
    case.send([event(1, "12", 1.5), *failing], partitions=1)
    case.warm_run(accept=True)
    letters = case.dead_letters()
    assert [letter["_tf_offset"] for letter in letters] == list(range(1, 21))
    assert {(letter["stage"], letter["code"], letter["field"]) for letter in letters} == {("compute", "expression_error", "code")}
    assert {("CAST(name AS INTEGER)" in letter["message"], "twelve" in letter["message"]) for letter in letters} == {(True, True)}
    shown = case.invoke("dlq", "show", str(case.file), f"{letters[0]['_tf_sequence']}.{letters[0]['_tf_ordinal']}", "--json")
    assert json.loads(shown.stdout)["reason"].startswith("Could not convert string 'twelve' to INT32")
    correct(case, {"type": "filter", "config": {"expression": "amount < 7"}})
    told = case.invoke("dlq", "reprocess", str(case.file), "--all", "--dry-run")
    assert told.exit_code == 0, told.output
    assert "5 would pass to the sink" in told.stdout
    assert "15 would be dropped by filter" in told.stdout
    correct(case)
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    assert sorted(code for (code,) in case.client().query(f"SELECT code FROM {case.table}").result_rows) == [*[6] * 20, 12]


def test_a_value_that_fits_no_frame_is_a_dead_letter_and_proven(case: PipelineCase) -> None:
    compute = {"type": "compute", "config": {"fields": [{"name": "name", "expression": "repeat(name, 10000)"}]}}
    case.write_file(with_transforms(compute))
    case.create_topic(1)
    case.send([event(1, "a" * 90, 1.0), event(2, "b" * 110, 2.0), event(3, "", 3.0)], partitions=1)
    case.warm_run(accept=True)
    (letter,) = case.dead_letters()
    assert (letter["stage"], letter["code"], letter["_tf_offset"]) == ("transform", "row_too_large", 1)
    assert [(number, len(name)) for _, number, name, _ in case.rows()] == [(1, 900_000), (3, 0)]
    assert_proven(case, rows=2)


def test_a_record_that_fits_no_frame_leaves_its_key_to_the_next(case: PipelineCase) -> None:
    compute = {"type": "compute", "config": {"fields": [{"name": "name", "expression": "repeat(name, 10000)"}]}}
    case.write_file(with_transforms(compute, DEDUP))
    case.create_topic(1)
    case.send([event(1, "a" * 110, 1.0), event(1, "b", 2.0), event(1, "c", 3.0)], partitions=1)
    case.warm_run(accept=True)
    assert [letter["code"] for letter in case.dead_letters()] == ["row_too_large"]
    assert [name[:1] for _, _, name, _ in case.rows()] == ["b"]
    assert_proven(case, rows=1)


def correct(case: PipelineCase, *more: dict[str, Any]) -> None:
    """Replaces the expression by one that takes names that are no number."""
    code = {"name": "code", "expression": "length(name)"}

    def change(document: dict[str, Any]) -> None:
        with_transforms(COMPUTE)(document)
        document["transforms"] = [*more, {"type": "compute", "config": {"fields": [COMPUTE["config"]["fields"][0], code]}}]  # type: ignore[index]

    case.write_file(change)


def test_a_filtered_record_is_not_the_first_of_its_key(case: PipelineCase) -> None:
    """In GlassFlow's order, whatever that of the file: the filter first, so the second record of the key stays."""
    case.write_file(with_transforms(DEDUP, FILTER))
    case.create_topic(1)
    case.send([event(1, "low", 1.0), event(1, "high", 20.0), event(1, "again", 30.0), event(2, "low", 2.0)], partitions=1)
    case.warm_run()
    assert [name for _, _, name, _ in case.rows()] == ["high"]
    assert_proven(case, rows=1, copies=1, dropped_by_filter=2)


def test_keys_may_be_computed(case: PipelineCase) -> None:
    key = {"type": "compute", "config": {"fields": [{"name": "bucket", "expression": "id // 10"}]}}
    case.write_file(with_transforms(key, {"type": "dedup", "config": {"key": "bucket", "time_window": "1h"}}))
    case.create_topic()
    case.send([event(n, "n", 1.0) for n in range(100)])
    case.warm_run()
    case.send([event(n, "n", 1.0) for n in range(50, 150)])
    case.warm_run()
    assert sorted(number // 10 for _, number, _, _ in case.rows()) == list(range(15))
    assert_proven(case, rows=15, copies=185, dropped_by_filter=0)
    key["config"]["fields"][0]["expression"] = "id // 20"  # type: ignore[index]
    case.write_file(with_transforms(key, {"type": "dedup", "config": {"key": "bucket", "time_window": "1h"}}))
    refused = case.invoke("run", str(case.file), "--until-caught-up")
    assert refused.exit_code != 0
    assert "dedup_key_fields" in refused.stderr


def test_plans_of_the_file_before_keep_its_filter(case: PipelineCase) -> None:
    case.write_file(with_transforms(FILTER))
    case.create_topic(1)
    case.send([event(n, "n", float(n)) for n in range(20)], partitions=1)
    case.warm_run()
    case.write_file(with_transforms({"type": "filter", "config": {"expression": "amount < 5"}}))
    case.send([event(n, "n", float(n)) for n in range(20)], partitions=1)
    case.warm_run()
    assert sorted(number for _, number, _, _ in case.rows()) == [*range(5), *range(10, 20)]
    assert_proven(case, rows=15, dropped_by_filter=25)


def test_a_rebuilt_key_store_knows_no_filtered_record(case: PipelineCase) -> None:
    case.write_file(with_transforms(FILTER, DEDUP))
    case.create_topic()
    case.send([event(n, "n", float(n)) for n in range(40)])
    case.warm_run()
    (store,) = case.names.directory(case.home).glob("**/dedup")
    shutil.rmtree(store)
    rebuilt = case.invoke("rebuild-state", str(case.file))
    assert rebuilt.exit_code == 0, rebuilt.output
    # Of the filtered ones the key is new, of the others it is known.
    case.send([event(n, "keep", 99.0) for n in range(40)])
    case.warm_run()
    assert sorted(number for _, number, name, _ in case.rows() if name == "keep") == list(range(10))
    assert_proven(case, rows=40, copies=30, dropped_by_filter=10)


def test_planted_faults_behind_a_filter_are_found(case: PipelineCase) -> None:
    case.write_file(with_transforms(FILTER))
    case.create_topic(1)
    case.send([event(n, "n", float(n)) for n in range(20)], partitions=1)
    case.run_in_turn()
    changed = "* REPLACE (5 AS _tf_ordinal, 5 AS _tf_offset, 5 AS id)"
    case.client().command(f"INSERT INTO {case.table} SELECT {changed} FROM (SELECT * FROM {case.table} WHERE _tf_offset = 15)")
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE _tf_offset = 15 SETTINGS mutations_sync = 2")
    wait_until(lambda: sorted(row[1] for row in case.rows()) == [5, *range(10, 15), *range(16, 20)], "the planted faults")
    found = json.loads(case.invoke("verify", str(case.file), "--json").stdout)
    extra, missing = sorted((one for one in found["findings"] if one["place"] == "rows"), key=lambda one: one["kind"])
    assert (missing["kind"], missing["examples"][0]["offset"]) == ("missing", 15)
    assert (extra["kind"], extra["examples"][0]["expected"]) == ("extra", "no row: dropped by filter")


def test_a_preview_of_the_topic_says_what_the_pipeline_does(case: PipelineCase) -> None:
    case.write_file(with_transforms(FILTER, COMPUTE, DEDUP))
    case.create_topic(1)
    case.send(events(400), partitions=1)
    shown = case.invoke("preview", str(case.file), "--from-topic", "1000", "--json")
    assert shown.exit_code == 0, shown.output
    previewed = {(record["partition"], record["offset"]): record for record in json.loads(shown.stdout)}
    case.warm_run()
    found = case.client().query(f"SELECT _tf_partition, _tf_offset, id, name, amount, total, code FROM {case.table}").result_rows
    rows = {(partition, offset): tuple(values) for partition, offset, *values in found}
    letters = {(letter["_tf_partition"], letter["_tf_offset"]): letter for letter in case.dead_letters()}
    assert previewed.keys() == case.records().keys()
    assert {p for p, record in previewed.items() if record["outcome"] == "row"} == rows.keys()
    assert {p for p, record in previewed.items() if record["outcome"] == "rejected"} == letters.keys()
    for position, values in rows.items():
        fields = previewed[position]["steps"][-1]["fields"]
        assert tuple(fields[name] for name in ("id", "name", "amount", "total", "code")) == values
    for position, letter in letters.items():
        last = previewed[position]["steps"][-1]
        assert (last["code"], last["field"], last["reason"]) == (letter["code"], letter["field"], letter["message"])
