"""Rollups in the real engine, equal to DuckDB over the records in Kafka; added to a table with rows; refused where they cannot be exact."""

import json
import re
from decimal import Decimal

import pytest
import yaml
from support.join_pipeline import JoinPipeline
from support.pipeline_case import PipelineCase, wait_until
from support.rollup_case import RollupCase, order

import pipelines.rollups.state
import pipelines.sink.rollups
from pipelines.config import load
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.clickhouse.settings import FILL_SETTINGS
from pipelines.connectors.sql import filled
from pipelines.errors import HaltError
from pipelines.rollups.feeds import Feed
from pipelines.rollups.state import LAST_SEQUENCE, RollupState

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.usefixtures("brief_inserts")]


def type_of_items(orders: RollupCase) -> str:
    target = f"SELECT type FROM system.columns WHERE table = '{orders.rollup}_5m_most_eaten' AND name = 'item'"
    return str(orders.case.client().query(target).result_rows[0][0])


def test_the_windows_of_a_rollup_equal_duckdb_over_kafka(case: PipelineCase) -> None:
    """With tops of a dictionary, and orders that are late for their buckets; a deleted pipeline leaves none."""
    orders = RollupCase(case, dish="LowCardinality(Nullable(String))")
    orders.send(3000)
    case.warm_run()
    assert orders.differences() == []
    orders.send(1000)
    late = {**order(10_000), "ordered_at": "1969-12-31T23:57:00.500Z"}, {**order(10_001), "ordered_at": "2026-03-01T00:00:00.000Z"}
    case.send(json.dumps(one).encode() for one in late)
    case.warm_run()
    assert orders.differences() == []
    assert type_of_items(orders) == "LowCardinality(String)"
    old = case.client().query(f"SELECT toString(min(bucket)) FROM {orders.rollup}_5m").result_rows[0][0]
    assert old == "1969-12-31 23:55:00"
    assert f"rollup default.{orders.rollup}" in case.invoke("delete", str(case.file), "--yes").stdout
    left = case.client().query("SELECT name FROM system.tables WHERE name LIKE {begin:String}", {"begin": f"{case.table}%"}).result_rows
    assert left == []


def test_a_server_gets_only_settings_that_it_knows(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """And tops of a dictionary without NULL; the rows that ClickHouse refuses are in no rollup."""
    monkeypatch.setattr(pipelines.rollups.state, "MERGE_SETTINGS", {"no_setting_of_this_server": 1, "merge_selector_base": 24})
    orders = RollupCase(case, dish="LowCardinality(String)")
    case.warm_run()
    case.client().command(f"ALTER TABLE {case.table} ADD CONSTRAINT cheap CHECK total < 49")
    for count in (1500, 500):
        orders.send(count)
        case.warm_run()
    (made,) = case.client().query(f"SELECT create_table_query FROM system.tables WHERE name = '{orders.rollup}_5m'").result_rows
    assert ("min_parts_to_merge_at_once" in made[0], "merge_selector_base" in made[0]) == (False, True)
    assert len([letter for letter in case.dead_letters() if letter["stage"] == "sink"]) > 5
    assert type_of_items(orders) == "LowCardinality(String)"
    assert orders.differences(where="total < 49 AND dish IS NOT NULL") == []


def test_a_rollup_added_to_a_table_holds_all_of_its_rows(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of before are filled in by several inserts, all of them when a run until caught up ends."""
    monkeypatch.setattr(pipelines.sink.rollups, "ROWS_PER_FILL", 50)
    orders = RollupCase(case, is_added_later=True)
    orders.send(1000)
    case.warm_run()
    orders.write()
    orders.send(500)
    case.warm_run()
    assert orders.differences() == []
    fills = case.client().query(f"SELECT uniqExact(planned_to) FROM {orders.rollup}_progress WHERE filled_to < planned_to").result_rows
    assert fills[0][0] >= 2
    orders.send(500)
    case.warm_run()
    assert orders.differences() == []


def test_a_quantile_is_within_one_percent_at_every_magnitude(case: PipelineCase) -> None:
    """Of each value from 1e-37 to 3e38, of either sign, and whatever the number of values: the first that this share does not exceed."""
    signed = "if(number % 2 = 0, 1, -1) * exp10(-37 + 75.47 * (cityHash64(number) % 1000000) / 1e6)"
    query = f"SELECT count(), max(abs(q / v - 1)) FROM (SELECT {signed} AS v, quantileBFloat16(0.5)(v) AS q FROM numbers(50000) GROUP BY v)"
    ((values, error),) = case.client().query(query).result_rows
    assert values > 45_000
    assert 0.005 < error < 0.0079
    exact = "arraySort(groupArray(v))[toUInt32(ceil(0.95 * n))]"
    drawn = "SELECT arrayJoin(range(1, 60)) AS n, 1 + cityHash64(n, arrayJoin(range(n))) % 100000 AS v"
    query = f"SELECT max(abs(q / e - 1)) FROM (SELECT n, {exact} AS e, quantileBFloat16(0.95)(v) AS q FROM ({drawn}) GROUP BY n)"
    ((error,),) = case.client().query(query).result_rows
    assert error < 0.0079


@pytest.mark.crash
def test_what_becomes_of_targets_and_views_changed_by_hand(case: PipelineCase) -> None:
    """Targets dropped or emptied are filled again: one was dropped with its view, another one is behind a view of its own."""
    orders = RollupCase(case)
    orders.send(600)
    case.warm_run()
    for relation in ("VIEW", f"{orders.rollup}_5m_top_dishes_view"), ("TABLE", f"{orders.rollup}_5m_top_dishes"):
        case.client().command(f"DROP {relation[0]} {relation[1]} SYNC")
    case.warm_run()
    assert orders.differences() == []
    case.client().command(f"TRUNCATE TABLE {orders.rollup}_5m")
    orders.send(100)
    case.warm_run()
    assert orders.differences() == []
    drop_a_view_of_a_running_pipeline(case, orders)
    assert orders.differences() == []
    assert_changes_are_refused(case, orders)


def drop_a_view_of_a_running_pipeline(case: PipelineCase, orders: RollupCase) -> None:
    """The sink halts; with the target gone too, a start makes and fills both anew."""
    rows = case.count()
    runner = case.warm_runner(until_caught_up=False)
    thread = case.in_background(runner)
    orders.send(100)
    case.wait_count(rows + 1)
    case.client().command(f"DROP VIEW {orders.rollup}_5m_view SYNC")
    orders.send(100)
    wait_until(lambda: runner.legs[runner.topology.sinks[0]].failure is not None, "a sink that halts")
    assert "was dropped or replaced while the pipeline ran" in str(runner.legs[runner.topology.sinks[0]].failure)
    case.client().command(f"DROP TABLE {orders.rollup}_5m SYNC")
    runner.request_stop()
    thread.join()
    case.warm_run()


def assert_changes_are_refused(case: PipelineCase, orders: RollupCase) -> None:
    target, view = f"{orders.rollup}_5m", f"{orders.rollup}_5m_view"
    for statements, message in (
        ([f"ALTER TABLE {target} ADD COLUMN more UInt8 AFTER orders"], "is not what the file asks for"),
        (
            [f"ALTER TABLE {target} DROP COLUMN more", f"DROP VIEW {view} SYNC", f"CREATE VIEW {view} AS SELECT 1 AS orders"],
            "is not what the file asks for",
        ),
        ([f"DROP VIEW {view} SYNC"], "holds rows that no view of this pipeline has written, and would count rows twice"),
    ):
        for statement in statements:
            case.client().command(statement)
        with pytest.raises(HaltError, match=message):
            case.warm_run()


def run_ddl(case: PipelineCase, *options: str) -> None:
    """Runs the statements that `tallyflow ddl` prints, as an operator does."""
    printed = case.invoke("ddl", str(case.file), *options).stdout
    for statement in filter(str.strip, printed.split(";\n")):
        case.client().command(statement)


def test_tables_and_views_of_an_operator_are_taken_as_they_are(case: PipelineCase) -> None:
    """A rollup that is added to a table with rows is so behind the named position."""
    orders = RollupCase(case, create_rollups=False, create_table=False)
    run_ddl(case)
    orders.send(400)
    case.warm_run()
    assert orders.differences() == []
    views_first = f"SELECT name FROM system.tables WHERE startsWith(name, '{orders.rollup}') ORDER BY NOT endsWith(engine, 'View')"
    for (name,) in case.client().query(views_first).result_rows:
        case.client().command(f"DROP TABLE {name} SYNC")
    with pytest.raises(HaltError, match=r"there is no \w+_stats_5m, .*`tallyflow ddl FILE` prints"):
        case.warm_run()
    run_ddl(case)
    orders.send(100)
    with pytest.raises(HaltError, match=r"the table held such rows before it; drop the view, and create it as") as late:
        case.warm_run()
    cut = re.search(r"--after (\d+)", str(late.value))
    assert cut is not None
    for target in ("5m", "5m_top_dishes", "5m_most_eaten"):
        case.client().command(f"DROP VIEW {orders.rollup}_{target}_view SYNC")
    run_ddl(case, "--after", cut[1])
    case.warm_run()
    assert orders.differences() == []


def test_a_table_of_the_users_own_may_hold_nulls_but_of_time(case: PipelineCase) -> None:
    """A table of which the time may be NULL is refused; other NULLs stop no insert."""
    orders = RollupCase(case)
    ddl = case.invoke("ddl", str(case.file)).stdout.split(";")[0]
    case.client().command(ddl.replace("ordered_at DateTime64(3)", "ordered_at Nullable(DateTime64(3))"))
    with pytest.raises(HaltError, match=r"the column ordered_at of the table is Nullable\(DateTime64\(3\)\), and \w+ needs it"):
        case.warm_run()
    case.client().command(f"DROP TABLE {case.table} SYNC")
    case.client().command(ddl.replace("total Decimal(12, 2)", "total Nullable(Decimal(12, 2))"))
    case.send([json.dumps({**order(1), "total": None}).encode(), json.dumps(order(2)).encode()])
    case.warm_run()
    found = case.client().query(f"SELECT sum(orders), sum(sales) FROM {orders.rollup}_5m").result_rows
    assert found == [(2, Decimal(order(2)["total"]))]


def with_rollup(case: PipelineCase, name: str) -> None:
    """Adds a rollup to the file."""
    document = yaml.safe_load(case.file.read_text())
    rollup = {"name": f"{case.table}_{name}", "time": "_tf_arrival", "measures": [{"as": "orders", "count": True}]}
    document["sink"] |= {"create_rollups": True, "rollups": [*document["sink"].get("rollups", ()), rollup]}
    case.file.write_text(yaml.safe_dump(document, sort_keys=False))


def test_a_joined_row_that_comes_late_is_counted(case: PipelineCase) -> None:
    """It has the position of its left record, which had waited, behind rows of later positions; so no rollup is added to such rows."""
    pipeline = JoinPipeline(case, case.addresses)
    with_rollup(case, "joined")
    pipeline.send("events", range(10))
    case.warm_run()
    for names in (range(5, 10), range(5)):
        pipeline.send("names", names)
        case.warm_run()
    assert len(pipeline.rows()) == 10
    assert case.client().query(f"SELECT sum(orders) FROM {case.table}_joined_5m").result_rows == [(10,)]
    with_rollup(case, "more")
    with pytest.raises(HaltError, match="behind a join, rows come later than rows of later positions"):
        case.warm_run()


def test_inserts_add_nothing_up_where_there_is_a_rollup(case: PipelineCase) -> None:
    """Two rows of one dish and bucket reach the top as they are, and a merge adds them up."""
    orders = RollupCase(case, dish="LowCardinality(String)")
    case.warm_run()
    for target in ("5m_top_dishes", "5m_most_eaten"):
        case.client().command(f"SYSTEM STOP MERGES {orders.rollup}_{target}")
    case.send(json.dumps({**order(1), "id": number, "dish": "ramen"}).encode() for number in range(2))
    case.warm_run()
    query = f"SELECT count(), sum(amount) FROM {orders.rollup}_5m_top_dishes"
    assert case.client().query(query).result_rows == [(2, 2)]
    case.client().command(f"SYSTEM START MERGES {orders.rollup}_5m_top_dishes")
    case.client().command(f"OPTIMIZE TABLE {orders.rollup}_5m_top_dishes FINAL")
    assert case.client().query(query).result_rows == [(1, 2)]
    assert orders.differences() == []


@pytest.mark.crash
def test_a_fill_sent_again_is_counted_once_whatever_the_parts(case: PipelineCase) -> None:
    """ClickHouse may have been killed between its commit and its answer, and reads the table by other parts, or on other threads, then."""
    orders = RollupCase(case)
    case.warm_run()
    case.client().command(f"SYSTEM STOP MERGES {case.table}")
    for _ in range(4):
        orders.send(300)
        case.warm_run()
    for day in (10, 1000):
        # Several blocks of a fill, of which one part has what comes first.
        moved = f"SELECT * REPLACE (ordered_at + INTERVAL {day} DAY AS ordered_at) FROM {case.table} LIMIT 1000"
        case.client().command(f"INSERT INTO {case.table} SELECT rows.* FROM ({moved}) AS rows, numbers(150) AS copies")
    config = load(case.file)
    clickhouse = ClickHouse(config.sink)
    statements = RollupState(config, clickhouse).statements
    counted = [stored(case, feed) for feed in statements.feeds]
    sent = [statements.fill(feed, 0, LAST_SEQUENCE) for feed in statements.feeds]

    def fill(**profile: int) -> list[int]:
        for text in sent:
            clickhouse.command("filling", text, settings={**profile, **FILL_SETTINGS, "insert_deduplication_token": "token"})
        return [stored(case, feed) for feed in statements.feeds]

    twice = [2 * count for count in counted]
    assert fill(max_threads=4) == twice
    assert fill(max_threads=1) == twice
    assert fill(preferred_block_size_bytes=100_000) == twice
    case.client().command(f"SYSTEM START MERGES {case.table}")
    case.client().command(f"OPTIMIZE TABLE {case.table} FINAL")
    assert fill(max_threads=4) == twice
    clickhouse.close()


def stored(case: PipelineCase, feed: Feed) -> int:
    """Return the orders, or amounts of items, that a target has added up."""
    count = next(column.name for column in feed.columns if column.name in ("orders", "amount"))
    return int(case.client().query(f"SELECT sum({count}) FROM {feed.target}").result_rows[0][0])


def test_a_large_fill_sent_again_is_counted_once_on_any_threads(case: PipelineCase) -> None:
    client, target = case.client(), f"{case.table}_target"
    client.command(f"CREATE TABLE {case.table} (k UInt32) ENGINE = MergeTree ORDER BY k")
    client.command(f"SYSTEM STOP MERGES {case.table}")
    for part in range(5):
        client.command(f"INSERT INTO {case.table} SELECT intDiv(number + {part} * 130000, 3) FROM numbers(130000)")
    columns = "(k UInt32, n SimpleAggregateFunction(sum, UInt64)) ENGINE = AggregatingMergeTree ORDER BY k"
    client.command(f"CREATE TABLE {target} {columns} SETTINGS non_replicated_deduplication_window = 100")
    text = filled("rollups/fill", database="default", target=target, columns="k, n", keys="k", select=f"SELECT k, 1 AS n FROM {case.table}")
    for threads in (4, 1, 2):
        client.command(text, settings={"max_threads": threads, **FILL_SETTINGS, "insert_deduplication_token": "token"})
        assert client.query(f"SELECT sum(n) FROM {target}").result_rows == [(650_000,)]
