"""The parts of the bench that share servers: throughput and latency of whole pipelines, and what becomes of them."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from uuid import uuid4

from rich.table import Table

from bench import epochs, latency, losses, rollups, sink_latency, sinks, throughput, verification
from bench.asked import Asked, console
from bench.processes import GROUPS
from bench.release import HERE
from bench.throughput import Throughput
from bench.turns import in_turns, ratios
from pipelines.demo.events import Recipe
from pipelines.demo.produce import produce
from pipelines.protocol.topology import INGEST, PROCESS, SINK
from resources.local.clickhouse.service import ClickHouse
from resources.local.stack import LocalStack

_LEGS = {"ingest": (INGEST,), "end-to-end": (INGEST, PROCESS, SINK), "dedup": (INGEST, PROCESS, SINK)}
"""The measured legs; `dedup` is end to end again, over a topic with copies and with the dedup of the example."""
_ALL = (*_LEGS, "latency", "verification")
"""What is measured where no part is named."""


def measure(asked: Asked, stack: LocalStack, results: dict[str, object]) -> None:
    """Prints the parts that are asked for, and adds the figures of each that has ended to `results`."""
    names = [asked.only] if asked.only else _ALL
    _throughputs(asked, stack, [name for name in names if name in _LEGS], results)
    for name in names:
        if name in PARTS:
            results[name] = PARTS[name](asked, stack)


def _throughputs(asked: Asked, stack: LocalStack, names: list[str], results: dict[str, object]) -> None:
    shown: dict[str, dict[str, Throughput]] = {}
    for size, events, share in ((200, asked.events, 0.0), (200, asked.events, 0.1), (1500, asked.large_events, 0.0)):
        cases = [name for name in names if (name == "dedup") == (share > 0)]
        if not events or not cases:
            continue
        topic = f"bench-{size}-{uuid4().hex[:6]}"
        console.print(f"producing {events:,} events of about {size} bytes, {share:.0%} of them copies")
        copies = produce(stack.addresses().kafka_client, topic, Recipe(size=size, duplicate_share=share), events).duplicates
        for name in cases:
            console.print(f"{name}, {size} B")
            run = partial(throughput.measure, stack, topic, events, _LEGS[name], copies, asked.cluster, asked.lanes, asked.streams)
            made = in_turns(asked.releases, asked.runs, run, console.print)
            shown[f"{name}, {size} B"] = {release: throughput.middle(runs) for release, runs in made.items()}
            for release, runs in made.items():
                rates = [round(one.events_per_second) for one in runs]
                results[_key(f"{name}-{size}", release)] = {**asdict(throughput.middle(runs)), "all_rates": rates}
    if shown:
        console.print(_table({case: by_release[HERE.name] for case, by_release in shown.items()}))
        _compare(asked, shown)


def _key(case: str, release: str) -> str:
    return case if release == HERE.name else f"{case}-{release}"


def _compare(asked: Asked, shown: Mapping[str, Mapping[str, Throughput | latency.Latency]]) -> None:
    if len(asked.releases) > 1:
        console.print(ratios(shown))


def _latency(asked: Asked, stack: LocalStack) -> object:
    shown: dict[str, dict[str, latency.Latency]] = {}
    for name, with_dedup in (("without dedup", False), ("with dedup", True)):
        shown[name] = {}
        for release in asked.releases:
            found = latency.measure(stack, f"bench-latency-{uuid4().hex[:6]}", with_dedup, asked.latency_seconds, release)
            shown[name][release.name] = found
            console.print(
                f"latency at {latency.PER_SECOND:,} events/s {name}, {release.name}: p50 {found.p50_ms:.0f} ms, p95 {found.p95_ms:.0f} ms, "
                f"p99 {found.p99_ms:.0f} ms; {found.busy_cores:.2f} cores; idle {found.idle_cores:.3f} cores"
            )
    _compare(asked, shown)
    return {_key(name, release): asdict(one) for name, by_release in shown.items() for release, one in by_release.items()}


def _epochs(asked: Asked, stack: LocalStack) -> object:
    found = epochs.measure(stack, f"bench-epochs-{uuid4().hex[:6]}", asked.latency_seconds)
    for name, one in ((f"within {epochs.AROUND_SECONDS} s of one", found.around), ("elsewhere", found.elsewhere)):
        console.print(
            f"{found.ends} ends of epochs, {one.orders:,} orders sent {name}: p50 {one.p50_ms:.0f} ms, p99 {one.p99_ms:.0f} ms, "
            f"longest {one.max_ms:.0f} ms"
        )
    return asdict(found)


def _losses(asked: Asked, stack: LocalStack) -> object:
    found = losses.measure(stack, f"bench-losses-{uuid4().hex[:6]}", asked.runs, asked.cluster, console.print)
    console.print(losses.table(found))
    return found


def _verification(asked: Asked, stack: LocalStack) -> object:
    events = asked.verified_events
    topic = f"bench-verification-{uuid4().hex[:6]}"
    made = produce(stack.addresses().kafka_client, topic, Recipe(duplicate_share=0.1), events)
    found = verification.measure(stack, topic, events, made.duplicates)
    cpu = ", ".join(f"{'tallyflow verify' if group == 'driver' else group} {spent:.1f}" for group, spent in found.cpu_seconds.items())
    console.print(
        f"verification of {found.records:,} records, {found.rows:,} rows: {found.seconds:.1f} s, CPU seconds: {cpu}; "
        f"peak memory {found.peak_pss_bytes / 1e6:,.0f} MB (PSS)"
    )
    return asdict(found)


def _rollups(asked: Asked, stack: LocalStack) -> object:
    rows = asked.verified_events
    found = rollups.measure(stack, rows)
    console.print(
        f"rollups of {rows:,} orders: {found.views_us:.2f} us of ClickHouse's CPU per row beside {found.plain_us:.2f} us of the insert; "
        f"answers of the dashboard, median and slowest ms: {found.answers_ms}; refresh {found.refresh_ms} ms; "
        f"fill {found.fill_seconds:.1f} s; look at the views {found.look_ms} ms per chunk; rows {found.target_rows}, "
        f"bytes {found.target_bytes}"
    )
    return asdict(found)


def _sinks(asked: Asked, stack: LocalStack) -> object:
    topic = f"bench-sinks-{uuid4().hex[:6]}"
    produce(stack.addresses().kafka_client, topic, Recipe(size=200, duplicate_share=0.0), asked.events)
    found = sinks.measure(stack, topic, asked.events, asked.runs)
    for tables, made in found.items():
        for run in made:
            console.print(
                f"{tables} table{'s' * (tables > 1)}: {sinks.cpu_us(run):.2f} us of CPU per event ({run.cpu_us_per_event}), "
                f"{run.events_per_second:,.0f} events/s"
            )
    console.print(f"the second table costs {sinks.cost_of_the_second(found):.0%} of the pipeline with one")
    return {str(tables): [asdict(run) for run in made] for tables, made in found.items()}


def _sink_latency(asked: Asked, stack: LocalStack) -> object:
    other = LocalStack(stack.home / "other", kinds=[ClickHouse()])
    other.up()
    try:
        found = sink_latency.measure(stack, other, f"bench-beside-{uuid4().hex[:6]}", asked.latency_seconds, asked.runs)
    finally:
        other.down()
    for name, made in found.items():
        p50, p99 = (
            ", ".join(f"{value:.0f}" for value in values) for values in zip(*((one.p50_ms, one.p99_ms) for one in made), strict=True)
        )
        console.print(f"latency of a table at {latency.PER_SECOND:,} events/s, {name}: p50 {p50} ms; p99 {p99} ms")
    return {name: [asdict(one) for one in made] for name, made in found.items()}


def _table(middles: dict[str, Throughput]) -> Table:
    table = Table("", *middles)
    table.add_row("events/s", *(f"{middle.events_per_second:,.0f}" for middle in middles.values()))
    for group in GROUPS:
        table.add_row(f"CPU us/event: {group}", *(f"{middle.cpu_us_per_event[group]:.2f}" for middle in middles.values()))
    table.add_row("CPU us/event: driver + jvm + workers", *(f"{middle.pipeline_cpu_us:.2f}" for middle in middles.values()))
    table.add_row("CPU us/event: the busiest worker", *(f"{middle.busiest_us:.2f}" for middle in middles.values()))
    table.add_row("peak memory of these, PSS, MB", *(f"{middle.peak_pss_bytes / 1e6:,.0f}" for middle in middles.values()))
    return table


PARTS: dict[str, Callable[[Asked, LocalStack], object]] = {
    "latency": _latency,
    "verification": _verification,
    "epochs": _epochs,
    "losses": _losses,
    "sinks": _sinks,
    "sink-latency": _sink_latency,
    "rollups": _rollups,
}
NAMES = (*_LEGS, *PARTS)
"""What may be named."""
