"""Rollups after kills: of the runner at each step of adding one, at random under load, with late and refused rows, and of ClickHouse."""

import os
import random
import time

import pytest
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase
from support.rollup_case import RollupCase

from pipelines.protocol.failpoints import VARIABLE

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("brief_inserts")]
KILLS = int(os.environ.get("TALLYFLOW_ROLLUP_KILLS", "4"))
SMALL_FILLS = "main_with_small_fills"


@pytest.mark.parametrize(
    "point",
    [
        *(f"rollup.after-view:{nth}" for nth in (1, 2, 3)),
        *(f"rollup.after-note:{nth}" for nth in (1, 3, 4, 7, 12)),
        *(f"rollup.after-fill:{nth}" for nth in (1, 3, 8)),
    ],
)
def test_an_added_rollup_counts_each_row_once_after_a_kill(case: PipelineCase, point: str) -> None:
    orders = RollupCase(case, is_added_later=True)
    orders.send(600)
    case.warm_run()
    orders.write()
    orders.send(200)
    killed = case.fork("run", str(case.file), "--until-caught-up", entry=SMALL_FILLS, **{VARIABLE: point})
    killed.communicate(timeout=PATIENCE_SECONDS)
    assert killed.returncode == -9
    orders.send(200)
    case.warm_run()
    assert orders.differences() == []


@pytest.mark.parametrize("point", ["sink.after-insert:1", "sink.before-insert:1", "leg.after-plan:3"])
def test_a_chunk_that_is_sent_again_is_counted_once(case: PipelineCase, point: str) -> None:
    """Its first answer was lost before the view was there: the table drops the chunk, and the view gets it."""
    orders = RollupCase(case, is_added_later=True)
    case.warm_run()
    orders.send(400)
    assert case.run_plain(**{VARIABLE: point}).returncode == -9
    orders.write()
    orders.send(100)
    case.warm_run()
    assert orders.differences() == []


def test_rollups_equal_kafka_after_kills_and_one_added_midway(case: PipelineCase) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    orders = RollupCase(case, is_added_later=True)
    for number in range(KILLS):
        if number == KILLS // 2:
            orders.write()
        process = case.fork("run", str(case.file), entry=SMALL_FILLS)
        orders.send(chance.randrange(100, 600))
        time.sleep(chance.uniform(0.2, 2.0))
        if number % 2:
            clickhouse = case.stack.server("clickhouse")
            clickhouse.kill()
            clickhouse.start()
        process.kill()
        process.wait()
    case.warm_run()
    assert orders.differences() == []
