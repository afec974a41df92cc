"""The reason of DuckDB for dead letters that the steps themselves have made."""

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from support.programs import first_of, program

from pipelines.dead_letters.reasons import reason_of
from pipelines.process.arrivals import Arrived
from pipelines.process.computed import Stored, stored
from pipelines.process.program import Program
from pipelines.process.run import run
from pipelines.process.steps import Step
from pipelines.process.steps.compute import Compute, Output
from pipelines.process.steps.filter import Filter
from pipelines.protocol.records import HEADER_PARTITION, HEADER_TOPIC, Message, encode_frame
from pipelines.testing import records
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine

FIELDS = {"id": "int64", "city": "string"}
AS_NUMBER = "CAST(city AS INTEGER)"


@pytest.fixture
def engine() -> Any:
    with open_engine() as opened:
        yield opened


def of(*steps: Step) -> Program:
    return program(tuple(FIELDS.items()), [("id", "id", "Int64", False)], *steps)


def over(text: str, **more: str) -> Stored:
    return stored(text, {**FIELDS, **more}, "sql", None)


def dead_letters(engine: Engine, made: Program, *values: dict[str, Any]) -> pa.Table:
    headers = {HEADER_TOPIC: "orders", HEADER_PARTITION: "0"}
    payload = encode_frame(records(0, [json.dumps(value).encode() for value in values]))
    return run(made, engine, [Arrived(Message("tf.p.raw.orders.0", 1, datetime(2026, 1, 1, tzinfo=UTC), payload, headers), 0)]).dead_letters


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ((Filter(over(f"{AS_NUMBER} > 1")),), "x7"),
        ((Compute((Output("number", over(AS_NUMBER)), Output("twice", over(f"{AS_NUMBER} * 2")))),), "x7"),
        ((Filter(over("id > 0")), Compute((Output("sound", over("id + 1")),)), Filter(over(f"{AS_NUMBER} > 1"))), "x7"),
        ((Compute((Output("city", over("'y' || city")),)), first_of("id", 1), Compute((Output("number", over(AS_NUMBER)),))), "yx7"),
    ],
    ids=["filter", "compute", "behind other steps", "over a computed field, behind dedup"],
)
def test_the_reason_is_that_of_the_failing_expression(engine: Engine, steps: tuple[Step, ...], text: str) -> None:
    made = of(*steps)
    reason = reason_of(engine, made, dead_letters(engine, made, {"id": 1, "city": "x7"}))
    assert reason.startswith(f"Could not convert string '{text}' to INT32")


def test_a_reason_is_short_whatever_the_record_holds(engine: Engine) -> None:
    made = of(Filter(over(f"{AS_NUMBER} > 1")))
    reason = reason_of(engine, made, dead_letters(engine, made, {"id": 1, "city": "x" * 50_000}))
    assert len(reason) == 200
    assert reason.startswith("Could not convert string 'xxx")


@pytest.mark.parametrize(
    ("steps", "value"),
    [((), {"id": None}), ((Compute((Output("share", over("1 / id")),)),), {"id": 0})],
    ids=["of the mapping", "not finite"],
)
def test_another_dead_letter_has_no_reason(engine: Engine, steps: tuple[Step, ...], value: dict[str, Any]) -> None:
    made = of(*steps)
    assert reason_of(engine, made, dead_letters(engine, made, value)) == ""


def test_an_expression_that_fails_no_more_has_no_reason(engine: Engine) -> None:
    found = dead_letters(engine, of(Filter(over(f"{AS_NUMBER} > 1"))), {"id": 1, "city": "x"})
    assert reason_of(engine, of(Filter(over("id > 0"))), found) == ""
