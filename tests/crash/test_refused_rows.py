"""Kills while a chunk that ClickHouse refuses is cut: what was decided stays, also when the table is mended before the restart."""

import pytest
from support.pipeline_case import PipelineCase
from support.refused_case import BAD, event, make_parted, make_strict, mend, positions, refused

from pipelines.protocol.failpoints import VARIABLE

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("brief_inserts")]


@pytest.mark.parametrize("point", ["sink.before-insert:3", "sink.after-insert:2", "sink.after-amend:1", "sink.after-amend:3"])
@pytest.mark.parametrize("is_mended", [False, True], ids=["as it is", "mended meanwhile"])
def test_every_row_is_in_the_table_or_a_dead_letter_once(case: PipelineCase, point: str, is_mended: bool) -> None:
    make_strict(case)
    case.send_events(400)
    assert case.run_plain(**{VARIABLE: point}).returncode == -9
    if is_mended:
        mend(case)
    case.warm_run()
    assert set(refused(case)) <= set(BAD)
    assert is_mended or refused(case) == BAD
    case.check()


@pytest.mark.parametrize(
    "point", ["sink.before-insert:1", "sink.before-insert:3", "sink.after-insert:1", "sink.after-amend:1", "sink.after-amend:3"]
)
def test_a_partly_stored_then_refused_chunk_is_there_once(case: PipelineCase, point: str) -> None:
    make_parted(case, "skip index")
    case.send(event(number, "n/a" if number in (123, 301) else "1") for number in range(400))
    assert case.run_plain(**{VARIABLE: point}).returncode == -9
    case.warm_run()
    assert refused(case) == [123, 301]
    assert positions(case) == (398, 398)
    case.check()
