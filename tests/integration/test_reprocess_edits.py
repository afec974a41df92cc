"""`tallyflow apply --reprocess`: rows of an earlier mapping are made anew under the edited file, each once; no other is touched."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from support.dedup_case import keyed_by
from support.edited_case import alter, mapping
from support.pipeline_case import PipelineCase

from pipelines.config import load
from pipelines.proof import put_back as repair
from pipelines.proof.verification.result import Verification
from pipelines.proof.verification.run import Request, verify
from pipelines.protocol.purge import Purge, read_purged
from pipelines.testing import SINGLE

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("brief_inserts")]

MORE = {"name": "name", "column_name": "more", "column_type": "String"}
Edit = Callable[[dict[str, Any]], None]


def with_more(columns: list[dict[str, Any]]) -> None:
    columns.append(MORE)


def keyed(*changes: Callable[[list[dict[str, Any]]], object]) -> Edit:
    def change(document: dict[str, Any]) -> None:
        keyed_by("id", window="1h")(document)
        mapping(*changes)(document)

    return change


@pytest.fixture
def done(case: PipelineCase) -> PipelineCase:
    """With dedup: 90 events, three of them sent again, three broken."""
    case.write_file(keyed())
    case.create_topic()
    case.send_events(90, bad_every=30)
    case.send([b'{"id": 5, "name": "again"}', b'{"id": 7, "name": "again"}'])
    case.warm_run()
    return case


def reprocessed(case: PipelineCase, *options: str) -> str:
    done = case.invoke("apply", str(case.file), "--yes", "--no-start", "--reprocess", *options)
    assert done.exit_code == 0, done.output
    return done.output


def refused(case: PipelineCase, *options: str) -> str:
    found = case.invoke("apply", str(case.file), "--yes", "--no-start", "--reprocess", *options)
    assert found.exit_code == 1, found.output
    return " ".join(found.stderr.split())


def verified(case: PipelineCase) -> Verification:
    log = case.log()
    try:
        return verify(load(case.file, case.environment()), log, Request(case.names.directory(case.home)))
    finally:
        log.close()


def everything(case: PipelineCase) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in case.client().query(f"SELECT * FROM {case.table} ORDER BY id").result_rows]


def test_rows_so_far_get_the_value_of_an_added_column(done: PipelineCase) -> None:
    before = everything(done)
    done.write_file(keyed(with_more))
    said = reprocessed(done)
    assert f"ALTER TABLE default.{done.table} ADD COLUMN more String" in said
    assert "make the rows so far anew" in said
    found = done.client().query(f"SELECT * EXCEPT(more) FROM {done.table} ORDER BY id").result_rows
    assert [tuple(row) for row in found] == before, "the other columns, positions and arrivals are as before"
    assert done.client().query(f"SELECT count() FROM {done.table} WHERE more != name OR more = ''").result_rows == [(0,)]
    done.send_events(20)
    done.warm_run()
    report = verified(done)
    assert (report.is_clean, report.not_proven, report.findings) == (True, [], [])
    assert report.counts["rows"] == done.count() == 107


def test_the_ranges_are_told_by_the_mapping_of_their_rows(done: PipelineCase) -> None:
    done.write_file(keyed(with_more))
    done.send_events(10)
    reprocessed(done, "--dry-run")
    alter(done, "ADD COLUMN more String")
    done.warm_run()
    log = done.log()
    last = log.state(done.names.stream("raw")).last_sequence
    log.close()
    done.write_file(keyed(with_more, lambda columns: columns.append({**MORE, "column_name": "other"})))
    asked = done.invoke("diff", str(done.file), "--json")
    assert asked.exit_code == 1, asked.output
    ranges = json.loads(asked.stdout)["rows_so_far"]
    assert [(one["rows"], one["differences"]) for one in ranges] == [(87, ["without more", "without other"]), (10, ["without other"])]
    assert (ranges[0]["first"], ranges[0]["last"] + 1, ranges[1]["last"]) == (1, ranges[1]["first"], last)
    shown = done.invoke("diff", str(done.file)).stdout
    table = f"default.{done.table}"
    assert f"  {table}, raw 1..{ranges[0]['last']}: 87 rows, without more, without other\n" in shown
    assert f"  {table}, raw {ranges[1]['first']}..{last}: 10 rows, without other\n" in shown
    assert f"`tallyflow apply {done.file} --reprocess` makes them anew" in shown


def test_nothing_is_made_anew_twice(done: PipelineCase) -> None:
    done.write_file(keyed(with_more))
    reprocessed(done)
    before = everything(done)
    shown = done.invoke("diff", str(done.file)).stdout
    assert "rows so far" not in shown
    assert "make the rows so far anew" not in reprocessed(done)
    assert everything(done) == before


def test_another_type_and_a_new_name_hold_for_the_rows_so_far(done: PipelineCase) -> None:
    before = everything(done)
    done.write_file(
        keyed(lambda columns: columns[0].update(column_type="Int32"), lambda columns: columns[1].update(column_name="title"), with_more)
    )
    said = reprocessed(done, "--change-stored")
    assert "RENAME COLUMN name TO title" in said
    found = done.client().query(f"SELECT id, title, more FROM {done.table} ORDER BY id").result_rows
    assert [tuple(row) for row in found] == [(row[0], row[1], row[1]) for row in before]
    assert verified(done).is_clean


def test_a_computed_column_is_computed_again(case: PipelineCase) -> None:
    def doubled(factor: int) -> Edit:
        def change(document: dict[str, Any]) -> None:
            document["transforms"] = [{"type": "compute", "config": {"fields": [{"name": "twice", "expression": f"id * {factor}"}]}}]
            document["sink"]["mapping"].append({"name": "twice", "column_name": "twice", "column_type": "Nullable(Int64)"})

        return change

    case.write_file(doubled(2))
    case.create_topic()
    case.send_events(30)
    case.warm_run()
    case.write_file(doubled(3))
    assert "made by other transforms" in case.invoke("diff", str(case.file)).stdout
    reprocessed(case)
    assert case.client().query(f"SELECT count(), countIf(twice = id * 3) FROM {case.table}").result_rows == [(30, 30)]
    assert verified(case).is_clean


def test_rows_that_the_file_does_not_make_are_named_and_stay(done: PipelineCase) -> None:
    def whole_numbers(columns: list[dict[str, Any]]) -> None:
        columns.append({"name": "id", "column_name": "small", "column_type": "Int8"})

    done.send([b'{"id": 1000, "name": "large"}'])
    done.warm_run()
    before = everything(done)
    done.write_file(keyed(whole_numbers))
    tried = done.invoke("apply", str(done.file), "--yes", "--reprocess", "--dry-run")
    assert tried.exit_code == 0, tried.output
    assert "computed under this file: 87 rows, and none for 1 record with a row" in tried.stdout
    assert "transform" in tried.stdout
    said = refused(done)
    assert "the edited file makes no row of 1 records that have one: raw" in said
    found = done.client().query(f"SELECT * EXCEPT(small) FROM {done.table} ORDER BY id").result_rows
    assert [tuple(row) for row in found] == before


def test_dead_letters_of_the_earlier_mapping_stay_dead_letters(case: PipelineCase) -> None:
    """The edited file would take the record; it enters again by `dlq reprocess`, not by its old position."""
    case.write_file(mapping(lambda columns: columns[0].update(column_type="Int8")))
    case.create_topic()
    case.send([b'{"id": 1, "name": "event 1"}', b'{"id": 1000, "name": "event 1000"}', b'{"id": 2, "name": "event 2"}'])
    case.warm_run()
    assert (case.count(), len(case.dead_letters())) == (2, 1)
    case.write_file(mapping(lambda columns: columns[0].update(column_type="Int64"), with_more))
    reprocessed(case)
    assert case.client().query(f"SELECT id, more FROM {case.table} ORDER BY id").result_rows == [(1, "event 1"), (2, "event 2")]
    assert verified(case).is_clean
    assert case.invoke("dlq", "reprocess", str(case.file), "--stage", "transform").exit_code == 0
    case.warm_run()
    assert case.client().query(f"SELECT id FROM {case.table} ORDER BY id").result_rows == [(1,), (2,), (1000,)]
    assert verified(case).is_clean


@pytest.mark.usefixtures("plain_commands")
def test_rows_that_wait_are_delivered_first(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(40)
    case.warm_run()
    case.send_events(30)
    case.run_in_turn("ingest", "process")
    assert case.count() == 40
    case.write_file(mapping(with_more))
    said = reprocessed(case)
    assert said.index("deliver the rows that wait") < said.index("make the rows so far anew")
    assert case.client().query(f"SELECT count(), countIf(more = name) FROM {case.table}").result_rows == [(70, 70)]
    assert verified(case).is_clean


def test_lost_rows_come_back_as_the_table_has_the_others_now(done: PipelineCase) -> None:
    done.client().command(f"ALTER TABLE {done.table} DELETE WHERE id = 17 SETTINGS mutations_sync = 2")
    done.write_file(keyed(with_more))
    reprocessed(done)
    done.warm_run()
    assert [finding.kind for finding in verified(done).findings] == ["missing"], "what was lost before is no more than lost"
    log = done.log()
    found = repair.put_back(load(done.file, done.environment()), log, Request(done.names.directory(done.home)))
    log.close()
    assert (found.rows, found.after.is_clean) == (1, True)
    assert done.client().query(f"SELECT more FROM {done.table} WHERE id = 17").result_rows == [("event 17",)]


def test_a_wrong_value_behind_a_reprocess_is_found(done: PipelineCase) -> None:
    done.write_file(keyed(with_more))
    reprocessed(done)
    done.client().command(f"ALTER TABLE {done.table} UPDATE more = '' WHERE id = 17 SETTINGS mutations_sync = 2")
    assert [(finding.kind, finding.count) for finding in verified(done).findings] == [("different", 1)]


def test_a_shared_table_keeps_the_rows_of_others(case: PipelineCase) -> None:
    def shared(*changes: Callable[[list[dict[str, Any]]], object]) -> Edit:
        def change(document: dict[str, Any]) -> None:
            document["sink"]["shared_table"] = True
            mapping(*changes)(document)

        return change

    case.write_file(shared())
    case.create_topic()
    case.send_events(20)
    case.warm_run()
    client = case.client()
    client.command(f"INSERT INTO {case.table} SELECT * REPLACE('another' AS _tf_pipeline) FROM {case.table}")
    case.write_file(shared(with_more))
    reprocessed(case)
    found = client.query(f"SELECT _tf_pipeline, count(), countIf(more = name), countIf(more = '') FROM {case.table} GROUP BY 1 ORDER BY 1")
    assert sorted(tuple(row)[1:] for row in found.result_rows) == [(20, 0, 20), (20, 20, 0)]
    assert verified(case).is_clean
    client.command(f"ALTER TABLE {case.table} DELETE WHERE id = 7 AND _tf_pipeline != 'another' SETTINGS mutations_sync = 2")
    log = case.log()
    found = repair.put_back(load(case.file, case.environment()), log, Request(case.names.directory(case.home)))
    log.close()
    assert (found.rows, found.after.is_clean) == (1, True), "a row of another pipeline at the same position is not its own"


def test_a_default_is_computed_again_and_said(done: PipelineCase) -> None:
    alter(done, "ADD COLUMN length UInt64 DEFAULT length(name)")
    done.write_file(keyed(with_more))
    assert "their DEFAULT is computed again: length" in reprocessed(done)
    assert done.client().query(f"SELECT countIf(length = length(name)) FROM {done.table}").result_rows == [(87,)]


def test_a_table_of_many_partitions_takes_its_rows_anew(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(300)
    columns = "id Int64, name String, amount Nullable(Float64), _tf_sequence UInt64, _tf_ordinal UInt32, _tf_partition Int32, "
    columns += "_tf_topic LowCardinality(String), _tf_offset Int64, _tf_arrival DateTime64(6, 'UTC'), _tf_emit UInt32"
    ddl = f"CREATE TABLE {case.table} ({columns}) ENGINE = MergeTree PARTITION BY id % 105 ORDER BY id "
    case.client().command(ddl + "SETTINGS non_replicated_deduplication_window = 100000")
    case.warm_run()
    case.write_file(mapping(with_more))
    reprocessed(case)
    assert case.client().query(f"SELECT count(), countIf(more = name) FROM {case.table}").result_rows == [(300, 300)]
    assert verified(case).is_clean


def test_rows_whose_raw_records_are_purged_stay_and_are_told(done: PipelineCase) -> None:
    log = done.log()
    Purge(log, done.names, SINGLE, SINGLE.process, timedelta(0)).by_age()
    oldest = read_purged(log, done.names, "raw").below
    log.close()
    done.send_events(10)
    done.warm_run()
    done.write_file(keyed(with_more))
    shown = done.invoke("diff", str(done.file)).stdout
    assert f"raw {oldest}.." in shown
    reprocessed(done)
    found = done.client().query(f"SELECT countIf(more = name), countIf(more = ''), countIf(_tf_sequence < {oldest}) FROM {done.table}")
    anew, as_before, purged = found.result_rows[0]
    assert (anew + as_before, as_before, purged > 0) == (97, purged, True)
    assert verified(done).findings == []
    assert "make the rows so far anew" not in reprocessed(done), "nothing is left that could be made anew"


REFUSED = [
    ("CONSTRAINT", "ADD CONSTRAINT small CHECK id < 1000000", "a constraint may refuse rows that are deleted already"),
    ("column", "ADD COLUMN note String", "columns that the file does not fill (note): their values would be lost"),
    ("TTL", "MODIFY TTL toDateTime(_tf_arrival) + INTERVAL 1 YEAR", "its TTL removes rows"),
]


@pytest.mark.parametrize(("change", "why"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_a_table_with_which_it_is_not_exact_is_refused(done: PipelineCase, change: str, why: str) -> None:
    alter(done, change)
    before = everything(done)
    done.write_file(keyed(with_more))
    said = refused(done)
    assert "is not supported yet where" in said
    assert why in said
    assert everything(done) == before, "not even the column was added"


def test_views_would_get_the_rows_again(done: PipelineCase) -> None:
    done.client().command(f"CREATE TABLE {done.table}_copy (id Int64) ENGINE = MergeTree ORDER BY id")
    done.client().command(f"CREATE MATERIALIZED VIEW {done.table}_view TO {done.table}_copy AS SELECT id FROM {done.table}")
    done.write_file(keyed(with_more))
    assert f"materialized views (default.{done.table}_view) would get the rows again" in refused(done)


def test_another_choice_of_records_is_refused(done: PipelineCase) -> None:
    def filtered(document: dict[str, Any]) -> None:
        keyed(with_more)(document)
        document["transforms"].insert(0, {"type": "filter", "config": {"expression": "id > 10"}})

    before = everything(done)
    done.write_file(filtered)
    assert "they were chosen by another filter, dedup or look-up than the file has" in refused(done)
    assert everything(done) == before


def test_a_doubled_row_is_left_to_its_finder(done: PipelineCase) -> None:
    alter(done, "ADD COLUMN more String")
    columns = [name for name, *_ in done.client().query(f"DESCRIBE TABLE {done.table}").result_rows]
    kept = ", ".join(name for name in columns if name != "more")
    done.client().command(f"INSERT INTO {done.table} ({kept}) SELECT {kept} FROM {done.table} WHERE id = 17")
    done.write_file(keyed(with_more))
    assert "has several rows; nothing of raw" in refused(done)
    assert done.count() == 88
