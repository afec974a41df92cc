"""Constant folding and what else the optimizer of expr 1.17.7 does, where it shows (optimizer/*.go).

It is part of the meaning: `x and true` is `x`, although x may be nil, and `x and false` is false without a look at x.
"""

import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import reduce
from typing import Any, TypeGuard

from pipelines.expressions.expr_lang.nodes import Array, Binary, Call, Constant, Node, Pointer, Predicate, Unary, children, fault

_INT64 = 2**64
_HALF = 2**63


def fold(node: Node) -> Node:
    """Return the tree with its constant parts computed, from the leaves up."""
    changed = {one.name: _folded(getattr(node, one.name)) for one in fields(node) if one.init and one.name != "at"}
    node = replace(node, **changed)
    if isinstance(node, Unary) and isinstance(node.operand, Constant):
        return _unary(node, node.operand)
    if isinstance(node, Binary):
        return _logic(node) if node.operator in ("and", "or") else _binary(node)
    return _shortened(node)


def _folded(value: Any) -> Any:
    if isinstance(value, Node):
        return fold(value)
    return tuple(fold(one) for one in value) if isinstance(value, tuple) else value


def _unary(node: Unary, operand: Constant) -> Node:
    if node.operator == "not":
        return Constant(node.at, not operand.value) if isinstance(operand.value, bool) else node
    value = operand.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return node
    return Constant(node.at, -value if node.operator == "-" else value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _logic(node: Binary) -> Node:
    neutral = node.operator == "and"
    sides = (node.left, node.right)
    for side, other in (sides, sides[::-1]):
        if isinstance(side, Constant) and side.value is neutral:
            return other
    if any(isinstance(side, Constant) and side.value is (not neutral) for side in sides):
        return Constant(node.at, not neutral)
    return _combined(node)


def _wrapped(value: int) -> int:
    """Return `value` as Go's int holds it."""
    return (value + _HALF) % _INT64 - _HALF


def _power(left: float, right: float) -> float:
    try:
        return math.pow(left, right)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.inf if left == 0 else math.nan


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "**": lambda left, right: _power(float(left), float(right)),
}


def _binary(node: Binary) -> Node:
    if not (isinstance(node.left, Constant) and isinstance(node.right, Constant)):
        return node
    left, right = node.left.value, node.right.value
    if node.operator == "==":
        comparable = type(left) is type(right) and isinstance(left, int | str | bool)
        return Constant(node.at, left == right) if comparable else node
    if node.operator == "+" and isinstance(left, str) and isinstance(right, str):
        return Constant(node.at, left + right)
    if not (_is_number(left) and _is_number(right)):
        return node
    return _computed(node, left, right)


def _computed(node: Binary, left: Any, right: Any) -> Node:
    if node.operator == "%" and isinstance(left, int) and isinstance(right, int):
        if right == 0:
            raise fault("the right side of `%` is 0", node.at)
        return Constant(node.at, int(math.copysign(1, left)) * (abs(left) % abs(right)))
    if node.operator not in _ARITHMETIC:
        return node
    value = _ARITHMETIC[node.operator](left, right)
    if isinstance(value, int):
        return Constant(node.at, _wrapped(value))
    return Constant(node.at, value) if math.isfinite(value) else node


_ENDS = {"first": "find", "last": "findLast"}


def _shortened(node: Node) -> Node:
    """Return a call that looks at fewer elements: `find` for the first of a filter, `count` for its length, a chain of `+` for a sum."""
    if not isinstance(node, Call) or len(node.arguments) != 1:
        return node
    inner = node.arguments[0]
    if (
        node.name == "sum"
        and isinstance(inner, Array)
        and 2 <= len(inner.items) <= _MAX_SUM
        and not all(isinstance(item, Constant) for item in inner.items)
    ):
        return reduce(lambda total, item: Binary(node.at, "+", item, total), reversed(inner.items))
    if node.name == "len" and _is_call(inner, "map") and not _has_index(inner.arguments[1]):
        inner = inner.arguments[0] if _is_call(inner.arguments[0], "filter") else inner
    if not _is_call(inner, "filter"):
        return node
    if node.name == "len":
        return Call(node.at, "count", inner.arguments)
    return Call(node.at, _ENDS[node.name], inner.arguments) if node.name in _ENDS else node


_MAX_SUM = 20


def _is_call(node: Node, name: str) -> TypeGuard[Call]:
    return isinstance(node, Call) and node.name == name and len(node.arguments) == 2


def _has_index(node: Node) -> bool:
    return (isinstance(node, Pointer) and node.name == "index") or any(map(_has_index, children(node)))


_COMBINED = {("all", "and"): "and", ("any", "or"): "or", ("none", "and"): "or"}
"""Two predicates over the same array that become one, by the operator between them; `or` asks both about an element before the next."""


def _combined(node: Binary) -> Node:
    left, right = node.left, node.right
    if not isinstance(left, Call) or not _is_call(left, left.name) or not _is_call(right, left.name):
        return node
    operator = _COMBINED.get((left.name, node.operator))
    bodies = left.arguments[1], right.arguments[1]
    if operator is None or not _same(left.arguments[0], right.arguments[0]) or not all(isinstance(body, Predicate) for body in bodies):
        return node
    one, two = (next(children(body)) for body in bodies)
    return Call(left.at, left.name, (left.arguments[0], Predicate(node.at, Binary(node.at, operator, one, two))))


def _same(left: object, right: object) -> bool:
    """Compare two trees, wherever they stand."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    if not isinstance(left, Node) or type(left) is not type(right):
        return type(left) is type(right) and left == right
    return all(_same(getattr(left, one.name), getattr(right, one.name)) for one in fields(left) if one.init and one.name != "at")
