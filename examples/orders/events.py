"""The records of this example: restaurant orders, and what must become of them."""

import json
from collections import Counter
from collections.abc import Iterable

from pipelines.demo.events import DUPLICATE, Events
from pipelines.demo.examples import Account, Example
from pipelines.demo.orders import ORDERS

CODES = {
    "invalid_json": "invalid_json",
    "wrong_type": "wrong_type",
    "missing_field": "null_in_non_nullable",
    "null_value": "tombstone",
    "not_utf8": "invalid_json",
}
"""The code of the dead letter of each bad kind."""


def account(events: Iterable[Events]) -> Account:
    """Return what must become of the orders: each good one is a row, each copy is dropped."""
    found = Account()
    orders: Counter[str] = Counter()
    dishes: Counter[str] = Counter()
    for _, value, kind in (event for block in events for event in block):
        if kind in CODES:
            found.dead_letters[CODES[kind]] += 1
        elif kind == DUPLICATE:
            found.duplicates += 1
        else:
            found.rows[""] += 1
            order = json.loads(value or b"")
            orders[order["customer"]["city"]] += 1
            dishes[order["customer"]["city"]] += order["quantity"]
    found.answer = [(city, orders[city], dishes[city]) for city in sorted(orders)]
    return found


EXAMPLE = Example(
    noun="order",
    generator=ORDERS,
    account=account,
    sample=("order_id", "customer_id", "city", "restaurant", "dish", "quantity", "price", "tags", "note"),
    question="SELECT city, count() AS orders, sum(quantity) AS dishes FROM {table} GROUP BY city ORDER BY city",
)
