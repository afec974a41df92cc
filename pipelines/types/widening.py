"""Which column types keep every value of another; measured, see tests/integration/test_column_types.py."""

from dataclasses import replace

from pipelines.types.columns import INTEGER_BITS, ColumnType

_WIDEST_ARROW_INTEGER = 64
_FINEST_EXACT_INSTANT = 8
"""Digits of a DateTime64 that holds every instant of a coarser one; with 9 it ends in 2262."""


def bare(kind: ColumnType) -> ColumnType:
    """Remove everything that changes no value: LowCardinality, Nullable at the top, and the zone in which instants are shown."""
    return replace(_without_low_cardinality(kind), nullable=False)


def _without_low_cardinality(kind: ColumnType) -> ColumnType:
    arguments = tuple(_without_low_cardinality(one) if isinstance(one, ColumnType) else one for one in kind.arguments)
    if kind.name in ("DateTime", "DateTime64"):
        arguments = tuple(one for one in arguments if not isinstance(one, str))
    return replace(kind, arguments=arguments, low_cardinality=False)


def is_wider(column: ColumnType, made_for: ColumnType) -> bool:
    """Return True if `column` keeps every value of the other type `made_for`; both are bare."""
    names = (made_for.name, column.name)
    if made_for.name in INTEGER_BITS and column.name in INTEGER_BITS:
        bits, wanted = INTEGER_BITS[column.name], INTEGER_BITS[made_for.name]
        is_signed, was_signed = not column.name.startswith("U"), not made_for.name.startswith("U")
        return wanted < bits <= _WIDEST_ARROW_INTEGER and (is_signed or not was_signed)
    if names in (("Float32", "Float64"), ("Date", "Date32")):
        return True
    if names == ("Decimal", "Decimal"):
        return column.number(1) == made_for.number(1) and column.number(0) > made_for.number(0)
    if names == ("DateTime64", "DateTime64"):
        return made_for.number(0) < column.number(0) <= _FINEST_EXACT_INSTANT
    return column.name.startswith("Enum") and names[0] == names[1] and {*made_for.members} <= {*column.members}
