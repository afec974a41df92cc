"""The file is edited and the table altered while rows wait: they arrive as they were made, or the start is refused with the way on."""

import json
from typing import Any

import pytest
from support.edited_case import Document, alter, mapping, waiting_at_the_sink
from support.pipeline_case import PipelineCase

from pipelines.errors import HaltError

pytestmark = pytest.mark.integration

MORE = {"name": "name", "column_name": "more", "column_type": "String"}


def made_int16(columns: list[Document]) -> None:
    columns[0]["column_type"] = "Int16"


def test_a_column_may_be_added_and_removed_while_rows_wait(case: PipelineCase) -> None:
    waiting_at_the_sink(case)
    alter(case, "ADD COLUMN more String DEFAULT 'none'")
    case.write_file(mapping(lambda columns: columns.append(MORE)))
    case.send_events(50)
    case.warm_run(legs=("ingest", "process"))
    case.write_file()
    case.send_events(50)
    case.warm_run()
    case.check()
    found = case.client().query(f"SELECT more = name, more = 'none', count() FROM {case.table} GROUP BY ALL ORDER BY ALL").result_rows
    assert [tuple(map(int, row)) for row in found] == [(0, 1, 150), (1, 0, 50)]
    assert json.loads(case.invoke("tally", str(case.file), "--json").stdout)["residue"] == 0


def test_a_column_may_leave_the_mapping_while_rows_wait(case: PipelineCase) -> None:
    waiting_at_the_sink(case)
    case.write_file(mapping(lambda columns: columns.pop()))
    case.send_events(50)
    case.warm_run()
    amounts = case.client().query(f"SELECT id < 100, countIf(amount IS NOT NULL) FROM {case.table} GROUP BY ALL ORDER BY ALL")
    assert amounts.result_rows == [(0, 0), (1, 100)]


REFUSED = {
    "narrowed": ("MODIFY COLUMN id Int16", "MODIFY COLUMN id Int64", mapping(made_int16), "column 'id' is Int16, the rows hold Int64"),
    "dropped": (
        "DROP COLUMN amount",
        "ADD COLUMN amount Nullable(Float64) AFTER name",
        mapping(lambda columns: columns.pop()),
        "the table has no column 'amount', the rows hold Nullable(Float64)",
    ),
    "renamed": (
        "RENAME COLUMN name TO title",
        "RENAME COLUMN title TO name",
        mapping(lambda columns: columns[1].update(column_name="title")),
        "the table has no column 'name', the rows hold String",
    ),
    "nulls": (
        "MODIFY COLUMN amount Float64 DEFAULT 0; MODIFY COLUMN amount REMOVE DEFAULT",
        "MODIFY COLUMN amount Nullable(Float64)",
        mapping(lambda columns: columns[2].update(column_type="Float64")),
        "column 'amount' is Float64 and has no DEFAULT for nulls, the rows hold some",
    ),
    "materialized": (
        "MODIFY COLUMN name String MATERIALIZED 'x'",
        "MODIFY COLUMN name REMOVE MATERIALIZED",
        mapping(lambda columns: columns.pop(1)),
        "column 'name' is MATERIALIZED and cannot be inserted",
    ),
}


def test_edits_that_waiting_rows_do_not_fit_are_refused(case: PipelineCase) -> None:
    waiting_at_the_sink(case)
    case.send([json.dumps({"id": number, "name": f"n{number}", "amount": None}).encode() for number in (40_000, 65_537, 100_000)])
    case.warm_run(legs=("ingest", "process"))
    for altered, back, edited, fault in REFUSED.values():
        alter(case, altered)
        case.write_file(edited)
        with pytest.raises(HaltError, match="Nothing was started") as refused:
            case.warm_run()
        assert fault in str(refused.value)
        assert "tallyflow plan abandon FILE --leg sink --waiting" in str(refused.value)
        assert "103 rows wait" in str(refused.value)
        alter(case, back)
    old, case.table = case.table, f"{case.table}_new"
    case.write_file()
    with pytest.raises(HaltError, match=f"they were made for table default.{old}"):
        case.warm_run()
    case.table = old
    case.write_file()
    case.warm_run()
    assert case.client().query(f"SELECT count(), max(id), uniqExact(name) FROM {case.table}").result_rows == [(103, 100_000, 103)]


def test_changes_that_keep_every_value_are_no_reason_to_wait(case: PipelineCase) -> None:
    case.write_file(mapping(lambda columns: columns.append(MORE), lambda columns: columns[0].update(column_type="Int32")))
    waiting_at_the_sink(case)
    for change in ("name LowCardinality(String)", "more Nullable(String)", "id Int64"):
        alter(case, f"MODIFY COLUMN {change}")
    alter(case, "ADD COLUMN x UInt8")
    case.write_file(mapping(lambda columns: columns.append(MORE)))
    case.send_events(50)
    case.warm_run()
    case.check()
    assert case.client().query(f"SELECT countIf(more = name) FROM {case.table}").result_rows == [(150,)]


def test_a_default_that_is_gone_is_missed_by_waiting_nulls_only(case: PipelineCase) -> None:
    case.client().command(
        f"CREATE TABLE {case.table} (id Int64, name String, amount Float64 DEFAULT 7) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    case.write_file(mapping(lambda columns: columns[2].update(column_type="Float64")))
    case.create_topic()
    case.send([b'{"id": 1, "name": "a", "amount": null}'])
    case.warm_run(legs=("ingest", "process"))
    alter(case, "MODIFY COLUMN amount REMOVE DEFAULT")
    with pytest.raises(HaltError, match="column 'amount' is Float64 and has no DEFAULT for nulls"):
        case.warm_run()
    alter(case, "MODIFY COLUMN amount DEFAULT 7")
    case.warm_run()
    assert case.client().query(f"SELECT id, amount FROM {case.table}").result_rows == [(1, 7.0)]


def test_position_columns_may_come_while_rows_wait(case: PipelineCase) -> None:
    case.client().command(
        f"CREATE TABLE {case.table} (id Int64, name String, amount Nullable(Float64)) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    waiting_at_the_sink(case)
    alter(case, "ADD COLUMN _tf_partition Int32, ADD COLUMN _tf_offset Int64")
    case.warm_run()
    case.check()


def test_a_column_losing_nulls_under_load_halts_before_insert(case: PipelineCase) -> None:
    """ClickHouse would store 0 in place of a null."""
    waiting_at_the_sink(case)
    case.send([b'{"id": 1, "name": "a", "amount": null}'])
    case.warm_run(legs=("ingest", "process"))
    runner = case.warm_runner(legs=("sink",))
    prepared = runner._write_run

    def altered(*arguments: Any) -> Any:
        path = prepared(*arguments)
        alter(case, "MODIFY COLUMN amount Float64 DEFAULT 0; MODIFY COLUMN amount REMOVE DEFAULT")
        return path

    runner._write_run = altered
    with pytest.raises(HaltError, match="column 'amount' is Float64 and has no DEFAULT for nulls"):
        runner.run()
    assert case.count() == 0
