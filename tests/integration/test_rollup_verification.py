"""`tallyflow verify` names what is wrong in a rollup: a row counted twice, a bucket lost, rows that the table no longer has."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from support.pipeline_case import PipelineCase
from support.rollup_case import RollupCase, order

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.usefixtures("brief_inserts")]


@pytest.fixture
def orders(case: PipelineCase) -> RollupCase:
    orders = RollupCase(case)
    orders.send(800)
    case.warm_run()
    return orders


def verified(case: PipelineCase, *options: str) -> dict[str, Any]:
    answer = case.invoke("verify", str(case.file), "--json", *options)
    assert answer.stdout, (answer.stderr, answer.exception)
    report: dict[str, Any] = json.loads(answer.stdout)
    return report


def found(case: PipelineCase) -> dict[tuple[str, str, str | None], int]:
    return {(one["place"], one["kind"], one["column"]): one["count"] for one in verified(case)["findings"]}


def test_a_rollup_that_holds_the_rows_of_the_table_is_clean(orders: RollupCase) -> None:
    report = verified(orders.case)
    assert (report["verdict"], report["findings"], report["not_proven"]) == ("clean", [], []), report["findings"]
    target = f"{orders.rollup}_5m"
    stored = orders.case.client().query(f"SELECT uniqExact(restaurant, bucket) FROM {target}").result_rows[0][0]
    assert report["counts"][f"rows of {target}"] == stored > 500


def test_a_row_that_a_target_counts_twice_is_named(orders: RollupCase) -> None:
    target = f"{orders.rollup}_5m"
    orders.case.client().command(f"INSERT INTO {target} SELECT * FROM {target} FINAL ORDER BY bucket LIMIT 1")
    faults = found(orders.case)
    # What is unique, and a quantile, is the same when it is counted twice.
    columns = {column for place, kind, column in faults if (place, kind) == (f"rollup {target}", "different")}
    assert {"orders", "sales"} <= columns <= {"orders", "sales", "portions"}
    assert {*faults.values()} == {1}
    (example, *_) = next(one for one in verified(orders.case)["findings"] if one["column"] == "orders")["examples"]
    assert example["position"].partition(" at ")[2].startswith("2026-03-01 00:")
    expected, doubled = (int(example[side].removeprefix("orders ")) for side in ("expected", "found"))
    assert doubled == 2 * expected


def test_a_bucket_that_a_target_lost_is_named(orders: RollupCase) -> None:
    client, target = orders.case.client(), f"{orders.rollup}_5m_top_dishes"
    bucket = client.query(f"SELECT max(bucket) FROM {target}").result_rows[0][0]
    lost = client.query(f"SELECT uniqExact(restaurant, item) FROM {target} WHERE bucket = '{bucket:%Y-%m-%d %H:%M:%S}'").result_rows[0][0]
    client.command(f"ALTER TABLE {target} DELETE WHERE bucket = '{bucket:%Y-%m-%d %H:%M:%S}' SETTINGS mutations_sync = 2")
    assert found(orders.case) == {(f"rollup {target}", "missing", None): lost}


@pytest.mark.parametrize(
    ("statement", "kind", "column"),
    [
        ("INSERT INTO {target} SELECT * FROM {target} FINAL WHERE amount > 0 ORDER BY ALL LIMIT 1", "different", "amount"),
        ("ALTER TABLE {target} DELETE WHERE item = 'ramen' AND restaurant = 'Ana' SETTINGS mutations_sync = 2", "missing", None),
    ],
)
def test_a_fault_in_a_top_of_a_dictionary_is_named(case: PipelineCase, statement: str, kind: str, column: str | None) -> None:
    orders = RollupCase(case, dish="LowCardinality(Nullable(String))")
    orders.send(800)
    case.warm_run()
    assert found(case) == {}
    target = f"{orders.rollup}_5m_most_eaten"
    count = "uniqExact(bucket)" if kind == "missing" else "1"
    wanted = case.client().query(f"SELECT {count} FROM {target} WHERE item = 'ramen' AND restaurant = 'Ana' LIMIT 1").result_rows[0][0]
    case.client().command(statement.format(target=target))
    assert found(case) == {(f"rollup {target}", kind, column): wanted}


def test_rows_deleted_from_the_table_are_told_of_its_rollups(orders: RollupCase) -> None:
    orders.case.client().command(f"ALTER TABLE {orders.case.table} DELETE WHERE id = 3 SETTINGS mutations_sync = 2")
    faults = found(orders.case)
    assert faults["rows", "missing", None] == 1
    assert {place for place, _, _ in faults} >= {f"rollup {orders.rollup}_5m"}


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("customers", "uniqCombined64State(CAST(number, 'Nullable(UInt32)'))"),
        ("customers_exact", "uniqExactState(CAST(number, 'Nullable(UInt32)'))"),
        ("p95", "quantileBFloat16State(0.95)(CAST(number + 1000, 'Nullable(Float64)'))"),
    ],
)
def test_a_state_with_other_values_is_named(orders: RollupCase, column: str, change: str) -> None:
    target = f"{orders.rollup}_5m"
    orders.case.client().command(
        f"INSERT INTO {target} (restaurant, bucket, {column}) SELECT restaurant, bucket, value FROM (SELECT restaurant, bucket "
        f"FROM {target} ORDER BY bucket LIMIT 1) AS one CROSS JOIN (SELECT {change} AS value FROM numbers(20)) AS states"
    )
    assert found(orders.case) == {(f"rollup {target}", "different", column): 1}


def test_a_range_leaves_rollups_out_and_says_so(orders: RollupCase) -> None:
    report = verified(orders.case, "--from", "1h")
    assert any(one["what"].startswith("rollups: only a verification without --from") for one in report["not_compared"])
    assert not any(name.startswith(f"rows of {orders.rollup}") for name in report["counts"])


def test_a_rollup_that_is_not_filled_yet_is_not_proven(case: PipelineCase) -> None:
    orders = RollupCase(case, is_added_later=True)
    orders.send(200)
    case.warm_run()
    orders.write()
    report = verified(case)
    assert report["verdict"] == "not proven"
    assert any("its tables do not exist yet" in one["what"] for one in report["not_proven"])


def test_buckets_that_keep_has_removed_are_left_out(case: PipelineCase) -> None:
    orders = RollupCase(case)
    orders.write(keep="200h")
    orders.send(300)
    case.send([json.dumps({**order(9_000), "ordered_at": datetime.now(UTC).isoformat()}).encode()])
    case.warm_run()
    case.client().command(f"OPTIMIZE TABLE {orders.rollup}_5m FINAL")
    assert case.client().query(f"SELECT count() FROM {orders.rollup}_5m").result_rows == [(1,)]
    report = verified(case)
    assert (report["verdict"], report["counts"][f"rows of {orders.rollup}_5m"]) == ("clean", 1), report["findings"]
    assert any(one["what"] == f"rollup {orders.rollup}: buckets that its `keep` has removed" for one in report["not_compared"])
    case.warm_run()


def test_a_target_that_was_emptied_lacks_every_bucket(orders: RollupCase) -> None:
    for target in (f"{orders.rollup}_5m", f"{orders.rollup}_5m_most_eaten"):
        orders.case.client().command(f"TRUNCATE TABLE {target}")
    report = verified(orders.case)
    lacking = {(one["place"], one["kind"], one["column"]): one["count"] for one in report["findings"]}
    targets = (f"{orders.rollup}_5m", f"{orders.rollup}_5m_most_eaten")
    assert lacking == {(f"rollup {target}", "missing", None): report["counts"][f"rows of {target}"] for target in targets}
