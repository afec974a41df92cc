"""Class data sharing for Spark's JVM: the classes that one JVM has loaded and verified are kept in a file that later ones map at start.

`tallyflow prepare` makes the archive once per Python environment and Java; `build_session` uses it if it exists. A JVM that cannot use an
archive (another Java, a damaged file) starts without: https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html. Measured on two
slow cores, Java 17: session and first job take 26 s without the archive and 14 s with it, 23 and 11 s of the JVM's CPU.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import LongType, StructField, StructType

from pipelines.errors import HaltError

_MAKE_SECONDS = 600


def archive_path() -> Path | None:
    """Return the place of the archive for this environment and this Java; None without a Java of the usual layout.

    The name covers everything for which the JVM would refuse an archive: its own modules file, and Spark's jars.
    """
    java_home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(java_home) / "bin") if java_home else None)
    modules = Path(java).resolve().parent.parent / "lib" / "modules" if java else None
    if modules is None or not modules.exists():
        return None
    found = modules.stat()
    jars = Path(pyspark.__file__).parent / "jars"
    facts = f"{modules} {found.st_size} {found.st_mtime_ns} {jars} {pyspark.__version__}"
    return Path(sys.prefix) / "share" / "tallyflow" / f"spark-classes-{hashlib.sha256(facts.encode()).hexdigest()[:16]}.jsa"


def java_option() -> str:
    """Return the option with which a JVM uses the archive; empty while there is none."""
    path = archive_path()
    # A JVM that cannot use it would print this on standard output.
    return f"-XX:SharedArchiveFile={path} -Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off" if path and path.exists() else ""


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


class _Count(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
        return iter([(start["n"],)]), {"n": start["n"] + 1}

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int]]:
        return iter([(number,) for number in range(start["n"], end["n"])])


class _Counting(DataSource):
    """A source with a row per batch: everything that our own sources need of Spark, without a server."""

    @classmethod
    def name(cls) -> str:
        return "tallyflow_counting"

    def schema(self) -> StructType:
        return StructType([StructField("n", LongType(), False)])

    def simpleStreamReader(self, schema: StructType) -> _Count:
        return _Count()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _work(session: SparkSession, checkpoint: Path) -> None:
    """Run tasks, an exchange and a streaming query, as the legs use them."""
    rows = session.range(0, 4, 1, 4).mapInArrow(_same, "id long")
    rows.collect()
    rows.selectExpr("cast(id as int) as id").repartitionById(2, "id").mapInArrow(_same, "id int").collect()
    session.dataSource.register(_Counting)
    stream = session.readStream.format("tallyflow_counting").load().writeStream.option("checkpointLocation", str(checkpoint))
    query = stream.foreachBatch(lambda batch, number: None).start()
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
