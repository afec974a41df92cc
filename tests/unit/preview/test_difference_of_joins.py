"""The difference between two joins: each record ends as a preview of either file alone says, however the frames are cut."""

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import cache
from random import Random
from typing import Any

import pytest
from support.preview_joins import GREETING, NO_TESTS, joined_orders

from pipelines.preview import difference as comparison
from pipelines.preview.cases import FIRST_ARRIVAL
from pipelines.preview.difference import Difference, difference
from pipelines.preview.given import Given, frames_of
from pipelines.preview.run import preview

LOUD = {"fields": [{"name": "greeting", "expression": "upper(name)"}]}
EDITS: dict[str, dict[str, Any]] = {
    "emit": {"left_source": {"time_window": "2s"}, "unmatched": "emit"},
    "short": {"left_source": {"time_window": "2s"}},
    "brief": {"right_source": {"time_window": "3s"}, "unmatched": "dead_letter"},
}


def order(number: int, customer: int | None) -> dict[str, Any]:
    return {"order_id": f"o{number}", "customer": {"id": customer}, "total": f"{number}.50"}


def given(seed: int) -> list[Given]:
    draw, at, records = Random(seed), FIRST_ARRIVAL, []
    for number in range(draw.randint(20, 40)):
        at += timedelta(seconds=draw.choice((0, 0, 0, 1, 1, 4)))
        key = draw.randint(1, 4)
        value: Any = {"id": key, "name": f"n{number}", "is_test": draw.random() < 0.2}
        source = draw.choice(("orders", "orders", "customers"))
        if source == "orders":
            value = order(number, None if draw.random() < 0.1 else key)
        records.append(Given(json.dumps(value).encode(), at, source=source))
    return records


def changed(found: Difference) -> Counter[tuple[str, str]]:
    changes: Counter[tuple[str, str]] = Counter()
    for (was, now), change in found.changes.items():
        changes[was.outcome, now.outcome] += change.records
    return changes


@cache
def ends_alone(edit: str, seed: int) -> list[tuple[str, Any]]:
    """The end of each record as a preview of the file says, "" for the one without an edit."""
    config, program = joined_orders(EDITS.get(edit))
    return [(one.last.outcome, one.last.fields) for one in preview(program, frames_of(given(seed), config.sources)).records]


@pytest.mark.parametrize("edit", EDITS)
def test_ends_are_those_of_two_previews(edit: str) -> None:
    for seed in range(3):
        ends_as_in_previews(edit, seed)


@pytest.mark.parametrize(("edit", "seed"), [("emit", 2), ("short", 1), ("brief", 0)])
def test_with_a_portion_per_frame_the_ends_are_the_same(monkeypatch: pytest.MonkeyPatch, edit: str, seed: int) -> None:
    monkeypatch.setattr(comparison, "STEP_BYTES", 1)
    ends_as_in_previews(edit, seed)


def ends_as_in_previews(edit: str, seed: int) -> None:
    (config, old), (_, new) = joined_orders(), joined_orders(EDITS[edit])
    outcomes = [ends_alone("", seed), ends_alone(edit, seed)]
    wanted = Counter((was[0], now[0]) for was, now in zip(*outcomes, strict=True) if was != now)
    found = difference(old, new, frames_of(given(seed), config.sources))
    assert (found.records, changed(found)) == (len(outcomes[0]), wanted), f"seed {seed}"
    assert [found.old_rows, found.new_rows] == [sum(one == "row" for one, _ in of_one) for of_one in outcomes]


def test_the_same_join_makes_no_difference() -> None:
    config, program = joined_orders()
    for seed in range(3, 5):
        assert difference(program, program, frames_of(given(seed), config.sources)).is_none


def test_a_row_that_another_portion_decides_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under one file the order is dropped at once, under the other it is a row when its customer comes."""
    monkeypatch.setattr(comparison, "STEP_BYTES", 1)
    only_the_second = {"type": "filter", "source_id": "orders", "config": {"expression": "order_id = 'o2'", "language": "sql"}}
    (config, old), (_, new) = joined_orders(transforms=[GREETING]), joined_orders(transforms=[only_the_second, GREETING])
    second = timedelta(seconds=1)
    values = [("orders", order(1, 7)), ("orders", order(2, 7)), ("orders", order(3, 8)), ("customers", {"id": 7, "name": "Ada"})]
    records = [Given(json.dumps(value).encode(), FIRST_ARRIVAL + n * second, source=source) for n, (source, value) in enumerate(values)]
    found = difference(old, new, frames_of(records, config.sources))
    assert changed(found) == {("row", "dropped"): 1, ("waiting", "dropped"): 1}
    assert sorted(str(was) for was, _ in found.changes) == ["a row of default.orders", "waiting in the join"]


def test_frames_before_the_range_are_only_remembered() -> None:
    """The customer, and an order that waits for another, come before the range: the one is met, the other is not counted."""
    (config, old), (_, new) = joined_orders(), joined_orders({"unmatched": "emit"})
    values = [
        ("customers", {"id": 1, "name": "Ada", "is_test": False}),
        ("orders", order(1, 2)),
        ("orders", order(2, 1)),
        ("customers", {"id": 2, "name": "Bob", "is_test": False}),
    ]
    second = timedelta(seconds=1)
    records = [Given(json.dumps(value).encode(), FIRST_ARRIVAL + n * second, source=source) for n, (source, value) in enumerate(values)]
    frames = frames_of(records, config.sources)
    first = frames[-2].message.sequence
    found = difference(old, new, frames, first=first)
    assert (found.records, found.old_rows, found.new_rows, found.is_none) == (2, 1, 1, True)


def test_records_at_the_largest_sequences_are_told_apart() -> None:
    """Neighbours of one frame, whose positions a float would round to one."""
    (config, old), (_, new) = joined_orders(), joined_orders(transforms=[NO_TESTS, GREETING | {"config": LOUD}])
    ada = {"id": 1, "name": "Ada", "is_test": False}
    values = [("customers", ada), *(("orders", order(number, 1 if number % 2 else None)) for number in range(6))]
    records = [Given(json.dumps(value).encode(), FIRST_ARRIVAL, source=source) for source, value in values]
    made = frames_of(records, config.sources)
    frames = [replace(frame, message=replace(frame.message, sequence=frame.message.sequence + 2**40)) for frame in made]
    found = difference(old, new, frames, examples=9)
    (change,) = found.changes.values()
    assert (found.records, change.records, found.columns) == (7, 3, {"greeting": 3})
    assert [json.loads(one.value or "")["order_id"] for one in change.examples] == ["o1", "o3", "o5"]
