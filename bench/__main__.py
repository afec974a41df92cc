"""`python -m bench`: all figures of this release, as a table and as JSON."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from uuid import uuid4

import typer
from rich.console import Console
from rich.table import Table

from bench import (
    expressions,
    functions,
    join,
    joined,
    latency,
    lookups,
    preview,
    reading,
    rival,
    rollups,
    sink_latency,
    sinks,
    stage,
    step,
    throughput,
    verification,
    warm,
)
from bench.processes import GROUPS, machine
from bench.throughput import Throughput
from pipelines.demo.events import Recipe
from pipelines.demo.produce import produce
from pipelines.protocol.topology import INGEST, PROCESS, SINK
from resources.local.clickhouse.service import ClickHouse
from resources.local.stack import LocalStack

_PLAIN = (("ingest", (INGEST,)), ("end-to-end", (INGEST, PROCESS, SINK)))
_DEDUP = (("dedup", (INGEST, PROCESS, SINK)),)
"""End to end again, over a topic with copies and with the dedup of the example."""

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

# Written to a file, a table of many figures has room for them.
console = Console(width=None if sys.stdout.isatty() else 160)
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    home: Annotated[Path, typer.Option(help="State of the servers and pipelines.")] = Path(".tallyflow/bench"),
    events: Annotated[int, typer.Option(help="Preloaded events of 200 bytes.")] = 5_000_000,
    large_events: Annotated[int, typer.Option(help="Preloaded events of 1500 bytes; 0 leaves them out.")] = 5_000_000,
    runs: Annotated[int, typer.Option(help="Runs of each; the one with the median rate is shown.")] = 3,
    only: Annotated[
        str,
        typer.Option(
            help="One part, such as end-to-end, dedup, latency, sinks, rollups, step, join, expressions, lookups, reading, preview or warm."
        ),
    ] = "",
    live_keys: Annotated[
        list[int] | None, typer.Option(help="Live keys of the dedup stage, or right keys of the join, alone; may repeat.")
    ] = None,
    verified_events: Annotated[
        int, typer.Option(help="Events of 200 bytes of verification, one in ten a copy; orders of rollups.")
    ] = 10_000_000,
    latency_seconds: Annotated[float, typer.Option(help="How long latency is measured.")] = 60.0,
    cluster: Annotated[bool, typer.Option("--cluster", help="Throughput on a Spark cluster: a master and two workers.")] = False,
    lanes: Annotated[int, typer.Option(min=1, help="`lanes` of the measured pipelines.")] = 1,
    streams: Annotated[int, typer.Option(min=1, help="`streams` of the measured pipelines.")] = 1,
) -> None:
    """Measures ingest alone, the whole pipeline, and latency at 1,000 events/s, with all servers on this machine."""
    if only == "stage":
        _print_stage(home, live_keys or STAGE_KEYS)
        return
    if only == "join":
        _print_join(home, live_keys or JOIN_KEYS)
        return
    if only == "step":
        _print_step(home)
        return
    if only == "expressions":
        _print_expressions(home)
        return
    if only == "functions":
        _print_functions(home)
        return
    if only == "lookups":
        _print_lookups(home)
        return
    if only == "preview":
        _print_preview(home)
        return
    if only == "sensors":
        _print_sensors(home)
        return
    if only == "reading":
        _print_reading(home, events, runs)
        return
    if only == "warm":
        _print_warm(home, events, runs)
        return
    if only == "joined":
        _print_joined(home, live_keys or [1_000_000], events)
        return
    if only == "rival":
        _print_rival(home, live_keys or RIVAL_KEYS)
        return
    stack = LocalStack(home)
    stack.up(with_spark=cluster)
    results: dict[str, object] = {"machine": machine(), "events": events, "large_events": large_events, "runs": runs}
    middles: dict[str, Throughput] = {}
    try:
        for size, count, share in ((200, events, 0.0), (200, events, 0.1), (1500, large_events, 0.0)):
            cases = [(name, legs) for name, legs in (_DEDUP if share else _PLAIN) if only in ("", name)]
            if not count or not cases:
                continue
            topic = f"bench-{size}-{uuid4().hex[:6]}"
            console.print(f"producing {count:,} events of about {size} bytes, {share:.0%} of them copies")
            made = produce(stack.addresses().kafka_client, topic, Recipe(size=size, duplicate_share=share), count)
            for name, legs in cases:
                measured = []
                for number in range(runs):
                    measured.append(throughput.measure(stack, topic, count, legs, made.duplicates, cluster, lanes, streams))
                    console.print(f"{name}, {size} B, run {number + 1}: {measured[-1].events_per_second:,.0f} events/s")
                middle = middles[f"{name}, {size} B"] = throughput.middle(measured)
                results[f"{name}-{size}"] = {**asdict(middle), "all_rates": [round(run.events_per_second) for run in measured]}
        if middles:
            console.print(_table(middles))
        if only == "sinks":
            results["sinks"] = _sinks(stack, events, runs)
        if only == "rollups":
            results["rollups"] = asdict(_rollups(stack, verified_events))
        if only == "sink-latency":
            results["sink-latency"] = _beside(stack, latency_seconds, runs)
        if only in ("", "latency"):
            results["latency"] = {name: asdict(found) for name, found in _latencies(stack, latency_seconds)}
        if only in ("", "verification"):
            results["verification"] = asdict(_verification(stack, verified_events))
    finally:
        (home / "results.json").write_text(json.dumps(results, indent=2))
        stack.down()
    console.print(f"{machine()}; JSON in {home / 'results.json'}")


def _rollups(stack: LocalStack, rows: int) -> rollups.RollupCosts:
    found = rollups.measure(stack, rows)
    console.print(
        f"rollups of {rows:,} orders: {found.views_us:.2f} us of ClickHouse's CPU per row beside {found.plain_us:.2f} us of the insert; "
        f"answers of the dashboard, median and slowest ms: {found.answers_ms}; refresh {found.refresh_ms} ms; "
        f"fill {found.fill_seconds:.1f} s; look at the views {found.look_ms} ms per chunk; rows {found.target_rows}, "
        f"bytes {found.target_bytes}"
    )
    return found


def _sinks(stack: LocalStack, events: int, runs: int) -> dict[str, object]:
    topic = f"bench-sinks-{uuid4().hex[:6]}"
    produce(stack.addresses().kafka_client, topic, Recipe(size=200, duplicate_share=0.0), events)
    found = sinks.measure(stack, topic, events, runs)
    for tables, made in found.items():
        for run in made:
            console.print(
                f"{tables} table{'s' * (tables > 1)}: {sinks.cpu_us(run):.2f} us of CPU per event ({run.cpu_us_per_event}), "
                f"{run.events_per_second:,.0f} events/s"
            )
    console.print(f"the second table costs {sinks.cost_of_the_second(found):.0%} of the pipeline with one")
    return {str(tables): [asdict(run) for run in made] for tables, made in found.items()}


def _beside(stack: LocalStack, seconds: float, turns: int) -> dict[str, object]:
    other = LocalStack(stack.home / "other", kinds=[ClickHouse()])
    other.up()
    try:
        found = sink_latency.measure(stack, other, f"bench-beside-{uuid4().hex[:6]}", seconds, turns)
    finally:
        other.down()
    for name, made in found.items():
        p50, p99 = (
            ", ".join(f"{value:.0f}" for value in values) for values in zip(*((one.p50_ms, one.p99_ms) for one in made), strict=True)
        )
        console.print(f"latency of a table at {sink_latency.PER_SECOND} events/s, {name}: p50 {p50} ms; p99 {p99} ms")
    return {name: [asdict(one) for one in made] for name, made in found.items()}


def _latencies(stack: LocalStack, seconds: float) -> Iterator[tuple[str, latency.Latency]]:
    for name, with_dedup in (("without dedup", False), ("with dedup", True)):
        found = latency.measure(stack, f"bench-latency-{uuid4().hex[:6]}", with_dedup, 1000, seconds, 40.0)
        console.print(
            f"latency at 1,000 events/s {name}: p50 {found.p50_ms:.0f} ms, p95 {found.p95_ms:.0f} ms, p99 {found.p99_ms:.0f} ms; "
            f"{found.busy_cores:.2f} cores; idle {found.idle_cores:.3f} cores"
        )
        yield name, found


def _verification(stack: LocalStack, events: int) -> verification.Verified:
    topic = f"bench-verification-{uuid4().hex[:6]}"
    made = produce(stack.addresses().kafka_client, topic, Recipe(duplicate_share=0.1), events)
    found = verification.measure(stack, topic, events, made.duplicates)
    cpu = ", ".join(f"{'tallyflow verify' if group == 'driver' else group} {spent:.1f}" for group, spent in found.cpu_seconds.items())
    console.print(
        f"verification of {found.records:,} records, {found.rows:,} rows: {found.seconds:.1f} s, CPU seconds: {cpu}; "
        f"peak memory {found.peak_pss_bytes / 1e6:,.0f} MB (PSS)"
    )
    return found


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


def _print_functions(home: Path) -> None:
    """Functions in Python; needs no server."""
    found = functions.measure()
    table = Table("steps", "us per event", "more than without", title="CPU microseconds per event")
    for one in found:
        table.add_row(one.name, f"{one.microseconds:.2f}", f"{one.microseconds - found[0].microseconds:.2f}")
    console.print(table)
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
    table = Table("steps", "us per event", "more than without", title="CPU microseconds per event")
    for cost in found:
        table.add_row(cost.name, f"{cost.microseconds:.2f}", f"{cost.microseconds - found[0].microseconds:.2f}")
    console.print(table)
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


def _table(middles: dict[str, Throughput]) -> Table:
    table = Table("", *middles)
    table.add_row("events/s", *(f"{middle.events_per_second:,.0f}" for middle in middles.values()))
    for group in GROUPS:
        table.add_row(f"CPU us/event: {group}", *(f"{middle.cpu_us_per_event[group]:.2f}" for middle in middles.values()))
    table.add_row("CPU us/event: driver + jvm + workers", *(f"{middle.pipeline_cpu_us:.2f}" for middle in middles.values()))
    table.add_row("CPU us/event: the busiest worker", *(f"{middle.busiest_us:.2f}" for middle in middles.values()))
    table.add_row("peak memory of these, PSS, MB", *(f"{middle.peak_pss_bytes / 1e6:,.0f}" for middle in middles.values()))
    return table


if __name__ == "__main__":
    app()
