"""Reads a statement of sql/ by its relative name; the only module that knows where sql/ is."""

from functools import cache
from pathlib import Path
from string import Template

_ROOT = Path(__file__).parents[2] / "sql"


@cache
def statement(name: str) -> str:
    """Read the text of `sql/<name>.sql`. The server fills in `{parameter:Type}`. Raise FileNotFoundError: a packaging mistake."""
    return (_ROOT / f"{name}.sql").read_text()


def filled(name: str, **texts: str | int) -> str:
    """Read the statement and replace each `$name`.

    The texts are inserted unchanged: they must be checked identifiers, types or numbers.
    """
    return Template(statement(name)).substitute({key: str(text) for key, text in texts.items()})
