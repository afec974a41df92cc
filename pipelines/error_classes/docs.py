"""docs/errors.md: the prose of page.md, and the table of errors. `python -m pipelines.error_classes.docs` writes it."""

import sys
from pathlib import Path

from pipelines.error_classes import table
from pipelines.error_classes.rows import ErrorRow, System

TARGET = Path("docs/errors.md")

_PROSE = (Path(__file__).parent / "page.md").read_text(encoding="utf-8")
_TITLES: dict[System, str] = {"clickhouse": "ClickHouse", "nats": "NATS", "kafka": "Kafka", "tallyflow": "Tallyflow's own"}


def render() -> str:
    """Render the whole page as Markdown."""
    return "\n".join([_PROSE, *(_section(system, title) for system, title in _TITLES.items())])


def _section(system: System, title: str) -> str:
    of_system = sorted((row for row in table() if row.system == system), key=lambda row: (row.code is None, row.code or 0, row.name))
    rows = ["| Code | Name | Class | What it means | What to do next | May become |", "|---|---|---|---|---|---|", *map(_row, of_system)]
    return "\n".join([f"## {title}", "", *rows, ""])


def _row(row: ErrorRow) -> str:
    meaning = f"{row.meaning} (`{row.words}`)" if row.words else row.meaning
    code = "" if row.code is None else row.code
    kind = f"`{row.error_class}`{' *' if row.is_vague else ''}"
    return f"| {code} | `{row.name}` | {kind} | {meaning} | {row.remedy} | {_others(row)} |"


def _others(row: ErrorRow) -> str:
    if row.is_fixed or row.words:
        return ""
    classes = ("retryable", "record", "halt") if row.may_be_record else ("retryable", "halt")
    return ", ".join(f"`{kind}`" for kind in classes if kind != row.error_class or row.is_vague)


def main() -> None:
    """Write the page to docs/errors.md under the working directory."""
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")


if __name__ == "__main__":
    main()
