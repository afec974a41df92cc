"""The types that a Variant, or a Dynamic, takes from JSON, in the order in which they are tried. Pure.

ClickHouse gives a member of a union only to a Variant that names this very type (measured, 26.9), so these are the types that Arrow names
exactly, and that differ in JSON.
"""

from pipelines.types.columns import FAMILIES, ColumnType

_ORDER = [*dict.fromkeys(FAMILIES.values())]
_OF_DYNAMIC = ("String", "Bool", "Int64", "UInt64", "Float64")
DYNAMIC_MEMBERS = (
    *(ColumnType(name) for name in _OF_DYNAMIC),
    *(ColumnType("Array", (ColumnType(name, nullable=True),)) for name in _OF_DYNAMIC),
)
"""The types of a Dynamic, those that ClickHouse's own JSON infers: an array without a value is one of texts."""


def is_union(kind: ColumnType) -> bool:
    """Return whether values of the type are each of one of several types."""
    return kind.name in ("Variant", "Dynamic")


def members_of(kind: ColumnType) -> tuple[ColumnType, ...]:
    """Return the types of the values of a Variant or a Dynamic: a value is of the first that takes it."""
    return DYNAMIC_MEMBERS if kind.name == "Dynamic" else (*sorted(kind.inner, key=_rank),)


def is_of_texts(member: ColumnType) -> bool:
    """Return whether the values of a member are texts, or arrays of them."""
    return is_of_texts(member.inner[0]) if member.name == "Array" else member.name == "String"


def most_exact_digits(kind: ColumnType) -> int | None:
    """Return how many digits a whole number may have to be exact as a float of the type, or inside of it; None without floats."""
    if kind.name == "Array":
        return most_exact_digits(kind.inner[0])
    return {"Float32": 7, "Float64": 15}.get(kind.name)


def _rank(member: ColumnType) -> tuple[int, int]:
    depth = 0
    while member.name == "Array":
        depth, member = depth + 1, member.inner[0]
    return depth, _ORDER.index(FAMILIES[member.name])
