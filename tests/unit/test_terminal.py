"""What commands print: a record's bytes never reach the terminal as orders to it."""

import io

import pytest
from rich.table import Table

from pipelines.cli.arguments import Terminal

HOSTILE = "a\x1b]0;title\x07b\x1b[2J\x9b1mc\x08\x7f\u202ed\re"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_control_characters_of_a_record_are_shown_as_escapes(is_terminal: bool) -> None:
    table = Table("key")
    table.add_row(HOSTILE)
    for shown in (HOSTILE, table):
        written = io.StringIO()
        Terminal(file=written, force_terminal=is_terminal, width=200, color_system=None).print(shown, markup=False, highlight=False)
        text = written.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
        assert not any(character in text for character in "\x1b\x07\x08\x7f\x9b\u202e\r")
        assert "\\x1b]0;title" in text


def test_lines_colours_and_plain_text_stay() -> None:
    written = io.StringIO()
    Terminal(file=written, force_terminal=True, width=200, color_system="standard").print("é\nü", style="red")
    assert written.getvalue() == "\x1b[31mé\x1b[0m\n\x1b[31mü\x1b[0m\n"
