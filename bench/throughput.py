"""Sustained throughput over preloaded events: events/s, CPU microseconds per event by process group, peak memory.

The window is the whole work of every leg, from the last look at which raw was empty, about a tenth of a second before its first frame, to
the last row that the last leg confirmed: a leg that runs ahead of the others, or is slow at first, is in it. No producer runs;
`sync_interval: always` is the local NATS's setting.
"""

import time
from contextlib import closing
from dataclasses import dataclass
from statistics import median

from bench.pipeline import MeasuredPipeline
from bench.processes import GROUPS, PIPELINE_GROUPS, Meter, Usage
from bench.release import HERE, Release
from pipelines.config import load
from pipelines.connectors.nats.client import JetStream
from pipelines.protocol.naming import Names
from resources.local.spark import CLUSTER
from resources.local.stack import SERVERS, LocalStack

LIMIT_SECONDS = 900.0


@dataclass(frozen=True)
class Throughput:
    """One measured run. `busiest_us`: CPU microseconds per event of the worker that took the most, which bounds a run on more cores."""

    events: int
    seconds: float
    cpu_us_per_event: dict[str, float]
    peak_pss_bytes: int
    busiest_us: float

    @property
    def events_per_second(self) -> float:
        return self.events / self.seconds

    @property
    def pipeline_cpu_us(self) -> float:
        return sum(self.cpu_us_per_event[group] for group in PIPELINE_GROUPS)

    def figures(self) -> dict[str, float]:
        """What is compared with another release."""
        return {
            "events/s": self.events_per_second,
            "CPU us/event: driver + jvm + workers": self.pipeline_cpu_us,
            "peak memory of these, PSS, MB": self.peak_pss_bytes / 1e6,
        }


def measure(
    stack: LocalStack,
    topic: str,
    events: int,
    legs: tuple[str, ...],
    duplicates: int = 0,
    on_cluster: bool = False,
    lanes: int = 1,
    streams: int = 1,
    release: Release = HERE,
) -> Throughput:
    """Runs `legs` over the whole topic; the last of them says how many events are done.

    With `duplicates`, so many of the events, evenly spread, are dropped by dedup on their way to the last leg, and counted all the same.
    """
    with MeasuredPipeline(stack, topic, with_dedup=duplicates > 0, lanes=lanes, streams=streams, release=release) as pipeline:
        return measured(stack, pipeline, events, events - duplicates, legs, on_cluster)


def measured(
    stack: LocalStack, pipeline: MeasuredPipeline, events: int, rows: int, legs: tuple[str, ...], on_cluster: bool = False
) -> Throughput:
    """Run `legs` of a pipeline until the last one has read so many rows."""
    master = ["--master", stack.addresses().spark_master] if on_cluster else []
    pid = pipeline.start(*(argument for leg in legs for argument in ("--leg", leg)), *master)
    spark = [int(stack.server(kind.name).pid or 0) for kind in CLUSTER[1:]] if on_cluster else []
    meter = Meter(pid, {name: int(stack.server(name).pid or 0) for name in SERVERS}, spark)
    peak = 0

    looked = 0.0

    def done() -> bool:
        nonlocal peak, looked
        if time.monotonic() - looked > 1:
            looked = time.monotonic()
            peak = max(peak, meter.read(with_memory=True).pipeline_pss_bytes)
        return pipeline.rows(legs[-1], "rows_in") >= rows

    begun, before = _before_the_first(pipeline, meter)
    pipeline.wait(done, LIMIT_SECONDS)
    ended, after = time.monotonic(), meter.read()
    used = after.since(before)
    busiest_us = after.busiest_since(before) / events * 1e6
    return Throughput(events, ended - begun, {group: used[group] / events * 1e6 for group in GROUPS}, peak, busiest_us)


def _before_the_first(pipeline: MeasuredPipeline, meter: Meter) -> tuple[float, Usage]:
    """The instant and the usage of the last look at which raw held no frame. The status of the runner would be too late for few events."""
    look = time.monotonic(), meter.read()
    config = load(pipeline.file, pipeline.environment)
    raw = Names(config.pipeline_id).stream("raw")
    with closing(JetStream.of(config).connect()) as log:

        def has_begun() -> bool:
            nonlocal look
            now = time.monotonic(), meter.read()
            state = log.state(raw)
            if state is not None and state.last_sequence:
                return True
            look = now
            return False

        pipeline.wait(has_begun, LIMIT_SECONDS)
    return look


def middle(runs: list[Throughput]) -> Throughput:
    """The run with the median rate."""
    rate = median(run.events_per_second for run in runs)
    return min(runs, key=lambda run: abs(run.events_per_second - rate))
