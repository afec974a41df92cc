"""The columns of a table that exists: which field fills which, as the type that the table has."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pipelines.connectors.sinks import Table
from pipelines.errors import SampleError
from pipelines.init.columns import Chooser, Column, as_text, json_path
from pipelines.init.times import PRECISIONS, TimeGuess, of_numbers, of_texts
from pipelines.process.steps.mapping.columns import targets_of
from pipelines.types.columns import ColumnType, value_type

_TIMES = ("DateTime", "DateTime64")


def fitted(chooser: Chooser, columns: Sequence[Column], table: Table) -> tuple[list[Column], list[str]]:
    """Return the columns that the table has, each as its type there, and the names of its columns that no field fills.

    Fields without a column, or whose values their column does not take, have no type and a note. Raise SampleError if none is left.
    """
    free = {_plain(column.name): column for column in table.columns if column.default_kind in ("", "DEFAULT")}
    free = {name: column for name, column in free.items() if not column.name.startswith("_tf_")}
    found = []
    last_keys = Counter(_plain(column.facts.path[-1]) for column in columns)
    for column in columns:
        last = _plain(column.facts.path[-1])
        wanted = free.pop(_plain(column.facts.name), None) or (free.pop(last, None) if last_keys[last] == 1 else None)
        if wanted is None:
            found.append(replace(column, type="", notes=(f"the table has no column {column.name}",)))
        elif not column.facts.kinds:
            found.append(replace(column, name=wanted.name))
        else:
            found.append(_as_type(chooser, replace(column, name=wanted.name, notes=()), wanted.type, has_default=bool(wanted.default_kind)))
    if not any(column.type for column in found):
        have = ", ".join(column.name for column in table.columns)
        raise SampleError(
            f"fitting the records into {table.full_name}: no field fills one of its columns ({have}); name another table with --table"
        )
    return found, [column.name for column in free.values()]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _as_type(chooser: Chooser, column: Column, kind: str, has_default: bool) -> Column:
    """Return the column with the table's type, read as what fits it; without a type if nothing does."""
    try:
        target = value_type(kind)
    except ValueError as error:
        return replace(column, type="", notes=(f"its column is {kind}: {error}",))
    if column.facts.null_share and not (target.takes_null or has_default):
        column = replace(
            column, notes=(f"null in {column.facts.null_share:.1%} of the sample, and the column takes no null: dead letters",)
        )
    for source, extracted in _ways(column):
        if source and target.name in targets_of(source):
            values = _given(column, source)
            if (notation := _notation(chooser, column, target, values, kind)) is not None:
                return replace(column, source=source, type=kind, notation=notation, extracted=extracted)
    return replace(column, type="", notes=(f"its values do not fit {kind}, the type of the column",))


def _ways(column: Column) -> list[tuple[str, str]]:
    """Return how the field can be read: as its own type, as text from the whole value, or as any JSON value."""
    own = (column.source, column.extracted)
    path = "" if column.extracted or column.source in ("string", "array", "object") else json_path(column.facts.path)
    return [own, *([("string", path)] if path else []), *([("any", "")] if column.facts.is_readable else [])]


def _given(column: Column, source: str) -> Sequence[object]:
    """Return the sampled values as a field of the type `source` gives them to the mapping."""
    if source == "any":
        return [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in column.facts.values]
    return [as_text(value) for value in column.facts.values] if source in ("string", "array", "object") else column.facts.values


def _notation(chooser: Chooser, column: Column, target: ColumnType, values: Sequence[object], kind: str) -> str | None:
    """Return the unit or the format with which the column takes the values, empty if it needs none; None if it does not take them."""
    if target.name not in (*_TIMES, "Date", "Date32"):
        return "" if chooser.takes(values, kind) else None
    if isinstance(values[0], str):
        found = of_texts(column.facts.name, column.facts.values, lambda _, notation: chooser.takes(values, kind, notation))
        return None if found is None or found.doubt else found.notation
    guess: TimeGuess | None = of_numbers("at", [float(str(value)) for value in values])
    units = [guess.notation] if guess else [*PRECISIONS]
    return units[0] if len(units) == 1 and chooser.takes(values, kind, units[0]) else None
