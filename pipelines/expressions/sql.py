"""SQL expressions: what a text may ask for, checked on DuckDB's own tree of it.

What is evaluated is written from the checked tree; the text itself never becomes part of a statement.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

import duckdb

from pipelines.expressions.functions import FUNCTIONS, MAX_SIZE, SIZES, TRANSLATED
from pipelines.expressions.result_types import convert, refuse_failing_constants
from pipelines.expressions.tree import CLASSES, START, Node, Syntax, children, function, map_children, parse, render
from pipelines.types.duckdb import shared_connection

MAX_CHARACTERS = 4_000
MAX_DEPTH = 50
MAX_NODES = 500
MAX_TRANSLATED_CHARACTERS = 100_000
MAX_TRANSLATED_DEPTH = 150
MAX_TRANSLATED_NODES = 5_000

CAST_TYPES: dict[str, tuple[str, ...]] = {
    "whole numbers": ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
    "other numbers": ("FLOAT", "DOUBLE", "DECIMAL"),
    "text and others": ("VARCHAR", "BLOB", "BOOLEAN", "JSON", "UUID"),
    "dates and times": ("DATE", "TIME", "INTERVAL", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMPTZ"),
    "of other types": ("LIST", "MAP", "STRUCT"),
}
"""The types that a cast may name, in groups."""
_CASTS = frozenset(name for names in CAST_TYPES.values() for name in names)
_TYPE_NAMES = {"TIMESTAMP WITH TIME ZONE": "TIMESTAMPTZ", "DATETIME": "TIMESTAMP", "INT": "INTEGER", "TEXT": "VARCHAR", "STRING": "VARCHAR"}
_OPERATORS = frozenset(
    (
        *("COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_COALESCE", "OPERATOR_TRY"),
        *("ARRAY_EXTRACT", "ARRAY_SLICE", "STRUCT_EXTRACT"),
    )
)
_NAMES = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "a star",
    "PARAMETER": "a parameter",
    "COLLATE": "a collation",
    "DEFAULT": "DEFAULT",
    "POSITIONAL_REFERENCE": "a positional reference",
}
"""Classes of nodes that are refused, in words."""


@dataclass(frozen=True)
class Checked:
    """A checked expression: its SQL, the fields that it reads, sorted, and the source type of its value."""

    sql: str
    fields: tuple[str, ...]
    type: str


def check_sql(text: str, fields: Mapping[str, str], wanted: str | None = None, is_translated: bool = False) -> Checked:
    """Check a SQL expression over `fields`, their source types by name.

    `wanted`: the source type that the value must have; None: as inferred. `is_translated`: the text comes from our own translation of
    expr-lang, which is longer than what it translates, and bounds the sizes of what it makes. Raises ValueError: one sentence.
    """
    _check_text(text, MAX_TRANSLATED_CHARACTERS if is_translated else MAX_CHARACTERS)
    with shared_connection() as connection:
        checker = _Checker(text, fields, is_translated)
        try:
            node = checker.checked(parse(connection, text))
        except Syntax as error:
            raise ValueError(f"{error}{_place(text, error.byte)}{_quoting(connection, text, fields)}") from None
        except RecursionError:
            raise ValueError(f"it is nested more than {checker.max_depth} deep; split it into several expressions") from None
        read = tuple(sorted(checker.read))
        refuse_failing_constants(connection, node)
        plain = render(connection, node)
        # What is evaluated is what was checked, whatever DuckDB makes of the tree when it writes it as SQL.
        _Checker(plain, fields, is_translated).checked(parse(connection, plain))
        if node["class"] == "COLUMN_REF" and wanted in (None, fields[read[0]]):
            return Checked(plain, read, fields[read[0]])
        sql, source_type = convert(connection, plain, {name: fields[name] for name in read}, wanted)
    return Checked(sql, read, source_type)


def _check_text(text: str, most: int) -> None:
    if not text.strip():
        raise ValueError("it is empty; write an expression such as amount > 0")
    if len(text) > most:
        raise ValueError(f"it has {len(text)} characters, more than {most}; split it into several expressions")
    for at, character in enumerate(text):
        if (character < " " and character not in "\t\r\n") or "\ud800" <= character <= "\udfff" or character == "\x7f":
            raise ValueError(f"character {at + 1} is {character!r}, which no expression may hold; remove it")


def _place(text: str, byte: int | None) -> str:
    if byte is None or not 0 <= byte < len(text.encode()):
        return ""
    return f" (character {len(text.encode()[:byte].decode(errors='ignore')) + 1})"


def _quoting(connection: duckdb.DuckDBPyConnection, text: str, fields: Mapping[str, str]) -> str:
    """Return how to write the fields of `text` that are words of SQL; empty if there is none."""
    words = connection.execute("SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')")
    reserved = {word for (word,) in words.fetchall()}
    named = [name for name in fields if name.casefold() in reserved and re.search(rf'(?<![\w"]){re.escape(name)}(?![\w"])', text)]
    return f"; a field whose name is a word of SQL is quoted: {', '.join(map(_quoted, named))}" if named else ""


def _quoted(name: str) -> str:
    return f'"{name}"'


@dataclass
class _Checker:
    """Checks one tree: collects the fields that it reads, and gives their references the names of the fields."""

    text: str
    fields: Mapping[str, str]
    is_translated: bool
    read: set[str] = field(default_factory=set)
    nodes: int = 0

    @property
    def max_depth(self) -> int:
        return MAX_TRANSLATED_DEPTH if self.is_translated else MAX_DEPTH

    @property
    def max_nodes(self) -> int:
        return MAX_TRANSLATED_NODES if self.is_translated else MAX_NODES

    def checked(self, node: Node, depth: int = 1, parameters: frozenset[str] = frozenset()) -> Node:
        """Return `node` with the names of fields resolved. `parameters`: those of the lambdas around it. Raise ValueError."""
        self.nodes += 1
        if depth > self.max_depth:
            raise self.fault(node, f"it is nested more than {self.max_depth} deep", "split it into several expressions")
        if self.nodes > self.max_nodes:
            raise self.fault(node, f"it has more than {self.max_nodes} parts", "split it into several expressions")
        kind = node["class"]
        if kind not in CLASSES:
            raise self.fault(node, f"{_NAMES.get(kind, kind.lower())} is not allowed", "use fields, constants, operators and functions")
        if kind == "COLUMN_REF":
            return self._column(node, parameters)
        if kind == "LAMBDA":
            if node["syntax_type"] != "LAMBDA_KEYWORD":
                # DuckDB reads `field -> 'key'` as a lambda, and makes it json_extract when it binds.
                return self.checked({**function("json_extract", node["lhs"], node["expr"]), **_location(node)}, depth, parameters)
            own = self._parameters(node)
            return {**node, "expr": self.checked(node["expr"], depth + 1, parameters | own)}
        if kind == "FUNCTION":
            self._function(node)
        if kind == "OPERATOR" and node["type"] not in _OPERATORS:
            raise self.fault(node, f"{node['type'].lower()} is not allowed", "use fields, constants, operators and functions")
        if kind == "CAST":
            self._type(node, node["type_expr"])
        return map_children(node, lambda child: self.checked(child, depth + 1, parameters))

    def _column(self, node: Node, parameters: frozenset[str]) -> Node:
        names: Sequence[str] = node["column_names"]
        if names[0] in parameters:
            return node
        name = ".".join(names)
        if name not in self.fields:
            raise self._unknown_field(node, names)
        twins = [other for other in self.fields if other != name and other.casefold() == name.casefold()]
        if twins:
            raise self.fault(node, f"the fields {name!r} and {twins[0]!r} differ only in case", "rename one, as SQL sees no case")
        self.read.add(name)
        return {**node, "column_names": [name]}

    def _unknown_field(self, node: Node, names: Sequence[str]) -> ValueError:
        name = ".".join(names)
        known = [".".join(names[:end]) for end in range(len(names) - 1, 0, -1) if ".".join(names[:end]) in self.fields]
        if known:
            remedy = f"declare {name!r} among the fields, or read {known[0]!r} with json_extract_string"
        else:
            remedy = _did_you_mean(name, list(self.fields)) or f"the fields are {', '.join(sorted(self.fields)[:10])}"
        return self.fault(node, f"there is no field {name!r}", remedy)

    def _parameters(self, node: Node) -> frozenset[str]:
        lhs = node["lhs"]
        references = [lhs] if lhs["class"] == "COLUMN_REF" else children(lhs) if lhs["class"] == "FUNCTION" else []
        names = [".".join(reference.get("column_names", [])) for reference in references]
        for name in names:
            if name.casefold() in {other.casefold() for other in self.fields}:
                raise self.fault(node, f"the parameter {name!r} of a lambda has the name of a field", "give it another name")
        return frozenset(names)

    def _function(self, node: Node) -> None:
        name = node["function_name"]
        if node["qualified_name"]["path"] != [name] or node["schema"] or node["catalog"]:
            path = ".".join(node["qualified_name"]["path"])
            raise self.fault(node, f"{path} is called with a schema or as a method", f"write {name}(...)")
        if name == "row":
            raise self.fault(node, "it has several values", "write one expression, or a list: [a, b]")
        if name not in FUNCTIONS and not (self.is_translated and name in TRANSLATED):
            what = "operator" if node["is_operator"] else "function"
            raise self.fault(node, f"there is no {what} {name!r}", _did_you_mean(name, list(FUNCTIONS)) or "see docs/functions.md")
        if node["filter"] is not None or node["order_bys"]["orders"] or node["distinct"] or node["export_state"]:
            raise self.fault(node, f"{name} is called as an aggregate", "an expression sees one row at a time")
        if name in SIZES and not self.is_translated:
            size = [argument["expression"].get("literal", {}).get("text", "") for argument in node["arguments"]][SIZES[name] :][:1]
            if not size or not size[0].isdecimal() or int(size[0]) > MAX_SIZE:
                raise self.fault(node, f"{name} needs a size that is a constant", f"write an integer of at most {MAX_SIZE}")

    def _type(self, node: Node, kind: Node) -> None:
        if kind["class"] == "CONSTANT":
            return
        if kind["class"] != "TYPE" or kind["catalog"] or kind["schema"]:
            raise self.fault(node, "the type of a cast is not plain", "see docs/functions.md for the types")
        name = kind["type_name"].upper()
        if _TYPE_NAMES.get(name, name) not in _CASTS:
            raise self.fault(node, f"a cast to {kind['type_name']} is not allowed", "see docs/functions.md for the types")
        for child in kind["children"]:
            self._type(node, child)

    def fault(self, node: Node, what: str, remedy: str) -> ValueError:
        """Return the fault of `node`: what is wrong, where, and the remedy."""
        place = _place(self.text, int(node.get("query_location", 0)) - len(START))
        return ValueError(f"{what}{'' if self.is_translated else place}; {remedy}")


def _location(node: Node) -> Node:
    return {key: value for key, value in node.items() if key.startswith("query_location")}


def _did_you_mean(name: str, names: Sequence[str]) -> str:
    close = [other for other in names if other.casefold() == name.casefold()] or get_close_matches(name, names, 1)
    return f"did you mean {close[0]!r}?" if close else ""
