"""docs/functions.md: the prose of page.md, and the tables of types and functions. `python -m pipelines.expressions.docs` writes it."""

import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from pipelines.expressions.functions import TABLE, Function
from pipelines.expressions.result_types import RESULT_TYPES
from pipelines.expressions.sql import CAST_TYPES

TARGET = Path("docs/functions.md")

_PROSE = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")


def render() -> str:
    """Render the whole page as Markdown."""
    groups = [_group(name, rows) for name, rows in groupby(TABLE, lambda row: row.group)]
    return "\n".join([_PROSE, _result_types(), _cast_types(), *groups])


def _result_types() -> str:
    rows = [f"| {name.upper()} | `{source_type}` |" for name, (source_type, _) in RESULT_TYPES.items()]
    return "\n".join(["## Types of results", "", "| DuckDB's type | Source type of the value |", "|---|---|", *rows, ""])


def _cast_types() -> str:
    rows = [f"| {group} | {', '.join(f'`{name}`' for name in names)} |" for group, names in CAST_TYPES.items()]
    return "\n".join(["## Types of casts", "", "| Group | Types |", "|---|---|", *rows, ""])


def _group(name: str, rows: Iterable[Function]) -> str:
    head = [f"## {name[0].upper()}{name[1:]}", "", "| Name | What it gives | Example | Result |", "|---|---|---|---|"]
    return "\n".join([*head, *map(_row, rows), ""])


def _row(row: Function) -> str:
    return "| {} | {} | {} | {} |".format(*map(_cell, (f"`{row.name}`", row.summary, f"`{row.example}`", f"`{row.result}`")))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the page to docs/functions.md under the working directory."""
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")


if __name__ == "__main__":
    main()
