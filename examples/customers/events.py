"""The records of this example: the profiles of customers, their orders in several currencies, and what must become of them."""

import csv
import json
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pyarrow as pa

from pipelines.demo.events import DUPLICATE, Events, Generator, Recipe, spoiled_by
from pipelines.demo.examples import Account, Beside, Example

BAD_KINDS = ("invalid_json", "wrong_type", "unknown_customer")
"""Cut-off JSON; a text as the price; a customer without a profile."""
CHANGES: dict[str, dict[str, object]] = {"wrong_type": {"cents": "much"}, "unknown_customer": {"customer_id": "c-9999"}}

START_MS, ORDER_MS = 1_774_000_000_000, 9_000
CUSTOMERS = 400
CURRENCIES = ("EUR", "EUR", "EUR", "CHF", "PLN", "USD", "GBP")
"""No rate is known of the last one."""
_HERE = Path(__file__).parent


def render(recipe: Recipe, block: int) -> tuple[pa.Array, pa.Array]:
    """Render an order for each event of the block; return (keys, values without the closing brace)."""
    count = recipe.block_events
    keys, values = [], []
    for row, (who, currency, cents) in enumerate(recipe.random(block, 2).integers(0, 1 << 30, (count, 3)).tolist()):
        number = block * count + row
        order = {
            "order_id": f"o{recipe.seed}-{number:08}",
            "at": START_MS + number * ORDER_MS,
            "customer_id": f"c-{who % CUSTOMERS + 1:04}",
            "currency": CURRENCIES[currency % len(CURRENCIES)],
            "cents": cents % 20_000 + 100,
        }
        keys.append(order["order_id"])
        values.append(json.dumps(order, separators=(",", ":"))[:-1])
    return pa.array(keys, pa.string()), pa.array(values, pa.string())


def render_profiles(recipe: Recipe, block: int) -> tuple[pa.Array, pa.Array]:
    """Render a profile of each customer in turn; return (keys, values without the closing brace)."""
    rows, first = _rows("customers.csv"), block * recipe.block_events
    profiles = [rows[number % len(rows)] for number in range(first, first + recipe.block_events)]
    values = [json.dumps(profile, separators=(",", ":"))[:-1] for profile in profiles]
    return pa.array([profile["id"] for profile in profiles], pa.string()), pa.array(values, pa.string())


def account(events: Iterable[Events]) -> Account:
    """Return what must become of the orders, and of a profile of each customer, from the tables as they are beside this file."""
    customers = {row["id"]: row for row in _rows("customers.csv")}
    found = Account(kept=len(customers))
    totals: Counter[tuple[str, str]] = Counter()
    for _, value, kind in (event for block in events for event in block):
        if kind == DUPLICATE:
            found.duplicates += 1
        elif kind == "unknown_customer":
            found.waiting += 1
        elif kind in BAD_KINDS:
            found.dead_letters[kind] += 1
        else:
            order = json.loads(value or b"")
            customer = customers[order["customer_id"]]
            found.rows[""] += 1
            rate = _rate(order["currency"], order["at"])
            totals[customer["country"], customer["tier"]] += 0 if rate is None else order["cents"] * rate // 1000
    found.answer = [(*group, cents) for group, cents in sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:8]]
    return found


@cache
def _rows(name: str) -> list[dict[str, str]]:
    with (_HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def _rates() -> dict[str, list[tuple[int, int, int]]]:
    """Return, by currency, from when until when a rate is valid, and the rate."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    for row in _rows("rates.csv"):
        ends = int(row["from_ms"]), int(row["until_ms"] or 1 << 62)
        found.setdefault(row["currency"], []).append((*ends, int(row["rate_milli"])))
    return found


def _rate(currency: str, at_ms: int) -> int | None:
    return next((rate for begin, end, rate in _rates().get(currency, []) if begin <= at_ms < end), None)


EXAMPLE = Example(
    noun="order",
    generator=Generator(render, spoiled_by(CHANGES), BAD_KINDS),
    account=account,
    sample=("at", "customer", "tier", "country", "currency", "cents", "euro_cents"),
    question=(
        "SELECT country, tier, sum(ifNull(euro_cents, 0)) AS cents FROM {table} "
        "GROUP BY country, tier ORDER BY cents DESC, country, tier LIMIT 8"
    ),
    beside={"profiles": Beside(Generator(render_profiles, spoiled_by({}), ("invalid_json",)), CUSTOMERS)},
)
