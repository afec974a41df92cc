"""The parts of the bench that stand alone: each starts the servers that it needs itself, and has a JSON file of its own."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from rich.table import Table

from bench import expressions, functions, join, joined, lookups, preview, reading, rival, stage, step, warm
from bench.asked import Asked, console
from bench.processes import GROUPS, machine
from pipelines.demo.events import Recipe
from pipelines.demo.produce import produce
from resources.local.stack import LocalStack

STAGE_KEYS = (1_000_000, 10_000_000, 100_000_000)
JOIN_KEYS = (1_000_000, 5_000_000, 20_000_000)
SMALL_BATCH = 1_000
RIVAL_KEYS = (0, 1_000_000, 5_000_000, 10_000_000)
STAGE_FIGURES = {
    "CPU us/event": "cpu_us",
    "slowest batch": "slowest_cpu_us",
    "ms per batch": "batch_ms",
    "slowest, ms": "slowest_batch_ms",
    "bytes/key on disk": "disk_bytes_per_key",
    "resident": "resident_bytes_per_key",
    "reopening, s": "reopen_seconds",
}

JOIN_FIGURES = {
    "CPU us/left": "cpu_us",
    "slowest batch": "slowest_cpu_us",
    "keys": "keys_us",
    "decide": "decide_us",
    "rows": "rows_us",
    "store": "store_us",
    "CPU us/right, filling": "fill_us",
    "bytes/key on disk": "disk_bytes_per_key",
    "resident": "resident_bytes_per_key",
    "private": "private_bytes_per_key",
}

PARTS: dict[str, Callable[[Asked], None]] = {
    "stage": lambda asked: _print_stage(asked.home, asked.live_keys or STAGE_KEYS),
    "join": lambda asked: _print_join(asked.home, asked.live_keys or JOIN_KEYS),
    "step": lambda asked: _print_step(asked.home),
    "expressions": lambda asked: _print_expressions(asked.home),
    "functions": lambda asked: _print_functions(asked.home),
    "lookups": lambda asked: _print_lookups(asked.home),
    "preview": lambda asked: _print_preview(asked.home),
    "sensors": lambda asked: _print_sensors(asked.home),
    "reading": lambda asked: _print_reading(asked.home, asked.events, asked.runs),
    "warm": lambda asked: _print_warm(asked.home, asked.events, asked.runs),
    "joined": lambda asked: _print_joined(asked.home, asked.live_keys or [1_000_000], asked.events),
    "rival": lambda asked: _print_rival(asked.home, asked.live_keys or RIVAL_KEYS),
}


def _print_stage(home: Path, live_keys: Sequence[int]) -> None:
    """The dedup stage alone, at each number of live keys, and in small batches; needs no server."""
    cases = [(keys, stage.FILL_EVENTS) for keys in live_keys] + [(10_000_000, SMALL_BATCH) for keys in live_keys if keys == 10_000_000]
    table = Table("live keys", "events per batch", *STAGE_FIGURES)
    home.mkdir(parents=True, exist_ok=True)
    found = []
    for keys, events in cases:
        with TemporaryDirectory(dir=home) as directory:
            found.append(stage.measure(Path(directory), keys, events))
        console.print(found[-1])
    for one in found:
        figures = asdict(one)
        table.add_row(f"{one.live_keys:,}", f"{one.batch_events:,}", *(f"{figures[name]:.2f}" for name in STAGE_FIGURES.values()))
    console.print(table)
    (home / "stage.json").write_text(json.dumps({"machine": machine(), "stage": [asdict(one) for one in found]}, indent=2))


def _print_join(home: Path, right_keys: Sequence[int]) -> None:
    """The join alone, by arrival and by event time, at each number of right keys; needs no server."""
    table = Table("right keys", "time", *JOIN_FIGURES)
    home.mkdir(parents=True, exist_ok=True)
    found = []
    for keys, is_by_time in product(right_keys, (False, True)):
        with TemporaryDirectory(dir=home) as directory:
            found.append(join.measure(Path(directory), keys, is_by_time))
        console.print(found[-1])
    for one in found:
        figures = asdict(one)
        table.add_row(f"{one.right_keys:,}", one.time, *(f"{figures[name]:.2f}" for name in JOIN_FIGURES.values()))
    console.print(table)
    (home / "join.json").write_text(json.dumps({"machine": machine(), "join": [asdict(one) for one in found]}, indent=2))


def _print_step(home: Path) -> None:
    """One step of the process leg by its number of events; needs no server."""
    cases = [(size, events, 1) for size in step.SIZES for events in step.EVENTS] + [(size, 40, 8) for size in step.SIZES]
    table = Table("bytes", "events", "buckets", *step.PARTS, title="CPU milliseconds per step")
    home.mkdir(parents=True, exist_ok=True)
    found = []
    for size, events, buckets in cases:
        with TemporaryDirectory(dir=home) as directory:
            found.append(step.measure(Path(directory), size, events, buckets))
        console.print(found[-1])
    for one in found:
        table.add_row(str(one.size), f"{one.events:,}", str(one.buckets), *(f"{one.ms[part]:.2f}" for part in step.PARTS))
    console.print(table)
    (home / "step.json").write_text(json.dumps({"machine": machine(), "step": [asdict(one) for one in found]}, indent=2))


def _print_expressions(home: Path) -> None:
    """Filters and computed fields; needs no server."""
    found = expressions.measure()
    table = Table("steps", "us per event", "more than without", "dead letters", title="CPU microseconds per event")
    for one in found:
        table.add_row(one.name, f"{one.microseconds:.2f}", f"{one.microseconds - found[0].microseconds:.2f}", f"{one.dead_letters:,}")
    console.print(table)
    home.mkdir(parents=True, exist_ok=True)
    (home / "expressions.json").write_text(json.dumps({"machine": machine(), "expressions": [asdict(one) for one in found]}, indent=2))


def _costs(found: Sequence[functions.FunctionCost | lookups.LookupCost]) -> Table:
    table = Table("steps", "us per event", "more than without", title="CPU microseconds per event")
    for one in found:
        table.add_row(one.name, f"{one.microseconds:.2f}", f"{one.microseconds - found[0].microseconds:.2f}")
    return table


def _print_functions(home: Path) -> None:
    """Functions in Python; needs no server."""
    found = functions.measure()
    console.print(_costs(found))
    batches = functions.measure_dataframes()
    table = Table("rows of a call", "seconds per call", "CPU us per event", title="A function over DataFrames, on a host that is warm")
    for batch in batches:
        table.add_row(f"{batch.rows:,}", f"{batch.seconds:.3f}", f"{batch.microseconds:.2f}")
    console.print(table)
    home.mkdir(parents=True, exist_ok=True)
    measured = {"machine": machine(), "functions": [asdict(one) for one in found], "dataframes": [asdict(batch) for batch in batches]}
    (home / "functions.json").write_text(json.dumps(measured, indent=2))


def _print_lookups(home: Path) -> None:
    """Look-ups; needs no server."""
    kernels = lookups.measure_kernel()
    table = Table("key", "rows", "us per record", "to make, s", "to open, s", "bytes", title="The search in a snapshot, with two columns")
    for one in kernels:
        seconds = f"{one.build_seconds:.2f}", f"{one.open_seconds:.2f}"
        table.add_row(one.kind, f"{one.rows:,}", f"{one.microseconds:.2f}", *seconds, f"{one.bytes:,}")
    console.print(table)
    found = lookups.measure()
    console.print(_costs(found))
    home.mkdir(parents=True, exist_ok=True)
    measured = {"machine": machine(), "kernel": [asdict(one) for one in kernels], "lookups": [asdict(cost) for cost in found]}
    (home / "lookups.json").write_text(json.dumps(measured, indent=2))


def _print_preview(home: Path) -> None:
    """`tallyflow preview` from the shell; needs no server."""
    found = preview.measure()
    table = Table("example", "p50, s", "p95, s", "longest, s", title=f"preview of {preview.RECORDS:,} records, {preview.RUNS} times")
    for one in found:
        table.add_row(one.example, f"{one.p50_seconds:.2f}", f"{one.p95_seconds:.2f}", f"{one.longest_seconds:.2f}")
    console.print(table)
    home.mkdir(parents=True, exist_ok=True)
    (home / "preview.json").write_text(json.dumps({"machine": machine(), "preview": [asdict(one) for one in found]}, indent=2))


def _print_rival(home: Path, live_keys: Sequence[int]) -> None:
    """Small batches of the dedup stage beside Spark's own, against live keys; also as a chart."""
    home.mkdir(parents=True, exist_ok=True)
    table = Table(
        "live keys", "Tallyflow, ms per batch", "CPU ms", "Spark, ms per batch", "CPU ms", title=f"batches of {rival.BATCH_EVENTS:,} events"
    )
    found = []
    with TemporaryDirectory(dir=home) as directory:
        for one in rival.compare(Path(directory), live_keys):
            found.append(one)
            figures = (one.ours_ms, one.ours_cpu_ms, one.spark_ms, one.spark_cpu_ms)
            table.add_row(f"{one.live_keys:,}", *(f"{figure:,.0f}" for figure in figures))
    console.print(table)
    (home / "rival.json").write_text(json.dumps({"machine": machine(), "rival": [asdict(one) for one in found]}, indent=2))
    (home / "rival.svg").write_text(rival.chart(found))
    console.print(f"JSON and chart in {home}")


def _print_sensors(home: Path) -> None:
    # Inside: Dagster takes two seconds to import.
    from bench import sensors

    stack = LocalStack(home)
    stack.up()
    try:
        found = sensors.measure(stack)
    finally:
        stack.down()
    table = Table("sensor", "ticks", "median, s", "p99, s", "longest, s")
    for one in found:
        table.add_row(one.sensor, str(one.count), f"{one.median:.2f}", f"{one.p99:.2f}", f"{one.longest:.2f}")
    console.print(table)
    console.print_json(data=[asdict(one) for one in found])


def _print_reading(home: Path, events: int, rounds: int) -> None:
    stack = LocalStack(home)
    stack.up()
    try:
        topic = f"bench-reading-{uuid4().hex[:6]}"
        produce(stack.addresses().kafka_client, topic, Recipe(size=200), events)
        found = reading.measure(stack, topic, rounds)
    finally:
        stack.down()
    table = Table("messages become blocks by", "thread, CPU us/event", "process, CPU us/event")
    for one in found:
        table.add_row(one.way, f"{one.thread_us:.2f}", f"{one.process_us:.2f}")
    console.print(table)
    console.print_json(data=[asdict(one) for one in found])


def _print_warm(home: Path, events: int, runs: int) -> None:
    """The whole pipeline with a filter and five computed fields, and without."""
    stack = LocalStack(home)
    stack.up()
    try:
        found = warm.compare(stack, events, runs, console.print)
    finally:
        stack.down()
    table = Table("pipeline", "us per event", "more than without", "events/s", "dead letters", title="driver + JVM + workers, warm")
    for one in found:
        more = one.cpu_us - found[0].cpu_us
        table.add_row(one.name, f"{one.cpu_us:.2f}", f"{more:.2f}", f"{one.events_per_second:,.0f}", f"{one.dead_letters:,}")
    console.print(table)
    (home / "warm.json").write_text(json.dumps({"machine": machine(), "events": events, "warm": [asdict(one) for one in found]}, indent=2))


def _print_joined(home: Path, right_keys: Sequence[int], lefts: int) -> None:
    """The whole pipeline with a join, by the number of right keys."""
    stack = LocalStack(home)
    stack.up()
    try:
        found = [joined.measure(stack, keys, lefts) for keys in right_keys]
    finally:
        stack.down()
    table = Table("right keys", "lefts/s", "us per left", *GROUPS, "memory", title="a join in the whole pipeline, warm")
    for one in found:
        figures = (f"{one.cpu_us[group]:.2f}" for group in GROUPS)
        memory = f"{one.pss_bytes / 2**20:,.0f} MiB"
        table.add_row(f"{one.right_keys:,}", f"{one.lefts_per_second:,.0f}", f"{one.pipeline_cpu_us:.2f}", *figures, memory)
    console.print(table)
    (home / "joined.json").write_text(json.dumps({"machine": machine(), "joined": [asdict(one) for one in found]}, indent=2))
