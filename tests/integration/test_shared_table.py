"""Two pipelines write one table, each row names its pipeline, and each pipeline's proofs see its own rows alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pipeline_case import PipelineCase

from resources.local.stack import LocalStack

pytestmark = pytest.mark.integration


def shared(document: dict[str, Any]) -> None:
    document["sink"]["shared_table"] = True


@pytest.fixture
def other(case: PipelineCase, running_stack: LocalStack, tmp_path: Path) -> Iterator[PipelineCase]:
    """A second pipeline, of its own topic, into the first one's table."""
    (tmp_path / "other").mkdir()
    made = PipelineCase(running_stack, tmp_path / "other")
    made.table = case.table
    made.write_file(shared)
    yield made
    made.end()


def begun(*cases: PipelineCase) -> None:
    for one in cases:
        one.create_topic()
        one.send_events(120, bad_every=40)


def verdicts(case: PipelineCase) -> list[int]:
    return [case.invoke(command, str(case.file)).exit_code for command in ("verify", "audit")]


def owners(case: PipelineCase) -> dict[str, int]:
    return dict(case.client().query(f"SELECT _tf_pipeline, count() FROM {case.table} GROUP BY 1").result_rows)


def test_each_pipeline_sees_its_own_rows(case: PipelineCase, other: PipelineCase) -> None:
    case.write_file(shared)
    begun(case, other)
    for one in (case, other, case, other):
        one.warm_run()
        one.send_events(30)
    for one in (case, other):
        one.warm_run()
    assert owners(case) == {case.pipeline: 177, other.pipeline: 177}
    assert verdicts(case) == verdicts(other) == [0, 0]
    for one in (case, other):
        assert "records 180, rows 177, copies 0, rejected 3, refused 0, found 177" in one.invoke("verify", str(one.file)).stdout


def test_a_lost_row_of_one_is_missed_by_that_one_alone(case: PipelineCase, other: PipelineCase) -> None:
    case.write_file(shared)
    begun(case, other)
    case.warm_run()
    other.warm_run()
    case.client().command(f"DELETE FROM {case.table} WHERE _tf_pipeline = '{other.pipeline}' AND id = 7")
    assert verdicts(case) == [0, 0]
    assert verdicts(other) == [4, 4]


def test_rows_that_name_another_pipeline_are_no_copies(case: PipelineCase, other: PipelineCase) -> None:
    case.write_file(shared)
    begun(case, other)
    case.warm_run()
    other.warm_run()
    columns = "id, name, amount, _tf_sequence, _tf_ordinal, _tf_emit, _tf_topic, _tf_partition, _tf_offset, _tf_arrival"
    case.client().command(
        f"INSERT INTO {case.table} ({columns}, _tf_pipeline) SELECT {columns}, '{other.pipeline}' FROM {case.table} "
        f"WHERE _tf_pipeline = '{case.pipeline}' AND id = 3"
    )
    assert verdicts(case) == [0, 0]
    assert verdicts(other) == [4, 4]


def test_a_pipeline_that_does_not_share_keeps_the_table(case: PipelineCase, other: PipelineCase) -> None:
    begun(case, other)
    case.warm_run()
    refused = other.invoke("run", str(other.file), "--until-caught-up")
    assert refused.exit_code == 2
    assert (
        f"has no column _tf_pipeline; the rows that are there must be this pipeline's: ALTER TABLE default.{case.table}" in refused.stderr
    )
    case.client().command(f"ALTER TABLE {case.table} ADD COLUMN _tf_pipeline LowCardinality(String)")
    refused = other.invoke("run", str(other.file), "--until-caught-up")
    assert refused.exit_code == 1
    assert "117 rows of table" in refused.stderr
    assert "name no pipeline in _tf_pipeline" in refused.stderr


def test_a_table_with_rows_is_shared_from_now_on(case: PipelineCase, other: PipelineCase) -> None:
    begun(case, other)
    case.warm_run()
    case.write_file(shared)
    done = case.invoke("apply", str(case.file), "--yes", "--no-start")
    assert done.exit_code == 0, done.output
    assert f"ADD COLUMN _tf_pipeline LowCardinality(String) DEFAULT '{case.pipeline}'" in done.stdout
    other.warm_run()
    case.send_events(30)
    case.warm_run()
    assert owners(case) == {case.pipeline: 147, other.pipeline: 117}
    assert verdicts(case) == verdicts(other) == [0, 0]


def test_a_table_that_is_shared_by_mistake_is_refused(case: PipelineCase, other: PipelineCase) -> None:
    begun(case, other)
    case.warm_run()
    other.write_file()
    refused = other.invoke("run", str(other.file), "--until-caught-up")
    assert refused.exit_code == 1
    assert "If both pipelines are to write it, set `shared_table: true` in both files" in refused.stderr


def test_a_deleted_pipeline_leaves_the_table_to_the_other(case: PipelineCase, other: PipelineCase) -> None:
    case.write_file(shared)
    begun(case, other)
    case.warm_run()
    other.warm_run()
    deleted = other.invoke("delete", str(other.file), "--yes")
    assert deleted.exit_code == 0, deleted.output
    assert owners(case) == {case.pipeline: 117, other.pipeline: 117}
    assert verdicts(case) == [0, 0]
