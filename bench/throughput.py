"""Sustained throughput over preloaded events: events/s, CPU microseconds per event by process group, peak memory.

The first fifth of the events is left out (warm-up); no producer runs; `sync_interval: always` is the local NATS's setting.
"""

import time
from dataclasses import dataclass
from statistics import median

from bench.pipeline import MeasuredPipeline
from bench.processes import GROUPS, PIPELINE_GROUPS, Meter, Usage
from resources.local.stack import LocalStack

WARM_UP_SHARE = 0.2
LIMIT_SECONDS = 900.0


@dataclass(frozen=True)
class Throughput:
    """One measured run."""

    events: int
    seconds: float
    cpu_us_per_event: dict[str, float]
    peak_pss_bytes: int

    @property
    def events_per_second(self) -> float:
        return self.events / self.seconds

    @property
    def pipeline_cpu_us(self) -> float:
        return sum(self.cpu_us_per_event[group] for group in PIPELINE_GROUPS)


def measure(stack: LocalStack, topic: str, events: int, legs: tuple[str, ...], duplicates: int = 0) -> Throughput:
    """Runs `legs` over the whole topic; the last of them says how many events are done.

    With `duplicates`, so many of the events, evenly spread, are dropped by dedup on their way to the last leg, and counted all the same.
    """
    with MeasuredPipeline(stack, topic, with_dedup=duplicates > 0) as pipeline:
        return _measure(stack, pipeline, events, events - duplicates, legs)


def _measure(stack: LocalStack, pipeline: MeasuredPipeline, events: int, rows: int, legs: tuple[str, ...]) -> Throughput:
    pid = pipeline.start(*(argument for leg in legs for argument in ("--leg", leg)))
    meter = Meter(pid, {name: int(stack.server(name).pid or 0) for name in ("kafka", "nats", "clickhouse")})
    last, count = legs[-1], "rows_in"
    peak = 0

    def reached(rows: int) -> tuple[float, int, Usage]:
        nonlocal peak
        looked = 0.0

        def done() -> bool:
            nonlocal peak, looked
            if time.monotonic() - looked > 1:
                looked = time.monotonic()
                peak = max(peak, meter.read(with_memory=True).pipeline_pss_bytes)
            return pipeline.rows(last, count) >= rows

        pipeline.wait(done, LIMIT_SECONDS)
        return time.monotonic(), pipeline.rows(last, count), meter.read()

    begun, first, before = reached(int(rows * WARM_UP_SHARE))
    ended, final, after = reached(rows)
    counted = round((final - first) * events / rows)
    used = after.since(before)
    return Throughput(counted, ended - begun, {group: used[group] / counted * 1e6 for group in GROUPS}, peak)


def middle(runs: list[Throughput]) -> Throughput:
    """The run with the median rate."""
    rate = median(run.events_per_second for run in runs)
    return min(runs, key=lambda run: abs(run.events_per_second - rate))
