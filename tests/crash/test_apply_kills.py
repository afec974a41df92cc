"""`tallyflow apply` is killed at any moment, and applied again."""

import random
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psutil
import pytest
from support.edited_case import mapping, waiting_at_the_sink
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, wait_until

from pipelines.control.processes import identify

pytestmark = pytest.mark.crash

KILLS = 4
MORE = {"name": "name", "column_name": "more", "column_type": "String"}


def renamed(columns: list[dict[str, Any]]) -> None:
    columns[1].update(column_name="title")


def test_an_apply_that_is_killed_loses_nothing(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(300)
    runner = case.start()
    case.wait_count(300)
    chance = random.Random(17)
    command = [sys.executable, "-m", "pipelines.cli", "apply", str(case.file), "--yes", "--no-start"]
    with case.load():
        case.write_file(mapping(renamed, lambda columns: columns.append(MORE)))
        for _ in range(KILLS):
            killed = case.begin(command)
            with suppress(subprocess.TimeoutExpired):
                killed.wait(chance.uniform(1.0, 9.0))
            killed.kill()
        done = case.begin(command)
        words = done.communicate(timeout=PATIENCE_SECONDS)[1]
        assert done.returncode == 0, words
    assert runner.wait(PATIENCE_SECONDS) == 0
    case.warm_run()
    found = case.client().query(
        "SELECT count(), uniqExact(_tf_partition, _tf_offset), countIf(title = concat('event ', toString(id))), "
        f"countIf(more IN ('', title)) FROM {case.table}"
    )
    assert found.result_rows == [(case.good, case.good, case.good, case.good)]
    assert len(case.dead_letters()) == case.sent - case.good


def test_a_drain_ends_with_the_apply_that_began_it(case: PipelineCase) -> None:
    waiting_at_the_sink(case)
    case.write_file(mapping(renamed))
    killed = case.begin([sys.executable, "-m", "pipelines.cli", "apply", str(case.file), "--yes", "--no-start"])
    (drain,) = wait_until(lambda: [identify(one.pid) for one in psutil.Process(killed.pid).children()], "a drain")
    assert drain is not None
    killed.kill()
    assert drain.wait_ended(timedelta(seconds=PATIENCE_SECONDS))
    assert case.count() == 0
    again = case.invoke("apply", str(case.file), "--yes", "--no-start")
    assert again.exit_code == 0, again.output
    assert case.count() == 100
