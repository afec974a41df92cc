"""A column that is compared, in all ranges at once: each range has the type, the name and the mapping under which its rows were made."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.proof.verification.plain_form import DUCKDB_INTEGERS, WIDEST_DECIMAL
from pipelines.types.columns import FLOATS, INTEGER_BITS, ColumnType
from pipelines.types.widening import bare, is_wider

Stretch = tuple[int, int]
"""The first and the last of some positions, both inclusive."""


@dataclass(frozen=True)
class Column:
    """A column that is compared: its name in the engine, and in the table, and its type there.

    `former`: its other names in configurations. `doubtful`: where a value that differs is no finding, because nothing shows whether the
    column was dropped and made again, or filled by hand. `unknown`: where the value cannot be computed, and is NULL on both sides.
    `unmapped`: SQL of the value in rows that were made under a mapping without the column.
    """

    label: str
    name: str
    type: ColumnType
    has_default: bool
    former: tuple[str, ...] = ()
    doubtful: tuple[Stretch, ...] = ()
    unknown: tuple[Stretch, ...] = ()
    unmapped: str = "NULL"


def within(stretches: Sequence[Stretch]) -> str:
    """Return SQL of whether `position` is in one of some stretches."""
    return " OR ".join(f"position BETWEEN {first} AND {last}" for first, last in stretches) or "false"


def widened(value: str, made_for: ColumnType, kind: ColumnType) -> str | None:
    """Return SQL of a value in the plain form of `made_for` in that of `kind`; None where ClickHouse may have changed it on the way."""
    old, new = bare(made_for), bare(kind)
    if made_for.takes_null and not kind.takes_null:
        return None
    if old == new:
        return value
    if not is_wider(new, old) or (new.name == "Decimal" and new.number(0) > WIDEST_DECIMAL):
        return None
    return f"({value}) * {10 ** (new.number(0) - old.number(0))}" if new.name == "DateTime64" else value


def default_of(kind: ColumnType) -> str | None:
    """Return SQL of the default of a type in the plain form; None if it is not known here."""
    if kind.takes_null:
        return "NULL"
    if kind.name in FLOATS or kind.name in ("Decimal", "DateTime", "DateTime64", "Date"):
        return None if kind.name == "Decimal" and kind.number(0) > WIDEST_DECIMAL else "0"
    if kind.name in INTEGER_BITS:
        return "0" if INTEGER_BITS[kind.name] in DUCKDB_INTEGERS else None
    return {"Bool": "false", "String": "''::BLOB", "FixedString": "''::BLOB", "Array": "[]", "Map": "[]"}.get(kind.name)
