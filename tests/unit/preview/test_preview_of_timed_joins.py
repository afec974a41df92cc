"""A preview of a join by the records' own times: matches, late records, and left ones that wait for the watermark."""

from typing import Any

import pytest
from support.preview_joins import BY_TIME, GREETING, joined_orders

from pipelines.config import PipelineConfig
from pipelines.errors import ConfigurationError
from pipelines.preview.cases import Case, Result, preview_of, run_case
from pipelines.process.program import Program


def pipeline() -> tuple[PipelineConfig, Program]:
    return joined_orders(BY_TIME, [GREETING])


def order(number: int, customer: int, at: str) -> dict[str, Any]:
    value = {"order_id": f"o{number}", "customer": {"id": customer}, "total": f"{number}.50", "at": f"2026-01-31T{at}Z"}
    return {"source": "orders", "at": "2026-01-31T23:00:00Z", "value": value}


def customer(number: int, name: str, at: str) -> dict[str, Any]:
    return {"source": "customers", "at": "2026-01-31T23:00:00Z", "value": {"id": number, "name": name, "at": f"2026-01-31T{at}Z"}}


LAST = [order(9, 99, "22:00:00"), customer(98, "Eve", "22:00:00")]
"""Records behind which all before them are decided."""


def case(given: list[dict[str, Any]], expect: dict[str, Any], **more: Any) -> Case:
    return Case.model_validate({"name": "case", "given": given, "expect": expect, **more})


def ran(given: list[dict[str, Any]], expect: dict[str, Any]) -> Result:
    config, program = pipeline()
    return run_case(case(given, expect), program, config)


def row(number: int, greeting: str) -> dict[str, Any]:
    return {"order_id": f"o{number}", "total": f"{number}.50", "greeting": greeting}


def test_the_times_of_the_records_count_not_their_order() -> None:
    given = [
        customer(1, "Ada", "12:00:00"),
        order(1, 1, "12:00:05"),
        customer(1, "Ada Lovelace", "12:00:04"),
        customer(1, "Eve", "12:00:06"),
    ]
    assert ran([*given, *LAST], {"rows": [row(1, "Dear Ada Lovelace")], "waiting": 1}).differences == []
    assert ran(given, {"rows": [], "waiting": 1}).differences == []


@pytest.mark.parametrize(("at", "unmatched"), [("12:09:59", 0), ("12:10:00", 1)])
def test_the_left_window_ends_exactly_at_its_length(at: str, unmatched: int) -> None:
    rows = [] if unmatched else [row(1, "Dear Bob")]
    given = [order(1, 1, "12:00:00"), customer(1, "Bob", at)]
    assert ran([*given, *LAST], {"rows": rows, "unmatched": unmatched, "waiting": 1}).differences == []


def test_a_record_before_the_watermark_is_a_dead_letter() -> None:
    letter = {"stage": "join", "code": "late", "field": "at"}
    # Of another arrival, and so in another frame: within one frame no record makes another late.
    for late in ({**one, "at": "2026-01-31T23:00:01Z"} for one in (order(1, 1, "21:59:49"), customer(1, "Ada", "21:59:49"))):
        assert ran([*LAST, late], {"rows": [], "rejected": [letter], "waiting": 1}).differences == []
    assert ran([*LAST, order(1, 1, "21:59:50")], {"rows": [], "rejected": [], "waiting": 2}).differences == []


def test_a_record_far_ahead_or_without_a_time_is_a_dead_letter() -> None:
    far = [{**order(1, 1, "12:00:00"), "at": "2026-01-31T10:59:59Z"}, order(2, 1, "99:00:00")]
    letters = [{"stage": "join", "code": code, "field": "at"} for code in ("ahead", "invalid_time")]
    assert ran(far, {"rows": [], "rejected": letters}).differences == []


def test_time_that_passes_ends_no_window() -> None:
    config, program = pipeline()
    with pytest.raises(ConfigurationError, match="until: by event time windows end with records"):
        preview_of(case(LAST, {"rows": []}, until="10m"), program, config)
