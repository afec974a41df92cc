"""Expr-lang translated to SQL: the text of an expression in, one scalar expression of DuckDB out, over the declared fields."""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches

from pipelines.expressions.expr_lang import collections, glassflow, lists, operators
from pipelines.expressions.expr_lang.fold import fold
from pipelines.expressions.expr_lang.functions import FUNCTIONS, PREDICATES, REFUSED
from pipelines.expressions.expr_lang.nodes import (
    Array,
    Binary,
    Call,
    Chain,
    Conditional,
    Constant,
    Let,
    Member,
    Name,
    Node,
    Pointer,
    Predicate,
    Slice,
    Unary,
    fault,
)
from pipelines.expressions.expr_lang.parser import PREDICATE_FUNCTIONS, parse
from pipelines.expressions.expr_lang.values import (
    NUMBERS,
    Names,
    Value,
    bound,
    column,
    guarded,
    is_json,
    json_list,
    json_text,
    literal,
    nil_faults,
    quoted,
)
from pipelines.types.fields import SOURCE_TYPES

MAX_SQL = 100_000
"""Limits the characters of a translation."""


def translate(text: str, fields: Mapping[str, str]) -> str:
    """Translate `text` to one scalar expression of SQL, in which a field is a quoted identifier.

    `fields`: the source type of each declared field, a key of `SOURCE_TYPES`. Raises ValueError with one sentence and the position of a
    mistake: of the syntax, a field or a function that is unknown, kinds that an operator does not take, a feature that is not supported.
    """
    value = _Translator(fields).value(fold(parse(text)))
    if value.kind == "query":
        raise fault("a parsed query is no value of a record; take a parameter with an index, or its keys", 0)
    return _result(value)


def _result(value: Value) -> str:
    """Write a value as the result of an expression: JSON of unknown kind is a string, as GlassFlow's `output_type: string` has it."""
    if value.kind == "object":
        return f"CAST({value.sql} AS JSON)"
    if value.kind == "json":
        return bound(Names(), value, json_text).sql
    if value.item is not None and value.item.kind == "json":
        return f"list_transform({value.sql}, lambda _tf_e: CAST(_tf_e AS JSON))"
    if value.item is not None and value.item.infinite:
        return bound(Names(), value, _finite).sql
    return value.sql


def _finite(array: Value) -> Value:
    """Return a list whose row fails where an element is NaN or infinite, which JSON cannot hold."""
    return guarded(array, (f"len(list_filter({array.sql}, lambda _tf_e: NOT isfinite(_tf_e))) > 0", "not finite"))


class _Translator:
    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = fields
        self._names = Names()
        self._variables: dict[str, Value] = {}
        self._elements: list[Mapping[str, Value]] = []

    def value(self, node: Node) -> Value:
        value = self._value(node)
        if len(value.sql) > MAX_SQL:
            raise fault("the expression is too large", node.at)
        return value

    def _value(self, node: Node) -> Value:
        match node:
            case Constant():
                return literal(node.value)
            case Name():
                return self._name(node)
            case Pointer():
                return self._pointer(node)
            case Unary():
                return self._unary(node)
            case Binary():
                return self._binary(node)
            case Conditional():
                return operators.choice(self._names, self.value(node.condition), self.value(node.then), self.value(node.otherwise), node.at)
            case Member():
                return self._member(node)
            case Chain():
                return self.value(node.body)
            case Slice():
                return self._slice(node)
            case Call():
                return self._call(node)
            case Array():
                return lists.array([self.value(item) for item in node.items], node.at)
            case Let():
                return self._let(node)
        raise fault("a predicate is not expected here", node.at)

    def _name(self, node: Name) -> Value:
        if node.name in self._variables:
            return self._variables[node.name]
        if node.name not in self._fields:
            raise self._unknown_field(node.name, node.at)
        return self._field(node.name, node.at)

    def _unknown_field(self, name: str, at: int) -> ValueError:
        if name.partition(".")[0] == "$env":
            return fault("`$env` is not supported; name the field", at)
        inner = [field for field in self._fields if field.startswith(f"{name}.")]
        if inner:
            return fault(f"the field {name!r} is not declared, only {inner[0]!r} in it; declare it with type object", at)
        close = get_close_matches(name, self._fields, 1)
        hint = f"did you mean {close[0]!r}?" if close else "declare it in the schema"
        return fault(f"the field {name!r} is unknown; {hint}", at)

    def _field(self, name: str, at: int) -> Value:
        kind, sql = self._fields[name], column(name)
        source = SOURCE_TYPES[kind]
        if kind == "bytes":
            return Value(f"decode({sql})", "string", nullable=True)
        if kind == "decimal":
            raise fault(f"the field {name!r} is a decimal, which is a number or a string; declare it as float64 or string", at)
        if kind == "any":
            raise fault(f"the field {name!r} is any JSON value, which expr-lang does not read; write the expression in SQL", at)
        if kind == "timestamp":
            raise fault(f"the field {name!r} is an instant, which expr-lang does not read; write the expression in SQL", at)
        if source.is_integer:
            return Value(sql, "float", nullable=True, exact=True, big=source.engine == "BIGINT")
        if source.is_float:
            return Value(sql if source.engine == "DOUBLE" else f"CAST({sql} AS DOUBLE)", "float", nullable=True)
        if source.is_json_text:
            field = Value(sql, "json", nullable=True)
            return json_list(field) if kind == "array" else replace(field, kind="object")
        return Value(sql, "bool" if kind == "bool" else "string", nullable=True)

    def _pointer(self, node: Pointer) -> Value:
        return self._elements[-1][node.name]

    def _unary(self, node: Unary) -> Value:
        operand = self.value(node.operand)
        if node.operator == "not":
            return operators.negation(self._names, operand, node.at)
        if node.operator == "-":
            return operators.negative(self._names, operand, node.at)
        if operand.kind not in NUMBERS:
            raise fault(f"`+` does not take {operand.name}", node.at)
        return operand

    def _binary(self, node: Binary) -> Value:
        if node.operator == "in":
            return self._in(node)
        left, right = self.value(node.left), self.value(node.right)
        match node.operator:
            case "and" | "or":
                return operators.logic(self._names, node.operator, left, right, node.at)
            case "==" | "!=":
                return self._equality(node, left, right)
            case "<" | ">" | "<=" | ">=":
                return operators.comparison(self._names, node.operator, left, right, node.at)
            case "contains" | "startsWith" | "endsWith" | "matches":
                return operators.text_test(self._names, node.operator, left, right, node.at)
            case "??":
                return operators.coalesced(self._names, left, right, node.at)
            case "..":
                return operators.number_range(self._names, left, right, node.at)
        return operators.arithmetic(self._names, node.operator, left, right, node.at)

    def _equality(self, node: Binary, left: Value, right: Value) -> Value:
        test = operators.equality(self._names, left, right)
        if test is None:
            raise fault(f"`{node.operator}` between {left.name} and {right.name} is not supported, or never true", node.at)
        return test if node.operator == "==" else replace(test, sql=f"(NOT {test.sql})")

    def _in(self, node: Binary) -> Value:
        needle, right = self.value(node.left), node.right
        if isinstance(right, Array):
            return lists.contains_any(self._names, needle, [self.value(item) for item in right.items], node.at)
        if isinstance(right, Binary) and right.operator == "..":
            low, high = self.value(right.left), self.value(right.right)
            if isinstance(low.constant, int) and isinstance(high.constant, int):
                return self._in_range(needle, low, high, node.at)
        return lists.membership(self._names, needle, self.value(right), node.at)

    def _in_range(self, needle: Value, low: Value, high: Value, at: int) -> Value:
        if needle.kind not in NUMBERS:
            return lists.membership(self._names, needle, operators.number_range(self._names, low, high, at), at)
        if needle.kind != "int":
            operators.range_bounds(low, high, at)
        return lists.in_range(self._names, needle, low, high)

    def _member(self, node: Member) -> Value:
        declared = self._declared(node)
        if declared is not None:
            return declared
        base = self.value(node.base)
        optional = node.optional or (isinstance(node.base, Member) and _has_optional(node.base))
        if base.kind == "query":
            return self._parameter(node, base)
        if base.kind == "list":
            return lists.at_index(self._names, base, self.value(node.key), optional, node.at)
        if base.kind in ("object", "json"):
            return bound(self._names, base, lambda one: self._json_member(node, one, optional))
        if base.kind == "string":
            raise fault("an index of a string gives the number of a byte in expr-lang; use a slice, s[0:1]", node.at)
        raise fault(f"{base.name} has no members", node.at)

    def _declared(self, node: Member) -> Value | None:
        """Return the field that a path of names leads to, `customer.city`, if it is declared."""
        names: list[str] = []
        one: Node = node
        while isinstance(one, Member) and isinstance(one.key, Constant) and isinstance(one.key.value, str) and "." not in one.key.value:
            names.insert(0, one.key.value)
            one = one.base.body if isinstance(one.base, Chain) else one.base
        if not isinstance(one, Name) or one.name in self._variables:
            return None
        path = ".".join((one.name, *names))
        if path in self._fields:
            return self._field(path, node.at)
        if one.name not in self._fields and not any(path.startswith(f"{field}.") for field in self._fields):
            raise self._unknown_field(path, node.at)
        return None

    def _parameter(self, node: Member, base: Value) -> Value:
        key = self.value(node.key)
        if key.kind != "string":
            raise fault(f"a parsed query takes the name of a parameter, not {key.name}", node.at)
        return glassflow.parameter(self._names, base, replace(key, sql=f"coalesce({key.sql}, '')") if key.nullable else key, "NULL")

    def _json_member(self, node: Member, base: Value, optional: bool) -> Value:
        key = self.value(node.key)
        nil = [] if optional else nil_faults(".", base)
        if isinstance(key.constant, str):
            path = quoted('$."' + key.constant.replace("\\", "\\\\").replace('"', '\\"') + '"')
            found = Value(f"nullif(CAST(json_extract({base.sql}, {path}) AS VARCHAR), 'null')", "json", nullable=True)
            faults = [*nil, (f"NOT {is_json(base, 'object')}", "no object")] if base.kind == "json" else nil
            return guarded(found, *faults)
        if base.kind == "object" or key.kind not in NUMBERS:
            raise fault("a member of an object is taken by a name that is a literal", node.at)
        array = guarded(replace(json_list(base), nullable=optional), *nil, (f"NOT {is_json(base, 'list')}", "no array"))
        return lists.at_index(self._names, array, key, optional, node.at)

    def _slice(self, node: Slice) -> Value:
        base = self.value(node.base)
        if base.kind not in ("string", "list"):
            raise fault(f"a slice takes a string or an array, not {base.name}; use string() for a JSON value", node.at)
        start, stop = (None if end is None else self.value(end) for end in (node.start, node.stop))
        return lists.part(self._names, base, start, stop, node.at)

    def _let(self, node: Let) -> Value:
        if node.name in self._fields or node.name in self._variables or node.name in FUNCTIONS or node.name in PREDICATE_FUNCTIONS:
            raise fault(f"the variable {node.name!r} has the name of a field, a function or another variable", node.at)

        def body(value: Value) -> Value:
            self._variables[node.name] = value
            try:
                return self.value(node.body)
            finally:
                del self._variables[node.name]

        value = self.value(node.value)
        result = bound(self._names, value, body)
        return replace(result, fails=result.fails or value.fails)

    def _call(self, node: Call) -> Value:
        if node.name in PREDICATE_FUNCTIONS and node.name not in REFUSED:
            return self._predicate_call(node)
        function = FUNCTIONS.get(node.name)
        if function is None:
            raise self._unknown_function(node)
        arguments = node.arguments
        if node.name == "waterfall" and arguments and isinstance(arguments[0], Array) and arguments[0].items:
            # The items of an array in brackets may be of several kinds here.
            return glassflow.first_filled(self._names, node.at, [self.value(item) for item in arguments[0].items])
        if not function.least <= len(arguments) <= function.most:
            raise fault(f"{function.name} is written {function.usage}", node.at)
        result = function.build(self._names, node.at, *(self.value(one) for one in arguments))
        return replace(result, static=function.is_typed and result.kind in ("int", "string"))

    def _unknown_function(self, node: Call) -> ValueError:
        if node.name in REFUSED:
            return fault(f"the function {node.name} is not supported: {REFUSED[node.name]}", node.at)
        close = get_close_matches(node.name, [*FUNCTIONS, *(usage.partition("(")[0] for usage in PREDICATES)], 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return fault(f"the function {node.name!r} is unknown{hint}", node.at)

    def _predicate_call(self, node: Call) -> Value:
        least = 1 if node.name in ("count", "sum") else 2
        if not least <= len(node.arguments) <= 2:
            raise fault(f"{node.name} takes an array and a predicate", node.at)

        def predicate(pointers: Mapping[str, Value]) -> Value:
            if len(node.arguments) == 1:
                return pointers[""]
            body = node.arguments[1]
            self._elements.append(pointers)
            try:
                return self.value(body.body if isinstance(body, Predicate) else body)
            finally:
                self._elements.pop()

        def asked(array: Value) -> Value:
            if node.name == "map":
                return lists.mapped(self._names, array, predicate, node.at)
            if node.name == "sum":
                inner = lists.mapped(self._names, array, predicate, node.at) if len(node.arguments) == 2 else array
                return collections.total(self._names, node.at, inner)
            result = lists.tested(self._names, node.name, array, predicate, node.at)
            return replace(result, static=result.kind == "int")

        array = self.value(node.arguments[0])
        return lists.as_list(self._names, array, node.name, node.at, lambda one: bound(self._names, one, asked))


def _has_optional(node: Member) -> bool:
    """Report whether the chain that ends in `node` has a `?.`: where that one is nil, the rest of the chain is not looked at."""
    return node.optional or (isinstance(node.base, Member) and _has_optional(node.base))
