"""Filters and computed fields in the whole pipeline: CPU and rate of pipelines with them and without, in turns, on a warm Spark.

Each pipeline first takes some events, so that nothing starts up in its window. Then its Python workers are held while the events are
produced, and the window is from their release to the last record: a backlog, as in `throughput`, without the cold start. All pipelines
write as many columns: those without expressions write five fields twice.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import monotonic
from typing import Any
from uuid import uuid4

import psutil

from bench.pipeline import MeasuredPipeline
from bench.processes import PIPELINE_GROUPS, Meter
from pipelines.demo.events import Recipe
from pipelines.demo.produce import produce
from resources.local.stack import SERVERS, LocalStack

WARM_EVENTS = 200_000
LIMIT_SECONDS = 600.0

_FILTER = "price > 0 AND restaurant <> 'closed'"
_COMPUTED = {
    "number": ("CAST(split_part(order_id, '-', 2) AS INTEGER)", "Int32"),
    "total": ("price * quantity", "Float64"),
    "first_word": ("split_part(dish, ' ', 1)", "String"),
    "is_large": ("price > 30", "Bool"),
    "where_to": ("upper(customer.city)", "LowCardinality(String)"),
}
_FAILING = "CAST(CASE WHEN order_id LIKE '%07' THEN order_id ELSE split_part(order_id, '-', 2) END AS INTEGER)"
"""Fails for one order in 100, by its id."""
_TWICE = {
    "quantity": ("number", "Int32"),
    "price": ("total", "Float64"),
    "dish": ("first_word", "String"),
    "customer.id": ("is_large", "Int64"),
    "customer.city": ("where_to", "LowCardinality(String)"),
}


@dataclass(frozen=True)
class Warm:
    """The median run of a pipeline: CPU microseconds per event of driver, JVM and workers, and events/s; all runs beside it."""

    name: str
    cpu_us: float
    events_per_second: float
    dead_letters: int
    all_cpu_us: list[float]
    all_rates: list[float]


def compare(stack: LocalStack, events: int, rounds: int, seen: Callable[[str], None]) -> list[Warm]:
    """Measures each pipeline `rounds` times, in turns."""
    cases: dict[str, Callable[[dict[str, Any]], None]] = {
        "without": _plain,
        "filter and five fields": lambda document: _shaped(document, _COMPUTED),
        "the same, 1 % fail": lambda document: _shaped(document, {**_COMPUTED, "number": (_FAILING, "Int32")}),
    }
    runs: dict[str, list[tuple[float, float, int]]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, edit in cases.items():
            runs[name].append(_measure(stack, edit, events, number))
            seen(f"{name}, run {number + 1}: {runs[name][-1][0]:.2f} us per event, {runs[name][-1][1]:,.0f} events/s")
    return [_middle(name, found) for name, found in runs.items()]


def _middle(name: str, runs: list[tuple[float, float, int]]) -> Warm:
    cpu, rates, dead_letters = (list(column) for column in zip(*runs, strict=True))
    return Warm(name, median(cpu), median(rates), int(dead_letters[-1]), cpu, rates)


def _measure(stack: LocalStack, edit: Callable[[dict[str, Any]], None], events: int, seed: int) -> tuple[float, float, int]:
    """Returns (CPU microseconds per event, events/s, dead letters among the events) of one pipeline on a topic of its own."""
    topic = f"bench-warm-{uuid4().hex[:6]}"
    kafka = stack.addresses().kafka_client
    produce(kafka, topic, Recipe(seed=2 * seed), WARM_EVENTS)
    with MeasuredPipeline(stack, topic, with_dedup=False, edit=edit) as pipeline:
        # One event in 100 is rejected on purpose.
        meter = Meter(pipeline.start("--accept"), {name: int(stack.server(name).pid or 0) for name in SERVERS})
        _wait_through(pipeline, WARM_EVENTS)
        rejected = pipeline.rows("process", "rows_rejected")
        with held(meter):
            produce(kafka, topic, Recipe(seed=2 * seed + 1), events)
            begun, before = monotonic(), meter.read()
        _wait_through(pipeline, WARM_EVENTS + events)
        seconds, used = monotonic() - begun, meter.read().since(before)
        rejected = pipeline.rows("process", "rows_rejected") - rejected
    return sum(used[group] for group in PIPELINE_GROUPS) / events * 1e6, events / seconds, rejected


@contextmanager
def held(meter: Meter) -> Iterator[None]:
    """Holds the Python workers inside the block."""
    workers = [psutil.Process(pid) for pid in meter.read().worker_seconds]
    for worker in workers:
        worker.suspend()
    try:
        yield
    finally:
        for worker in workers:
            worker.resume()


def _wait_through(pipeline: MeasuredPipeline, records: int) -> None:
    pipeline.wait(lambda: pipeline.rows("sink", "rows_out") + pipeline.rows("process", "rows_rejected") >= records, LIMIT_SECONDS)


def _plain(document: dict[str, Any]) -> None:
    document["sink"]["mapping"] += [_mapped(field, column, kind) for field, (column, kind) in _TWICE.items()]


def _shaped(document: dict[str, Any], fields: dict[str, tuple[str, str]]) -> None:
    made = [{"name": name, "expression": text} for name, (text, _) in fields.items()]
    document["transforms"] = [
        {"type": "filter", "config": {"expression": _FILTER}},
        {"type": "compute", "config": {"fields": made}},
    ]
    document["sink"]["mapping"] += [_mapped(name, name, kind) for name, (_, kind) in fields.items()]


def _mapped(field: str, column: str, kind: str) -> dict[str, str]:
    return {"name": field, "column_name": column, "column_type": kind}
