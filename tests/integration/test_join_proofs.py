"""The proofs of a join: sound tables are clean, whatever came first, and each planted fault is named by its position."""

import json
from contextlib import closing
from typing import Any

import pytest
from support.join_pipeline import MISSING, JoinPipeline, clean, report
from support.pipeline_case import PipelineCase
from support.purged_raw import purge_raw

from pipelines.config import load
from pipelines.proof.checks.run import Look
from pipelines.proof.verification.open_lefts import PURGED_DECIDES
from pipelines.proof.verification.result import UNCONFIRMED_LEFTS
from pipelines.protocol.naming import source_of_subject
from pipelines.protocol.records import decode_frame

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]

POSITION = "_tf_topic, _tf_partition, _tf_offset, _tf_sequence, _tf_ordinal"


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


def test_steps_on_both_sides_of_the_join_are_computed_again(case: PipelineCase) -> None:
    fails_for_3 = "name || CAST(replace(CAST(id AS VARCHAR), '3', 'x') AS INTEGER)"
    transforms = (
        {"type": "filter", "source_id": "names", "config": {"expression": "name <> 'n5'"}},
        {"type": "compute", "source_id": "events", "config": {"fields": [{"name": "amount", "expression": "amount * 2"}]}},
        {"type": "filter", "config": {"expression": "id % 7 <> 0"}},
        {"type": "compute", "config": {"fields": [{"name": "name", "expression": fails_for_3}]}},
    )
    pipeline = JoinPipeline(case, case.addresses, *transforms)
    pipeline.send("events", range(20))
    case.warm_run()
    pipeline.send("names", range(10))
    case.warm_run()
    assert [row[0] for row in pipeline.rows()] == [1, 2, 4, 6, 8, 9]
    counts = clean(case, "verify")
    ends = {"rows": 6, "rejected": 1, "dropped by filter": 3, "kept for the join": 9, "waiting in the join": 11}
    assert counts | ends == counts, counts
    audited = clean(case, "audit")
    assert (audited["out"], audited["dead letters"]) == (6, 1)


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


def test_with_dedups_tables_are_clean_but_for_a_row_of_a_copy(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses, copies=("1h", "1h"))
    both_orders(pipeline)
    pipeline.send("events", [*range(60, 90)])
    pipeline.send("names", [*range(70, 85)], "later ")
    case.warm_run()
    counts = clean(case, "verify", "--kafka")
    assert (counts["records"], counts["rows"], counts["found"], counts["copies"]) == (238, 85, 85, 41)
    counts = clean(case, "audit")
    assert (counts["out"], counts["table"], counts["duplicates dropped"], counts["kept for the join"]) == (85, 85, 41, 95)
    # The 0 that the left dedup has dropped; its first one has the row.
    (sequence, ordinal), values = record(case, "events", 0, number=1), "'', 0, 0"
    case.client().command(f"INSERT INTO {case.table} (id, name, amount, {POSITION}) VALUES (0, 'n0', 0.5, {values}, {sequence}, {ordinal})")
    found = faults(case, "verify")
    assert {key: [one["position"] for one in examples] for key, examples in found.items()} == {
        ("rows", "extra", None): [f"{sequence}.{ordinal}"]
    }


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
    purge_raw(case, record(case, "names", 1)[0] + 1)
    answer = report(case, "verify")
    assert (answer["verdict"], answer["findings"], answer["counts"]["rows"]) == ("not proven", [], 1)
    assert [(gap["what"], gap["count"]) for gap in answer["not_proven"]] == [(PURGED_DECIDES, 2)]
    answer = report(case, "audit")
    assert (answer["verdict"], answer["findings"]) == ("not proven", [])
    # The one of 1 has its row.
    assert [(gap["what"], gap["count"]) for gap in answer["not_proven"]] == [(PURGED_DECIDES, 1)]


# -- planted faults ---------------------------------------------------------------------------------------------------------------


def changed(case: PipelineCase, statement: str) -> None:
    case.client().command(f"ALTER TABLE {case.table} {statement} SETTINGS mutations_sync = 2")


def at(case: PipelineCase, one: int) -> str:
    """The position of the one row of an id."""
    ((sequence, ordinal),) = case.client().query(f"SELECT _tf_sequence, _tf_ordinal FROM {case.table} WHERE id = {one}").result_rows
    return f"{sequence}.{ordinal}"


def by_fault(found: dict[tuple[str, str, str | None], list[dict[str, Any]]]) -> dict[tuple[str, str, str | None], set[str]]:
    return {key: {one["position"] for one in examples} for key, examples in found.items()}


def test_planted_faults_are_named_by_the_left_positions(case: PipelineCase) -> None:
    """Of id 46 an earlier right record was there: with the later one's name the row is wrong, though both records exist."""
    both_orders(JoinPipeline(case, case.addresses, unmatched="emit"))
    lost, doubled, of_another, alone = (at(case, one) for one in (60, 45, 46, 77))
    waiting, right = record(case, "events", 90), record(case, "names", 3)
    extra = ["{}.{}".format(*one) for one in (waiting, right)]
    changed(case, "DELETE WHERE id = 60")
    case.client().command(f"INSERT INTO {case.table} SELECT * FROM {case.table} WHERE id = 45")
    changed(case, "UPDATE name = if(id = 46, 'later 46', NULL) WHERE id IN (46, 77)")
    for sequence, ordinal in (waiting, right):
        case.client().command(
            f"INSERT INTO {case.table} (id, name, amount, {POSITION}) VALUES (90, 'x', 1, '', 0, 0, {sequence}, {ordinal})"
        )
    found = faults(case, "verify")
    assert by_fault(found) == {
        ("rows", "missing", None): {lost},
        ("rows", "doubled", None): {doubled},
        ("rows", "different", "name"): {of_another, alone},
        ("rows", "extra", None): {*extra},
    }
    values = {one["position"]: (one["expected"], one["found"]) for one in found["rows", "different", "name"]}
    assert values[of_another] == ("n46", "later 46")
    assert values[alone][0] == "later 77"
    assert {one["position"]: one["expected"] for one in found["rows", "extra", None]} == {
        extra[0]: "no row: waits in the join",
        extra[1]: "no row: a right record of the join",
    }
    assert found["rows", "missing", None][0]["topic"] == case.topic
    # The values of a row are no matter of an audit.
    found = faults(case, "audit")
    place = "out -> table"
    assert by_fault(found) == {(place, "missing", None): {lost}, (place, "doubled", None): {doubled}, (place, "extra", None): {*extra}}
    assert found[place, "missing", None][0]["topic"] == case.topic


def test_both_orders_are_clean_and_checks_name_a_lost_row(case: PipelineCase) -> None:
    both_orders(JoinPipeline(case, case.addresses))
    assert clean(case, "verify", "--kafka") == {
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
    expected = {"raw": 193, "out": 81, "dead letters": 2, "table": 81, "kept for the join": 90, "waiting in the join": 20}
    assert clean(case, "audit") == expected | {"entered again": 0, "duplicates kept": 0}
    assert "not ahead, nothing was changed" in " ".join(case.invoke("reset-clock", str(case.file)).output.split())
    names = ("conservation", "duplicates", "gaps", "freshness", "dead_letters", "schema_drift", "views", "insert_window")
    config = load(case.file, case.environment())
    with Look(config) as look:
        found = {name: look.check(name) for name in names}
    # Two of 193 records are open dead letters.
    assert {name for name, result in found.items() if not result.passed} == {"dead_letters"}
    lost = at(case, 60)
    changed(case, "DELETE WHERE id = 60")
    with Look(config) as look:
        gaps = look.check("gaps")
    assert not gaps.passed
    assert [example["position"] for example in gaps.examples] == [lost]


def record(case: PipelineCase, source: str, one: int, number: int = 0) -> tuple[int, int]:
    """The raw position of the first record of an id; `number`: how many of it come before."""
    found = []
    field = "who" if source == "names" else "id"
    wanted = {"id": one} if source == "names" else one
    with closing(case.log()) as log:
        state = log.state(case.names.stream("raw"))
        assert state is not None
        for message in log.fetch(case.names.stream("raw"), case.names.subjects("raw"), 0, state.last_sequence):
            if source_of_subject(message.subject) == source:
                for ordinal, row in enumerate(decode_frame(message.payload).to_pylist()):
                    if row["value"] != MISSING and json.loads(row["value"])[field] == wanted:
                        found.append((message.sequence, ordinal))
    return found[number]
