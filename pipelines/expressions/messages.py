"""The message of a row for which an expression has no value: its text, and the values of the fields that it reads."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pipelines.expressions.expression import Expression

_MAX_TEXT = 120
_MAX_VALUE = 40
_MAX_FIELDS = 6


def messages(expression: Expression, rows: pa.Table, code: str) -> list[str]:
    """Return a message per row, a function of the expression and the row alone."""
    what = f"{cut(' '.join(expression.text.split()), _MAX_TEXT)} {'is not finite' if code == 'not_finite' else 'fails'}"
    return [f"{what}{inputs}" for inputs in inputs_of(rows, expression.fields)]


def inputs_of(rows: pa.Table, fields: Sequence[str]) -> list[str]:
    """Return for each row ` with` the first of `fields` and their values; empty for no fields."""
    names = fields[:_MAX_FIELDS]
    if not names:
        return [""] * len(rows)
    more = len(fields) - len(names)
    end = f", and {more} more" if more else ""
    columns = [rows.column(name).to_pylist() for name in names]
    return [
        f" with {', '.join(f'{name} = {_shown(value)}' for name, value in zip(names, values, strict=True))}{end}"
        for values in zip(*columns, strict=True)
    ]


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"0x{cut(value[:_MAX_VALUE].hex(), _MAX_VALUE)}"
    if isinstance(value, str):
        return f"'{cut(value, _MAX_VALUE)}'"
    return str(value)


def cut(text: str, most: int) -> str:
    """Return the text, or its beginning and three points if it is longer than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
