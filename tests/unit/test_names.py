"""The name of a test is a sentence that a table of results can show: at most 60 characters."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
LIMIT = 60


def test_names_of_tests_are_short_and_stand_once_in_a_module() -> None:
    faults = []
    for path in sorted(TESTS.rglob("test_*.py")):
        nodes = ast.parse(path.read_text(encoding="utf-8")).body
        names = [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")]
        where = path.relative_to(TESTS)
        faults += [f"{where}: {name} has {len(name)} characters" for name in names if len(name) > LIMIT]
        faults += [f"{where}: {name} stands twice" for name in {*names} if names.count(name) > 1]
    assert not faults
