"""The tree of a SQL expression, as DuckDB's own parser gives it: parsed, walked, and written as SQL again."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import duckdb

Node = dict[str, Any]
"""One node of the JSON that `json_serialize_sql` gives. `class` is its kind; `query_location` counts bytes of the statement."""

START = "SELECT ("
_CHILDREN: dict[str, tuple[str, ...]] = {
    "COLUMN_REF": (),
    "CONSTANT": (),
    "COMPARISON": ("left", "right"),
    "CONJUNCTION": ("children",),
    "OPERATOR": ("children",),
    "BETWEEN": ("input", "lower", "upper"),
    "CAST": ("child",),
    "CASE": ("case_checks", "else_expr"),
    "FUNCTION": ("arguments",),
    "LAMBDA": ("lhs", "expr"),
}
"""The keys of a node's children by its class. An expression has no other classes."""
CLASSES = frozenset(_CHILDREN)


class Syntax(Exception):
    """Report that a text is no SQL expression; `byte` is the place in the text, if DuckDB names one."""

    def __init__(self, message: str, byte: int | None = None) -> None:
        super().__init__(message)
        self.byte = byte


def parse(connection: duckdb.DuckDBPyConnection, text: str) -> Node:
    """Parse one scalar expression. Raise Syntax for anything else."""
    answer: Node = json.loads(_one(connection, "SELECT json_serialize_sql(?)", f"{START}{text}\n)"))
    if answer["error"] and answer["error_message"].startswith("Max expression depth"):
        raise Syntax("it is nested too deep; split it into several expressions")
    if answer["error"]:
        place = answer.get("position")
        raise Syntax(" ".join(answer["error_message"].split()), None if place is None else int(place) - len(START))
    statements = answer["statements"]
    select: Node = statements[0]["node"] if len(statements) == 1 else {}
    items = select.get("select_list", [])
    if len(items) != 1 or _without_items(select) != _plain_select(connection):
        raise Syntax("it is more than one expression")
    item: Node = items[0]
    return item


def _plain_select(connection: duckdb.DuckDBPyConnection) -> Node:
    return _without_items(json.loads(_one(connection, "SELECT json_serialize_sql(?)", "SELECT (1)"))["statements"][0]["node"])


def _without_items(select: Node) -> Node:
    return {key: value for key, value in select.items() if key != "select_list"}


def render(connection: duckdb.DuckDBPyConnection, node: Node) -> str:
    """Write `node` as a SQL expression."""
    select = json.loads(_one(connection, "SELECT json_serialize_sql(?)", "SELECT (1)"))
    select["statements"][0]["node"]["select_list"] = [node]
    return _one(connection, "SELECT json_deserialize_sql(?)", json.dumps(select)).removeprefix("SELECT ")


def _one(connection: duckdb.DuckDBPyConnection, statement: str, text: str) -> str:
    ((answer,),) = connection.execute(statement, [text]).fetchall()
    return str(answer)


def children(node: Node) -> list[Node]:
    """Return the nodes directly below `node`."""
    found: list[Node] = []
    for key in _CHILDREN[node["class"]]:
        for item in node[key] if isinstance(node[key], list) else [node[key]]:
            # An item without a class is a case check, or an argument of a function.
            found += [item] if "class" in item else [part for part in item.values() if isinstance(part, dict)]
    return found


def walk(node: Node) -> Iterator[Node]:
    """Yield `node` and all nodes below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def is_constant(node: Node) -> bool:
    """Return True if `node` reads neither a field nor the parameter of a lambda."""
    return not any(part["class"] == "COLUMN_REF" for part in walk(node))


def map_children(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return `node` with each node directly below it replaced by what `change` returns."""
    # Loops, not comprehensions: these are frames of their own in Python 3.11, and a tree may be 150 levels deep.
    made = dict(node)
    for key in _CHILDREN[node["class"]]:
        if isinstance(node[key], dict):
            made[key] = change(node[key])
            continue
        made[key] = []
        for item in node[key]:
            if "class" in item:
                made[key].append(change(item))
                continue
            parts = dict(item)
            for name, part in item.items():
                if isinstance(part, dict):
                    parts[name] = change(part)
            made[key].append(parts)
    return made


def function(name: str, *arguments: Node) -> Node:
    """Return the call of a function."""
    return {
        "class": "FUNCTION",
        "type": "FUNCTION",
        "alias": "",
        "function_name": name,
        "qualified_name": {"path": [name]},
        "schema": "",
        "catalog": "",
        "filter": None,
        "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
        "distinct": False,
        "is_operator": False,
        "export_state": False,
        "arguments": [{"name": "", "expression": argument} for argument in arguments],
    }
