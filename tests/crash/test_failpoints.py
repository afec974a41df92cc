"""The runner, or a worker alone, killed with SIGKILL at each failpoint; a plain second run finishes what was open."""

from pathlib import Path

import pytest
from pipeline_case import PipelineCase, wait_until
from pyspark.sql import SparkSession

from pipelines.failpoints import NAMES, VARIABLE

pytestmark = pytest.mark.crash

IN_DRIVER = ("--driver-offsets", "1000000", "--driver-frames", "1000")
IN_TASKS = ("--driver-offsets", "0", "--driver-frames", "0")
WITHOUT_STATE = [name for name in NAMES if not name.endswith("-state")]
"""The others are reached with dedup only: test_dedup_kills.py."""
POINTS_IN_TASKS = [name for name in WITHOUT_STATE if name.startswith(("ingest.", "process."))]

# Three partitions of about four frames each, read in one batch. Legs plan and commit in the order of the data: 2 is process, 3 the sink.
LATER_IN_DRIVER = [
    "ingest.between-frames:4",
    "process.between-frames:2",
    "process.after-publish:3",
    "leg.after-plan:2",
    "leg.after-plan:3",
    "leg.before-commit:2",
    "leg.before-commit:3",
]
# Counts are per worker; two workers share three buckets.
LATER_IN_TASKS = ["ingest.between-frames:3", "process.between-frames:2"]


def _send_several_frames(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(12_000, bad_every=100, name_bytes=360)


@pytest.mark.parametrize("point", [*(f"{name}:1" for name in WITHOUT_STATE), *LATER_IN_DRIVER])
def test_a_kill_of_the_runner_in_the_driver_path_is_repaired_by_the_next_run(case: PipelineCase, session: SparkSession, point: str) -> None:
    _send_several_frames(case)
    killed = case.run(*IN_DRIVER, **{VARIABLE: point})
    assert killed.returncode == -9, killed.stderr
    case.warm_run()
    case.check()


@pytest.mark.parametrize("point", [*(f"{name}:1" for name in POINTS_IN_TASKS), *LATER_IN_TASKS])
def test_a_kill_of_the_runner_from_a_task_is_repaired_by_the_next_run(case: PipelineCase, session: SparkSession, point: str) -> None:
    _send_several_frames(case)
    killed = case.run(*IN_TASKS, **{VARIABLE: point})
    assert killed.returncode == -9, killed.stderr
    case.warm_run(driver_offsets=0, driver_frames=0)
    case.check()


@pytest.mark.parametrize("point", ["sink.before-insert:2", "sink.after-insert:2", "leg.before-commit:5"])
def test_a_kill_after_some_batches_is_repaired_by_the_next_run(case: PipelineCase, session: SparkSession, point: str) -> None:
    case.create_topic()
    running = case.start(**{VARIABLE: point})
    with case.load():
        wait_until(lambda: running.poll() is not None, 120, "the failpoint")
    assert running.returncode == -9, running.communicate()[1]
    assert case.count() > 0 or point.startswith("leg")
    case.warm_run()
    case.check()


@pytest.mark.parametrize("name", POINTS_IN_TASKS)
def test_a_run_survives_the_kill_of_a_worker(case: PipelineCase, tmp_path: Path, name: str) -> None:
    _send_several_frames(case)
    mark = tmp_path / "worker-killed"
    ended = case.run(*IN_TASKS, **{VARIABLE: f"{name}:1:worker:{mark}"})
    assert mark.exists(), "no worker came to the failpoint"
    assert ended.returncode == 0, ended.stderr
    # A query may start again because its planner was slow to start (a busy box), not because of the task.
    assert all("connect back" in line for line in ended.stderr.splitlines() if "starting the query again" in line), ended.stderr
    case.check()
