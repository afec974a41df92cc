"""Rollups in ClickHouse: what they cost per inserted row, how fast the dashboard answers over a week, how long a refresh and a fill take.

The rows are made by ClickHouse itself and inserted in chunks, with the settings of the sink, into the table of examples/restaurants: into
one without rollups, then into one with them. So the difference of CPU is that of the views. The pipeline's own processes do not take part:
what a chunk costs them is the look at the views, which is timed by itself.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from statistics import median

import psutil

from pipelines.config import PipelineConfig, load
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.clickhouse.settings import ROLLUP_INSERT_SETTINGS
from pipelines.connectors.sinks.clickhouse import create_statement
from pipelines.dashboard.figures import Choice, RollupFigures
from pipelines.demo.examples import example_file
from pipelines.rollups.feeds import rollups_of
from pipelines.rollups.state import RollupState
from resources.local.stack import LocalStack

CHUNK_ROWS = 100_000
RESTAURANTS, DISHES, CUSTOMERS, DAYS = 200, 40, 1_000_000, 8
_LOOKS = 40
_QUIET_LOOKS = 30
"""Looks in a row, 0.1 s apart, at which nothing is merged: the server looks for parts to merge every few seconds at most."""
_SETTINGS = {**ROLLUP_INSERT_SETTINGS, "min_insert_block_size_rows": CHUNK_ROWS, "max_block_size": CHUNK_ROWS, "max_threads": 1}
_ROWS = """
INSERT INTO {table} (order_id, restaurant, dish, quantity, total, customer_id, ordered_at, _tf_sequence, _tf_ordinal)
SELECT toString(n), concat('restaurant ', toString(h % {restaurants})), concat('dish ', toString(h % {restaurants} * {dishes} +
    intDiv(h, 1000) % {dishes})), 1 + intDiv(h, 7) % 4, CAST(500 + intDiv(h, 11) % 9500, 'Decimal(12, 2)') / 100,
    intDiv(h, 13) % {customers},
    fromUnixTimestamp64Milli({start_ms} + intDiv(n * {step_us}, 1000) - if(h % 10 = 0, intDiv(h, 17) % 72000000, 0), 'UTC'),
    1 + intDiv(n, 2000), n % 2000
FROM (SELECT number + {first} AS n, cityHash64(number + {first}) AS h FROM numbers({count}))
"""


@dataclass
class RollupCosts:
    """The figures of one run. `views_us`: CPU of ClickHouse per row that the rollups add. Times in milliseconds; of `answers` by window."""

    rows: int
    plain_us: float = 0.0
    views_us: float = 0.0
    answers_ms: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The median and the slowest of the answers, over restaurants in turn."""
    refresh_ms: float = 0.0
    fill_seconds: float = 0.0
    look_ms: float = 0.0
    target_rows: dict[str, int] = field(default_factory=dict)
    target_bytes: dict[str, int] = field(default_factory=dict)


def measure(stack: LocalStack, rows: int) -> RollupCosts:
    """Insert `rows` orders of eight days without rollups and with them; ask the dashboard; fill a rollup from the table."""
    found = RollupCosts(rows)
    with _tables(stack) as (config, clickhouse):
        state = RollupState(config, clickhouse)
        table = config.sink.table
        clickhouse.command("creating the table", create_statement(config))
        plain = _cpu_of(stack, lambda: _insert_and_merge(clickhouse, table, rows))
        found.fill_seconds = _filled(clickhouse, state)
        for relation in reversed(rollups_of(config)[0].relations):
            clickhouse.drop_table("default", relation)
        clickhouse.command("emptying the table", f"TRUNCATE TABLE {table}")
        for statement in state.statements.all(0):
            clickhouse.command("creating the rollup", statement)
        with_views = _cpu_of(stack, lambda: _insert_and_merge(clickhouse, table, rows))
        found.plain_us, found.views_us = 1e6 * plain / rows, 1e6 * (with_views - plain) / rows
        _ask(found, config, clickhouse)
        found.look_ms = _milliseconds(state.cuts)
        _weigh(found, clickhouse, table)
    return found


@contextmanager
def _tables(stack: LocalStack) -> Iterator[tuple[PipelineConfig, ClickHouse]]:
    """Yield the example's file over the servers, and a client; its tables are dropped at the end."""
    names = {"RESTAURANTS_TABLE": f"bench_rollups_{time.time_ns()}"}
    config = load(example_file("restaurants"), {**stack.addresses().environment(), **names})
    with closing(ClickHouse(config.sink)) as clickhouse:
        try:
            yield config, clickhouse
        finally:
            for relation in (*reversed(rollups_of(config)[0].relations), config.sink.table):
                clickhouse.drop_table("default", relation)


def _insert_and_merge(clickhouse: ClickHouse, table: str, rows: int) -> None:
    """Insert the orders; return when ClickHouse has merged what it merges of its own accord."""
    _insert(clickhouse, table, rows)
    quiet = 0
    while quiet < _QUIET_LOOKS:
        ((merges,),) = clickhouse.rows("looking for merges", f"SELECT count() FROM system.merges WHERE startsWith(table, '{table}')")
        quiet = 0 if merges else quiet + 1
        time.sleep(0.1)


def _insert(clickhouse: ClickHouse, table: str, rows: int) -> None:
    numbers = {"restaurants": RESTAURANTS, "dishes": DISHES, "customers": CUSTOMERS, "step_us": DAYS * 86_400_000_000 // rows}
    for first in range(0, rows, CHUNK_ROWS):
        sql = _ROWS.format(table=table, first=first, count=CHUNK_ROWS, start_ms=1_772_323_200_000, **numbers)
        clickhouse.command("inserting orders", sql, settings={**_SETTINGS, "insert_deduplication_token": f"{table}-{first}"})


def _cpu_of(stack: LocalStack, work: Callable[[], None]) -> float:
    """Return the CPU seconds of ClickHouse during the work."""
    server = psutil.Process(int(stack.server("clickhouse").pid or 0))
    before = server.cpu_times()
    work()
    after = server.cpu_times()
    return float(after.user + after.system - before.user - before.system)


def _filled(clickhouse: ClickHouse, state: RollupState) -> float:
    """Return how long it takes to fill all targets from the rows of the table."""
    for feed in state.statements.feeds:
        clickhouse.command("creating the target", state.statements.create_target(feed))
    begun = time.monotonic()
    for feed in state.statements.feeds:
        clickhouse.command("filling", state.statements.fill(feed, 0, 2**62))
    return time.monotonic() - begun


def _ask(found: RollupCosts, config: PipelineConfig, clickhouse: ClickHouse) -> None:
    (rollup,) = rollups_of(config)
    figures = RollupFigures(config, rollup, clickhouse)
    found.refresh_ms = _milliseconds(figures.refresh, looks=3)
    groups = figures.groups()
    for window in figures.description["windows"]:
        times = [_once(lambda group=group: figures.of(Choice(window["name"], tuple(group)))) for group in groups[:_LOOKS]]  # type: ignore[misc] # noqa: B023
        found.answers_ms[window["name"]] = (round(median(times), 1), round(max(times), 1))


def _once(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return 1000 * (time.monotonic() - begun)


def _milliseconds(work: Callable[[], object], looks: int = _LOOKS) -> float:
    return round(median(_once(work) for _ in range(looks)), 2)


def _weigh(found: RollupCosts, clickhouse: ClickHouse, table: str) -> None:
    sql = f"SELECT table, sum(rows), sum(bytes_on_disk) FROM system.parts WHERE active AND startsWith(table, '{table}') GROUP BY table"
    for name, rows, size in clickhouse.rows("weighing the tables", sql):
        short = name.removeprefix(table) or "orders"
        found.target_rows[short], found.target_bytes[short] = int(rows), int(size)
