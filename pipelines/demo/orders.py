"""Restaurant orders as JSON: the events of examples/orders (`pipelines.demo.events`). Pure.

    {"order_id":"o1-00000042","customer":{"id":7,"city":"Lyon"},"restaurant":"Chez Ana","dish":"gratin","quantity":2,"price":11.5,
     "tags":["lunch"],"note":null,"ordered_at":"2026-03-01T12:30:00.250Z","padding":"..."}

`note` is absent, null or text; `padding` is present if the other fields, 170 to 230 bytes, are shorter than the recipe's size.
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.demo.events import Events, Generator, Recipe

BAD_KINDS = ("invalid_json", "wrong_type", "missing_field", "null_value", "not_utf8")
"""Cut-off JSON; a text as the quantity; no price; no value at all (a tombstone); bytes that are not UTF-8 in the dish."""

_START = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)
_EVENT_INTERVAL_MS = 5
_LATENESS_MS = 3_000
_CUSTOMERS = 50_000

_CITIES = ("Lyon", "Genève", "Bruxelles", "Porto", "München", "Kraków", "Torino", "Bilbao")
_RESTAURANTS = ("Chez Ana", "Comptoir", "Da Enzo", "Zum Löwen", "Nonna", "Rincón")
_DISHES = (
    ("gratin", ("lunch", "veggie")),
    ("quiche", ("lunch",)),
    ("crème brûlée", ("dessert", "veggie")),
    ("margherita", ("veggie",)),
    ("bibimbap", ("spicy",)),
    ("fish & chips", ()),
    ("ramen", ("noodles", "dinner")),
)
_MAX_QUANTITY = 5
_PRICES = range(350, 4_950)
_NOTES = ("no onions", 'ring "twice"', "à emporter", "extra hot\nplease")
_NOTE_SHARES = (0.5, 0.3, *[0.2 / len(_NOTES)] * len(_NOTES))
"""Shares of orders without a note, of those with a null, and of those with each text."""

_QUANTITY = re.compile(rb'"quantity":\d+')
_PRICE = re.compile(rb'"price":[\d.]+,')


def _spoil(value: bytes, kind: str) -> bytes | None:
    if kind == "invalid_json":
        return value[: len(value) // 2]
    if kind == "wrong_type":
        return _QUANTITY.sub(rb'"quantity":"two"', value)
    if kind == "missing_field":
        return _PRICE.sub(b"", value)
    if kind == "not_utf8":
        return value.replace(b'"dish":"', b'"dish":"\xff\xfe', 1)
    return None


def _render(recipe: Recipe, block: int) -> tuple[pa.Array, pa.Array]:
    """Render a good order for each event of the block; return (keys, values without the closing brace)."""
    random = recipe.random(block, 2)
    numbers = np.arange(recipe.block_events, dtype=np.int64) + block * recipe.block_events
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, "0")
    keys = pc.binary_join_element_wise(f"o{recipe.seed}-", digits, "")
    addresses, dishes, tags, notes, prices = _fragments()
    dish = random.integers(0, len(_DISHES), len(numbers))
    quantity = random.integers(0, _MAX_QUANTITY, len(numbers))
    pieces = [
        '{"order_id":"',
        keys,
        '","customer":{"id":',
        pa.array(random.integers(1, _CUSTOMERS + 1, len(numbers))).cast(pa.string()),
        _pick(addresses, random.integers(0, len(addresses), len(numbers))),
        _pick(dishes, dish * _MAX_QUANTITY + quantity),
        _pick(prices, random.integers(0, len(prices), len(numbers))),
        _pick(tags, dish),
        _pick(notes, random.choice(len(notes), len(numbers), p=_NOTE_SHARES)),
        '"ordered_at":"',
        _instants(numbers, random),
        'Z"',
    ]
    return keys, pc.binary_join_element_wise(*pieces, "")


def _pick(fragments: pa.Array, indices: npt.NDArray[np.int64]) -> pa.Array:
    return fragments.take(pa.array(indices))


@cache
def _fragments() -> tuple[pa.Array, ...]:
    """Build the JSON fragments once: city and restaurant, dish and quantity, tags, note, price."""

    def text(value: object) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    addresses = [f',"city":{text(city)}}},"restaurant":{text(restaurant)},' for city in _CITIES for restaurant in _RESTAURANTS]
    dishes = [f'"dish":{text(dish)},"quantity":{n + 1},"price":' for dish, _ in _DISHES for n in range(_MAX_QUANTITY)]
    tags = [f',"tags":{text(tags)},' for _, tags in _DISHES]
    # ASCII escapes for every other text, since encoders differ.
    texts = [f'"note":{json.dumps(note, ensure_ascii=index % 2 == 0)},' for index, note in enumerate(_NOTES)]
    prices = [text(cents // 100 if cents % 100 == 0 else cents / 100) for cents in _PRICES]
    return tuple(pa.array(pieces, pa.string()) for pieces in (addresses, dishes, tags, ["", '"note":null,', *texts], prices))


def _instants(numbers: npt.NDArray[np.int64], random: np.random.Generator) -> pa.Array:
    """Render the instants of `ordered_at`, without their zone.

    One order per _EVENT_INTERVAL_MS, each up to _LATENESS_MS earlier, so the orders are out of order.
    """
    millis = int(_START.timestamp() * 1000) + numbers * _EVENT_INTERVAL_MS - random.integers(0, _LATENESS_MS, len(numbers))
    return pc.replace_substring(pa.array(millis, pa.timestamp("ms")).cast(pa.string()), " ", "T")


ORDERS = Generator(_render, _spoil, BAD_KINDS)


def orders(recipe: Recipe, count: int) -> Iterator[Events]:
    """Yield the first `count` orders of the recipe's endless stream, in blocks."""
    return ORDERS.events(recipe, count)
