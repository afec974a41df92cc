"""The table of functions: what it lists, DuckDB has, and calls CONSISTENT; each example gives its result; the page is the table."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.expressions.docs import TARGET, render
from pipelines.expressions.evaluate import evaluate
from pipelines.expressions.expr_lang.functions import EMITTED
from pipelines.expressions.expression import check
from pipelines.expressions.functions import FUNCTIONS, SIZES, TABLE, TRANSLATED, Function
from pipelines.types.duckdb import open_engine

PAGE = Path(__file__).parents[3] / TARGET
# The parser makes an operator of it, not a function.
PARSED = {"coalesce"}


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m pipelines.expressions.docs`"


def test_no_name_is_listed_twice() -> None:
    assert len(FUNCTIONS) == len(TABLE)


def test_what_a_translation_calls_is_allowed() -> None:
    assert set(EMITTED) - PARSED <= set(FUNCTIONS) | TRANSLATED


def test_sizes_are_of_functions_in_the_table() -> None:
    assert set(SIZES) <= set(FUNCTIONS)


def called(value: Any) -> Iterator[str]:
    """Every function that is named in a tree of DuckDB."""
    if isinstance(value, list):
        for item in value:
            yield from called(item)
    if isinstance(value, dict):
        if value.get("class") == "FUNCTION":
            yield value["function_name"]
        for item in value.values():
            yield from called(item)


def test_duckdb_calls_each_function_consistent() -> None:
    """A macro has no stability of its own: it has those of what it calls; an aggregate of a list is its function over that list."""
    with open_engine() as engine:
        rows = engine.connection.execute(
            "SELECT function_name, function_type, stability, macro_definition FROM duckdb_functions() WHERE schema_name = 'main'"
        ).fetchall()
        changing = {name for name, kind, stability, _ in rows if kind in ("scalar", "aggregate") and stability != "CONSISTENT"}
        known = {name for name, *_ in rows}
        for name, _, _, definition in ((name, *rest) for name, *rest in rows if name in FUNCTIONS and rest[0] == "macro"):
            ((tree,),) = engine.connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {definition}"]).fetchall()
            parsed = json.loads(tree)
            assert parsed["error"] is False
            assert not set(called(parsed)) & changing, name
    assert not (set(FUNCTIONS) | TRANSLATED) - known
    assert not (set(FUNCTIONS) | TRANSLATED) & changing


def test_each_example_gives_its_result() -> None:
    found = results_of(TABLE)
    assert found == {function.name: function.result for function in TABLE}


def results_of(functions: Sequence[Function], at_once: int = 20) -> dict[str, str]:
    """The value of each example as text, through the check and the evaluation; several in one expression, as each check takes 20 ms."""
    results: list[str] = []
    with open_engine() as engine:
        for first in range(0, len(functions), at_once):
            texts = ", ".join(f"CAST(({function.example}) AS VARCHAR)" for function in functions[first : first + at_once])
            (value,) = evaluate(engine, pa.table({"v": [1]}), [check(f"[{texts}]", {}, "sql")]).values
            results += json.loads(value[0].as_py())
    return dict(zip([function.name for function in functions], results, strict=True))


def test_each_example_calls_its_function() -> None:
    with open_engine() as engine:
        for function in TABLE:
            ((tree,),) = engine.connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {function.example}"]).fetchall()
            assert function.name in set(called(json.loads(tree)))
