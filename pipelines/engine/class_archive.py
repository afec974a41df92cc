"""Make the archive of the classes that Spark's JVM loads (pipelines/spark_classes.py), once per Python environment and Java."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import count as count_of

from pipelines.errors import HaltError

_MAKE_SECONDS = 600


def make_archive(path: Path) -> None:
    """Make the archive from a JVM that performs a pipeline's start. Raise HaltError, and leave nothing behind, if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=path.parent))
    except OSError as error:
        raise HaltError(f"preparing Spark: cannot write to {path.parent}: {error.strerror}; run this as the owner") from error
    try:
        made = scratch / path.name
        command = [sys.executable, "-m", "pipelines.engine.class_archive", str(made)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=_MAKE_SECONDS, cwd=scratch)  # noqa: S603
        except subprocess.TimeoutExpired as error:
            raise HaltError(f"preparing Spark: it was not through after {_MAKE_SECONDS} s") from error
        if not made.exists():
            tail = ended.stderr[-1000:]
            raise HaltError(f"preparing Spark: no archive was written (exit code {ended.returncode}); its last words: {tail}")
        made.replace(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _work(session: SparkSession, checkpoint: Path) -> None:
    """Run tasks, an exchange and a streaming query, as runs and batch work use them."""
    rows = session.range(0, 4, 1, 4).mapInArrow(_same, "id long")
    rows.collect()
    rows.selectExpr("cast(id as int) as id").repartitionById(2, "id").mapInArrow(_same, "id int").collect()
    epochs = session.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1).load()

    def on_epoch(epoch: DataFrame, _: int) -> None:
        counted = Observation()
        epoch.select("value").mapInArrow(_same, "value long").observe(counted, count_of("value").alias("rows")).collect()

    query = epochs.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(on_epoch).start()
    while not query.recentProgress and query.isActive:
        query.awaitTermination(1)
    query.stop()


def _main(path: Path) -> None:
    from pipelines.engine.session import build_session

    session = build_session("tallyflow-prepare", path.parent, java_options=f"-XX:ArchiveClassesAtExit={path}")
    _work(session, path.parent / "checkpoint")
    gateway = session.sparkContext._gateway
    assert gateway is not None
    jvm: subprocess.Popen[bytes] = gateway.proc
    session.stop()
    # The JVM ends, and writes the archive, when its standard input ends.
    assert jvm.stdin is not None
    jvm.stdin.close()
    jvm.wait()


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
