"""docs/expr-lang.md: the prose of page.md, and the tables of functions. `python -m pipelines.expressions.expr_lang.docs` writes it."""

import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from pipelines.expressions.expr_lang.functions import FUNCTIONS, PREDICATES, REFUSED

TARGET = Path("docs/expr-lang.md")

_PROSE = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")


def render() -> str:
    """Render the whole page as Markdown."""
    refused = ["| Function | Why, or what to do |", "|---|---|", *_refused()]
    functions = [("`" + one.usage + "`", one.origin, one.summary) for one in FUNCTIONS.values()]
    predicates = [(f"`{usage}`", "expr-lang", summary) for usage, summary in PREDICATES.items()]
    rows = [f"| {' | '.join(row)} |" for row in sorted([*functions, *predicates], key=lambda row: row[0].lower())]
    head = ["## Functions", "", "Those of both have GlassFlow's meaning.", "", "| Function | Whose | What it gives |", "|---|---|---|"]
    return "\n".join([_PROSE, *refused, "", *head, *rows, ""])


def _refused() -> Iterable[str]:
    """Yield a row for each reason, with its functions."""
    for reason, group in groupby(sorted(REFUSED.items(), key=lambda item: item[1]), key=lambda item: item[1]):
        yield f"| {', '.join(f'`{name}`' for name, _ in group)} | {reason} |"


def main() -> None:
    """Write the page to docs/expr-lang.md under the working directory."""
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")


if __name__ == "__main__":
    main()
