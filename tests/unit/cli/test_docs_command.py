"""`tallyflow docs WORD`: the section that fits best."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.cli.docs import sections
from pipelines.shipped import shipped

PAGE = """# Dedup

Drops copies of a key.

## The window

A window of dedup.

```
# no heading
```

## Keys

Null keys are dead letters.
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "dedup.md").write_text(PAGE, encoding="utf-8")
    return tmp_path


def test_a_page_falls_into_its_sections(directory: Path) -> None:
    found = [(one.heading, one.depth) for one in sections(directory)]
    assert found == [("Dedup", 1), ("The window", 2), ("Keys", 2)]


def test_a_word_in_a_heading_comes_first(directory: Path) -> None:
    def best(*words: str) -> str:
        return max(sections(directory), key=lambda one: one.rank(list(words))).heading

    assert best("window") == "The window"
    assert best("dedup") == "Dedup"
    assert best("null") == "Keys"
    assert best("dedup", "window") == "The window"


@pytest.mark.parametrize(
    ("message", "page"),
    [
        ("it has never sent a row, and table", "halts-table.md"),
        ("has lost the positions of its records", "halts-records.md"),
        ("rows still wait for the table", "halts-apply.md"),
    ],
)
def test_the_words_of_a_message_find_what_it_means(message: str, page: str) -> None:
    assert max(sections(shipped("docs")), key=lambda one: one.rank(message.lower().split())).page == page


def test_all_words_must_be_there(directory: Path) -> None:
    assert [one.rank(["null", "window"]) for one in sections(directory)] == [0, 0, 0]


def test_the_command_shows_a_section_and_names_others() -> None:
    shown = CliRunner().invoke(app, ["docs", "watermark"])
    assert shown.exit_code == 0, shown.output
    assert ".md" in shown.stdout
    assert "also: " in shown.stdout


def test_an_unknown_word_is_told() -> None:
    shown = CliRunner().invoke(app, ["docs", "zzzunknownzzz"])
    assert shown.exit_code == 1
    assert "has zzzunknownzzz" in " ".join(shown.stderr.split())
