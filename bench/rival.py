"""Beside Spark's own `dropDuplicatesWithinWatermark`: what a small batch costs against the number of live keys.

Spark keeps its keys in RocksDB with changelog checkpoints, the faster of its two stores. Its batches come from files, ours from memory;
ours do the dedup stage alone and make its run durable, Spark's have its checkpoint as well. The batches are small, so that what they cost
is what the state costs.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from bench import stage

BATCH_EVENTS = 10_000
BATCHES = 8
_WARM_BATCHES = 2
_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True)
class Comparison:
    """Milliseconds of wall clock (median) and of CPU (mean) per batch of BATCH_EVENTS."""

    live_keys: int
    ours_ms: float
    ours_cpu_ms: float
    spark_ms: float
    spark_cpu_ms: float


def compare(directory: Path, live_keys: Sequence[int]) -> Iterator[Comparison]:
    """One comparison per number of live keys, ascending; everything lies below `directory`, which the caller deletes."""
    spark = _Spark(directory / "spark")
    try:
        for keys in live_keys:
            theirs_ms, theirs_cpu_ms = spark.measure(keys)
            store_directory = directory / f"ours-{keys}"
            ours = stage.measure(store_directory, keys, BATCH_EVENTS)
            shutil.rmtree(store_directory)
            yield Comparison(keys, ours.batch_ms, ours.cpu_us * BATCH_EVENTS / 1e3, theirs_ms, theirs_cpu_ms)
    finally:
        spark.close()


class _Spark:
    """One stream over a directory of files, a file per batch; its state grows from measurement to measurement."""

    def __init__(self, directory: Path) -> None:
        self._files, self._directory = directory / "in", directory
        self._files.mkdir(parents=True)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        builder = SparkSession.builder.master("local[2]").appName("rival")
        settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "6g",
            "spark.sql.shuffle.partitions": "8",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.stateStore.providerClass": _PROVIDER,
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        self._session = builder.getOrCreate()
        gateway = self._session.sparkContext._gateway
        assert gateway is not None
        self._jvm = psutil.Process(gateway.proc.pid)
        self._keys = self._batches = 0

    def measure(self, live_keys: int) -> tuple[float, float]:
        """(median milliseconds, mean milliseconds of the JVM's CPU) of a batch with so many keys in the state."""
        while self._keys < live_keys:
            self._write(min(stage.FILL_EVENTS, live_keys - self._keys))
        self._run()
        for _ in range(_WARM_BATCHES):
            self._write(BATCH_EVENTS)
        self._run()
        for _ in range(BATCHES):
            self._write(BATCH_EVENTS)
        used = self._cpu_seconds()
        durations = self._run()
        return median(durations), (self._cpu_seconds() - used) / BATCHES * 1e3

    def _write(self, events: int) -> None:
        """A file of new keys, all at one time: nothing expires."""
        numbers = pa.array(np.arange(self._keys, self._keys + events)).cast(pa.string())
        at = pa.repeat(pa.scalar(datetime(2026, 1, 1, tzinfo=UTC), pa.timestamp("us", tz="UTC")), events)
        self._batches += 1
        self._keys += events
        pq.write_table(pa.table({"key": numbers, "at": at}), self._files / f"{self._batches:06d}.parquet")

    def _run(self) -> list[float]:
        """Works off the new files; milliseconds of each batch."""
        stream = self._session.readStream.schema("key string, at timestamp").option("maxFilesPerTrigger", 1).parquet(str(self._files))
        query = (
            stream.withWatermark("at", "1 day")
            .dropDuplicatesWithinWatermark(["key"])
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [float(progress["batchDuration"]) for progress in query.recentProgress if progress["numInputRows"]]

    def _cpu_seconds(self) -> float:
        times = self._jvm.cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        self._session.stop()


def chart(found: Sequence[Comparison]) -> str:
    """The wall clock of both against live keys, as SVG; the vertical axis is logarithmic."""
    width, height, left, bottom = 640, 360, 70, 50
    top_keys = max(one.live_keys for one in found) or 1
    lowest, highest = 1.0, max(one.spark_ms for one in found) * 2

    def x(keys: int) -> float:
        return left + (width - left - 20) * keys / top_keys

    def y(milliseconds: float) -> float:
        share = np.log10(max(milliseconds, lowest) / lowest) / np.log10(highest / lowest)
        return float(height - bottom - (height - bottom - 20) * share)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">']
    for power in range(int(np.log10(highest)) + 1):
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y(10**power):.1f}" y2="{y(10**power):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y(10**power) + 4:.1f}" text-anchor="end">{10**power:,} ms</text>')
    for one in found:
        parts.append(f'<text x="{x(one.live_keys):.1f}" y="{height - bottom + 18}" text-anchor="middle">{one.live_keys / 1e6:g} M</text>')
    parts.append(f'<text x="{(left + width) / 2}" y="{height - 8}" text-anchor="middle">live keys</text>')
    for name, color, values in (
        ("Spark dropDuplicatesWithinWatermark", "#c0392b", [(one.live_keys, one.spark_ms) for one in found]),
        ("Tallyflow", "#1f6f3f", [(one.live_keys, one.ours_ms) for one in found]),
    ):
        points = " ".join(f"{x(keys):.1f},{y(value):.1f}" for keys, value in values)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        keys, value = values[len(values) // 2]
        label = f"{name}, {BATCH_EVENTS:,} events per batch"
        parts.append(f'<text x="{x(keys):.1f}" y="{y(value) - 10:.1f}" text-anchor="middle" fill="{color}">{label}</text>')
    return "\n".join([*parts, "</svg>", ""])
