"""The pages of options: generated from the commands, each command on one of them."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer

from pipelines.cli.app import app
from pipelines.cli.option_pages import FAMILIES, page_name, render

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_page_says_what_the_commands_say(family: str) -> None:
    page = DOCS / page_name(family)
    assert page.read_text(encoding="utf-8") == render(family), "run `python -m pipelines.cli.option_pages`"


def test_each_command_is_on_one_page() -> None:
    group: Any = typer.main.get_command(app)
    words = Counter(word for _, listed in FAMILIES.values() for word in listed.split())
    assert words == Counter([*group.commands])


def test_every_option_has_a_line_with_what_it_means() -> None:
    rows = [row for family in FAMILIES for row in render(family).splitlines() if row.startswith("| `")]
    assert len(rows) > 150
    assert [row for row in rows if row.rstrip(" |").endswith("`")] == []
    assert "| `--at raw\\|out\\|dlq` | `raw` | " in "\n".join(rows)
    assert "| `--lines, -n INT` | `200` | Begin with at most so many of the last lines. |" in rows
