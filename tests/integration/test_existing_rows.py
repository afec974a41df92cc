"""A pipeline that starts for the first time on a table that holds rows: those of another pipeline are never joined in silence."""

from typing import Any

import pytest
from pipeline_case import PipelineCase

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
    said = refused(case)
    assert f"table default.{case.table} holds rows (30), " in said
    assert f"TRUNCATE TABLE default.{case.table}" in said
    assert "existing_rows: keep" in said


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
    assert "holds rows (1), and nothing tells whose" in refused(case)
    case.write_file(lambda document: document["sink"].update(existing_rows="keep"))
    case.warm_run()
    assert case.count() == 31


def test_rows_without_a_position_in_a_table_with_positions_are_no_pipelines(case: PipelineCase) -> None:
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
