"""The proofs of a join: sound tables are clean, whatever came first, and each planted fault is named by its position."""

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from support.join_pipeline import MISSING, JoinPipeline, has_decided_all, processed
from support.pipeline_case import PipelineCase, wait_until

from pipelines.config import load
from pipelines.proof.checks.run import Look
from pipelines.proof.verification.open_lefts import PURGED_RIGHTS
from pipelines.proof.verification.result import UNCONFIRMED_LEFTS
from pipelines.protocol.naming import source_of_subject
from pipelines.protocol.purge import Purged
from pipelines.protocol.records import decode_frame

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]


def report(case: PipelineCase, command: str, *arguments: str) -> dict[str, Any]:
    found = case.invoke(command, str(case.file), "--json", *arguments)
    assert found.stdout.startswith("{"), found.output
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def clean(case: PipelineCase, command: str, *arguments: str) -> dict[str, int]:
    """The counts of a report that is clean."""
    answer = report(case, command, *arguments)
    assert (answer["verdict"], answer["findings"], answer["not_proven"]) == ("clean", [], []), answer
    counts: dict[str, int] = answer["counts"]
    return counts


def faults(case: PipelineCase, command: str) -> dict[tuple[str, str, str | None], list[dict[str, Any]]]:
    """Examples by place, kind and column."""
    answer = report(case, command, "--examples", "1000")
    assert answer["verdict"] == "differs", answer
    assert all(one["count"] == len(one["examples"]) for one in answer["findings"])
    found: dict[tuple[str, str, str | None], list[dict[str, Any]]] = {}
    for one in answer["findings"]:
        found.setdefault((one["place"], one["kind"], one["column"]), []).extend(one["examples"])
    return found


def both_orders(pipeline: JoinPipeline) -> None:
    """Of 100 left records 50 have met a right one that was there, 30 one that came later, 20 wait; a record of each side is broken."""
    case = pipeline.case
    pipeline.send("names", range(50))
    case.warm_run()
    pipeline.send("events", [*range(100), 0, -1])
    case.warm_run()
    pipeline.send("names", [*range(40, 80), -1], "later ")
    case.warm_run()


def test_both_orders_of_arrival_are_clean(case: PipelineCase) -> None:
    both_orders(JoinPipeline(case, case.addresses))
    counts = clean(case, "verify", "--kafka")
    assert counts == {
        "records": 193,
        "rows": 81,
        "copies": 0,
        "rejected": 2,
        "refused": 0,
        "kept for the join": 90,
        "waiting in the join": 20,
        "in Kafka": 193,
        "found": 81,
    }
    counts = clean(case, "audit")
    expected = {"raw": 193, "out": 81, "dead letters": 2, "table": 81, "kept for the join": 90, "waiting in the join": 20}
    assert counts == expected | {"entered again": 0, "duplicates kept": 0}


def run_until(case: PipelineCase, is_done: Callable[[], bool], what: str) -> None:
    """Run the pipeline, which ends windows by ticks, until something is so and all of it is in the table."""
    runner = case.warm_runner(until_caught_up=False)
    running = case.in_background(runner)
    try:
        wait_until(is_done, what)
    finally:
        runner.request_stop()
        running.join()
    case.warm_run()


@pytest.mark.parametrize("unmatched", ["drop", "emit", "dead_letter"])
def test_windows_that_ticks_end_are_clean(case: PipelineCase, unmatched: str) -> None:
    pipeline = JoinPipeline(case, case.addresses, windows=("3s", "1h"), unmatched=unmatched)
    pipeline.send("names", [1])
    case.warm_run()
    pipeline.send("events", [1, 2, 3])
    run_until(case, lambda: has_decided_all(processed(case), 4), "the end of the windows")
    verified, audited = clean(case, "verify"), clean(case, "audit")
    ends = {"drop": (1, 0, 2), "emit": (3, 0, 0), "dead_letter": (1, 2, 0)}[unmatched]
    assert (verified["rows"], verified["rejected"], verified.get("unmatched by the join", 0)) == ends, verified
    assert (audited["out"], audited["dead letters"], audited.get("unmatched by the join", 0)) == ends
    assert (verified["records"], audited["raw"], audited["kept for the join"]) == (4, 4, 1)


def test_rows_that_the_table_refuses_are_clean(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses)
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT small CHECK id < 100")
    pipeline.send("events", range(90, 110))
    case.warm_run()
    pipeline.send("names", [105, 91, 92])
    case.warm_run()
    counts = clean(case, "verify")
    assert (counts["rows"], counts["refused"], counts["waiting in the join"]) == (2, 1, 17)
    assert clean(case, "audit")["dead letters"] == 1
    case.client().command(f"ALTER TABLE {case.table} DROP CONSTRAINT small")
    found = case.invoke("dlq", "reprocess", str(case.file), "--all")
    assert found.exit_code == 0, found.output
    case.warm_run()
    assert clean(case, "verify")["rows"] == 3
    assert clean(case, "audit")["entered again"] == 1


def test_steps_on_both_sides_of_the_join_are_computed_again(case: PipelineCase) -> None:
    fails_for_3 = "name || CAST(replace(CAST(id AS VARCHAR), '3', 'x') AS INTEGER)"
    transforms = (
        {"type": "filter", "source_id": "names", "config": {"expression": "name <> 'n5'"}},
        {"type": "compute", "source_id": "events", "config": {"fields": [{"name": "amount", "expression": "amount * 2"}]}},
        {"type": "filter", "config": {"expression": "id % 7 <> 0"}},
        {"type": "compute", "config": {"fields": [{"name": "name", "expression": fails_for_3}]}},
    )
    pipeline = JoinPipeline(case, case.addresses, *transforms)
    pipeline.send("events", range(10))
    case.warm_run()
    pipeline.send("names", range(10))
    case.warm_run()
    pipeline.send("events", range(10, 20))
    case.warm_run()
    assert [row[0] for row in pipeline.rows()] == [1, 2, 4, 6, 8, 9]
    counts = clean(case, "verify")
    ends = {"rows": 6, "rejected": 1, "dropped by filter": 3, "kept for the join": 9, "waiting in the join": 11}
    assert counts | ends == counts, counts
    assert clean(case, "audit") | {"out": 6, "dead letters": 1} == clean(case, "audit")


def test_a_table_without_position_columns_is_compared_as_rows(case: PipelineCase) -> None:
    case.client().command(
        f"CREATE TABLE {case.table} (id Int64, name Nullable(String), amount Nullable(Float64)) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    both_orders(JoinPipeline(case, case.addresses))
    assert clean(case, "verify")["found"] == 81
    clean(case, "audit")
    case.client().command(f"ALTER TABLE {case.table} UPDATE name = 'n999' WHERE id = 7 SETTINGS mutations_sync = 2")
    assert {kind for _, kind, _ in faults(case, "verify")} == {"missing", "extra"}
    assert {kind for _, kind, _ in faults(case, "audit")} == {"missing", "extra"}


def test_a_range_names_what_may_still_get_a_row(case: PipelineCase) -> None:
    """Verified alone, the hour of the left records looks behind its end: their right ones came later."""
    pipeline = JoinPipeline(case, case.addresses)
    pipeline.send("events", range(10))
    case.warm_run()
    with closing(case.log()) as log:
        between = log.clock(case.names.stream("raw"))
    pipeline.send("names", range(7))
    case.warm_run()
    answer = report(case, "verify", "--to", between.strftime("%Y-%m-%dT%H:%M:%S.%f"))
    assert (answer["verdict"], answer["counts"]["rows"], answer["counts"]["found"]) == ("not proven", 7, 7)
    assert [(gap["what"].split(",")[0], gap["count"]) for gap in answer["not_proven"]] == [
        ("left records of the range that wait in the join", 3)
    ]
    pipeline.send("names", range(7, 10))
    case.warm_run()
    assert clean(case, "verify", "--to", between.strftime("%Y-%m-%dT%H:%M:%S.%f"))["rows"] == 10
    counts = clean(case, "verify", "--from", between.strftime("%Y-%m-%dT%H:%M:%S.%f"))
    assert (counts["records"], counts["rows"], counts["kept for the join"]) == (10, 0, 10)


def test_with_a_dedup_of_each_side_tables_are_clean(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses, copies=("1h", "1h"))
    both_orders(pipeline)
    pipeline.send("events", [*range(60, 90)])
    pipeline.send("names", [*range(70, 85)], "later ")
    case.warm_run()
    counts = clean(case, "verify", "--kafka")
    assert (counts["records"], counts["rows"], counts["found"], counts["copies"]) == (238, 85, 85, 41)
    counts = clean(case, "audit")
    assert (counts["out"], counts["table"], counts["duplicates dropped"], counts["kept for the join"]) == (85, 85, 41, 95)


def test_a_row_of_a_copy_is_named(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses, copies=("1h", "1h"))
    pipeline.send("names", [1, 2])
    case.warm_run()
    pipeline.send("events", [1, 2, 1])
    case.warm_run()
    assert clean(case, "verify")["copies"] == 1
    copy = f"SELECT * REPLACE (_tf_ordinal + 1 AS _tf_ordinal, _tf_offset + 1 AS _tf_offset) FROM {case.table} WHERE id = 1"
    case.client().command(f"INSERT INTO {case.table} {copy}")
    found = faults(case, "verify")
    assert [key[:2] for key in found] == [("rows", "extra")]


def test_an_unconfirmed_row_is_neither_missing_nor_extra(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses)
    pipeline.send("events", range(10))
    case.warm_run()
    pipeline.send("names", range(4))
    case.warm_run(legs=("ingest", "process"))
    answer = report(case, "verify")
    assert (answer["verdict"], answer["findings"], answer["counts"]["rows"]) == ("not proven", [], 0)
    assert {gap["what"].split(":")[0]: gap["count"] for gap in answer["not_proven"]}[UNCONFIRMED_LEFTS.split(":")[0]] == 4
    (sequence, ordinal) = record(case, "events", 2)
    case.client().command(
        f"INSERT INTO {case.table} (id, name, amount, _tf_sequence, _tf_ordinal) VALUES (2, 'n2', 2.5, {sequence}, {ordinal})"
    )
    assert report(case, "verify")["findings"] == []


def test_what_a_purged_right_record_decides_is_not_proven(case: PipelineCase) -> None:
    """The name of 1 is purged: its left records may have met it or not. That of 2 is there."""
    pipeline = JoinPipeline(case, case.addresses, unmatched="emit")
    pipeline.send("names", [1])
    case.warm_run()
    pipeline.send("names", [2])
    case.warm_run()
    pipeline.send("events", [1, 2, 3])
    case.warm_run()
    below = record(case, "names", 1)[0] + 1
    with closing(case.log()) as log:
        log.purge(case.names.stream("raw"), case.names.subjects("raw"), below)
        log.publish(case.names.purged("raw"), Purged(below).encode(), {}, 0)
    answer = report(case, "verify")
    assert (answer["verdict"], answer["findings"], answer["counts"]["rows"]) == ("not proven", [], 1)
    assert [(gap["what"], gap["count"]) for gap in answer["not_proven"]] == [(PURGED_RIGHTS, 2)]
    answer = report(case, "audit")
    assert (answer["verdict"], answer["findings"]) == ("not proven", [])
    # The one of 1 has its row.
    assert [(gap["what"], gap["count"]) for gap in answer["not_proven"]] == [(PURGED_RIGHTS, 1)]


# -- other commands ---------------------------------------------------------------------------------------------------------------


def test_the_checks_pass_and_name_a_lost_row(case: PipelineCase) -> None:
    both_orders(JoinPipeline(case, case.addresses))
    names = ("conservation", "duplicates", "gaps", "freshness", "dead_letters", "schema_drift", "views", "insert_window")
    config = load(case.file, case.environment())
    with Look(config) as look:
        found = {name: look.check(name) for name in names}
    # Two of 193 records are open dead letters.
    assert {name for name, result in found.items() if not result.passed} == {"dead_letters"}
    (lost,) = positions(case, "id = 60")
    changed(case, "DELETE WHERE id = 60")
    with Look(config) as look:
        gaps = look.check("gaps")
    assert not gaps.passed
    assert [example["position"] for example in gaps.examples] == [lost]


def refusal(case: PipelineCase, *arguments: str) -> str:
    found = case.invoke(*arguments)
    assert found.exit_code != 0, found.output
    return " ".join(found.output.split())


def test_what_joins_do_not_have_yet_is_refused(case: PipelineCase) -> None:
    both_orders(JoinPipeline(case, case.addresses))
    dry_run = refusal(case, "dlq", "reprocess", str(case.file), "--all", "--dry-run")
    assert "nothing was tried. Redrive them without --dry-run" in dry_run
    assert "not ahead, nothing was changed" in " ".join(case.invoke("reset-clock", str(case.file)).output.split())


# -- planted faults ---------------------------------------------------------------------------------------------------------------


def changed(case: PipelineCase, statement: str) -> None:
    case.client().command(f"ALTER TABLE {case.table} {statement} SETTINGS mutations_sync = 2")


def positions(case: PipelineCase, where: str) -> set[str]:
    found = case.client().query(f"SELECT _tf_sequence, _tf_ordinal FROM {case.table} WHERE {where}").result_rows
    return {f"{sequence}.{ordinal}" for sequence, ordinal in found}


def test_a_lost_row_is_named_by_the_position_of_its_left_record(case: PipelineCase) -> None:
    both_orders(JoinPipeline(case, case.addresses))
    (lost,) = positions(case, "id = 60")
    changed(case, "DELETE WHERE id = 60")
    for command, place in (("verify", "rows"), ("audit", "out -> table")):
        found = faults(case, command)
        assert {place: {one["position"] for one in examples} for place, examples in found.items()} == {(place, "missing", None): {lost}}
        assert found[place, "missing", None][0]["topic"] == case.topic


def test_a_doubled_row_is_named(case: PipelineCase) -> None:
    both_orders(JoinPipeline(case, case.addresses))
    twice = positions(case, "id = 45")
    case.client().command(f"INSERT INTO {case.table} SELECT * FROM {case.table} WHERE id = 45")
    for command, place in (("verify", "rows"), ("audit", "out -> table")):
        found = faults(case, command)
        assert {key: {one["position"] for one in examples} for key, examples in found.items()} == {(place, "doubled", None): twice}


def test_the_value_of_another_right_record_is_named(case: PipelineCase) -> None:
    """Of id 45 an earlier right record was there: with the later one's name the row is wrong, though both records exist."""
    both_orders(JoinPipeline(case, case.addresses))
    (wrong,) = positions(case, "id = 45")
    changed(case, "UPDATE name = 'later 45' WHERE id = 45")
    (example,) = faults(case, "verify")["rows", "different", "name"]
    assert (example["position"], example["expected"], example["found"]) == (wrong, "n45", "later 45")
    clean(case, "audit")


def test_rows_of_waiting_left_and_of_right_records_are_extra(case: PipelineCase) -> None:
    both_orders(JoinPipeline(case, case.addresses))
    waiting, right = record(case, "events", 90), record(case, "names", 3)
    for sequence, ordinal in (waiting, right):
        case.client().command(
            f"INSERT INTO {case.table} (id, name, amount, _tf_topic, _tf_partition, _tf_offset, _tf_sequence, _tf_ordinal) "
            f"VALUES (90, 'x', 1, '', 0, 0, {sequence}, {ordinal})"
        )
    expected = {f"{sequence}.{ordinal}" for sequence, ordinal in (waiting, right)}
    examples = faults(case, "verify")["rows", "extra", None]
    assert {one["position"]: one["expected"] for one in examples} == {
        "{}.{}".format(*waiting): "no row: waits in the join",
        "{}.{}".format(*right): "no row: a right record of the join",
    }
    assert {one["position"] for one in faults(case, "audit")["out -> table", "extra", None]} == expected


def test_an_unmatched_row_that_must_be_joined_is_named(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses, unmatched="emit")
    both_orders(pipeline)
    (wrong,) = positions(case, "id = 77")
    changed(case, "UPDATE name = NULL WHERE id = 77")
    (example,) = faults(case, "verify")["rows", "different", "name"]
    assert (example["position"], example["expected"]) == (wrong, "later 77")


def record(case: PipelineCase, source: str, one: int) -> tuple[int, int]:
    """The raw position of the first record of an id."""
    field = "who" if source == "names" else "id"
    wanted = {"id": one} if source == "names" else one
    with closing(case.log()) as log:
        state = log.state(case.names.stream("raw"))
        assert state is not None
        for message in log.fetch(case.names.stream("raw"), case.names.subjects("raw"), 0, state.last_sequence):
            if source_of_subject(message.subject) == source:
                for ordinal, row in enumerate(decode_frame(message.payload).to_pylist()):
                    if row["value"] != MISSING and json.loads(row["value"])[field] == wanted:
                        return message.sequence, ordinal
    raise AssertionError(f"no record of {source} with id {one}")
