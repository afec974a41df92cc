"""A part of an expression as SQL text with what is known of its value, and how a value is read as another kind.

Kinds are those of Go, because they decide what an operator does: every number of a JSON record is a float64. Integers stay exact all the
same: a float of a field of integers is an integer in SQL. nil is NULL. JSON of unknown kind is its text, and is looked into row by row.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["bool", "int", "float", "string", "nil", "list", "object", "query", "json"]
NUMBERS = ("int", "float")
NAMES: dict[Kind, str] = {
    "bool": "a boolean",
    "int": "an integer",
    "float": "a number",
    "string": "a string",
    "nil": "nil",
    "list": "an array",
    "object": "an object",
    "query": "a parsed query",
    "json": "a JSON value",
}
"""How a message names each kind."""
_CONTROL = re.compile(r"([\x00-\x1f\x7f])")
_SIMPLE = re.compile(r'"[^"]*"|_tf_[a-z]+_?\d*|\d+|NULL|TRUE|FALSE|\'[^\']{0,40}\'')


@dataclass(frozen=True)
class Value:
    """A part of an expression: its SQL, and what is known of its value."""

    sql: str
    kind: Kind
    nullable: bool = False
    """It may be nil."""
    fails: bool = False
    """Its evaluation may fail for a row."""
    exact: bool = False
    """A number that SQL holds as an integer."""
    big: bool = True
    """An exact one that is a BIGINT already."""
    infinite: bool = False
    """A float that may be NaN or infinite."""
    item: "Value | None" = None
    """A prototype of a list's elements; its SQL is empty."""
    boxed: bool = True
    """A list of Go's type []any, which some functions demand."""
    static: bool = False
    """expr-lang's own checker knows that it is an integer or a string; where it is nil all the same, `==` fails."""
    constant: bool | int | float | str | None = None
    """The value of a literal."""

    @property
    def name(self) -> str:
        return NAMES[self.kind]


def quoted(text: str) -> str:
    """Write `text` as a literal of SQL; control characters as calls of `chr`."""
    parts = [
        part if index % 2 == 0 else f"' || chr({ord(part)}) || '" for index, part in enumerate(_CONTROL.split(text.replace("'", "''")))
    ]
    literal_text = "'" + "".join(parts) + "'"
    return f"({literal_text})" if len(parts) > 1 else literal_text


def column(name: str) -> str:
    """Write the name of a field as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: bool | int | float | str | None) -> Value:
    """Return a literal as a value."""
    match value:
        case None:
            return Value("NULL", "nil", nullable=True)
        case bool():
            return Value("TRUE" if value else "FALSE", "bool", constant=value)
        case int():
            return Value(str(value), "int", exact=True, big=abs(value) >= 2**31, static=True, constant=value)
        case float():
            return Value(f"CAST('{value!r}' AS DOUBLE)", "float", constant=value)
        case str():
            return Value(quoted(value), "string", static=True, constant=value)


def text_value(sql: str, *parts: Value, nullable: bool = False, fails: bool = False) -> Value:
    """Return a string that is made of `parts`; it may fail if one of them may."""
    return Value(sql, "string", nullable=nullable, fails=fails or any(part.fails for part in parts))


def truth(sql: str, *parts: Value, fails: bool = False) -> Value:
    """Return a boolean that is made of `parts`; it may fail if one of them may."""
    return Value(sql, "bool", fails=fails or any(part.fails for part in parts))


def integer(sql: str, *parts: Value, nullable: bool = False, fails: bool = False) -> Value:
    """Return a BIGINT that is made of `parts`; it may fail if one of them may."""
    return Value(sql, "int", nullable=nullable, fails=fails or any(part.fails for part in parts), exact=True)


def guarded(value: Value, *faults: tuple[str, str]) -> Value:
    """Return `value`, whose row fails where the condition of one of `faults`, pairs of condition and text, holds.

    A cast that cannot succeed makes the row fail: `error` is volatile, and DuckDB refuses volatile functions in `try`.
    """
    if not faults:
        return value
    cases = " ".join(f"WHEN {condition} THEN {quoted(text)}" for condition, text in faults)
    return replace(value, sql=f"CASE WHEN CAST(CASE {cases} END AS BOOLEAN) IS NULL THEN {value.sql} END", fails=True, constant=None)


def nil_faults(what: str, *operands: Value) -> list[tuple[str, str]]:
    """Return the fault of each operand that may be nil, for `guarded`; an operand is simple (`bound`)."""
    return [(f"{operand.sql} IS NULL", f"{what}: nil") for operand in operands if operand.nullable]


class Names:
    """Makes the names of the variables of lambdas; they start with `_tf_`, which no field does."""

    def __init__(self) -> None:
        self._made = 0

    def new(self) -> str:
        self._made += 1
        return f"_tf_v{self._made}"


def bound(names: Names, value: Value, body: Callable[[Value], Value]) -> Value:
    """Return what `body` makes of `value`, which it may write several times: SQL text does not double with every level."""
    if value.constant is not None or _SIMPLE.fullmatch(value.sql):
        return body(value)
    name = names.new()
    result = body(replace(value, sql=name, fails=False))
    sql = f"list_transform([{value.sql}], lambda {name}: {result.sql})[1]"
    return replace(result, sql=sql, fails=result.fails or value.fails)


def all_bound(names: Names, values: Sequence[Value], body: Callable[..., Value]) -> Value:
    """Return what `body` makes of `values`, each of them `bound`."""
    if not values:
        return body()
    first, *rest = values
    return bound(names, first, lambda one: all_bound(names, rest, lambda *others: body(one, *others)))


def as_big(value: Value) -> str:
    """Write an exact number as a BIGINT."""
    return value.sql if value.big else f"CAST({value.sql} AS BIGINT)"


def as_double(value: Value) -> str:
    """Write a number as a DOUBLE."""
    if not value.exact:
        return value.sql
    if isinstance(value.constant, int):
        return f"CAST('{float(value.constant)!r}' AS DOUBLE)"
    return f"CAST({value.sql} AS DOUBLE)"


_JSON_NUMBERS = "('UBIGINT', 'BIGINT', 'HUGEINT', 'UHUGEINT', 'DOUBLE')"


def is_json(value: Value, kind: Kind) -> str:
    """Write the condition that a JSON value is of `kind`; NULL where it is nil."""
    wanted = {"bool": "= 'BOOLEAN'", "float": f"IN {_JSON_NUMBERS}", "string": "= 'VARCHAR'", "list": "= 'ARRAY'", "object": "= 'OBJECT'"}
    return f"json_type({value.sql}) {wanted[kind]}"


def json_as(value: Value, kind: Kind) -> Value:
    """Return a JSON value that is known to be of `kind` as a value of that kind."""
    if kind == "string":
        return replace(value, sql=f"json_extract_string({value.sql}, '$')", kind="string")
    if kind == "float":
        return replace(value, sql=f"CAST({value.sql} AS DOUBLE)", kind="float")
    if kind == "bool":
        return replace(value, sql=f"({value.sql} = 'true')", kind="bool")
    if kind == "list":
        return json_list(value)
    return replace(value, kind=kind)


def json_list(value: Value) -> Value:
    """Return the text of a JSON array as a list of JSON values, in which null is NULL."""
    sql = f"list_transform(json_extract({value.sql}, '$[*]'), lambda _tf_e: nullif(CAST(_tf_e AS VARCHAR), 'null'))"
    return replace(value, sql=sql, kind="list", item=Value("", "json", nullable=True), boxed=True)


def json_text(value: Value) -> Value:
    """Return a JSON value, which is simple, as a string: a string itself, a number without an exponent, else its text."""
    text, number = json_as(value, "string").sql, fixed_text(json_as(value, "float"))
    sql = f"CASE WHEN {is_json(value, 'string')} THEN {text} WHEN {is_json(value, 'float')} THEN {number} ELSE {value.sql} END"
    return replace(value, sql=sql, kind="string", fails=True)


def as_json(value: Value) -> Value:
    """Return a string, a number or a boolean as a JSON value."""
    if value.kind in ("json", "nil"):
        return value
    sql = f"CAST(to_json({value.sql}) AS VARCHAR)"
    return replace(value, sql=sql, kind="json", exact=False, constant=None)


def read_as(names: Names, value: Value, kind: Kind, what: str, body: Callable[[Value], Value]) -> Value:
    """Return what `body` makes of `value` as a `kind`; the row fails where it is nil, or JSON of another kind."""

    def checked(one: Value) -> Value:
        faults = nil_faults(what, one)
        if one.kind == "json":
            faults.append((f"NOT {is_json(one, kind)}", f"{what}: not {NAMES[kind]}"))
            one = json_as(one, kind)
        return guarded(body(replace(one, nullable=False)), *faults)

    result = bound(names, value, checked) if value.nullable or value.kind == "json" else body(value)
    return replace(result, fails=result.fails or value.fails)


def fixed_text(value: Value) -> str:
    """Write a number, which is simple and not NULL, as Go's FormatFloat(x, 'f', -1, 64) does, without an exponent."""
    if value.exact:
        return f"CAST({value.sql} AS VARCHAR)"
    text = f"CAST({value.sql} AS VARCHAR)"
    large = f"CAST(CAST({text} AS DECIMAL(38, 0)) AS VARCHAR)"
    small = f"rtrim(CAST(CAST({text} AS DECIMAL(38, 37)) AS VARCHAR), '0')"
    exponents = f"WHEN contains({text}, 'e-') THEN {small} WHEN contains({text}, 'e') THEN {large}"
    return f"CASE {_not_finite(value)}{exponents} WHEN suffix({text}, '.0') THEN left({text}, -2) ELSE {text} END"


def _not_finite(value: Value) -> str:
    infinite = f"CASE WHEN {value.sql} > 0 THEN '+Inf' ELSE '-Inf' END"
    return f"WHEN isnan({value.sql}) THEN 'NaN' WHEN isinf({value.sql}) THEN {infinite} " if value.infinite else ""


def shown_text(value: Value) -> str:
    """Write a number, which is simple and not NULL, as Go's %v does: a float from a million on, and one below 0.0001, with an exponent."""
    if value.kind == "int":
        return fixed_text(value)
    text = f"CAST({value.sql} AS VARCHAR)"
    digits = "rtrim(replace(ltrim(_tf_t, '-'), '.', ''), '0')"
    sign, rest = (
        "CASE WHEN starts_with(_tf_t, '-') THEN '-' ELSE '' END",
        f"CASE WHEN length({digits}) > 1 THEN '.' || substr({digits}, 2) ELSE '' END",
    )
    exponent = "lpad(CAST(length(split_part(ltrim(_tf_t, '-'), '.', 1)) - 1 AS VARCHAR), 2, '0')"
    large = f"list_transform([{fixed_text(value)}], lambda _tf_t: {sign} || left({digits}, 1) || {rest} || 'e+' || {exponent})[1]"
    cases = f"WHEN contains({text}, 'e') THEN {text} WHEN abs({value.sql}) >= 1000000 THEN {large}"
    return f"CASE {_not_finite(value)}{cases} ELSE {fixed_text(value)} END"
