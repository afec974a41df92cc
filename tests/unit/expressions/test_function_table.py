"""The table of functions: what it lists, DuckDB has, and calls CONSISTENT; each example gives its result; the page is the table."""

from pathlib import Path

import pytest

from pipelines.expressions.docs import TARGET, render
from pipelines.expressions.expression import check
from pipelines.expressions.functions import FUNCTIONS, TABLE, Function
from pipelines.types.duckdb import open_engine

PAGE = Path(__file__).parents[3] / TARGET


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m pipelines.expressions.docs`"


def test_no_name_is_listed_twice() -> None:
    assert len(FUNCTIONS) == len(TABLE)


def test_duckdb_calls_each_function_consistent() -> None:
    with open_engine() as engine:
        rows = engine.connection.execute(
            "SELECT function_name, list(DISTINCT coalesce(stability, macro_definition)) FROM duckdb_functions() "
            "WHERE function_type IN ('scalar', 'macro') GROUP BY ALL"
        ).fetchall()
    stability = dict(rows)
    changing = {name: stability.get(name) for name in FUNCTIONS if not stability.get(name)}
    assert changing == {}


@pytest.mark.parametrize("function", TABLE, ids=lambda function: function.name)
def test_each_example_gives_its_result(function: Function) -> None:
    with open_engine() as engine:
        ((result,),) = engine.connection.execute(f"SELECT CAST(({function.example}) AS VARCHAR)").fetchall()
    assert result == function.result
    assert check(function.example, {}, "sql").fields == ()
