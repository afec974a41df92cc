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
    if answer["error"]:
        place = answer.get("position")
        raise Syntax(answer["error_message"], None if place is None else int(place) - len(START))
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


def children(node: Node) -> Iterator[Node]:
    """Yield the nodes directly below `node`."""
    for key in _CHILDREN[node["class"]]:
        yield from _nodes(node[key])


def _nodes(value: Any) -> Iterator[Node]:
    if isinstance(value, list):
        for item in value:
            yield from _nodes(item)
    elif isinstance(value, dict) and "class" in value:
        yield value
    elif isinstance(value, dict):
        # A case check, or an argument of a function.
        yield from _nodes(list(value.values()))


def walk(node: Node) -> Iterator[Node]:
    """Yield `node` and all nodes below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def map_children(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return `node` with each node directly below it replaced by what `change` returns."""
    return {**node, **{key: _changed(node[key], change) for key in _CHILDREN[node["class"]]}}


def _changed(value: Any, change: Callable[[Node], Node]) -> Any:
    if isinstance(value, list):
        return [_changed(item, change) for item in value]
    if not isinstance(value, dict):
        return value
    return change(value) if "class" in value else {key: _changed(item, change) for key, item in value.items()}


def column(name: str) -> Node:
    """Return the reference of a column."""
    return {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": [name]}


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
