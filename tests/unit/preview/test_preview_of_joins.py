"""A preview of a join: what becomes of left and right records, in cases with times, and step by step."""

from typing import Any

import pytest
from support.preview_joins import joined_orders

from pipelines.config import PipelineConfig
from pipelines.preview.cases import Case, Result, preview_of, run_case
from pipelines.process.program import Program


def pipeline(unmatched: str = "drop") -> tuple[PipelineConfig, Program]:
    return joined_orders({"unmatched": unmatched})


def order(number: int, customer: int | None, after: str = "0s") -> dict[str, Any]:
    return {"source": "orders", "after": after, "value": {"order_id": f"o{number}", "customer": {"id": customer}, "total": f"{number}.50"}}


def customer(number: int, name: str, after: str = "0s", is_test: bool = False) -> dict[str, Any]:
    return {"source": "customers", "after": after, "value": {"id": number, "name": name, "is_test": is_test}}


def ran(given: list[dict[str, Any]], expect: dict[str, Any], unmatched: str = "drop", until: str | None = None) -> Result:
    config, program = pipeline(unmatched)
    document = {"name": "case", "given": given, "expect": expect, **({"until": until} if until else {})}
    return run_case(Case.model_validate(document), program, config)


def row(number: int, greeting: str | None) -> dict[str, Any]:
    return {"order_id": f"o{number}", "total": f"{number}.50", "greeting": greeting}


def test_an_order_meets_its_customer_whichever_comes_first() -> None:
    given = [customer(1, "Ada"), order(1, 1), order(2, 2), customer(2, "Bob", after="9m59s"), order(3, 2, after="23h59m")]
    assert ran(given, {"rows": [row(1, "Dear Ada"), row(2, "Dear Bob"), row(3, "Dear Bob")], "waiting": 0}).differences == []


def test_the_newest_customer_that_passes_its_filter_counts() -> None:
    given = [customer(1, "Ada"), customer(1, "Ada Lovelace"), customer(1, "Test", is_test=True), order(1, 1)]
    assert ran(given, {"rows": [row(1, "Dear Ada Lovelace")], "dropped": 1}).differences == []


@pytest.mark.parametrize(
    ("unmatched", "expect"),
    [
        ("drop", {"rows": [], "unmatched": 1, "waiting": 0}),
        ("emit", {"rows": [row(1, None)], "unmatched": 0, "waiting": 0}),
        ("dead_letter", {"rows": [], "rejected": [{"stage": "join", "code": "unmatched"}], "waiting": 0}),
    ],
)
def test_an_order_without_a_customer_ends_with_its_window(unmatched: str, expect: dict[str, Any]) -> None:
    assert ran([order(1, 1)], expect, unmatched, until="10m").differences == []
    assert ran([order(1, 1)], {"rows": [], "rejected": [], "waiting": 1}, unmatched, until="9m59s").differences == []


def test_a_null_in_the_key_is_a_dead_letter() -> None:
    assert (
        ran([order(1, None)], {"rows": [], "rejected": [{"stage": "join", "code": "null_key", "field": "customer.id"}]}).differences == []
    )


def test_every_record_shows_where_it_ended() -> None:
    config, program = pipeline()
    given = [customer(1, "Ada"), order(1, 1), order(2, 7), order(3, 8, after="10m")]
    case = Case.model_validate({"name": "shown", "given": given})
    found = preview_of(case, program, config)
    assert [(record.last.step, record.last.outcome) for record in found.records] == [
        ("join", "kept"),
        ("mapping", "row"),
        ("join", "unmatched"),
        ("join", "waiting"),
    ]
    assert found.steps == ("orders: parse", "customers: parse", "customers: filter", "join", "compute", "mapping")
    (joined,) = [seen for seen in found.records[1].steps if seen.step == "join"]
    assert joined.fields == {"order_id": "o1", "total": "1.50", "name": "Ada"}
