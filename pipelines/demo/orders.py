"""Restaurant orders as JSON: the events of examples/orders, made from a seed. Pure.

Returns blocks of `Events` in order. Event number i depends on the recipe and i alone, however many events are requested, so a test can
repeat the stream and compare. The kind of every event is known, so good, bad and duplicate events are counted, not estimated.

    {"order_id":"o1-00000042","customer":{"id":7,"city":"Lyon"},"restaurant":"Chez Ana","dish":"gratin","quantity":2,"price":11.5,
     "tags":["lunch"],"note":null,"ordered_at":"2026-03-01T12:30:00.250Z","padding":"..."}

`note` is absent, null or text; `padding` is present if the other fields are shorter than the recipe's size.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import ConfigurationError, Fault

GOOD, DUPLICATE = "good", "duplicate"
BAD_KINDS = ("invalid_json", "wrong_type", "missing_field", "null_value", "not_utf8")
"""Cut-off JSON; a text as the quantity; no price; no value at all (a tombstone); bytes that are not UTF-8 in the dish."""
KINDS = (GOOD, DUPLICATE, *BAD_KINDS)

MAX_BLOCK_EVENTS = 8192
_BLOCK_BYTES = 4 * 1024 * 1024
_MAX_SIZE = 1_000_000
_START = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)
_EVENT_INTERVAL_MS = 5
_LATENESS_MS = 3_000
_CUSTOMERS = 50_000
_PADDING = ',"padding":""'
_TEXT_BYTES = 1 << 20

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

Codes = npt.NDArray[np.int8]


@dataclass(frozen=True)
class Recipe:
    """Which events to make.

    `size`: bytes of a value; a shorter one is padded to it exactly, one whose fields alone are longer (170 to 230 bytes) stays as it is.
    `duplicate_share`: share of copies (same key, same bytes) of an earlier good event, at most two blocks back. `bad_share`: share of
    records that do not fit examples/orders/pipeline.yaml, of each of BAD_KINDS alike. Shares are 0..1 and at most 1 together.
    Raises ConfigurationError for numbers outside of that.
    """

    seed: int = 1
    size: int = 200
    duplicate_share: float = 0.0
    bad_share: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.duplicate_share <= 1 and 0 <= self.bad_share <= 1 and self.duplicate_share + self.bad_share <= 1):
            shares = f"duplicate_share {self.duplicate_share} and bad_share {self.bad_share} must be 0..1 and at most 1 together"
            raise ConfigurationError("recipe", [Fault("", shares)])
        if self.seed < 0 or not 1 <= self.size <= _MAX_SIZE:
            numbers = f"seed {self.seed} must be 0 or more, size {self.size} must be 1 to {_MAX_SIZE}"
            raise ConfigurationError("recipe", [Fault("", numbers)])

    @property
    def block_events(self) -> int:
        return max(1, min(MAX_BLOCK_EVENTS, _BLOCK_BYTES // self.size))


@dataclass(frozen=True)
class Events:
    """Some events in order: `keys` and `values` (binary; a value may be null), and per event the index of its kind in KINDS."""

    keys: pa.Array
    values: pa.Array
    kinds: Codes

    def __len__(self) -> int:
        return len(self.kinds)

    def slice(self, start: int, count: int) -> "Events":
        return Events(self.keys.slice(start, count), self.values.slice(start, count), self.kinds[start : start + count])

    def count_kinds(self) -> Counter[str]:
        """Count the events of each kind; kinds that do not occur are absent."""
        present, counts = np.unique(self.kinds, return_counts=True)
        return Counter({KINDS[kind]: int(count) for kind, count in zip(present, counts, strict=True)})


def orders(recipe: Recipe, count: int) -> Iterator[Events]:
    """Yield the first `count` events of the recipe's endless stream, in blocks."""
    sources = Events(pa.array([], pa.binary()), pa.array([], pa.binary()), np.zeros(0, dtype=np.int8))
    for block in range(-(-count // recipe.block_events)):
        keys, values = _render(recipe, block)
        kinds = _draw_kinds(recipe, block, has_sources=len(sources) > 0)
        events, sources = _with_copies(recipe, block, Events(keys, values, kinds), sources)
        yield _with_bad(events.slice(0, count - block * recipe.block_events))


def _random(recipe: Recipe, block: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng((recipe.seed, block, purpose))


def _draw_kinds(recipe: Recipe, block: int, has_sources: bool) -> Codes:
    """Draw the kind of each event of a block.

    If there is nothing to copy yet, the first event that is not bad is a good one.
    """
    good = max(0.0, 1 - recipe.duplicate_share - recipe.bad_share)
    shares = [good, recipe.duplicate_share, *[recipe.bad_share / len(BAD_KINDS)] * len(BAD_KINDS)]
    kinds = _random(recipe, block, 0).choice(len(KINDS), recipe.block_events, p=shares).astype(np.int8)
    is_bad = kinds > KINDS.index(DUPLICATE)
    if not has_sources and not is_bad.all():
        kinds[np.argmin(is_bad)] = KINDS.index(GOOD)
    return kinds


def _with_copies(recipe: Recipe, block: int, events: Events, sources: Events) -> tuple[Events, Events]:
    """Replace each duplicate by a copy of an earlier good event; return (events, good events that the next block may copy).

    `sources` are the good events of the last block that had any.
    """
    is_good, is_copy = events.kinds == KINDS.index(GOOD), events.kinds == KINDS.index(DUPLICATE)
    good = np.flatnonzero(is_good)
    if is_copy.any():
        candidates = np.concatenate([np.arange(len(sources)), len(sources) + good])
        good_before = len(sources) + np.cumsum(is_good)[is_copy]
        indices = np.arange(len(events)) + len(sources)
        indices[is_copy] = candidates[(_random(recipe, block, 1).random(len(good_before)) * good_before).astype(np.int64)]
        keys, values = (
            pa.concat_arrays([before, now]).take(pa.array(indices))
            for before, now in ((sources.keys, events.keys), (sources.values, events.values))
        )
        events = Events(keys, values, events.kinds)
    if not len(good):
        return events, sources
    rows = pa.array(good)
    return events, Events(events.keys.take(rows), events.values.take(rows), events.kinds[good])


def _with_bad(events: Events) -> Events:
    """Spoil the value of each bad event, as its kind requires."""
    rows = np.flatnonzero(events.kinds > KINDS.index(DUPLICATE))
    if not len(rows):
        return events
    values = events.values.take(pa.array(rows)).to_pylist()
    spoiled = [_spoil(value, KINDS[kind]) for value, kind in zip(values, events.kinds[rows], strict=True)]
    mask = np.zeros(len(events), dtype=bool)
    mask[rows] = True
    return Events(events.keys, pc.replace_with_mask(events.values, pa.array(mask), pa.array(spoiled, pa.binary())), events.kinds)


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
    """Render a good order for each event of the block; return (keys, values), both binary."""
    random = _random(recipe, block, 2)
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
    whole = pc.binary_join_element_wise(*pieces, "")
    return keys.cast(pa.binary()), pc.binary_join_element_wise(whole, _padding(recipe, block, whole), "}", "").cast(pa.binary())


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


def _padding(recipe: Recipe, block: int, values: pa.Array) -> pa.Array:
    """Build the padding field per value, empty if the value is long enough; `values` lack the closing brace."""
    room = recipe.size - len(_PADDING) - 1 - pc.binary_length(values).to_numpy()
    lengths = np.maximum(room, 0)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    start = int(_random(recipe, block, 3).integers(0, _TEXT_BYTES))
    text = np.resize(np.roll(_text(), -start), int(offsets[-1]))
    texts = pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(text))
    fields = pc.binary_join_element_wise(_PADDING[:-1], texts, '"', "")
    return pc.if_else(pa.array(room >= 0), fields, "")


@cache
def _text() -> npt.NDArray[np.uint8]:
    """Build a text of letters and blanks that compresses about as badly as such text can."""
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz      ", dtype=np.uint8)
    return letters[np.random.default_rng(0).integers(0, len(letters), _TEXT_BYTES)]
