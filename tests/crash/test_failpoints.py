"""The runner, or a worker alone, killed with SIGKILL at each failpoint; a plain second run finishes what was open."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.failpoints import failpoints
from support.pipeline_case import PipelineCase, wait_until

from pipelines.protocol.failpoints import VARIABLE

pytestmark = pytest.mark.crash

_OF_OTHER_FILES = ("compact.", "frame.", "plan.", "redrive.", "repair.", "reprocess.", "rollup.")
_OTHERS = ("-state", "-amend", "-decision", "-divert")
ALWAYS_REACHED = [name for name in failpoints() if not name.endswith(_OTHERS) and not name.startswith(_OF_OTHER_FILES)]
"""The others: with bodies on several streams test_frame_bodies.py, with dedup test_dedup_kills.py, by compaction test_key_state.py, by a
chunk that is refused test_refused_rows.py, by a purge test_purge_kills.py, by dead letters that are taken test_redrive_kills.py, by rows
that are given up test_abandoned_plans.py, by rows that are put back test_put_back_kills.py, by rows
that are made anew test_reprocess_kills.py, with a fallback test_several_sinks.py, by a rollup that is added test_rollups.py."""
POINTS_IN_TASKS = [name for name in ALWAYS_REACHED if name.startswith(("ingest.", "process."))]

# Three partitions of about four frames each, read in one batch. Legs plan and commit in the order of the data: 2 is process, 3 the sink.
LATER = [
    "ingest.between-frames:4",
    "process.between-frames:2",
    "leg.after-plan:2",
    "leg.after-plan:3",
    "leg.before-commit:2",
    "leg.before-commit:3",
]


def _send_several_frames(case: PipelineCase) -> None:
    case.create_topic()
    case.send_events(12_000, bad_every=100, name_bytes=800)


@pytest.mark.parametrize("point", [*(f"{name}:1" for name in ALWAYS_REACHED), *LATER])
def test_a_kill_between_any_two_steps_is_repaired(case: PipelineCase, point: str) -> None:
    _send_several_frames(case)
    killed = case.run_plain(**{VARIABLE: point})
    assert killed.returncode == -9, killed.stderr
    case.warm_run()
    case.check()


@pytest.mark.parametrize("point", ["ingest.after-publish:1", "process.after-publish:1", "sink.after-insert:1", "leg.before-commit:1"])
def test_a_kill_of_the_runner_and_its_jvm_is_repaired(case: PipelineCase, point: str) -> None:
    _send_several_frames(case)
    killed = case.run(**{VARIABLE: point})
    assert killed.returncode == -9, killed.stderr
    case.warm_run()
    case.check()


# Counts are per worker; two workers share three buckets.
@pytest.mark.parametrize(
    "point", ["ingest.between-frames:3", "ingest.after-publish:1", "process.between-frames:2", "process.after-publish:1"]
)
def test_a_kill_of_the_runner_from_a_task_is_repaired(case: PipelineCase, session: SparkSession, point: str) -> None:
    case.session = session
    _send_several_frames(case)
    if point.startswith("process."):
        # All buckets in one batch, or each could fall to the same worker, or to another one, alone.
        case.warm_run(legs=("ingest",))
    killed = case.run(**{VARIABLE: point})
    assert killed.returncode == -9, killed.stderr
    case.warm_run()
    case.check()


@pytest.mark.parametrize("point", ["sink.before-insert:2", "sink.after-insert:2", "leg.before-commit:5"])
def test_a_kill_after_some_batches_is_repaired_by_the_next_run(case: PipelineCase, point: str) -> None:
    case.create_topic()
    running = case.start(**{VARIABLE: point})
    with case.load():
        wait_until(lambda: running.poll() is not None, "the failpoint")
    assert running.returncode == -9, running.communicate()[1]
    assert case.count() > 0 or point.startswith("leg")
    case.warm_run()
    case.check()


@pytest.mark.parametrize("name", POINTS_IN_TASKS)
def test_a_run_survives_the_kill_of_a_worker(case: PipelineCase, tmp_path: Path, name: str) -> None:
    _send_several_frames(case)
    mark = tmp_path / "worker-killed"
    ended = case.run(**{VARIABLE: f"{name}:1:worker:{mark}"})
    assert mark.exists(), "no worker came to the failpoint"
    assert ended.returncode == 0, ended.stderr
    # A query may start again because its planner was slow to start (a busy box), not because of the task.
    assert all("connect back" in line for line in ended.stderr.splitlines() if "restarting the query" in line), ended.stderr
    case.check()
