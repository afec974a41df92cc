"""Translated expr-lang gives what expr-lang itself gives: random expressions and records, both evaluated, pair by pair.

The oracle is expr 1.17.7 with GlassFlow's functions, a program in Go. A seed is drawn at every run; TALLYFLOW_EXPR_SEED repeats one, and
TALLYFLOW_EXPR_SEEDS plays several.
"""

import json
import os
import random
import secrets
import shutil
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import pytest
from support.expr_case import FAILED, evaluated
from support.expr_grammar import FIELDS, Grammar, records

from pipelines.types.duckdb import open_engine

EXPRESSIONS, RECORDS = 360, 15
"""Per seed: 5,400 pairs."""


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed")
    sources, program = Path(__file__).parent / "expr", tmp_path_factory.mktemp("go") / "exprjudge"
    fetched = subprocess.run([go, "mod", "download"], cwd=sources, capture_output=True, text=True, timeout=300)
    if fetched.returncode:
        pytest.skip(f"the modules of the oracle cannot be had: {fetched.stderr.strip()[-200:]}")
    subprocess.run([go, "build", "-o", program, "."], cwd=sources, check=True, timeout=300)
    return program


def seeds() -> list[int]:
    given = os.environ.get("TALLYFLOW_EXPR_SEED")
    return [int(given)] if given else [secrets.randbelow(2**32) for _ in range(int(os.environ.get("TALLYFLOW_EXPR_SEEDS", "1")))]


def asked(oracle: Path, questions: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    lines = "".join(json.dumps({"expression": expression, "record": record}) + "\n" for expression, record in questions)
    answer = subprocess.run([oracle], input=lines, capture_output=True, text=True, check=True, timeout=120)
    return [json.loads(line) for line in answer.stdout.splitlines()]


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    if isinstance(ours, int | float) and isinstance(theirs, int | float):
        return float(ours) == float(theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)


_TAKEN_FOR_INT = "interface conversion: interface {} is float64, not int"
"""How expr-lang 1.17.7 fails in a choice between an integer and a float, whose kind it takes for the integer's (docs/expr-lang.md)."""


def difference(
    connection: duckdb.DuckDBPyConnection, expression: str, drawn: list[dict[str, Any]], theirs: list[dict[str, Any]]
) -> str | None:
    """Name the first record for which the two differ, but for that fault of expr-lang.

    What is refused at load, or at the planning, must fail for every record there.
    """
    try:
        ours = evaluated(connection, expression, FIELDS, drawn)
    except (ValueError, duckdb.Error) as error:
        values = [given["value"] for given in theirs if "error" not in given]
        return f"refused ({error}), but there it gives {values}" if values else None
    for record, mine, given in zip(drawn, ours, theirs, strict=True):
        if _TAKEN_FOR_INT in given.get("error", ""):
            continue
        failed = mine == (FAILED,)
        if failed != ("error" in given) or not (failed or same(mine, given["value"])):
            return f"{mine!r} here, {given} there, for {record}"
    return None


def test_each_pair_gives_the_value_of_expr_lang_or_fails(oracle: Path) -> None:
    found: list[str] = []
    for seed in seeds():
        print(f"seed {seed}")
        draw = random.Random(seed)
        drawn = [(Grammar(draw).expression(), records(draw, RECORDS)) for _ in range(EXPRESSIONS)]
        answers = asked(oracle, [(expression, record) for expression, group in drawn for record in group])
        values = sum("error" not in given for given in answers)
        assert values > len(answers) / 2, "most pairs fail, which compares little"
        with open_engine() as engine:
            for index, (expression, group) in enumerate(drawn):
                if fault := difference(engine.connection, expression, group, answers[index * RECORDS : (index + 1) * RECORDS]):
                    found.append(f"seed {seed}: {expression}\n  {fault}")
    assert found == []
