"""Reads a statement of sql/ by its relative name; the only place that knows where sql/ is."""

from functools import cache
from pathlib import Path
from string import Template

_ROOT = Path(__file__).parents[2] / "sql"


@cache
def statement(name: str) -> str:
    """The text of `sql/<name>.sql`. `{parameter:Type}` is filled in by the server. Raises FileNotFoundError: a packaging mistake."""
    return (_ROOT / f"{name}.sql").read_text()


def filled(name: str, **texts: str | int) -> str:
    """The statement with each `$name` replaced. The texts go into it as they are: they must be checked identifiers, types or numbers."""
    return Template(statement(name)).substitute({key: str(text) for key, text in texts.items()})
