"""Each function of the table, by an example; and that the translations call no other function of SQL than they say."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engines import stage_engine
from support.expr_case import evaluated

from pipelines.expressions.expr_lang.docs import TARGET, render
from pipelines.expressions.expr_lang.functions import EMITTED, FUNCTIONS, PREDICATES, REFUSED
from pipelines.expressions.expr_lang.translate import translate
from pipelines.types.duckdb import open_engine

FIELDS = {
    "s": "string",
    "i": "int",
    "f": "float",
    "b": "bool",
    "xs": "array",
    "ws": "array",
    "o": "object",
    "q": "string",
    "at": "string",
    "none": "string",
}
RECORD = {
    "s": "Straße, Köln",
    "i": -7,
    "f": 2.5,
    "b": True,
    "xs": [3, 1, 2],
    "ws": ["b", "", "a"],
    "o": {"b": 1, "a": None},
    "q": "cid=22&en=page%20view",
    "at": "2025-10-20T08:25:44+02:00",
    "none": None,
}
EXAMPLES: dict[str, list[tuple[str, Any]]] = {
    "abs": [("abs(i)", 7), ("abs(-2.5)", 2.5)],
    "all": [("all(xs, # > 0)", True), ("all(xs, # > 1)", False), ("all([], # == 1)", True)],
    "any": [("any(xs, # > 2)", True), ("any(xs, # > 3)", False)],
    "bitand": [("bitand(6, 3)", 2)],
    "bitnand": [("bitnand(6, 3)", 4)],
    "bitnot": [("bitnot(5)", -6)],
    "bitor": [("bitor(6, 3)", 7)],
    "bitxor": [("bitxor(6, 3)", 5)],
    "ceil": [("ceil(f)", 3)],
    "concat": [("concat([1], [2, 3])", [1, 2, 3])],
    "containsStr": [("containsStr(s, 'ß')", True), ("containsStr('', '')", False)],
    "count": [("count(xs, # > 1)", 2)],
    "extractPathType": [("extractPathType('/g/collect')", "collect"), ("extractPathType(none)", "unknown")],
    "filter": [("filter(xs, # != 1)", [3, 2])],
    "find": [("find(xs, # < 3) == 1", True), ("find(xs, # > 3) == nil", True)],
    "findIndex": [("findIndex(xs, # < 3)", 1), ("findIndex(xs, # > 3) == nil", True)],
    "findLast": [("findLast(xs, # < 3) == 2", True)],
    "findLastIndex": [("findLastIndex(xs, # < 3)", 2)],
    "first": [("first(xs) == 3", True), ("first([]) == nil", True)],
    "float": [("float('4.25')", 4.25), ("float(i)", -7)],
    "floor": [("floor(-2.5)", -3)],
    "fromBase64": [("fromBase64('w6k=')", "é")],
    "getNestedParam": [("getNestedParam(q, 'en')", "page view")],
    "getQueryParam": [("getQueryParam(q, 'cid')", "22"), ("getQueryParam(q, 'x')", "")],
    "hasAnyKey": [("hasAnyKey(o, ['a', 'x'])", True), ("hasAnyKey(parseQuery(q), ['x'])", False)],
    "hasKeyPrefix": [("hasKeyPrefix(parseQuery(q), ['ci'])", True), ("hasKeyPrefix(o, ['x'])", False)],
    "hasPrefix": [("hasPrefix(s, 'Str')", True), ("hasPrefix('', '')", False)],
    "hasSuffix": [("hasSuffix(s, 'Köln')", True)],
    "indexOf": [("indexOf(s, 'e')", 6), ("indexOf(s, 'x')", -1)],
    "int": [("int('-12')", -12), ("int(-2.9)", -2)],
    "join": [("join(ws, '-')", "b--a"), ("join([1, 2.5], s)", "1Straße, Köln2.5")],
    "keys": [("keys(o)", ["a", "b"]), ("keys(parseQuery(q))", ["cid", "en"])],
    "last": [("last(ws) == 'a'", True)],
    "lastIndexOf": [("lastIndexOf('éaaa', 'aa')", 3)],
    "len": [("len(s)", 12), ("len(xs)", 3), ("len(o)", 2)],
    "lower": [("lower(s)", "straße, köln")],
    "map": [("map(xs, # * 2)", [6, 2, 4]), ("map(ws, #index)", [0, 1, 2])],
    "max": [("max(i, 2, f)", 2.5), ("max(xs)", 3)],
    "mean": [("mean(xs)", 2), ("mean([])", 0)],
    "median": [("median(xs)", 2), ("median([1, 2, 3, 4])", 2.5)],
    "min": [("min(i, 2, f)", -7), ("min(xs)", 1)],
    "none": [("none(xs, # > 3)", True)],
    "one": [("one(xs, # > 2)", True)],
    "parseISO8601": [("parseISO8601(at)", 1760941544), ("parseISO8601('2025-02-29T00:00:00Z')", 0)],
    "parseQuery": [("parseQuery(q)['en']", "page view"), ("parseQuery('a=%zz')['a'] == nil", True)],
    "parseUserAgent": [("parseUserAgent('X Firefox/1 (Macintosh)', 'os')", "macOS"), ("parseUserAgent(none, 'os')", "")],
    "repeat": [("repeat('ab', 3)", "ababab")],
    "replace": [("replace(s, 'ß', 'ss')", "Strasse, Köln"), ("replace('ab', '', '-')", "-a-b-")],
    "reverse": [("reverse([1, 2])", [2, 1])],
    "round": [("round(f)", 3), ("round(-2.5)", -3)],
    "sort": [("sort(['b', 'é', 'B'])", ["B", "b", "é"]), ("sort([1, 3, 2], 'desc')", [3, 2, 1])],
    "split": [("split('a,,b', ',')", ["a", "", "b"]), ("split('éa', '')", ["é", "a"])],
    "splitAfter": [("splitAfter('a,b', ',')", ["a,", "b"])],
    "string": [("string(f)", "2.5"), ("string(none)", "<nil>"), ("string(2000000.0)", "2e+06"), ("string(b)", "true")],
    "sum": [("sum(xs)", 6), ("sum(xs, # * 2)", 12), ("sum([])", 0)],
    "take": [("take([1, 2, 3], 2)", [1, 2])],
    "toBase64": [("toBase64('é')", "w6k=")],
    "toDate": [("toDate(1729411544)", "2024-10-20"), ("toDate(-1)", "1969-12-31")],
    "toFloat": [("toFloat('4.5')", 4.5), ("toFloat('x')", 0), ("toFloat(none)", 0)],
    "toInt": [("toInt('-4.5')", -5), ("toInt('x')", 0), ("toInt(i)", -7)],
    "toString": [("toString(none)", ""), ("toString(2000000.0)", "2000000")],
    "trim": [("trim('\\t a\\u00a0')", "a")],
    "trimPrefix": [("trimPrefix('ab', 'a')", "b"), ("trimPrefix('  a')", " a")],
    "trimSuffix": [("trimSuffix('ab', 'b')", "a")],
    "type": [("type(i)", "float"), ("type(1)", "int"), ("type(o)", "map"), ("type(none)", "nil"), ("type(xs[0])", "float")],
    "uniq": [("uniq([1, 2, 1])", [1, 2])],
    "upper": [("upper(s)", "STRAßE, KÖLN")],
    "urlDecode": [("urlDecode('a+b%20c')", "a b c"), ("urlDecode(none)", "")],
    "waterfall": [("waterfall(none, '', i, 'x')", "-7"), ("waterfall([none, 'EUR'])", "EUR"), ("waterfall(ws)", "b")],
}


def test_page_is_up_to_date() -> None:
    page = Path(__file__).parents[4] / TARGET
    assert page.read_text(encoding="utf-8") == render(), "run `python -m pipelines.expressions.expr_lang.docs`"


def test_each_function_has_an_example() -> None:
    assert set(EXAMPLES) == {*FUNCTIONS, *(usage.partition("(")[0] for usage in PREDICATES)}


@pytest.mark.parametrize(("expression", "expected"), [example for examples in EXAMPLES.values() for example in examples])
def test_a_function_gives_the_value_of_its_example(expression: str, expected: Any) -> None:
    assert evaluated(stage_engine().connection, expression, FIELDS, [RECORD]) == [expected]


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_that_is_not_translated_says_why(name: str) -> None:
    with pytest.raises(ValueError, match=f"the function {name} is not supported: "):
        translate(f"{name}(xs, # > 1)" if name in ("groupBy", "sortBy", "reduce") else f"{name}(xs)", FIELDS)


def called(node: Any) -> Iterator[str]:
    """Yield the functions that a tree of DuckDB calls."""
    # The variables of a lambda look like a call of `row`.
    parts = [part for key, part in node.items() if key != "lhs"] if isinstance(node, dict) else node
    for child in parts:
        if isinstance(child, dict | list):
            yield from called(child)
    if isinstance(node, dict) and "function_name" in node:
        yield node["function_name"]


OPERATORS = (
    *(
        "i + 1 - f * 2 / 3 < 4",
        "s[1:2] + 'x' matches '^a'",
        "xs[0] > 1 and not (s contains 'x')",
        "s startsWith 'a' or s endsWith 'b'",
        "-i in 1..3",
    ),
    *("int(i) % 2", "2 ** f == 1 / i", "xs", "o?.a ?? 1", "map(1..3, # + 1)", "'a' in o", "len(o.a)", "xs[0] ?? s"),
)


def test_a_translation_calls_what_it_says() -> None:
    expressions = [*(expression for examples in EXAMPLES.values() for expression, _ in examples), *OPERATORS]
    found: set[str] = set()
    with open_engine() as engine:
        for expression in expressions:
            sql = f"SELECT ({translate(expression, FIELDS)})"
            found |= set(called(json.loads(engine.connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()[0][0])))
    assert found == EMITTED
