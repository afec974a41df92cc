"""The functions of expr-lang and GlassFlow over numbers, and from text to numbers, as SQL."""

from collections.abc import Callable
from dataclasses import replace

from pipelines.expressions.expr_lang.nodes import fault
from pipelines.expressions.expr_lang.operators import as_whole
from pipelines.expressions.expr_lang.texts import cast_text
from pipelines.expressions.expr_lang.values import (
    NUMBERS,
    Kind,
    Names,
    Value,
    all_bound,
    as_big,
    as_double,
    bound,
    guarded,
    integer,
    is_json,
    json_as,
    nil_faults,
    read_as,
)

_INTEGER = "^[+-]?[0-9]+$"
_DECIMAL = r"^[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$"
_RARE = r"(?i)^[+-]?(?:inf|infinity|nan|0x[0-9a-f_.]+(?:p[+-]?[0-9_]+)?|[0-9_.]*_[0-9_.]*(?:e[+-]?[0-9_]+)?)$"
"""Text that Go reads as a number and that is not supported: not finite, in hex, or with underscores."""


def _number(name: str, names: Names, at: int, value: Value, body: Callable[[Value], Value]) -> Value:
    if value.kind not in (*NUMBERS, "json"):
        raise fault(f"{name} takes a number, not {value.name}", at)
    return read_as(names, value, value.kind if value.kind in NUMBERS else "float", name, body)


def absolute(names: Names, at: int, value: Value) -> Value:
    def made(one: Value) -> Value:
        sql = f"abs({as_big(one)})" if one.exact else f"abs({one.sql})"
        return replace(one, sql=sql, big=True, constant=None, fails=one.exact)

    return _number("abs", names, at, value, made)


def _rounded(name: str, names: Names, at: int, value: Value) -> Value:
    def made(one: Value) -> Value:
        if one.exact:
            return replace(one, kind="float", constant=None)
        return replace(one, sql=f"{name}({one.sql})", constant=None)

    return _number(name, names, at, value, made)


def ceil(names: Names, at: int, value: Value) -> Value:
    return _rounded("ceil", names, at, value)


def floor(names: Names, at: int, value: Value) -> Value:
    return _rounded("floor", names, at, value)


def rounded(names: Names, at: int, value: Value) -> Value:
    return _rounded("round", names, at, value)


def to_integer(names: Names, at: int, value: Value) -> Value:
    """Translate `int(x)`: a number is cut towards 0, a string must be an integer."""
    if value.kind in NUMBERS:
        return read_as(names, value, value.kind, "int", lambda one: integer(as_whole(one), fails=not one.exact))
    if value.kind == "string":
        return read_as(names, value, "string", "int", lambda text: bound(names, text, _integer_text))
    if value.kind != "json":
        raise fault(f"int takes a number or a string, not {value.name}", at)

    def either(one: Value) -> Value:
        number, text = json_as(one, "float"), json_as(one, "string")
        sql = f"CASE WHEN {is_json(one, 'float')} THEN {as_whole(number)} ELSE {_integer_text(text).sql} END"
        return guarded(integer(sql), *nil_faults("int", one), (f"json_type({one.sql}) IN ('BOOLEAN', 'ARRAY', 'OBJECT')", "int: no number"))

    return bound(names, value, either)


def _integer_text(text: Value) -> Value:
    whole = f"TRY_CAST({text.sql} AS BIGINT)"
    return guarded(integer(whole), (f"NOT regexp_matches({text.sql}, '{_INTEGER}') OR {whole} IS NULL", "int: not an integer of 64 bits"))


def to_number(names: Names, at: int, value: Value) -> Value:
    """Translate `float(x)`: a string must be a number."""
    if value.kind in NUMBERS:
        return read_as(names, value, value.kind, "float", lambda one: replace(one, kind="float", constant=None))
    if value.kind == "string":
        return read_as(names, value, "string", "float", lambda text: bound(names, text, _number_text))
    if value.kind != "json":
        raise fault(f"float takes a number or a string, not {value.name}", at)

    def either(one: Value) -> Value:
        number, text = json_as(one, "float"), json_as(one, "string")
        sql = f"CASE WHEN {is_json(one, 'float')} THEN {number.sql} ELSE {_number_text(text).sql} END"
        found = Value(sql, "float", fails=True)
        return guarded(found, *nil_faults("float", one), (f"json_type({one.sql}) IN ('BOOLEAN', 'ARRAY', 'OBJECT')", "float: no number"))

    return bound(names, value, either)


def _number_text(text: Value) -> Value:
    # A cast of a literal that fails would fail at the planning, wherever it stands.
    double = f"TRY_CAST({text.sql} AS DOUBLE)"
    found = Value(double, "float")
    return guarded(found, (f"CASE WHEN regexp_matches({text.sql}, '{_DECIMAL}') THEN isinf({double}) ELSE TRUE END", "float: not a number"))


def cast_integer(names: Names, at: int, value: Value) -> Value:
    """Translate GlassFlow's `toInt`: rounded down, and 0 for what is no number."""
    if value.kind == "nil":
        return integer("0")
    if value.kind in NUMBERS:
        return bound(names, value, _floored)

    def read(text: Value) -> Value:
        whole, decimal = f"TRY_CAST({text.sql} AS BIGINT)", f"TRY_CAST(floor(TRY_CAST({text.sql} AS DOUBLE)) AS BIGINT)"
        cases = f"WHEN regexp_matches({text.sql}, '{_INTEGER}') THEN {whole} WHEN regexp_matches({text.sql}, '{_DECIMAL}') THEN {decimal}"
        number = bound(
            names, integer(f"CASE {cases} ELSE 0 END"), lambda one: guarded(one, (f"{one.sql} IS NULL", "toInt: not of 64 bits"))
        )
        return guarded(number, (f"regexp_matches({text.sql}, '{_RARE}')", "toInt: not supported"))

    return bound(names, cast_text(names, value, at), read)


def _floored(one: Value) -> Value:
    sql = as_big(one) if one.exact else f"CAST(floor({one.sql}) AS BIGINT)"
    return integer(f"coalesce({sql}, 0)" if one.nullable else sql, fails=not one.exact)


def cast_number(names: Names, at: int, value: Value) -> Value:
    """Translate GlassFlow's `toFloat`: 0 for what is no number."""
    if value.kind == "nil":
        return Value("CAST(0 AS DOUBLE)", "float")
    if value.kind in NUMBERS:
        sql = as_big(value) if value.exact else value.sql
        return replace(value, sql=f"coalesce({sql}, 0)" if value.nullable else sql, kind="float", nullable=False, big=True, constant=None)

    def read(text: Value) -> Value:
        double = f"TRY_CAST({text.sql} AS DOUBLE)"
        finite = f"CASE WHEN isinf({double}) THEN 0 ELSE {double} END"
        sql = f"CASE WHEN regexp_matches({text.sql}, '{_DECIMAL}') THEN {finite} ELSE CAST(0 AS DOUBLE) END"
        return guarded(Value(sql, "float"), (f"regexp_matches({text.sql}, '{_RARE}')", "toFloat: not supported"))

    return bound(names, cast_text(names, value, at), read)


def extreme(name: str, names: Names, at: int, *values: Value) -> Value:
    """Translate `min` and `max` of several numbers."""
    for value in values:
        if value.kind not in (*NUMBERS, "json") or (value.kind == "json" and len(values) == 1):
            raise fault(f"{name} takes numbers or one array, not {value.name}", at)
    if len(values) == 1:
        return values[0]
    exact = all(value.exact for value in values)
    kind: Kind = "int" if all(value.kind == "int" for value in values) else "float"

    def chosen(first: Value, *others: Value) -> Value:
        """Compare one after the other, because NaN is neither less nor more than any number."""
        if not others:
            return replace(first, kind="float", infinite=True)
        second, *rest = others
        order = f"{first.sql} {'<' if name == 'max' else '>'} {second.sql}"
        better = f"CASE WHEN {order} AND NOT isnan({first.sql}) AND NOT isnan({second.sql}) THEN {second.sql} ELSE {first.sql} END"
        return bound(names, replace(first, sql=better), lambda one: chosen(one, *rest))

    def read(rest: tuple[Value, ...], done: tuple[Value, ...]) -> Value:
        if rest:
            return _number(name, names, at, rest[0], lambda one: read(rest[1:], (*done, one)))
        texts = [as_big(one) if exact else as_double(one) for one in done]
        if any(one.infinite for one in done):
            return all_bound(
                names, [replace(one, sql=text, exact=False, constant=None) for one, text in zip(done, texts, strict=True)], chosen
            )
        function = "greatest" if name == "max" else "least"
        return Value(f"{function}({', '.join(texts)})", kind, exact=exact)

    return read(values, ())


def bitwise(name: str, names: Names, at: int, left: Value, right: Value) -> Value:
    for value in (left, right):
        if value.kind != "int":
            raise fault(f"{name} takes integers, and the numbers of a record are floats; use int()", at)
    signs = {"bitand": "{0} & {1}", "bitor": "{0} | {1}", "bitxor": "xor({0}, {1})", "bitnand": "{0} & ~{1}"}

    def made(one: Value, two: Value) -> Value:
        return guarded(integer(f"({signs[name].format(as_big(one), as_big(two))})"), *nil_faults(name, one, two))

    return all_bound(names, (left, right), made)


def bit_not(names: Names, at: int, value: Value) -> Value:
    if value.kind != "int":
        raise fault("bitnot takes an integer, and the numbers of a record are floats; use int()", at)
    return read_as(names, value, "int", "bitnot", lambda one: integer(f"(~{as_big(one)})"))
