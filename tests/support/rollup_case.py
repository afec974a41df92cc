"""A pipeline of restaurant orders with rollups, and their oracle: DuckDB over the records in Kafka."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

from support.pipeline_case import PipelineCase

MEASURES: list[dict[str, Any]] = [
    {"as": "orders", "count": True},
    {"as": "sales", "sum": {"column": "total"}},
    {"as": "portions", "sum": {"column": "quantity"}},
    {"as": "top_dishes", "top": {"column": "dish", "n": 3}},
    {"as": "most_eaten", "top": {"column": "dish", "n": 2, "by": "quantity"}},
    {"as": "customers", "unique": {"column": "customer"}},
    {"as": "customers_exact", "unique": {"column": "customer", "method": "exact"}},
    {"as": "p95", "quantile": {"column": "total", "q": 0.95}},
    {"as": "p90_exact", "quantile": {"column": "total", "q": 0.9, "method": "exact"}},
]
ROLLUP: dict[str, Any] = {"group_by": ["restaurant"], "time": "ordered_at", "as_of": "newest", "measures": MEASURES}
START = datetime(2026, 3, 1, tzinfo=UTC)
WINDOWS = {"1h": 3600, "24h": 86400, "168h": 604800}
RESTAURANTS = ("Ana", "Enzo", "Löwen", "O'Hara")
DISHES = ("gratin", "quiche", "ramen", None, "bibimbap")


def order(number: int) -> dict[str, Any]:
    """An order of eight days, out of order of time; what it holds follows from its number alone."""
    mixed = number * 2_654_435_761 % 2**32
    return {
        "id": number,
        "restaurant": RESTAURANTS[mixed % 4],
        "dish": DISHES[mixed // 7 % 5],
        "customer": None if mixed % 17 == 0 else mixed // 11 % 700,
        "quantity": mixed // 13 % 5,
        "total": f"{mixed % 5000 / 100:.2f}",
        "ordered_at": (START + timedelta(milliseconds=mixed % 691_200_000)).isoformat(timespec="milliseconds"),
    }


class RollupCase:
    """Orders into a table with a rollup. Each tenth record is a copy of the one before it, each 50th is broken."""

    def __init__(self, case: PipelineCase, is_added_later: bool = False, dish: str = "Nullable(String)", **sink: Any) -> None:
        """`dish`: the type of the column of the items."""
        self.case, self.sent, self._dish, self._sink = case, 0, dish, sink
        self.rollup = f"{case.table}_stats"
        self.write(has_rollup=not is_added_later)
        case.create_topic()

    def write(self, has_rollup: bool = True, **rollup: Any) -> None:
        self.case.write_file(lambda document: self._change(document, has_rollup, rollup))

    def _change(self, document: dict[str, Any], has_rollup: bool, rollup: dict[str, Any]) -> None:
        types = {
            "id": ("int", "Int64"),
            "restaurant": ("string", "LowCardinality(String)"),
            "dish": ("string", self._dish),
            "customer": ("int", "Nullable(UInt32)"),
            "quantity": ("int", "UInt8"),
            "total": ("string", "Decimal(12, 2)"),
            "ordered_at": ("string", "DateTime64(3)"),
        }
        document["sources"][0]["schema_fields"] = [{"name": name, "type": kind} for name, (kind, _) in types.items()]
        document["transforms"] = [{"type": "dedup", "config": {"key": "id", "time_window": "24h"}}]
        document["on_error"] = {"max_rejected_percent": 100}
        document["sink"]["mapping"] = [{"name": name, "column_name": name, "column_type": kind} for name, (_, kind) in types.items()]
        document["sink"] |= {"create_rollups": True, **self._sink}
        if has_rollup:
            document["sink"]["rollups"] = [{**ROLLUP, "name": self.rollup, **rollup}]
        else:
            document["sink"].pop("create_rollups")

    def send(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        self.sent += count
        self.case.send(_value(number) for number in numbers)

    # -- the oracle -----------------------------------------------------------------------------------------------------------

    def records(self) -> duckdb.DuckDBPyConnection:
        """DuckDB with the orders that Kafka holds, as `orders`: each id once, without what is broken."""
        engine = duckdb.connect()
        found = {}
        for value in self.case.records().values():
            if value is not None and value.endswith(b"}"):
                one = json.loads(value)
                found.setdefault(one["id"], one)
        rows = pa.Table.from_pylist([*found.values()])
        engine.register("found", rows)
        engine.execute(
            "CREATE TABLE orders AS SELECT * REPLACE (total::DECIMAL(12, 2) AS total, ordered_at::TIMESTAMPTZ AS ordered_at), "
            "(floor(epoch(ordered_at::TIMESTAMPTZ) / 300) * 300)::BIGINT AS bucket FROM found"
        )
        return engine

    def differences(self, engine: duckdb.DuckDBPyConnection | None = None, where: str = "true") -> list[str]:
        """What differs between the windows in ClickHouse and those of the orders, and between the buckets."""
        engine = engine or self.records()
        client = self.case.client()
        client.command(f"SYSTEM REFRESH VIEW {self.rollup}_refreshed_view")
        client.command(f"SYSTEM WAIT VIEW {self.rollup}_refreshed_view")
        ((until,),) = engine.execute(f"SELECT max(bucket) + 300 FROM orders WHERE {where}").fetchall()
        found = {
            (window, restaurant): row
            for window, restaurant, *row in client.query(
                "SELECT window, restaurant, toUnixTimestamp64Second(as_of), orders, sales, portions, top_dishes, most_eaten, customers, "
                f"customers_exact, p95, p90_exact FROM {self.rollup}_now"
            ).result_rows
        }
        wanted = dict(self._wanted(engine, until, where))
        differing = [f"{key}: no window" for key in wanted.keys() - found.keys()]
        differing += [f"{key}: too many" for key in found.keys() - wanted.keys()]
        for key in wanted.keys() & found.keys():
            *exact, estimated, p90_wanted, quantile = wanted[key]
            as_of, *figures, hll, customers, p95, p90 = found[key]
            if [as_of, *figures, customers, p90] != [until, *exact, p90_wanted]:
                differing.append(f"{key}: {[until, *exact, p90_wanted]} in Kafka, {[as_of, *figures, customers, p90]} in ClickHouse")
            if abs(hll - estimated) > max(1, 0.02 * estimated):
                differing.append(f"{key}: {hll} for {estimated} customers")
            if abs(p95 - quantile) > 0.0079 * quantile:
                differing.append(f"{key}: {p95} for {quantile}")
        differing += self._differing_buckets(engine, where)
        return differing

    def _wanted(self, engine: duckdb.DuckDBPyConnection, until: int, where: str) -> Iterator[tuple[tuple[str, str], list[Any]]]:
        for window, seconds in WINDOWS.items():
            inside = f"bucket >= {until} - {seconds} AND {where}"
            # The sketch's is the first value that this share of all does not exceed; below the exact one is this share of them.
            query = f"""
                SELECT restaurant, count(*), sum(total), sum(quantity), count(DISTINCT customer),
                    list_sort(list(total))[1 + floor(0.9::DOUBLE * count(*))::BIGINT]::DOUBLE,
                    list_sort(list(total))[ceil(0.95::DOUBLE * count(*))::BIGINT]::DOUBLE
                FROM orders WHERE {inside} GROUP BY restaurant
            """
            for restaurant, orders, sales, portions, customers, *quantiles in engine.execute(query).fetchall():
                tops = [
                    engine.execute(
                        f"SELECT dish AS item, {amount} AS amount FROM orders WHERE {inside} AND restaurant = ? AND dish IS NOT NULL "
                        f"GROUP BY dish ORDER BY amount DESC, item LIMIT {n}",
                        [restaurant],
                    ).fetchall()
                    for amount, n in (("count(*)", 3), ("sum(quantity)", 2))
                ]
                pairs = [[{"item": item, "amount": int(amount)} for item, amount in top] for top in tops]
                yield (window, restaurant), [orders, Decimal(sales), int(portions), *pairs, customers, customers, *quantiles]

    def _differing_buckets(self, engine: duckdb.DuckDBPyConnection, where: str) -> list[str]:
        found = self.case.client().query(
            f"SELECT restaurant, toUnixTimestamp64Second(bucket) AS begin, sum(orders), sum(sales) FROM {self.rollup}_5m "
            "GROUP BY restaurant, begin"
        )
        stored = sorted(found.result_rows)
        query = f"SELECT restaurant, bucket, count(*), sum(total) FROM orders WHERE {where} GROUP BY ALL"
        wanted = sorted(engine.execute(query).fetchall())
        return [f"bucket {one}" for one in sorted({*stored} ^ {*wanted}, key=str)][:10]


def _value(number: int) -> bytes:
    if number % 50 == 49:
        return b'{"id": '
    return json.dumps(order(number - (number % 10 == 9)), ensure_ascii=False).encode()
