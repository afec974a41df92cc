"""The statements that find the rows for which an expression raises: one that suspects rows, and one that tries them.

The first costs little more than the expression; the second costs microseconds for each row near one that raises (DuckDB 2.0 evaluates TRY
row by row in a vector that raises), so it gets the suspects only.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import duckdb

from pipelines.expressions.tree import Node, function, is_constant, map_children, parse, render, walk
from pipelines.types.duckdb import shared_connection

_REMAINDERS = frozenset({"%", "mod", "//", "divide"})
_JSON_READERS = frozenset(
    (
        *("->>", "json_extract", "json_extract_path", "json_extract_string", "json_extract_path_text", "json_value", "json_exists"),
        *("json_array_length", "json_keys", "json_type"),
    )
)
_MAX_NODES = 20_000
"""Limits the guards of nested parts, which repeat what is below them."""


@lru_cache(maxsize=1024)
def screened_sql(sql: str) -> str | None:
    """Return what screens rows for `sql`: its value and whether the row is suspected, as two items of a SELECT.

    For a row that is not suspected the value is that of `sql`, or evaluating the two raises as well. None if nothing can be screened.
    """
    with shared_connection() as connection:
        screen = _Screen(connection)
        value = screen.rewritten(parse(connection, sql))
        if not screen.guards or sum(1 for guard in screen.guards for _ in walk(guard)) > _MAX_NODES:
            return None
        suspected = " OR ".join(f"coalesce({render(connection, guard)}, FALSE)" for guard in screen.guards)
        return f"{render(connection, value)}, {suspected}"


@dataclass
class _Screen:
    """Rewrites an expression so that it gives null instead of raising; `guards` are true for the rows where it would raise.

    A guard holds whatever path CASE takes, so it may be true for a row that does not raise.
    """

    connection: duckdb.DuckDBPyConnection
    guards: list[Node] = field(default_factory=list)

    def rewritten(self, node: Node) -> Node:
        """Return `node` without what raises. A guard within a lambda would need its parameter, so there nothing is rewritten."""
        kind = node["class"]
        if kind == "LAMBDA" or node["type"] == "OPERATOR_TRY":
            return node
        made = map_children(node, self.rewritten)
        if kind == "CAST" and _may_fail(node):
            made = {**made, "try_cast": True}
            self.guards.append(self._template("operand IS NOT NULL AND result IS NULL", operand=made["child"], result=made))
        elif kind == "FUNCTION":
            made = self._call(made)
        return made

    def _call(self, node: Node) -> Node:
        name, arguments = node["function_name"], [argument["expression"] for argument in node["arguments"]]
        if name in _REMAINDERS and len(arguments) == 2:
            self.guards.append(self._template("operand = 0", operand=arguments[1]))
            return function(name, arguments[0], self._template("CASE WHEN operand <> 0 THEN operand END", operand=arguments[1]))
        if name == "strptime" and len(arguments) == 2:
            made = function("try_strptime", *arguments)
            self.guards.append(self._template("operand IS NOT NULL AND result IS NULL", operand=arguments[0], result=made))
            return made
        if name in _JSON_READERS:
            self.guards.append(self._template("NOT json_valid(operand)", operand=arguments[0]))
            return self._template("CASE WHEN json_valid(operand) THEN result END", operand=arguments[0], result=node)
        return node

    def _template(self, sql: str, **parts: Node) -> Node:
        """Return the tree of `sql` with columns replaced by the parts of their names."""

        def filled(node: Node) -> Node:
            if node["class"] == "COLUMN_REF":
                return parts[node["column_names"][0]]
            return map_children(node, filled)

        return filled(parse(self.connection, sql))


def _may_fail(cast: Node) -> bool:
    """Return True for a cast that may raise, and that TRY_CAST makes null as a whole: it keeps a list with null in place of an element."""
    is_nested = any(child["class"] == "TYPE" for child in cast["type_expr"]["children"])
    return not (cast["try_cast"] or is_nested or is_constant(cast))
