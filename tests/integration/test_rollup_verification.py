"""`tallyflow verify` names what is wrong in a rollup: a row counted twice, a bucket lost, rows that the table no longer has."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from support.pipeline_case import PipelineCase
from support.rollup_case import RollupCase, order

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.usefixtures("brief_inserts")]


def verified(case: PipelineCase, *options: str) -> dict[str, Any]:
    answer = case.invoke("verify", str(case.file), "--json", *options)
    assert answer.stdout, (answer.stderr, answer.exception)
    report: dict[str, Any] = json.loads(answer.stdout)
    return report


def assert_clean_and_compared_whole(orders: RollupCase) -> None:
    """All rows of the targets are compared, unless a range is asked for, which says so."""
    report = verified(orders.case)
    assert (report["verdict"], report["findings"], report["not_proven"]) == ("clean", [], []), report["findings"]
    target = f"{orders.rollup}_5m"
    stored = orders.case.client().query(f"SELECT uniqExact(restaurant, bucket) FROM {target}").result_rows[0][0]
    assert report["counts"][f"rows of {target}"] == stored > 500
    report = verified(orders.case, "--from", "1h")
    assert any(one["what"].startswith("rollups: only a verification without --from") for one in report["not_compared"])
    assert not any(name.startswith(f"rows of {orders.rollup}") for name in report["counts"])


OTHER_STATES = {
    "customers": "uniqCombined64State(CAST(number, 'Nullable(UInt32)'))",
    "customers_exact": "uniqExactState(CAST(number, 'Nullable(UInt32)'))",
    "p90_exact": "quantileExactState(0.9)(CAST(number + 1000, 'Nullable(Float64)'))",
    "p95": "quantileBFloat16State(0.95)(CAST(number + 1000, 'Nullable(Float64)'))",
}


@pytest.mark.crash
def test_faults_in_targets_are_named_by_their_columns(case: PipelineCase) -> None:
    """A row counted twice, states with other values, a lost bucket, and both in a top of a dictionary."""
    orders = RollupCase(case, dish="LowCardinality(Nullable(String))")
    orders.send(800)
    case.warm_run()
    assert_clean_and_compared_whole(orders)
    client, target = case.client(), f"{orders.rollup}_5m"
    client.command(f"INSERT INTO {target} SELECT * FROM {target} FINAL ORDER BY bucket LIMIT 1")
    for number, (column, change) in enumerate(OTHER_STATES.items(), 100):
        client.command(
            f"INSERT INTO {target} (restaurant, bucket, {column}) SELECT restaurant, bucket, value FROM (SELECT restaurant, bucket "
            f"FROM {target} ORDER BY bucket LIMIT {number}, 1) AS one CROSS JOIN (SELECT {change} AS value FROM numbers(20)) AS states"
        )
    dishes, eaten = f"{target}_top_dishes", f"{target}_most_eaten"
    ((bucket,),) = client.query(f"SELECT toString(max(bucket)) FROM {dishes}").result_rows
    ((lost,),) = client.query(f"SELECT uniqExact(restaurant, item) FROM {dishes} WHERE bucket = '{bucket}'").result_rows
    client.command(f"ALTER TABLE {dishes} DELETE WHERE bucket = '{bucket}' SETTINGS mutations_sync = 2")
    ramen = "item = 'ramen' AND restaurant = 'Ana'"
    client.command(f"INSERT INTO {eaten} SELECT * FROM {eaten} FINAL WHERE amount > 0 AND NOT ({ramen}) ORDER BY ALL LIMIT 1")
    ((of_ramen,),) = client.query(f"SELECT uniqExact(bucket) FROM {eaten} WHERE {ramen}").result_rows
    client.command(f"ALTER TABLE {eaten} DELETE WHERE {ramen} SETTINGS mutations_sync = 2")
    findings = verified(case)["findings"]
    faults = {(one["place"].removeprefix(f"rollup {target}"), one["kind"], one["column"]): one["count"] for one in findings}
    # What is unique, and a quantile, is the same when it is counted twice; a first row may have no portions.
    assert faults.pop(("", "different", "portions"), 1) == 1
    assert faults == {
        **{("", "different", column): 1 for column in ("orders", "sales", *OTHER_STATES)},
        ("_top_dishes", "missing", None): lost,
        ("_most_eaten", "different", "amount"): 1,
        ("_most_eaten", "missing", None): of_ramen,
    }
    (example,) = next(one for one in findings if one["column"] == "orders")["examples"]
    assert example["position"].partition(" at ")[2].startswith("2026-03-01 00:")
    expected, doubled = (int(example[side].removeprefix("orders ")) for side in ("expected", "found"))
    assert doubled == 2 * expected


@pytest.mark.crash
def test_rows_deleted_from_targets_or_the_table_are_told(case: PipelineCase) -> None:
    orders = RollupCase(case)
    orders.send(800)
    case.warm_run()
    targets = (f"{orders.rollup}_5m", f"{orders.rollup}_5m_most_eaten")
    for target in targets:
        case.client().command(f"TRUNCATE TABLE {target}")
    report = verified(case)
    lacking = {(one["place"], one["kind"], one["column"]): one["count"] for one in report["findings"]}
    assert lacking == {(f"rollup {target}", "missing", None): report["counts"][f"rows of {target}"] for target in targets}
    case.client().command(f"ALTER TABLE {case.table} DELETE WHERE id = 3 SETTINGS mutations_sync = 2")
    findings = verified(case)["findings"]
    assert [one["count"] for one in findings if (one["place"], one["kind"]) == ("rows", "missing")] == [1]
    assert f"rollup {orders.rollup}_5m_top_dishes" in {one["place"] for one in findings}


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
