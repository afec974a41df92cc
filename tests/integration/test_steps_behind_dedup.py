"""Steps behind dedup, from Kafka to ClickHouse: the first record of a key decides, and then the filter does; every proof agrees."""

import json
import shutil
from typing import Any

import pytest
from support.computed_case import COMPUTE, DEDUP, FILTER, accounts, assert_ends_behind_dedup, assert_proven, event, events, with_transforms
from support.dedup_case import key_state, live_entries
from support.pipeline_case import PipelineCase, wait_until

from pipelines.maintenance.rebuild import rebuild
from pipelines.protocol.purge import read_purged

pytestmark = pytest.mark.integration

BEHIND = with_transforms(DEDUP, FILTER, COMPUTE, order="file")


def test_the_first_of_a_key_decides_and_then_the_filter(case: PipelineCase, way: None) -> None:
    case.write_file(BEHIND)
    case.create_topic()
    for first in (0, 150, 75):
        case.send(events(300, first))
        case.warm_run()
    ends = assert_ends_behind_dedup(case)
    assert min(ends[end] for end in ("row", "copy", "dropped", "parse", "compute")) > 10


def test_a_window_of_a_filtered_record_ends_as_any_other(case: PipelineCase) -> None:
    timed = {"type": "dedup", "config": {"key": "name", "time_window": "10s", "time": "event", "time_field": "id"}}
    case.write_file(with_transforms(timed, {"type": "filter", "config": {"expression": "amount > 5"}}, order="file"))
    case.create_topic(1)
    case.send([event(1, "a", 1.0), event(10, "a", 9.0), event(11, "a", 9.0), event(11, "b", 9.0), event(3, "b", 9.0)], partitions=1)
    case.warm_run()
    assert [(number, name) for _, number, name, _ in case.rows()] == [(11, "a"), (11, "b")]
    assert [letter["code"] for letter in case.dead_letters()] == ["late"]
    assert_proven(case, rows=2, copies=1, dropped_by_filter=1)


def test_a_corrected_record_is_no_copy_of_its_rejected_self(case: PipelineCase) -> None:
    case.write_file(BEHIND)
    case.create_topic(1)
    case.send([event(1, "x", 20.0), event(2, "7", 20.0)], partitions=1)
    case.warm_run(accept=True)

    def corrected(document: dict[str, Any]) -> None:
        BEHIND(document)
        document["transforms"] = [
            DEDUP,
            FILTER,
            {"type": "compute", "config": {"fields": [{"name": "code", "expression": "length(name)"}]}},
        ]
        document["sink"]["mapping"] = [column for column in document["sink"]["mapping"] if column["name"] != "total"]

    case.write_file(corrected)
    assert "1 would pass to the sink" in case.invoke("dlq", "reprocess", str(case.file), "--all", "--dry-run").stdout
    assert case.invoke("dlq", "reprocess", str(case.file), "--all").exit_code == 0
    case.warm_run()
    assert sorted(number for _, number, _, _ in case.rows()) == [1, 2]


def test_a_dry_run_knows_copies_from_filtered_records(case: PipelineCase) -> None:
    case.write_file(with_transforms(COMPUTE, DEDUP, FILTER))
    case.create_topic(1)
    case.send([event(1, "x", 1.0), event(2, "x", 1.0), event(3, "x", 20.0), event(2, "7", 20.0)], partitions=1)
    case.warm_run(accept=True)

    def corrected(document: dict[str, Any]) -> None:
        with_transforms(DEDUP, FILTER, order="file")(document)

    case.write_file(corrected)
    told = case.invoke("dlq", "reprocess", str(case.file), "--all", "--dry-run").stdout
    assert "1 would pass to the sink" in told
    assert "1 would be dropped as duplicates" in told
    assert "1 would be dropped by filter" in told


def test_kept_copies_are_those_that_would_have_a_row(case: PipelineCase) -> None:
    keeping = {**DEDUP, "config": {**DEDUP["config"], "keep_duplicates": True}}  # type: ignore[dict-item]
    case.write_file(with_transforms(keeping, FILTER, order="file"))
    case.create_topic(1)
    case.send([event(1, "a", 20.0), event(1, "b", 1.0), event(1, "c", 20.0), event(2, "d", 1.0), event(2, "e", 20.0)], partitions=1)
    case.warm_run()
    assert [name for _, _, name, _ in case.rows()] == ["a"]
    _, of_process = accounts(case)
    assert (of_process["duplicates dropped"], of_process["dropped by filter"]) == (3, 1)
    assert_proven(case, rows=1, copies=3, dropped_by_filter=1)
    audited = json.loads(case.invoke("audit", str(case.file), "--json").stdout)
    assert audited["counts"]["duplicates kept"] == 2


def test_a_rebuilt_store_knows_filtered_records(case: PipelineCase) -> None:
    case.write_file(with_transforms(DEDUP, FILTER, order="file"))
    case.create_topic()
    case.send([event(n, "n", float(n)) for n in range(40)])
    case.warm_run()
    before = live_entries(case)
    (store,) = case.names.directory(case.home).glob("**/dedup")
    shutil.rmtree(store)
    rebuilt = case.invoke("rebuild-state", str(case.file))
    assert rebuilt.exit_code == 0, rebuilt.output
    assert live_entries(case) == before
    case.send([event(n, "keep", 99.0) for n in range(40)])
    case.warm_run()
    assert case.count() == 30
    assert_proven(case, rows=30, copies=40, dropped_by_filter=10)


def test_purged_filtered_records_are_rebuilt_and_proven(case: PipelineCase) -> None:
    """Which of them were the first of their key is known only from their positions: of some keys no record has a row."""

    def change(document: dict[str, Any]) -> None:
        brief = {"type": "dedup", "config": {"key": "id", "time_window": "2s"}}
        with_transforms(brief, FILTER, order="file")(document)
        document["resources"] = {"nats": {"stream": {"max_age": "5s"}}}

    case.write_file(change)
    case.create_topic()
    log = case.log()

    def is_purged() -> bool:
        case.send([event(n, "n", float(n)) for n in range(20)] * 2)
        case.warm_run()
        return read_purged(log, case.names, "raw").below > 8

    wait_until(is_purged, "raw is purged", 60)
    log.close()
    before = live_entries(case)
    for command in ("verify", "audit"):
        found = json.loads(case.invoke(command, str(case.file), "--json").stdout)
        assert found["findings"] == [], command
    shutil.rmtree(case.names.directory(case.home) / "state")
    state = key_state(case)
    rebuild(state)
    state.close()
    assert len(before) > 10
    assert live_entries(case) == before


def test_a_lost_list_of_filtered_records_is_found(case: PipelineCase) -> None:
    case.write_file(with_transforms(DEDUP, FILTER, order="file"))
    case.create_topic(1)
    case.send([event(n, "n", float(n)) for n in range(20)], partitions=1)
    case.warm_run()
    log = case.log()
    for subject in log.subjects(case.names.stream("duplicates"), case.names.subjects("duplicates")):
        log.purge(case.names.stream("duplicates"), subject, 2**40)
    log.close()
    audited = json.loads(case.invoke("audit", str(case.file), "--json").stdout)
    assert [(one["place"], one["kind"], one["count"]) for one in audited["findings"]] == [("raw -> out", "missing", 10)]


def test_a_preview_says_what_becomes_of_copies_and_firsts(case: PipelineCase) -> None:
    case.write_file(with_transforms(DEDUP, FILTER, order="file"))
    case.create_topic(1)
    case.send([event(1, "low", 1.0), event(1, "high", 20.0), event(2, "high", 20.0), event(2, "low", 1.0)], partitions=1)
    told = json.loads(case.invoke("preview", str(case.file), "--from-topic", "4", "--json").stdout)
    ends = [(record["outcome"], record["steps"][-1]["step"]) for record in told]
    assert ends == [("dropped", "filter"), ("duplicate", "first of key"), ("row", "first of key"), ("duplicate", "first of key")]


def test_a_copy_of_what_a_function_dropped_behind_dedup_is_one(case: PipelineCase) -> None:
    source = "def f(record):\n    return None if record['name'] == 'left out' else {'name': record['name'].upper()}\n"
    case.file.with_name("own.py").write_text(source)
    output = [{"name": "name", "type": "string"}]
    function = {"type": "python", "config": {"function": "own:f", "mode": "row", "input": ["name"], "output": output}}
    case.write_file(with_transforms(DEDUP, function))
    case.create_topic(1)
    case.send([event(1, "left out", 1.0), event(1, "a", 1.0), event(2, "b", 1.0), event(2, "left out", 1.0)], partitions=1)
    case.warm_run()
    assert [name for _, _, name, _ in case.rows()] == ["B"]
    assert_proven(case, rows=1, copies=2, dropped_by_function=1)


def test_every_table_is_proven_with_a_filter_behind_dedup(case: PipelineCase) -> None:
    def change(document: dict[str, Any]) -> None:
        with_transforms(DEDUP, FILTER, order="file")(document)
        sink = document.pop("sink")
        conditions = {"few": "amount < 12", "many": "amount >= 11"}
        document["sinks"] = [{**sink, "id": name, "table": f"{sink['table']}_{name}", "when": when} for name, when in conditions.items()]

    case.write_file(change)
    case.create_topic()
    case.send([event(n % 30, "n", float(n % 17)) for n in range(60)] + [event(99, "keep", None)])
    case.warm_run()
    for command in ("verify", "audit"):
        found = json.loads(case.invoke(command, str(case.file), "--json").stdout)
        assert (found["verdict"], found["findings"], found["not_proven"]) == ("clean", [], []), command
    counts = {name: case.client().query(f"SELECT count() FROM {case.table}_{name}").result_rows[0][0] for name in ("few", "many")}
    assert min(counts.values()) > 0


def test_other_buckets_know_filtered_records(case: PipelineCase) -> None:
    case.write_file(BEHIND)
    case.create_topic()
    case.send(events(200))
    case.warm_run()

    def fewer(document: dict[str, Any]) -> None:
        BEHIND(document)
        document["buckets"] = 3

    case.write_file(fewer)
    assert case.invoke("rebucket", str(case.file)).exit_code == 0
    case.send(events(200, 100))
    case.warm_run()
    assert min(assert_ends_behind_dedup(case).values()) > 10
