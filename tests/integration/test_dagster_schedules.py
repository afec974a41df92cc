"""The schedules of a pipeline's jobs: nothing is launched of which nothing can come, and what may be wrong is left to the run."""

from collections.abc import Iterator
from datetime import UTC, datetime

import dagster as dg
import pytest
from support.dagster_case import DagsterCase
from support.dagster_storage import migrations_read_once
from support.pipeline_case import PipelineCase

pytestmark = pytest.mark.integration
NOW = datetime(2026, 3, 1, 3, 20, tzinfo=UTC)


@pytest.fixture
def dagster(case: PipelineCase) -> Iterator[DagsterCase]:
    case.write_file(lambda document: document.update(transforms=[{"type": "dedup", "config": {"key": "id", "time_window": "1h"}}]))
    case.create_topic()
    with migrations_read_once(), dg.instance_for_test() as instance:
        made = DagsterCase(case, instance)
        yield made
        made.end()


def ticks(dagster: DagsterCase) -> dict[str, str | int]:
    """By schedule, how many runs it asks for, or why none."""
    key = dagster.pipeline.key
    asked = {name: dagster.schedule(name, NOW) for name in (f"reprocess_{key}_daily",)}
    return {name.partition("_")[0]: one.skip_message or len(one.run_requests) for name, one in asked.items()}


@pytest.mark.crash
def test_a_schedule_launches_what_may_be_done(dagster: DagsterCase) -> None:
    """A pipeline that was never started is passed over; while NATS is away the run tries again, and says what is wrong."""
    dagster.case.stack.server("nats").kill()
    try:
        assert ticks(dagster) == {"reprocess": 1}
    finally:
        dagster.case.stack.up()
    assert {str(answer).partition(":")[0] for answer in ticks(dagster).values()} == {f"pipeline {dagster.case.pipeline} was never started"}
    dagster.case.send_events(60)
    dagster.case.warm_run()
    assert ticks(dagster) == {"reprocess": 1}
