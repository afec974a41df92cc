"""Rows of a join that the table has lost come back from the stream that the sink has read, with the same values, each once."""

from contextlib import closing
from typing import Any

import pytest
from support.join_pipeline import JoinPipeline, has_decided_all, processed, run_until
from support.pipeline_case import PipelineCase

from pipelines.config import load
from pipelines.errors import HaltError
from pipelines.proof.put_back import PutBack, put_back
from pipelines.proof.verification.run import Request

pytestmark = [pytest.mark.integration, pytest.mark.crash, pytest.mark.usefixtures("brief_inserts")]


@pytest.fixture
def pipeline(case: PipelineCase) -> JoinPipeline:
    """Of 100 left records 50 have met a right one that was there, 30 one that came later, 20 wait."""
    pipeline = JoinPipeline(case, case.addresses)
    pipeline.send("names", range(50))
    case.warm_run()
    pipeline.send("events", range(100))
    case.warm_run()
    pipeline.send("names", range(40, 80), "later ")
    case.warm_run()
    return pipeline


def repaired(case: PipelineCase, **options: Any) -> PutBack:
    with closing(case.log()) as log:
        return put_back(load(case.file, case.environment()), log, Request(case.directory / "verification"), **options)


def everything(case: PipelineCase) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in case.client().query(f"SELECT * FROM {case.table} ORDER BY id").result_rows]


def changed(case: PipelineCase, statement: str) -> None:
    case.client().command(f"ALTER TABLE {case.table} {statement} SETTINGS mutations_sync = 2")


def test_lost_rows_of_a_join_come_back_once_each_time(pipeline: JoinPipeline) -> None:
    """Rows of left records that met a right one at once, that waited, and the newest of all; lost, and lost again."""
    case = pipeline.case
    before = everything(case)
    for frames_per_insert in (1, 64):
        changed(case, "DELETE WHERE id % 10 = 3 OR id = 79")
        found = repaired(case, frames_per_insert=frames_per_insert)
        assert (found.missing, found.rows, found.before.is_clean, found.after.is_clean) == (9, 9, False, True)
        assert everything(case) == before
    again = repaired(case)
    assert (again.missing, again.rows) == (0, 0)


def test_rows_of_two_mappings_come_back_as_made(pipeline: JoinPipeline) -> None:
    """Left records waited under one mapping, and met the right ones under the next."""
    case = pipeline.case
    changed(case, "ADD COLUMN title Nullable(String)")

    def with_title(document: dict[str, Any]) -> None:
        pipeline._joined(document)
        document["sink"]["mapping"].append({"name": "name", "column_name": "title", "column_type": "Nullable(String)"})

    case.write_file(with_title)
    pipeline.send("names", range(80, 90), "last ")
    case.warm_run()
    before = everything(case)
    assert sum(row[-1] is not None or "last 80" in row for row in before) >= 10
    changed(case, "DELETE WHERE id IN (5, 70, 85)")
    assert repaired(case).rows == 3
    assert everything(case) == before


def test_rows_without_a_match_come_back(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses, windows=("1s", "1h"), unmatched="emit")
    pipeline.send("names", [1])
    case.warm_run()
    pipeline.send("events", [1, 2, 3])
    run_until(case, lambda: has_decided_all(processed(case), 4), "the end of the windows")
    before = everything(case)
    assert len(before) == 3
    case.client().command(f"TRUNCATE TABLE {case.table}")
    found = repaired(case)
    assert (found.rows, found.after.is_clean) == (3, True)
    assert everything(case) == before


def test_rows_joined_by_their_own_time_come_back(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses, by_time=("0s", "1s"))
    pipeline.send("names", range(20), at_ms=lambda number: 1_000 + number)
    pipeline.send("events", range(20), at_ms=lambda number: 2_000 + number)
    run_until(case, lambda: case.count() >= 15, "rows of most records")
    before = everything(case)
    changed(case, "DELETE WHERE id < 7")
    found = repaired(case)
    assert (found.missing, found.rows) == (7, 7)
    assert everything(case) == before


def test_what_the_sink_has_refused_stays_out(case: PipelineCase) -> None:
    pipeline = JoinPipeline(case, case.addresses)
    case.warm_run()
    changed(case, "ADD CONSTRAINT small CHECK id < 100")
    pipeline.send("events", range(95, 105))
    pipeline.send("names", range(95, 105))
    case.warm_run()
    changed(case, "DELETE WHERE id = 97")
    assert repaired(case).rows == 1
    assert sorted(row[0] for row in pipeline.rows()) == [95, 96, 97, 98, 99]


def test_purged_rows_are_named_when_the_others_are_back(pipeline: JoinPipeline) -> None:
    case = pipeline.case
    before = everything(case)
    changed(case, "DELETE WHERE id IN (5, 60)")
    with closing(case.log()) as log:
        stream = case.names.stream("out")
        for subject, frames in log.subjects(stream, case.names.subjects("out")).items():
            assert frames > 1
            last = log.last(stream, subject)
            assert last is not None
            log.purge(stream, subject, last.sequence)
    with pytest.raises(HaltError, match=r"1 are back; the rows of 1 other record \(the first: raw .*were purged.*to their topic once more"):
        repaired(case)
    assert {row[0] for row in before} - {row[0] for row in everything(case)} == {5}
