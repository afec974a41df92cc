"""The operators of expr-lang as SQL over values, by the rules of vm/runtime of expr 1.17.7.

nil is equal to nil only; in any other comparison and in arithmetic it makes the row fail, and so does JSON of another kind.
"""

from collections.abc import Callable
from dataclasses import replace

from pipelines.expressions.expr_lang.nodes import fault
from pipelines.expressions.expr_lang.values import (
    NUMBERS,
    Kind,
    Names,
    Value,
    all_bound,
    as_big,
    as_double,
    as_json,
    bound,
    guarded,
    is_json,
    json_as,
    nil_faults,
    read_as,
    truth,
)

MAX_RANGE = 1_000_000
"""Limits the elements of a range, as expr-lang's memory budget does."""


def _mismatch(operator: str, left: Value, right: Value, at: int) -> ValueError:
    return fault(f"`{operator}` does not take {left.name} and {right.name}", at)


def _readable(value: Value, kind: Kind) -> bool:
    return value.kind == "json" or (value.kind in NUMBERS if kind == "float" else value.kind == kind)


def _common_kind(operator: str, left: Value, right: Value, at: int) -> Kind:
    """Return whether two operands are numbers or strings: "float" or "string"."""
    for kind in _COMPARABLE:
        if _readable(left, kind) and _readable(right, kind):
            return kind
    raise _mismatch(operator, left, right, at)


def arithmetic(names: Names, operator: str, left: Value, right: Value, at: int) -> Value:
    """Translate `+ - * / % **`."""
    if operator == "+" and left.kind == right.kind == "json":
        return all_bound(
            names, (left, right), lambda one, two: _of_two_json(operator, one, two, lambda made: f"CAST(to_json({made}) AS VARCHAR)")
        )
    kind = _common_kind(operator, left, right, at)
    if kind == "string":
        if operator != "+":
            raise _mismatch(operator, left, right, at)
        static = left.static and right.static
        return read_both(names, operator, left, right, kind, lambda one, two: Value(f"({one.sql} || {two.sql})", "string", static=static))
    if operator == "%" and (left.kind != "int" or right.kind != "int"):
        raise fault("`%` takes integers, and the numbers of a record are floats; use int()", at)
    result = read_both(names, operator, left, right, kind, lambda one, two: _calculated(names, operator, one, two))
    return replace(result, static=result.kind == "int" and left.static and right.static)


def _of_two_json(operator: str, one: Value, two: Value, written: Callable[[str], str]) -> Value:
    """Return what an operator makes of two JSON values, which are simple: two numbers or two strings."""
    numbers, texts = (f"{is_json(one, kind)} AND {is_json(two, kind)}" for kind in _COMPARABLE)
    of_numbers, of_texts = (f"{json_as(one, kind).sql} {_written(operator, kind)} {json_as(two, kind).sql}" for kind in _COMPARABLE)
    made = Value(f"CASE WHEN {numbers} THEN {written(of_numbers)} ELSE {written(of_texts)} END", "json")
    return guarded(made, *nil_faults(operator, one, two), (f"NOT ({numbers} OR {texts})", f"{operator}: neither numbers nor strings"))


_COMPARABLE: tuple[Kind, ...] = ("float", "string")


def _written(operator: str, kind: Kind) -> str:
    return "||" if (operator, kind) == ("+", "string") else operator


def read_both(names: Names, operator: str, left: Value, right: Value, kind: Kind, body: Callable[[Value, Value], Value]) -> Value:
    """Return what `body` makes of two operands; JSON is read as a `kind`, and nil makes the row fail."""
    kinds = [kind if side.kind == "json" else side.kind for side in (left, right)]
    return read_as(names, left, kinds[0], operator, lambda one: read_as(names, right, kinds[1], operator, lambda two: body(one, two)))


def _remainder(left: Value, divisor: Value) -> Value:
    value = Value(f"({as_big(left)} % {as_big(divisor)})", "int", exact=True)
    return value if divisor.constant else guarded(value, (f"{divisor.sql} = 0", "%: by 0"))


def _calculated(names: Names, operator: str, left: Value, right: Value) -> Value:
    if operator == "%":
        return bound(names, right, lambda divisor: _remainder(left, divisor))
    if operator == "/":
        return Value(f"({as_double(left)} / {as_double(right)})", "float", infinite=True)
    if operator == "**":
        return Value(f"pow({as_double(left)}, {as_double(right)})", "float", infinite=True)
    if left.exact and right.exact:
        kind: Kind = "int" if left.kind == right.kind == "int" else "float"
        return Value(f"({as_big(left)} {operator} {as_big(right)})", kind, exact=True, fails=True)
    return Value(f"({as_double(left)} {operator} {as_double(right)})", "float", infinite=True)


def negative(names: Names, operand: Value, at: int) -> Value:
    """Translate the sign `-`."""
    if operand.kind not in (*NUMBERS, "json"):
        raise fault(f"`-` does not take {operand.name}", at)

    def negated(one: Value) -> Value:
        return replace(one, sql=f"(-({as_big(one) if one.exact else one.sql}))", big=True, constant=None, fails=one.exact)

    return read_as(names, operand, operand.kind if operand.kind != "json" else "float", "-", negated)


def comparison(names: Names, operator: str, left: Value, right: Value, at: int) -> Value:
    """Translate `< > <= >=`."""
    if left.kind == right.kind == "json":
        return all_bound(names, (left, right), lambda one, two: replace(_of_two_json(operator, one, two, str), kind="bool"))
    kind = _common_kind(operator, left, right, at)

    def compared(one: Value, two: Value) -> Value:
        exact = one.exact and two.exact
        sides = (one.sql, two.sql) if kind == "string" or exact else (as_double(one), as_double(two))
        tests = [f"{sides[0]} {operator} {sides[1]}", *(f"NOT isnan({side.sql})" for side in (one, two) if side.infinite)]
        return truth(f"({' AND '.join(tests)})")

    if any(value.infinite for value in (left, right)):
        return all_bound(names, (left, right), lambda one, two: read_both(names, operator, one, two, kind, compared))
    return read_both(names, operator, left, right, kind, compared)


def equality(names: Names, left: Value, right: Value) -> Value | None:
    """Translate `==`; None if the kinds can never be equal."""
    if "nil" in (left.kind, right.kind):
        other = right if left.kind == "nil" else left
        return truth(f"({other.sql} IS NULL)", other)
    if left.kind == "json" and right.kind != "json":
        return equality(names, right, left)
    if right.kind == "json":
        return _json_equality(names, left, right)
    if left.static and right.static and left.kind == right.kind and (left.nullable or right.nullable):
        one, two = (replace(side, static=False) for side in (left, right))
        return read_both(names, "==", one, two, left.kind, lambda one, two: _known(equality(names, one, two)))
    if left.kind == right.kind and left.kind in ("bool", "string"):
        return truth(_same(left, right, left.sql, right.sql), left, right)
    if left.kind in NUMBERS and right.kind in NUMBERS:
        return _number_equality(names, left, right)
    return None


def _known(test: Value | None) -> Value:
    assert test is not None
    return test


def _same(left: Value, right: Value, left_sql: str, right_sql: str) -> str:
    return f"({left_sql} {'IS NOT DISTINCT FROM' if left.nullable or right.nullable else '='} {right_sql})"


def _number_equality(names: Names, left: Value, right: Value) -> Value:
    if left.infinite:

        def finite(one: Value) -> Value:
            same = _number_equality(names, replace(one, infinite=False), right)
            return truth(f"({same.sql} AND isnan({one.sql}) IS NOT TRUE)", left, right)

        return bound(names, left, finite)
    if right.infinite:
        return _number_equality(names, right, left)
    sides = (left.sql, right.sql) if left.exact and right.exact else (as_double(left), as_double(right))
    return truth(_same(left, right, *sides), left, right)


def _json_equality(names: Names, left: Value, right: Value) -> Value | None:
    if left.kind == "json":
        return all_bound(names, (left, right), _json_equality_of_two)
    if left.kind not in ("bool", "string", *NUMBERS):
        return None
    kind: Kind = "float" if left.kind in NUMBERS else left.kind

    def compared(one: Value, json: Value) -> Value:
        same = _known(equality(names, replace(one, nullable=False), replace(json_as(json, kind), nullable=False)))
        nil = f"WHEN {one.sql} IS NULL THEN {json.sql} IS NULL " if one.nullable else ""
        return truth(f"CASE {nil}WHEN {is_json(json, kind)} THEN {same.sql} ELSE FALSE END")

    return all_bound(names, (left, right), compared)


def _json_equality_of_two(one: Value, two: Value) -> Value:
    numbers = f"{is_json(one, 'float')} AND {is_json(two, 'float')}"
    same = f"WHEN {numbers} THEN {json_as(one, 'float').sql} = {json_as(two, 'float').sql}"
    same_kind = f"json_type({one.sql}) = json_type({two.sql})"
    texts = f"WHEN {same_kind} THEN {json_as(one, 'string').sql} = {json_as(two, 'string').sql}"
    test = truth(
        f"CASE WHEN {one.sql} IS NULL OR {two.sql} IS NULL THEN {one.sql} IS NULL AND {two.sql} IS NULL {same} {texts} ELSE FALSE END"
    )
    return guarded(test, (f"{same_kind} AND json_type({one.sql}) IN ('ARRAY', 'OBJECT')", "==: arrays and objects are not compared"))


def logic(names: Names, operator: str, left: Value, right: Value, at: int) -> Value:
    """Translate `and` and `or`, which look at the right side only where the left one does not decide."""
    for side in (left, right):
        if side.kind not in ("bool", "json") and not (side is right and side.kind == "nil"):
            raise fault(f"`{operator}` does not take {side.name}", at)

    def decided(one: Value) -> Value:
        if not right.fails and not right.nullable and right.kind == "bool":
            return truth(f"({one.sql} {operator.upper()} {right.sql})")
        then, otherwise = (right.sql, "FALSE") if operator == "and" else ("TRUE", right.sql)
        return Value(f"CASE WHEN {one.sql} THEN {then} ELSE {otherwise} END", "bool", nullable=right.nullable, fails=right.fails)

    if right.kind == "json":
        raise fault(f"`{operator}` needs a boolean on its right side; compare the JSON value with `== true`", at)
    return read_as(names, left, "bool", operator, decided)


def negation(names: Names, operand: Value, at: int) -> Value:
    """Translate `not`."""
    if operand.kind not in ("bool", "json"):
        raise fault(f"`not` does not take {operand.name}", at)
    return read_as(names, operand, "bool", "not", lambda one: truth(f"(NOT {one.sql})", one))


_TESTS = {"contains": "contains", "startsWith": "starts_with", "endsWith": "suffix", "matches": "regexp_matches"}


def text_test(names: Names, operator: str, left: Value, right: Value, at: int) -> Value:
    """Translate `contains`, `startsWith`, `endsWith` and `matches`, which are false for nil."""
    for side in (left, right):
        if side.kind not in ("string", "json", "nil"):
            raise fault(f"`{operator}` does not take {side.name}", at)
    if "nil" in (left.kind, right.kind):
        return truth("FALSE")

    def tested(one: Value, two: Value) -> Value:
        faults = [(f"NOT {is_json(side, 'string')}", f"{operator}: not a string") for side in (one, two) if side.kind == "json"]
        texts = [json_as(side, "string").sql if side.kind == "json" else side.sql for side in (one, two)]
        sql = f"{_TESTS[operator]}({', '.join(texts)})"
        per_row = operator == "matches" and two.constant is None
        test = truth(f"coalesce({sql}, FALSE)" if one.nullable or two.nullable else sql, one, two, fails=per_row)
        return guarded(test, *faults)

    if "json" in (left.kind, right.kind):
        return all_bound(names, (left, right), tested)
    return tested(left, right)


def range_bounds(low: Value, high: Value, at: int) -> None:
    """Check the ends of `low..high`."""
    for side in (low, high):
        if side.kind not in (*NUMBERS,):
            raise fault(f"`..` does not take {side.name}", at)
    if isinstance(low.constant, int) and isinstance(high.constant, int) and high.constant - low.constant + 1 >= MAX_RANGE:
        raise fault(f"a range has at most {MAX_RANGE - 1} elements", at)


def number_range(names: Names, low: Value, high: Value, at: int) -> Value:
    """Translate `low..high` as a list."""
    range_bounds(low, high, at)

    def made(one: Value, two: Value) -> Value:
        sql = f"range({as_whole(one)}, {as_whole(two)} + 1)"
        made = Value(sql, "list", item=Value("", "int", exact=True), boxed=False)
        if isinstance(one.constant, int) and isinstance(two.constant, int):
            return made
        return guarded(made, (f"{as_whole(two)} - {as_whole(one)} + 1 >= {MAX_RANGE}", "..: too many elements"))

    return all_bound(names, (low, high), lambda one, two: read_both(names, "..", one, two, "float", made))


def as_whole(value: Value) -> str:
    """Write a number as a BIGINT, cut towards 0 as Go's conversion does; one beyond 64 bits makes the row fail."""
    return as_big(value) if value.exact else f"CAST(trunc({value.sql}) AS BIGINT)"


def choice(names: Names, condition: Value, then: Value, otherwise: Value, at: int) -> Value:
    """Translate `condition ? then : otherwise`."""
    if condition.kind not in ("bool", "json"):
        raise fault(f"a condition must be a boolean, not {condition.name}", at)
    one, two = unified(then, otherwise, at)
    result = replace(merged(one, two), fails=one.fails or two.fails)
    return read_as(
        names,
        condition,
        "bool",
        "?",
        lambda test: replace(result, sql=f"CASE WHEN {test.sql} THEN {one.sql} ELSE {two.sql} END", fails=result.fails or test.fails),
    )


def coalesced(names: Names, left: Value, right: Value, at: int) -> Value:
    """Translate `left ?? right`."""
    if left.kind == "nil":
        return right
    if not left.nullable:
        return left
    one, two = unified(left, right, at)
    sql = f"coalesce({one.sql}, {two.sql})"
    return replace(merged(one, two), sql=sql, nullable=two.nullable, fails=one.fails or two.fails)


def unified(left: Value, right: Value, at: int) -> tuple[Value, Value]:
    """Return two values of which either may be the result, in one type of SQL."""
    if "nil" in (left.kind, right.kind):
        return left, right
    if left.kind in NUMBERS and right.kind in NUMBERS:
        if left.exact and right.exact:
            return replace(left, sql=as_big(left), big=True), replace(right, sql=as_big(right), big=True)
        return replace(left, sql=as_double(left), exact=False), replace(right, sql=as_double(right), exact=False)
    if left.kind == right.kind and (left.item and left.item.kind) == (right.item and right.item.kind):
        return left, right
    if "json" in (left.kind, right.kind) and {left.kind, right.kind} <= {"json", "string", "bool", *NUMBERS}:
        return as_json(left), as_json(right)
    raise fault(f"the results {left.name} and {right.name} have no common type", at)


def merged(left: Value, right: Value) -> Value:
    """Return what is known of a value that is one of two `unified` ones."""
    known = right if left.kind == "nil" else left
    kind = "float" if "float" in (left.kind, right.kind) else known.kind
    return replace(
        known,
        kind=kind,
        nullable=left.nullable or right.nullable,
        infinite=left.infinite or right.infinite,
        boxed=left.boxed and right.boxed,
        static=all(side.static or side.kind == "nil" for side in (left, right)),
        constant=None,
    )
