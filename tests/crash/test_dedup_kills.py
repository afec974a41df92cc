"""A pipeline with dedup, killed between what it reads of its store, what it writes there and what it publishes: no copy slips through."""

import pytest
from dedup_case import check_first_of_keys, copies, keyed_by
from pipeline_case import PipelineCase
from pyspark.sql import SparkSession

from pipelines.failpoints import VARIABLE

pytestmark = pytest.mark.crash

IN_DRIVER = ("--driver-offsets", "1000000", "--driver-frames", "1000")
IN_TASKS = ("--driver-offsets", "0", "--driver-frames", "0")
POINTS = ["process.before-state:1", "process.after-state:1", "process.after-state:2", "process.after-publish:1"]


@pytest.mark.parametrize("way", [IN_DRIVER, IN_TASKS], ids=["in the driver", "in tasks"])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_around_the_store_is_repaired_by_the_next_run(
    case: PipelineCase, session: SparkSession, way: tuple[str, ...], point: str
) -> None:
    case.write_file(keyed_by("id"))
    case.create_topic()
    case.send(copies(1500))
    case.warm_run()
    case.send(copies(3000, first=1500, keys=1499))
    killed = case.run(*way, **{VARIABLE: point})
    assert killed.returncode == -9, killed.stderr
    case.send(copies(500, first=4500, keys=1499))
    case.warm_run()
    found = check_first_of_keys(case)
    assert (found["row"], found["letter"]) == (1499, 50)
