"""docs/lint.md: the prose of page.md, and the table of rules. `python -m pipelines.lint.docs` writes it."""

import sys
from pathlib import Path

from pipelines.lint.rules import RULES

TARGET = Path("docs/lint.md")

_PROSE = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")


def render() -> str:
    """Render the whole page as Markdown."""
    rows = [f"| {rule.code} | {rule.summary} | {rule.fix} |" for rule in RULES]
    return "\n".join([_PROSE, "## Rules", "", "| Code | What is found | What to do |", "|---|---|---|", *rows, ""])


def main() -> None:
    """Write the page to docs/lint.md under the working directory."""
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")


if __name__ == "__main__":
    main()
