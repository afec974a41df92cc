"""A pipeline with dedup, killed between what it reads of its store, what it writes there and what it publishes: no copy slips through."""

import pytest
from pyspark.sql import SparkSession
from support.dedup_case import check_first_of_keys, copies, keyed_by
from support.pipeline_case import PipelineCase

from pipelines.protocol.failpoints import VARIABLE

pytestmark = pytest.mark.crash


def _began(case: PipelineCase, keep_duplicates: bool = False) -> None:
    case.write_file(keyed_by("id", keep_duplicates=keep_duplicates))
    case.create_topic()
    case.send(copies(1500))


@pytest.mark.parametrize("point", ["process.before-state:1", "process.after-state:1", "process.after-state:2", "process.after-publish:1"])
def test_a_kill_around_the_store_is_repaired_by_the_next_run(case: PipelineCase, point: str) -> None:
    _began(case, keep_duplicates=True)
    case.warm_run()
    case.send(copies(3000, first=1500, keys=1499))
    killed = case.run_plain(**{VARIABLE: point})
    assert killed.returncode == -9, killed.stderr
    case.send(copies(500, first=4500, keys=1499))
    case.warm_run()
    found = check_first_of_keys(case, keeps_duplicates=True)
    assert (found["row"], found["letter"]) == (1499, 50)


@pytest.mark.parametrize("point", ["process.before-state:1", "process.after-state:2"])
def test_a_kill_from_a_task_with_the_store_open_is_repaired(case: PipelineCase, session: SparkSession, point: str) -> None:
    _began(case)
    case.warm_run()
    case.send(copies(3000, first=1500, keys=1499))
    killed = case.run(**{VARIABLE: point})
    assert killed.returncode == -9, killed.stderr
    case.send(copies(500, first=4500, keys=1499))
    case.warm_run()
    found = check_first_of_keys(case)
    assert (found["row"], found["letter"]) == (1499, 50)
