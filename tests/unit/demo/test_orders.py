import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipelines.config import load
from pipelines.demo.events import DUPLICATE, GOOD, MAX_BLOCK_EVENTS, Events, Recipe
from pipelines.demo.orders import BAD_KINDS, ORDERS, orders
from pipelines.errors import ConfigurationError
from pipelines.process.steps.mapping.columns import TargetColumn, map_columns
from pipelines.process.steps.parse import parse
from pipelines.protocol.records import RAW_SCHEMA, with_positions
from pipelines.types.columns import parse_type
from pipelines.types.duckdb import open_engine
from pipelines.types.fields import ParsedField

EXAMPLE = Path(__file__).parents[3] / "examples" / "orders" / "pipeline.yaml"
ADDRESSES = {"KAFKA_BOOTSTRAP": "127.0.0.1:1", "CLICKHOUSE_HOST": "127.0.0.1", "CLICKHOUSE_PORT": "1"}

MIXED = Recipe(duplicate_share=0.2, bad_share=0.1)


def make(recipe: Recipe, count: int) -> list[tuple[bytes, bytes | None, str]]:
    return [
        (key, value, ORDERS.kinds[kind])
        for events in orders(recipe, count)
        for key, value, kind in zip(events.keys.to_pylist(), events.values.to_pylist(), events.kinds, strict=True)
    ]


def good_orders(recipe: Recipe, count: int) -> list[dict[str, object]]:
    return [json.loads(value) for _, value, kind in make(recipe, count) if kind == GOOD and value is not None]


def test_an_event_depends_on_the_recipe_and_its_number_only() -> None:
    many = make(MIXED, 2 * MAX_BLOCK_EVENTS + 5)
    assert len(many) == 2 * MAX_BLOCK_EVENTS + 5
    assert make(MIXED, MAX_BLOCK_EVENTS + 1) == many[: MAX_BLOCK_EVENTS + 1]
    assert make(MIXED, 3) == many[:3]
    assert make(MIXED, 0) == []


def test_another_seed_gives_other_orders_with_other_ids() -> None:
    ids = {key for key, _, _ in make(Recipe(seed=1), 1000)}
    assert not ids & {key for key, _, _ in make(Recipe(seed=2), 1000)}


def test_a_good_order_has_the_fields_of_the_example() -> None:
    found = good_orders(Recipe(), 500)
    assert len({order["order_id"] for order in found}) == 500
    for order in found:
        assert list(order) == [
            name
            for name in ("order_id", "customer", "restaurant", "dish", "quantity", "price", "tags", "note", "ordered_at", "padding")
            if name in order
        ]
        customer = order["customer"]
        assert isinstance(customer, dict) and isinstance(customer["id"], int) and isinstance(customer["city"], str)
        assert isinstance(order["quantity"], int) and order["quantity"] >= 1
        assert isinstance(order["price"], int | float) and order["price"] > 0
        assert isinstance(order["tags"], list) and all(isinstance(tag, str) for tag in order["tags"])
        assert datetime.fromisoformat(str(order["ordered_at"])).tzinfo == UTC


def test_the_key_is_the_order_id() -> None:
    assert all(json.loads(value)["order_id"] == key.decode() for key, value, _ in make(Recipe(), 100) if value)


def test_a_note_may_be_absent_and_times_are_not_in_order() -> None:
    found = good_orders(Recipe(), 1000)
    shares = Counter("absent" if "note" not in order else "null" if order["note"] is None else "text" for order in found)
    assert min(shares["absent"], shares["null"], shares["text"]) > 100
    times = [str(order["ordered_at"]) for order in found]
    assert times != sorted(times)


@pytest.mark.parametrize("size", [300, 1500, 70_000])
def test_values_are_padded_to_the_size_in_bytes(size: int) -> None:
    assert {len(value) for _, value, _ in make(Recipe(size=size), 130) if value} == {size}


def test_a_value_longer_than_the_size_is_not_padded() -> None:
    lengths = [len(value) for _, value, _ in make(Recipe(size=200), 2000) if value]
    assert 180 < min(lengths) <= 200 < max(lengths) < 260
    assert 190 < np.mean(lengths) < 215
    assert all("padding" not in order for order in good_orders(Recipe(size=1), 100))


def test_a_duplicate_is_a_copy_of_an_earlier_good_order() -> None:
    earlier: set[tuple[bytes, bytes | None]] = set()
    found = make(MIXED, 3 * MAX_BLOCK_EVENTS)
    for key, value, kind in found:
        if kind == DUPLICATE:
            assert (key, value) in earlier
        elif kind == GOOD:
            assert (key, value) not in earlier
            earlier.add((key, value))
    assert sum(kind == DUPLICATE for _, _, kind in found) / len(found) == pytest.approx(0.2, abs=0.01)


def test_some_duplicates_are_copies_from_the_block_before() -> None:
    first, second = orders(MIXED, 2 * MAX_BLOCK_EVENTS)
    known = set(first.keys.to_pylist())
    assert any(key in known for key in second.keys.to_pylist())


def test_with_only_duplicates_the_first_order_is_copied_for_ever() -> None:
    found = make(Recipe(duplicate_share=1), 2 * MAX_BLOCK_EVENTS)
    assert [kind for _, _, kind in found[:3]] == [GOOD, DUPLICATE, DUPLICATE]
    assert {(key, value) for key, value, _ in found} == {found[0][:2]}


def test_nothing_but_bad_records_are_all_bad() -> None:
    assert {kind for _, _, kind in make(Recipe(bad_share=1), 200)} == set(BAD_KINDS)


def test_the_counts_by_kind_are_those_of_the_events() -> None:
    counts: Counter[str] = Counter()
    for events in orders(MIXED, 20_000):
        counts += events.count_kinds()
    assert counts == Counter(kind for _, _, kind in make(MIXED, 20_000))
    assert sum(counts[kind] for kind in BAD_KINDS) == pytest.approx(2000, abs=200)


@pytest.mark.parametrize(
    "wrong", [{"duplicate_share": -0.1}, {"bad_share": 1.1}, {"duplicate_share": 0.6, "bad_share": 0.6}, {"size": 0}, {"seed": -1}]
)
def test_a_recipe_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        Recipe(**wrong)  # type: ignore[arg-type]


def test_the_example_takes_good_orders_and_rejects_each_bad_one() -> None:
    events = next(orders(Recipe(bad_share=0.3, duplicate_share=0.1), 2000))
    codes = rejection_codes(events)
    expected = {
        "invalid_json": "invalid_json",
        "wrong_type": "wrong_type",
        "missing_field": "null_in_non_nullable",
        "null_value": "tombstone",
        "not_utf8": "invalid_json",
    }
    assert codes == {row: expected[ORDERS.kinds[kind]] for row, kind in enumerate(events.kinds) if ORDERS.kinds[kind] in BAD_KINDS}


def rejection_codes(events: Events) -> dict[int, str]:
    """The code by row of every record that the stages of examples/orders/pipeline.yaml refuse."""
    config = load(EXAMPLE, ADDRESSES)
    count = len(events)
    rows = [{"key": key, "value": value} for key, value in zip(events.keys.to_pylist(), events.values.to_pylist(), strict=True)]
    raw = pa.Table.from_pylist([{**row, "partition": 0, "offset": offset} for offset, row in enumerate(rows)], schema=RAW_SCHEMA)
    records = with_positions(raw, 1, "orders", 0)
    engine = open_engine()
    parsed = parse(engine, records, [ParsedField(field.name, field.type) for field in config.sources[0].schema_fields])
    targets = [TargetColumn(m.name, m.column_name, parse_type(m.column_type), False) for m in config.sink.mapping]
    mapped = map_columns(engine, parsed.accepted, targets)
    engine.close()
    rejected = pa.concat_tables([parsed.rejected, mapped.rejected])
    assert mapped.accepted.num_rows + rejected.num_rows == count
    return dict(sorted(zip(rejected["_tf_ordinal"].to_pylist(), rejected["code"].to_pylist(), strict=True)))
