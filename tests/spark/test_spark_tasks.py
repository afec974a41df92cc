"""What Spark tells of its tasks: those whose Python worker has ended are told from those whose worker may live; and where tasks run."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from support.pipeline_case import PATIENCE_SECONDS, wait_until

from pipelines.runner.spark_tasks import crashed_tasks, places_of_tasks, rows_at

pytestmark = [pytest.mark.integration, pytest.mark.spark]
KILLED, RAISING = range(2)


def test_only_a_task_whose_worker_has_ended_has_crashed(session: SparkSession, tmp_path: Path) -> None:
    """Three tasks: the first attempt of one kills its process, that of another raises; all are held until the test has looked."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        list(batches)
        number, attempt = context.partitionId(), context.attemptNumber()
        (tmp_path / f"{number}-{attempt}").write_text(str(context.taskAttemptId()))
        if not attempt and number == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        if not attempt and number == RAISING:
            raise ValueError("words of a task: Python worker lives")
        until = time.monotonic() + PATIENCE_SECONDS
        while not (tmp_path / "end").exists() and time.monotonic() < until:
            time.sleep(0.05)
        yield from ()

    def run() -> None:
        session.range(0, 3, 1, 3).mapInArrow(work, "id long").collect()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: all((tmp_path / name).exists() for name in ("0-1", "1-1", "2-0")), "second attempts")
        assert wait_until(lambda: crashed_tasks(session), "a task that has crashed") == {(tmp_path / "0-0").read_text()}
    finally:
        (tmp_path / "end").touch()
        thread.join(PATIENCE_SECONDS)


def test_each_place_has_a_task_and_a_local_master_has_one_place(session: SparkSession) -> None:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        list(batches)
        yield pa.RecordBatch.from_pydict({"number": [context.partitionId()]})

    host = session.sparkContext.getConf().get("spark.driver.host")
    session.sparkContext.setJobGroup("places", "the tasks of a test")
    found = rows_at(session, ["", f"executor_{host}_driver", ""]).mapInArrow(work, "number long").collect()
    assert [row["number"] for row in found] == [0, 1, 2]
    assert places_of_tasks(session) == {}


def test_a_worker_has_the_pyspark_whose_byte_code_is_kept(session: SparkSession) -> None:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        list(batches)
        yield pa.RecordBatch.from_pydict({"place": [str(sys.modules["pyspark"].__file__), *sys.path]})

    found = {row.place for row in session.range(1).mapInArrow(work, "place string").collect()}
    assert str(Path(pyspark.__file__)) in found
    assert not [place for place in found if place.endswith(("pyspark.zip", ".jar"))]
