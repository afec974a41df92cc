"""A Nested column, which a table holds as arrays of equal lengths, one for each of its parts (`flatten_nested`). Pure."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from pipelines.connectors.sinks import TableColumn
from pipelines.types.columns import quote_identifier


def together(columns: Iterable[TableColumn]) -> tuple[TableColumn, ...]:
    """Return the columns of a table with the parts of each Nested, which follow one another, as one column of the type Nested."""
    found: list[TableColumn] = []
    for name, group in groupby(columns, _nested_name):
        parts = [*group]
        found += [_nested(name, parts)] if name else parts
    return tuple(found)


def _nested_name(column: TableColumn) -> str:
    """Return the name of the Nested that a column is a part of; empty for any other column."""
    name, _, part = column.name.partition(".")
    if not column.type.startswith("Array("):
        return ""
    try:
        return quote_identifier(name) if quote_identifier(part) else ""
    except ValueError:
        return ""


def _nested(name: str, parts: Sequence[TableColumn]) -> TableColumn:
    members = (f"{part.name.partition('.')[2]} {part.type.removeprefix('Array(').removesuffix(')')}" for part in parts)
    kinds = {part.default_kind for part in parts}
    # A default counts only if each part has one: the lengths of the arrays must be equal.
    default_kind = next(iter(kinds)) if len(kinds) == 1 else next((kind for kind in kinds if kind not in ("", "DEFAULT")), "")
    return TableColumn(name, f"Nested({', '.join(members)})", default_kind, tuple(part.name for part in parts))


def written_as(columns: Iterable[TableColumn]) -> dict[str, tuple[str, ...]]:
    """Return the names under which an insert names the columns of a table, for those that it holds in parts."""
    return {column.name: column.parts for column in columns if column.parts}
