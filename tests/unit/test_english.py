"""Plain English: how docstrings open, and which words users do not read. Read from the sources."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from support.each import for_each
from support.sources import tree_of

ROOT = Path(__file__).resolve().parents[2]
BANNED_OPENINGS = re.compile(r"(Of|As|That|Those|Who|Whom|Whose|Whoever|What is|What are|What was|Which of) ")
"""Openings that hide the object of a docstring, of a constant too."""
NO_VERBS = re.compile(
    r"(The|A|An|All|Every|Each|None|One|Nothing|True|False|It|Its|This|These|What|Which|Whether|How|Why|Where|When|Whatever"
    r"|In|On|At|By|For|From|To|With|Without|Before|After|Only|Not|Also|Once|Never|Until|If|There|No|Another|Some|Most) "
)
"""Openings of a function's docstring that are no imperative; ruff's D401 finds the verbs in other moods."""
BANNED_WORDS = re.compile(
    r"\b(people|seams?|circuit breaker|(?<!dead )(?<!dead-)letters?(?!,| and digit| or digit)"
    r"|(is|are) gone|goes? on|told|tells|judg(e|ed|es|ing)|say `|for ever|shall)\b",
    re.IGNORECASE,
)
"""Words that no message may use; the field has better ones."""


def modules() -> list[Path]:
    return sorted(path for room in ("pipelines", "dagster_project", "resources") for path in (ROOT / room).rglob("*.py"))


def is_property(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and any("property" in ast.unparse(one) for one in node.decorator_list)


def documented(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield each module, class, function and assignment that has a docstring, with the docstring."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if found := ast.get_docstring(node):
            yield node, found
        for before, after in pairwise(node.body):
            if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                yield before, str(after.value.value)


def messages(tree: ast.Module) -> Iterator[str]:
    """Yield the strings of several words that are neither docstrings nor statements of SQL."""
    documenting = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documenting and " " in node.value.strip():
            yield node.value


@for_each(modules())
def test_a_docstring_opens_with_its_object_or_an_imperative(path: Path) -> None:
    found = [
        text.splitlines()[0]
        for node, text in documented(tree_of(path))
        if BANNED_OPENINGS.match(text)
        or (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node) and NO_VERBS.match(text))
    ]
    assert found == []


@for_each(modules())
def test_no_message_uses_a_banned_word(path: Path) -> None:
    assert [text for text in messages(tree_of(path)) if BANNED_WORDS.search(text)] == []


def test_the_rules_find_what_they_ban() -> None:
    assert BANNED_OPENINGS.match("Of each check the newest result.")
    assert NO_VERBS.match("The text of the file.")
    assert not NO_VERBS.match("Return the text of the file.")
    assert BANNED_WORDS.search("3 letters wait; people were told")
    assert BANNED_WORDS.search("judging by arrival: wait, or say `clock_ahead: warn`")
    assert not BANNED_WORDS.search("3 dead letters waiting; alert already sent")
