"""What the end of an epoch costs: the latency of orders sent around one beside that of the others, with an epoch every two seconds."""

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np

from bench.latency import WARM_UP_SECONDS, producing, watch
from bench.pipeline import MeasuredPipeline
from bench.release import HERE
from pipelines.demo.produce import ensure_topic
from resources.local.stack import LocalStack

AROUND_SECONDS = 0.25
_SHORT = replace(HERE, command=(sys.executable, "-m", "bench.short_epochs"))


@dataclass(frozen=True)
class Around:
    """Milliseconds from the producer's call to the first query that saw the row, of orders sent around an end, or elsewhere."""

    orders: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True)
class Epochs:
    """`ends`: how many epochs ended while latency was measured."""

    ends: int
    around: Around
    elsewhere: Around


def measure(stack: LocalStack, topic: str, seconds: float) -> Epochs:
    """Measures with dedup. Raises RuntimeError if no epoch has ended in that time."""
    ensure_topic(stack.addresses().kafka_client, topic, 4)
    with MeasuredPipeline(stack, topic, with_dedup=True, release=_SHORT) as pipeline:
        pipeline.start()
        pipeline.wait(lambda: (pipeline.status() or {}).get("ready"))
        with producing(stack, topic):
            time.sleep(WARM_UP_SECONDS)
            with _noting_ends(pipeline) as noted:
                seen = np.array(watch(pipeline, seconds))
    if not noted:
        raise RuntimeError("no epoch has ended while latency was measured")
    ends = np.array(sorted(noted))
    distance = np.abs(seen[:, :1] / 1000 - ends).min(axis=1)
    around = distance <= AROUND_SECONDS
    return Epochs(len(ends), _around(seen[around, 1]), _around(seen[~around, 1]))


@contextmanager
def _noting_ends(pipeline: MeasuredPipeline) -> Iterator[set[float]]:
    """When epochs end, in seconds since 1970: by the files with which Spark commits its batches, of which it keeps a few."""
    began, noted, stop = time.time(), set[float](), threading.Event()

    def look() -> None:
        while not stop.wait(0.5):
            for file in pipeline.directory.glob("*/checkpoint-*/commits/[0-9]*"):
                with suppress(FileNotFoundError):
                    noted.add(file.stat().st_mtime)
            noted.difference_update({instant for instant in noted if instant < began})

    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(look)
        try:
            yield noted
        finally:
            stop.set()
        looking.result()


def _around(latencies_ms: np.ndarray) -> Around:
    p50, p99, longest = np.percentile(latencies_ms, [50, 99, 100])
    return Around(len(latencies_ms), float(p50), float(p99), float(longest))
