"""What a translation gives where nil, JSON and Go's kinds matter, what it refuses, and that no text breaks it."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import stage_engine
from support.expr_case import FAILED, evaluated

from pipelines.expressions.expr_lang.functions import FUNCTIONS
from pipelines.expressions.expr_lang.translate import translate

FIELDS = {
    "s": "string",
    "t": "string",
    "i": "int",
    "small": "int8",
    "u": "uint64",
    "f": "float",
    "single": "float32",
    "b": "bool",
    "raw": "bytes",
    "xs": "array",
    "o": "object",
    "m": "map",
    "customer.city": "string",
    "amount": "decimal",
    "whole": "any",
}
FAILS = (FAILED,)


def value_of(expression: str, record: dict[str, Any]) -> Any:
    return evaluated(stage_engine().connection, expression, FIELDS, [record])[0]


@pytest.mark.parametrize(
    ("expression", "record", "expected"),
    [
        ("s == nil", {}, True),
        ("s == t", {}, True),
        ("s == 'a'", {}, False),
        ("s != 'a'", {}, True),
        ("i > 1", {}, FAILS),
        ("i + 1", {}, FAILS),
        ("-i", {}, FAILS),
        ("not b", {}, FAILS),
        ("b and true", {}, None),
        ("b and i > 1", {}, FAILS),
        ("true == b", {}, False),
        ("s contains 'a'", {}, False),
        ("s matches '^a'", {}, False),
        ("s in ['', 'a']", {}, True),
        ("s in ['a']", {}, False),
        ("i in [1, nil]", {}, True),
        ("i in xs", {"i": 1}, False),
        ("b ? 1 : 2", {}, FAILS),
        ("findIndex([1], # > 2) == nil", {}, True),
        ("findIndex([1], # > 2) == 1", {}, FAILS),
        ("findIndex([1], # > 2) == i", {}, True),
        ("(b ? sum(xs) : f) == f", {"b": False}, True),
        ("f != (b ? sum(xs) : f)", {"b": False}, False),
        ("(b ? sum(xs) : f) in [1, f]", {"b": False}, True),
        ("not ((b ? sum(xs) : f) == 1)", {"b": False}, True),
        ("s ?? 'none'", {}, "none"),
        ("len(s)", {}, FAILS),
        ("upper(s)", {}, ""),
        ("string(s)", {}, "<nil>"),
        ("any(xs, # > 1)", {}, FAILS),
        ("o.a", {}, FAILS),
        ("o?.a", {}, None),
        ("o?.a.b", {}, None),
        ("o?.a.b", {"o": {}}, None),
        ("xs[0]", {}, FAILS),
        ("customer.city == nil", {}, True),
    ],
)
def test_nil_is_what_it_is_in_expr_lang(expression: str, record: dict[str, Any], expected: Any) -> None:
    assert value_of(expression, record) == expected


@pytest.mark.parametrize(
    ("expression", "record", "expected"),
    [
        ("b or i > 1", {"b": True}, True),
        ("not (b and i > 1)", {"b": False}, True),
        ("b ? i + 1 : 0", {"b": False}, 0),
        ("s != nil and len(s) > 1", {}, False),
        ("any([1, nil], # == 1 or # > 1)", {}, True),
        ("all([1, nil], # > 1)", {}, False),
        ("find([1, nil], # < 2)", {}, 1),
        ("filter([1, nil], # < 2)", {}, FAILS),
        ("waterfall(s, i + 1)", {"s": "a"}, FAILS),
    ],
)
def test_only_what_decides_can_fail(expression: str, record: dict[str, Any], expected: Any) -> None:
    assert value_of(expression, record) == expected


@pytest.mark.parametrize(
    ("expression", "record", "expected"),
    [
        ("i / 2", {"i": 1}, 0.5),
        ("i / 0 > 5", {"i": 1}, True),
        ("i / 0 == i / 0", {"i": 0}, False),
        ("i / 0 > 5", {"i": 0}, False),
        ("-i", {"i": 0}, 0),
        ("i / 0", {"i": 1}, FAILS),
        ("[i / 0]", {"i": 1}, FAILS),
        ("max(2, i / 0)", {"i": 0}, 2),
        ("max(2, i / 0) in xs", {"i": 0, "xs": [2]}, True),
        ("max(2, i / 0) in xs", {"xs": [2]}, FAILS),
        ("max(2, i / 0) in xs", {}, FAILS),
        ("len(s) % 0 == 1", {}, FAILS),
        ("small * 100", {"small": 100}, 10000),
        ("single + 0.5", {"single": 1.5}, 2.0),
        ("i == 2.0", {"i": 2}, True),
        ("i", {"i": 2**53 + 1}, 2**53 + 1),
        ("i + 1", {"i": 2**53 + 1}, 2**53 + 2),
        ("i + 1", {"i": 2**63 - 1}, FAILS),
        ("u == 18446744073709551615.0", {"u": 2**64 - 1}, True),
        ("u", {"u": 2**64 - 1}, 2**64 - 1),
        ("u + 1", {"u": 2**64 - 1}, FAILS),
        ("int(f)", {"f": 1e19}, FAILS),
        ("toInt(s)", {"s": "9" * 20}, FAILS),
        ("toFloat(s)", {"s": "0x1p4"}, FAILS),
        ("raw + 'b'", {"raw": "a"}, "ab"),
        ("toString(f)", {"f": 1e21}, "1" + "0" * 21),
        ("toString(f)", {"f": 1e300}, FAILS),
    ],
)
def test_numbers_are_those_of_go_but_integers_stay_exact(expression: str, record: dict[str, Any], expected: Any) -> None:
    assert value_of(expression, record) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("o.n", "1.5"),
        ("o.s", "it's"),
        ("o.n + 1", 2.5),
        ("o.s + '!'", "it's!"),
        ("o.n + '!'", FAILS),
        ("o.s > 1", FAILS),
        ("o.s == 1", False),
        ("o.b == true", True),
        ("not o.b", False),
        ("o.list[1]", "b"),
        ("o.list[-1] == 'b'", True),
        ("o.list[2]", FAILS),
        ("o.list?.x", FAILS),
        ("o.inner.k", "1"),
        ("o.missing", None),
        ("o.missing.k", FAILS),
        ("o['n'] < 2", True),
        ("o", {"n": 1.5, "s": "it's", "b": True, "list": ["a", "b"], "inner": {"k": 1}}),
        ("xs", [1, "a", None]),
        ("xs[1]", "a"),
        ("'n' in o", True),
        ("'x' in o", False),
        ("'b' in o.list", True),
        ("xs[0] in [1, 2]", True),
        ("xs[0] in ['a']", FAILS),
        ("o.n ?? 'none'", "1.5"),
        ("len(o.list)", 2),
        ("map(o.list, upper(#))", ["A", "B"]),
        ("type(o.inner)", "map"),
        ("o.list[0] == 'a' and xs[1] == o.list[0]", True),
        ("o.n == xs[0]", False),
        ("o.missing == xs[2]", True),
        ("o.b == o.s", False),
        ("o.list == o.list", FAILS),
        ("o.n < xs[0]", False),
        ("o.s >= xs[1]", True),
        ("o.n < o.s", FAILS),
        ("o.n < o.missing", FAILS),
        ("(o.n + xs[0]) * 2", 5),
        ("o.s + xs[1]", "it'sa"),
        ("o.n + xs[1]", FAILS),
        ("o.n - xs[0] == 0.5", True),
    ],
)
def test_json_is_looked_into_row_by_row(expression: str, expected: Any) -> None:
    record = {"o": {"n": 1.5, "s": "it's", "b": True, "list": ["a", "b"], "inner": {"k": 1}}, "xs": [1, "a", None]}
    assert value_of(expression, record) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("s[1:2]", FAILS),
        ("s[0:1]", "h"),
        ("s[0:3]", "hé"),
        ("fromBase64('/w==')", FAILS),
        ("getQueryParam('a=1&a=2', 'a')", FAILS),
        ("split('', ',')", []),
        ("toDate(nil)", "0"),
        ("toDate(253402300800)", FAILS),
    ],
)
def test_a_documented_difference_is_as_documented(expression: str, expected: Any) -> None:
    assert value_of(expression, {"s": "hé"}) == expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("nmae", "the field 'nmae' is unknown; declare it in the schema (character 1)"),
        ("raww", "the field 'raww' is unknown; did you mean 'raw'? (character 1)"),
        ("customer", "the field 'customer' is not declared, only 'customer.city' in it; declare it with type object (character 1)"),
        ("customer.name", "the field 'customer.name' is unknown; did you mean 'customer.city'? (character 10)"),
        ("amount", "the field 'amount' is a decimal, which is a number or a string; declare it as float64 or string (character 1)"),
        ("whole", "the field 'whole' is any JSON value, which expr-lang does not read; write the expression in SQL (character 1)"),
        ("uper(s)", "the function 'uper' is unknown; did you mean 'upper'? (character 1)"),
        ("trim(s, 'a')", "trim is written trim(text) (character 1)"),
        ("split(s)", "split is written split(text, separator) (character 1)"),
        ("any(xs)", "any takes an array and a predicate (character 1)"),
        ("'a' > 1", "`>` does not take a string and an integer (character 5)"),
        ("s + 1", "`+` does not take a string and an integer (character 3)"),
        ("s - t", "`-` does not take a string and a string (character 3)"),
        ("s == 1", "`==` between a string and an integer is not supported, or never true (character 3)"),
        ("xs == [1]", "`==` between an array and an array is not supported, or never true (character 4)"),
        ("nil > 1", "`>` does not take nil and an integer (character 5)"),
        ("i % 2", "`%` takes integers, and the numbers of a record are floats; use int() (character 3)"),
        ("-s", "`-` does not take a string (character 1)"),
        ("+s", "`+` does not take a string (character 1)"),
        ("not i", "`not` does not take a number (character 1)"),
        ("s and b", "`and` does not take a string (character 3)"),
        ("b and o.a", "`and` needs a boolean on its right side; compare the JSON value with `== true` (character 3)"),
        ("i contains 'a'", "`contains` does not take a number (character 3)"),
        ("i ? 1 : 2", "a condition must be a boolean, not a number (character 3)"),
        ("b ? 1 : 'a'", "the results an integer and a string have no common type (character 3)"),
        ("i in 'abc'", "`in` takes an array on its right side, not a string (character 3)"),
        ("i in ['a']", "`in` compares a number with strings (character 3)"),
        ("i in [true, s]", "`in` compares a number with other kinds only (character 3)"),
        ("1..1000000", "a range has at most 999999 elements (character 2)"),
        ("'a'..'b'", "`..` does not take a string (character 4)"),
        ("[1, 'a']", "the items of an array must be of one kind (character 1)"),
        ("[[1]]", "an array of arrays or objects is not supported (character 1)"),
        ("s[0]", "an index of a string gives the number of a byte in expr-lang; use a slice, s[0:1] (character 2)"),
        ("i.a", "a number has no members (character 3)"),
        ("xs['a']", "an array takes a number as its index, not a string (character 3)"),
        ("o[s]", "a member of an object is taken by a name that is a literal (character 2)"),
        ("o[1:2]", "a slice takes a string or an array, not an object; use string() for a JSON value (character 2)"),
        ("s['a':]", "a slice takes numbers, not a string (character 2)"),
        ("map(xs, [#])", "an array of arrays is not supported (character 1)"),
        ("any(xs, 1)", "the predicate of any must be a boolean, not an integer (character 1)"),
        ("any(xs, #acc)", "`#acc` is unknown in any; there is `#`, and in map `#index` (character 9)"),
        ("parseQuery(s)", "a parsed query is no value of a record; take a parameter with an index, or its keys (character 1)"),
        ("parseQuery(s)[1]", "a parsed query takes the name of a parameter, not an integer (character 14)"),
        ("upper(xs)", "a string is needed here, not an array (character 1)"),
        ("abs(s)", "abs takes a number, not a string (character 1)"),
        ("bitand(i, 1)", "bitand takes integers, and the numbers of a record are floats; use int() (character 1)"),
        (
            "uniq(xs)",
            "uniq takes an array of numbers or of strings; make one with map(array, string(#)) or map(array, float(#)) (character 1)",
        ),
        ("toDate(s)", "toDate takes a number of seconds, not a string (character 1)"),
        ("keys(s)", "keys takes an object or a parsed query, not a string (character 1)"),
        ("let i = 1; i", "the variable 'i' has the name of a field, a function or another variable (character 5)"),
        ("$env.i", "`$env` is not supported; name the field (character 6)"),
    ],
)
def test_what_cannot_be_translated_is_refused_in_a_sentence(expression: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        translate(expression, FIELDS)
    assert str(raised.value) == message


def test_a_field_with_quotes_and_words_of_sql_is_quoted() -> None:
    assert translate("select + 1", {"select": "float"}).count('"select"') == 2
    assert translate('s == "it\'s; drop"', FIELDS) == "(\"s\" IS NOT DISTINCT FROM 'it''s; drop')"


def test_a_control_character_is_written_as_a_call() -> None:
    assert translate(r"'a\x01'", {}) == "('a' || chr(1) || '')"


TOKENS = st.sampled_from(
    (
        *("s", "i", "f", "b", "xs", "o", "nil", "true", "1", "2.5", "'a'", "#", "x"),
        *("(", ")", "[", "]", "{", "}", ",", ".", "?.", ":", "?", "..", ";", "|", "??"),
        *("+", "-", "*", "/", "%", "**", "==", "!=", "<", ">=", "=", "and", "or", "not", "in", "matches", "contains", "let", "if", "else"),
        *(f"{name}(" for name in (*FUNCTIONS, "any", "map", "filter", "sum", "findLast")),
    )
)


@settings(max_examples=500)
@given(st.one_of(st.text(max_size=200), st.lists(TOKENS, max_size=40).map(" ".join)))
def test_any_text_is_translated_or_refused_at_once(text: str) -> None:
    start = time.process_time()
    try:
        translate(text, FIELDS)
    except ValueError as error:
        assert "(character " in str(error) and "\n" not in str(error)
    assert time.process_time() - start < 2


LONG = (
    *("(" * 4000, "-" * 4000, "a" * 4000, "[" * 2000 + "]" * 2000, "s?" * 2000, "not " * 1000, "s + " * 999 + "s", "s ?? " * 700 + "s"),
    *(
        "upper(" * 600 + "s" + ")" * 600,
        "any(xs, " * 400 + "#" + ")" * 400,
        "o" + ".a" * 1900,
        "1 < " * 900 + "1",
        "let a = 1; " * 300 + "1",
    ),
    *("s[1:]" + "[1:]" * 900, "(" * 40 + "b" + " ?: b)" * 40, "(0 < " * 15 + "i" + " < 9 ? 1 : 2)" * 15),
)


@pytest.mark.parametrize("text", LONG)
def test_a_long_text_is_refused_at_once(text: str) -> None:
    start = time.process_time()
    with pytest.raises(ValueError, match="character "):
        translate(text, FIELDS)
    assert time.process_time() - start < 2


@pytest.mark.parametrize("part", ["o.a == 1 and ", "i + ", "xs[0] > 1 and ", "string(i) + ", "toInt(s) + ", "(s ?? t) + "])
def test_a_translation_grows_with_the_text_and_not_faster(part: str) -> None:
    end = {"and ": "b", "i + ": "i"}.get(part[-4:], "1" if "toInt" in part else "'x'")
    short, long = (len(translate(part * count + end, FIELDS)) for count in (10, 40))
    assert long < 6 * short
