"""The records of this example: orders of six restaurants over eight days, late and repeated ones too, and what must become of them."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.demo.events import DUPLICATE, Events, Generator, Recipe, spoiled_by
from pipelines.demo.examples import Account, Example, WindowFigures

BAD_KINDS = ("invalid_json", "wrong_type", "total_in_words", "no_restaurant")
"""Cut-off JSON; a text as the quantity; a total that is no number; an order of no restaurant."""
CODES = {
    "invalid_json": "invalid_json",
    "wrong_type": "wrong_type",
    "total_in_words": "invalid_value",
    "no_restaurant": "null_in_non_nullable",
}
"""The code of the dead letter of each bad kind."""
CHANGES: dict[str, dict[str, object]] = {
    "wrong_type": {"quantity": "two"},
    "total_in_words": {"total": "twelve"},
    "no_restaurant": {"restaurant": None},
}

START = datetime(2026, 3, 1, tzinfo=UTC)
DAYS = 8
ORDERS_PER_SWEEP = 8_000
"""Orders that pass through the eight days once; then the tills of further streets send theirs, from the first day on."""
LATE_SHARE, MOST_LATE_HOURS = 0.1, 20
CUSTOMERS = 9_000
HOURS = np.array([1, 0, 0, 0, 0, 0, 1, 2, 3, 3, 4, 12, 24, 20, 8, 4, 5, 12, 26, 34, 28, 16, 8, 3], float)
"""How many orders an hour of the day has, compared with the others: lunch and dinner."""
MENUS = {
    "Chez Ana": (("gratin dauphinois", 1450), ("quiche lorraine", 1180), ("soupe à l'oignon", 890), ("crème brûlée", 720)),
    "Comptoir": (("steak frites", 2190), ("moules marinières", 1860), ("salade niçoise", 1390), ("tarte tatin", 780)),
    "Da Enzo": (("margherita", 950), ("lasagne", 1290), ("cacio e pepe", 1340), ("tiramisù", 690)),
    "Nonna": (("gnocchi al pesto", 1260), ("ossobuco", 2380), ("risotto", 1590), ("panna cotta", 640)),
    "Rincón": (("paella", 1990), ("patatas bravas", 690), ("gambas al ajillo", 1490), ("churros", 550)),
    "Zum Löwen": (("Schnitzel", 1790), ("Käsespätzle", 1280), ("Maultaschen", 1190), ("Apfelstrudel", 680)),
}
RESTAURANT_SHARES = (0.22, 0.19, 0.24, 0.13, 0.12, 0.10)
DISH_SHARES = (0.38, 0.27, 0.2, 0.15)
QUANTITY_SHARES = (0.55, 0.27, 0.11, 0.07)

WINDOWS = {"1h": 3600, "24h": 86400, "168h": 604800}
FIGURES = ("orders", "sales", "customers", "large_order", "top_dishes")


def render(recipe: Recipe, block: int) -> tuple[pa.Array, pa.Array]:
    """Render an order for each event of the block; return (keys, values without the closing brace)."""
    random, count = recipe.random(block, 2), recipe.block_events
    numbers = np.arange(count, dtype=np.int64) + block * count
    places = random.choice(len(MENUS), count, p=RESTAURANT_SHARES)
    dishes, quantities = random.choice(4, count, p=DISH_SHARES), random.choice(4, count, p=QUANTITY_SHARES) + 1
    customers = random.integers(1, CUSTOMERS + 1, count)
    restaurants = list(MENUS)
    keys, values = [], []
    drawn = zip(numbers.tolist(), places, dishes, quantities.tolist(), customers.tolist(), _instants(numbers, random), strict=True)
    for number, place, dish, quantity, customer, instant in drawn:
        name, cents = MENUS[restaurants[place]][dish]
        order = {
            "order_id": f"r{recipe.seed}-{number:08}",
            "restaurant": restaurants[place],
            "dish": name,
            "quantity": quantity,
            "total": f"{Decimal(cents * quantity) / 100:.2f}",
            "customer": {"id": customer},
            "ordered_at": instant,
        }
        keys.append(order["order_id"])
        values.append(json.dumps(order, ensure_ascii=False, separators=(",", ":"))[:-1])
    return pa.array(keys, pa.string()), pa.array(values, pa.string())


def _instants(numbers: npt.NDArray[np.int64], random: np.random.Generator) -> Iterator[str]:
    """Yield when each order was made: in order but for the late ones, most of them at noon and in the evening."""
    days = (numbers % ORDERS_PER_SWEEP) / ORDERS_PER_SWEEP * DAYS
    edges = np.concatenate([[0.0], np.cumsum(HOURS) / HOURS.sum()])
    hours = np.interp(days % 1, edges, np.arange(25.0))
    late = np.where(random.random(len(numbers)) < LATE_SHARE, random.random(len(numbers)) * MOST_LATE_HOURS, 0.0)
    seconds = np.maximum(0.0, (np.floor(days) * 24 + hours - late) * 3600)
    for millis in (seconds * 1000).astype(np.int64).tolist():
        yield (START + timedelta(milliseconds=millis)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def account(events: Iterable[Events]) -> Account:
    """Return what must become of the orders: each one is a row once, whatever its till repeats."""
    found = Account()
    sales: dict[str, Decimal] = dict.fromkeys(MENUS, Decimal(0))
    counts: Counter[str] = Counter()
    for _, value, kind in (event for block in events for event in block):
        if kind in CODES:
            found.dead_letters[CODES[kind]] += 1
        elif kind == DUPLICATE:
            found.duplicates += 1
        else:
            order = json.loads(value or b"")
            found.rows[""] += 1
            counts[order["restaurant"]] += 1
            sales[order["restaurant"]] += Decimal(order["total"])
    found.answer = [(name, counts[name], sales[name]) for name in sorted(counts)]
    return found


def windows(events: Iterable[Events]) -> WindowFigures:
    """Return what the dashboard must show for each restaurant and window, by DuckDB over the good records."""
    good = [value.decode() for block in events for _, value, kind in block if kind not in (*CODES, DUPLICATE) and value]
    question = Path(__file__).with_name("windows.sql").read_text(encoding="utf-8")
    found: WindowFigures = {}
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.register("records", pa.table({"value": pa.array(good, pa.string())}))
        for window, seconds in WINDOWS.items():
            for restaurant, *figures in engine.execute(question, {"seconds": seconds}).fetchall():
                found[window, (restaurant,)] = dict(zip(FIGURES, figures, strict=True))
    return found


EXAMPLE = Example(
    noun="order",
    generator=Generator(render, spoiled_by(CHANGES), BAD_KINDS),
    account=account,
    sample=("order_id", "restaurant", "dish", "quantity", "total", "ordered_at"),
    question="SELECT restaurant, count() AS orders, sum(total) AS sales FROM {table} GROUP BY restaurant ORDER BY restaurant",
    windows=windows,
)
