"""The tree of an expression of expr-lang: what the parser makes, and the translator reads."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Literal

MAX_DEPTH = 50
"""Limits how deep an expression nests: the translator recurs, and so does DuckDB."""
MAX_SIZE = 5_000
"""Limits the nodes of a tree, in which an operand that is evaluated twice, as in `a ?: b`, counts twice."""


def fault(message: str, at: int) -> ValueError:
    """Make the error of a mistake at the character `at`, from 0."""
    return ValueError(f"{message} (character {at + 1})")


@dataclass(frozen=True)
class Node:
    """A node of the tree; `at` is where its text starts or its operator stands."""

    at: int
    depth: int = field(init=False, repr=False, compare=False)
    size: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        below = list(children(self))
        depth, size = 1 + max((child.depth for child in below), default=0), 1 + sum(child.size for child in below)
        if size > MAX_SIZE:
            raise fault(f"the expression has more than {MAX_SIZE} parts", self.at)
        if depth > MAX_DEPTH:
            raise fault(f"the expression nests deeper than {MAX_DEPTH} levels; use `in` for a long list of values", self.at)
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "size", size)


def children(node: Node) -> Iterator[Node]:
    """Yield the nodes directly below `node`."""
    for one in fields(node):
        value = getattr(node, one.name, None)
        for child in value if isinstance(value, tuple) else (value,):
            if isinstance(child, Node):
                yield child


@dataclass(frozen=True)
class Constant(Node):
    """A literal; None is nil."""

    value: bool | int | float | str | None


@dataclass(frozen=True)
class Name(Node):
    """A field or a variable."""

    name: str


@dataclass(frozen=True)
class Pointer(Node):
    """`#` in a predicate: the element, or what is named behind it: `#index` in map, `#acc` in reduce."""

    name: str


@dataclass(frozen=True)
class Unary(Node):
    """`-`, `+` or `not` before an operand."""

    operator: Literal["-", "+", "not"]
    operand: Node


@dataclass(frozen=True)
class Binary(Node):
    """An operator between two operands; `&&`, `||` and `^` stand as `and`, `or` and `**`."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True)
class Conditional(Node):
    """`condition ? then : otherwise`, or `if ... else`."""

    condition: Node
    then: Node
    otherwise: Node


@dataclass(frozen=True)
class Member(Node):
    """`base.key`, `base[key]`, or with `?.` an optional one, which is nil where the base is."""

    base: Node
    key: Node
    optional: bool


@dataclass(frozen=True)
class Chain(Node):
    """The end of a chain of members with `?.`: an optional one that is nil ends all of it."""

    body: Node


@dataclass(frozen=True)
class Slice(Node):
    """`base[start:stop]`."""

    base: Node
    start: Node | None
    stop: Node | None


@dataclass(frozen=True)
class Call(Node):
    """A call of a function by its name; a `Predicate` is the argument where the function takes one."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Predicate(Node):
    """An argument that is evaluated for each element of the array before it."""

    body: Node


@dataclass(frozen=True)
class Array(Node):
    """`[item, ...]`."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Let(Node):
    """`let name = value; body`."""

    name: str
    value: Node
    body: Node
