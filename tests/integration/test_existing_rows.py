"""A pipeline that starts for the first time on a table that holds rows: those of another pipeline are never joined in silence."""

from typing import Any

import pytest
from support.pipeline_case import PipelineCase

from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.errors import HaltError
from pipelines.runner import preflight

pytestmark = pytest.mark.integration


def refused(case: PipelineCase) -> str:
    """What a start says that is refused; nothing was read, and no row was written."""
    before = case.count()
    ended = case.invoke("run", str(case.file), "--until-caught-up")
    assert ended.exit_code == 1
    assert case.count() == before
    return ended.stderr


def renamed(case: PipelineCase, **sink: Any) -> None:
    """The same file under another pipeline_id."""

    def change(document: dict[str, Any]) -> None:
        document["pipeline_id"] = f"{case.pipeline}-2"
        document["sink"] |= sink

    case.write_file(change)


def bare_table(case: PipelineCase) -> None:
    case.client().command(
        f"CREATE TABLE {case.table} (id Int64, name String, amount Nullable(Float64)) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 10000"
    )


@pytest.mark.parametrize("has_positions", [True, False], ids=["positions", "rows"])
def test_a_second_pipeline_on_the_table_is_refused_at_its_start(case: PipelineCase, has_positions: bool) -> None:
    if not has_positions:
        bare_table(case)
    case.create_topic()
    case.send_events(30)
    case.warm_run()
    renamed(case)
    answer = refused(case)
    assert f"table default.{case.table} holds 30 rows " in answer
    assert f"TRUNCATE TABLE default.{case.table}" in answer
    assert "existing_rows: keep" in answer


def test_the_pipeline_itself_starts_again_on_its_rows(case: PipelineCase) -> None:
    case.create_topic()
    for _ in range(2):
        case.send_events(30)
        case.warm_run()
    assert case.count() == 60


def test_rows_that_shall_stay_stay(case: PipelineCase) -> None:
    bare_table(case)
    case.client().command(f"INSERT INTO {case.table} VALUES (-1, 'history', NULL)")
    case.create_topic()
    case.send_events(30)
    assert "holds 1 row of unknown origin" in refused(case)
    case.write_file(lambda document: document["sink"].update(existing_rows="keep"))
    case.warm_run()
    assert case.count() == 31


def test_rows_without_a_position_belong_to_no_pipeline(case: PipelineCase) -> None:
    case.client().command(
        f"CREATE TABLE {case.table} (id Int64, name String, amount Nullable(Float64), _tf_sequence UInt64, _tf_ordinal UInt32) "
        "ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 10000"
    )
    case.client().command(f"INSERT INTO {case.table} (id, name) VALUES (-1, 'history')")
    case.create_topic()
    case.send_events(30)
    case.warm_run()
    assert case.count() == 31


def test_an_emptied_table_is_free_for_the_next_pipeline(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(30)
    case.warm_run()
    case.client().command(f"TRUNCATE TABLE {case.table}")
    renamed(case)
    case.warm_run()
    assert case.count() == 30


def both(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> str:
    """The pipeline's start has found the table empty; then another one's rows come. What the sink says before it has sent anything."""
    case.create_topic()
    case.send_events(30)
    own = case.file.read_text()
    renamed(case)
    case.warm_run()
    case.file.write_text(own)
    monkeypatch.setattr(preflight, "check_existing_rows", lambda *_: None)
    with pytest.raises(HaltError) as caught:
        case.warm_run()
    assert case.count() == 30
    return str(caught.value)


@pytest.mark.parametrize("has_positions", [True, False], ids=["positions", "rows"])
def test_rows_of_a_simultaneous_start_are_seen_before_insert(
    case: PipelineCase, monkeypatch: pytest.MonkeyPatch, has_positions: bool
) -> None:
    if not has_positions:
        bare_table(case)
    answer = both(case, monkeypatch)
    assert f"inserting the first chunk into default.{case.table}: it was empty when pipeline {case.pipeline} started" in answer
    assert "now holds 30 rows of another writer. If that is another pipeline" in answer
    assert "Nothing was sent." in answer and "existing_rows: keep" in answer


def test_rows_that_came_with_the_first_chunk_are_seen_after_it(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    case.create_topic()
    case.send_events(30)
    case.run_in_turn("ingest", "process")
    insert = ClickHouse.insert

    def after_another(self: ClickHouse, table: str, columns: Any, block: bytes, token: str, *more: Any) -> None:
        insert(self, table, columns, block, "of another pipeline", *more)
        insert(self, table, columns, block, token, *more)

    monkeypatch.setattr(ClickHouse, "insert", after_another)
    for _ in range(2):
        with pytest.raises(HaltError, match="now holds 30 rows of another writer") as caught:
            case.warm_run()
        assert "Nothing was sent" not in str(caught.value)
    monkeypatch.undo()
    case.write_file(lambda document: document["sink"].update(existing_rows="keep"))
    case.warm_run()
    assert case.count() == 60, "each row once of each"
    case.send_events(30)
    case.warm_run()
    assert case.count() == 90
