"""Random expressions of expr-lang over a fixed set of fields, and random records for them.

Left out are the differences that docs/expr-lang.md names: integers beyond 53 bits, text cut inside a character or decoded to no UTF-8,
an index of a string, parameters given several times, `toDate` of nil, years beyond four digits, a bare JSON value or `split` of an
empty text as the result, numbers that only Go reads (in hex, with underscores, infinite), powers that Go rounds otherwise, `-0`, `min`
and `max` that start with a literal, an element that fails behind the one that decides `filter(...)[0]`, and `findLast` or
`filter(...)[-1]` as a right operand, which expr-lang 1.17.7 gets wrong.
"""

import json
import random
import re
from collections.abc import Callable
from typing import Any

FIELDS = {
    "s": "string",
    "t": "string",
    "i": "int",
    "j": "int32",
    "f": "float",
    "g": "float",
    "b": "bool",
    "c": "bool",
    "xs": "array",
    "ws": "array",
    "o": "object",
    "q": "string",
    "at": "string",
    "agent": "string",
    "p.x": "float",
    "p.name": "string",
}
_STRINGS = (
    *(
        "",
        "a",
        "abc",
        "Hello World",
        "héllo",
        "日本語",
        "👍🏽x",
        " pad ",
        "\t x\n",
        "5",
        "-7",
        "4.2",
        "1e3",
        ".5",
        "+3",
        "007",
        "a,b,,c",
        "ab",
    ),
    *("true", "%41+b%20c", "%4", "a%zz", "nil", "it's", 'say "x"', "back\\slash", "aaa", "A", "zebra", "x\u00a0", "9" * 15, "a.b", "-0.50"),
)
_INTEGERS = (0, 1, -1, 2, 3, 5, 7, 10, -3, 100, 1000, -250, 2**31 - 1, 1729411544)
_LARGE = (2**40, -(2**40))
_FLOATS = (0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-5, 1e10, 1e-7, 123456.789, 0.1, 0.2, 3.0, -7.0, 1e15, 1e16, 1.2345678901234567e17)
_QUERIES = (
    "",
    "a=1&b=2",
    "cid=22.17&sid=9&en=page%20view",
    "a=%41&b=x+y",
    "a",
    "a=",
    "=v",
    "a=1;b=2",
    "a=%zz&b=1",
    "&&a=b=c",
    "ep.value=1.5&é=ü",
)
_TIMES = (
    *(
        "",
        "2025-10-20 08:25:44.068833",
        "2025-10-20T08:25:44.068833Z",
        "2025-10-20T08:25:44Z",
        "2025-10-20T08:25:44+02:00",
        "x",
        "2024-02-29T1:02:03Z",
    ),
    *(
        "2023-02-29T01:02:03Z",
        "2025-10-20T08:25:44.1-23:59",
        "2025-10-20T24:00:00Z",
        "2025-10-20",
        "1969-12-31T23:59:59Z",
        "2025-10-20 08:25:44",
    ),
    *("2025-10-20T08:60:44Z", "2025-10-20T08:25:60Z", "2025-13-20T08:25:44Z", "2025-10-20T08:25:44,5Z", "2025-10-20T08:25:44+24:60"),
)
_AGENTS = (
    "",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 14_0 like Mac OS X)",
    "Mozilla/5.0 (Linux; Android 11; SM-G991B) Mobile Chrome/9",
    "Mozilla/5.0 (Windows NT 10.0) Chrome/120 Safari/537 Edg/120",
    "Mozilla/5.0 (X11; Linux) Firefox/1",
    "Mozilla/5.0 (iPad) CriOS/1",
    "Mozilla/5.0 (Macintosh) Safari/605",
    "Android tablet",
)


def records(draw: random.Random, count: int) -> list[dict[str, Any]]:
    """Make records for `FIELDS`, in which fields are null or missing now and then."""
    return [_record(draw) for _ in range(count)]


def _record(draw: random.Random) -> dict[str, Any]:
    choose = draw.choice
    values: dict[str, Callable[[], Any]] = {
        "s": lambda: choose(_STRINGS),
        "t": lambda: choose(_STRINGS),
        "i": lambda: choose((*_INTEGERS, *_LARGE)),
        "j": lambda: choose(_INTEGERS[:-2]),
        "f": lambda: choose(_FLOATS),
        "g": lambda: choose((*_FLOATS, *_INTEGERS)),
        "b": lambda: draw.random() < 0.5,
        "c": lambda: draw.random() < 0.5,
        "xs": lambda: [
            choose((1, 2, 3.5, -4, 10, 0, "a", None, True)) if draw.random() < 0.15 else choose(_INTEGERS) for _ in range(draw.randrange(4))
        ],
        "ws": lambda: [choose((None, 5, "")) if draw.random() < 0.1 else choose(_STRINGS) for _ in range(draw.randrange(4))],
        "o": lambda: {key: choose((1, 2.5, "a", "", None, True, [1], {"z": 1})) for key in ("k", "m", "n n") if draw.random() < 0.7},
        "q": lambda: choose(_QUERIES),
        "at": lambda: choose(_TIMES),
        "agent": lambda: choose(_AGENTS),
    }
    record = {name: None if draw.random() < 0.06 else value() for name, value in values.items() if draw.random() > 0.06}
    # A dotted field of an object that is missing differs, so the object is always there.
    return {
        **record,
        "p": {
            name: value
            for name, value in (("x", choose((*_FLOATS, 1e21, -1e21, None))), ("name", choose((*_STRINGS, None))))
            if draw.random() > 0.1
        },
    }


LEAVES = {
    "number": ("i", "j", "f", "g", "p.x", "1", "2.5", "10", "0", "0.5", "-3", "1_0", "0x1f", "1e2"),
    "whole": ("1", "2", "7", "-4", "len(s)", "len(xs)", "int(j)", "0"),
    "text": ("s", "t", "p.name", "q", "{literal}", "{literal}"),
    "truth": ("b", "c", "true", "false", "b == true", "i > 2", "s != nil", "f == nil"),
    "numbers": ("xs", "[1, 2, 3]", "[0.5, i]", "1..4", "[]", "[j]"),
    "texts": ("ws", "['a', 'b']", "[s, t]", "split('a,b,,c', ',')", "keys(o)", "keys(parseQuery(q))"),
}
"""Expressions of each kind without a part: `whole` is an integer of Go, `numbers` and `texts` are arrays."""

RULES = {
    "number": (
        "({number} «+~-» {number})",
        "{number} «+~-» «1~2~0.5~j»",
        "({number}) * «1~2~3~0.5»",
        "({number} / «2~4~j~f~0~0.0»)",
        "(-({number}) + 0)",
        "«2~3~0.5~10~-2» «**~^» «2~0.5~3~0~-1»",
        "({truth} ? {number} : {number})",
        "(«i~f~g~nil~p.x» ?? {number})",
        "«abs~ceil~floor~round~float»({number})",
        "«min~max»(«i~j~f~g», {number})",
        "toFloat({number})",
        "toFloat({text})",
        "float(«s~t~ws[0]»)",
        "«sum~mean~median~max~min»({numbers})",
        "(xs[«0~1~-1~j~len(xs) - 1»] + {number})",
        "(xs | map(# + 1) | sum())",
        "{number #}",
    ),
    "whole": (
        "len(«{text}~xs~o~{numbers}~parseQuery(q)»)",
        "int(«i~j~f~s~t~xs[0]~ws[0]»)",
        "toInt(«i~j~s~t~b~at~nil»)",
        "({whole} «+~-» {whole})",
        "({whole} % «2~3~-5~len(s)~int(j)»)",
        "«indexOf~lastIndexOf»({text}, «{literal}~t»)",
        "parseISO8601(«at~s»)",
        "«bitand~bitor~bitxor~bitnand»({whole}, {whole})",
        "bitnot({whole})",
        "count({numbers}, {number predicate})",
        "findIndex({numbers}, {number predicate})",
        "({truth} ? {whole} : {whole})",
        "{index}",
    ),
    "text": (
        "({text} + {text})",
        "«upper~lower~trim~toString»(«{text}~{text}~{number}~{truth}~o.k~xs[0]»)",
        "string(«{text}~{number}~{truth}~{whole}~ws[0]»)",
        "«trimPrefix~trimSuffix»({text}, «{literal}~t»)",
        "replace({text}, {literal}, {text})",
        "repeat({text}, «0~1~3~-1~len(t)»)",
        "join({texts}, {literal})",
        "({truth} ? {text} : {text})",
        "(«s~p.name~nil» ?? {text})",
        "waterfall([{text}, «{text}~{number}», 'end'])",
        "waterfall(«s~i~nil~b», {text})",
        "toDate(«j ?? 5~parseISO8601(at)»)",
        "getQueryParam(q, «'a'~'cid'~s»)",
        "(parseQuery(q)[«'b'~'en'»] ?? 'none')",
        "urlDecode(«s~q~t»)",
        "extractPathType(«s~'/g/collect'»)",
        "parseUserAgent(agent, «'device'~'browser'~'os'~'x'»)",
        "toBase64({text})",
        "fromBase64(«toBase64(s)~toBase64(t)~s + '!'»)",
        "type(«s~i~b~xs~o~o.k~xs[0]~len(s)~nil~at»)",
        "«ws~[s, t]~keys(o)~split(s, ',')»[«0~1~-1»] + ''",
        "«'abcdef'~type(s)»[«1:3~:2~-2:~0:0~3:1~j:~:-1~2:99~:»]",
        "string((o?.k ?? «'none'~1~true») == «'a'~1~2.5»)",
        "{text #}",
    ),
    "truth": (
        "({truth} «and~or~&&~||» {truth})",
        "«not~!» ({truth})",
        "{number} «<~>~<=~>=~==~!=» «{number}~{whole}»",
        "{text} «<~>~<=~>=~==~!=» {text}",
        "«s~i~b~xs~o.k~o~ws[0]~p.x» «==~!=» nil",
        "{text} «~not »«contains~startsWith~endsWith» {text}",
        "s «~not »matches «'^a'~'b+c'~'[0-9]+$'~'(?i)HE'~'l.o'~'é'»",
        "{text} «~not »in «[{literal}, 'a']~ws»",
        "{number} «~not »in «[1, 2.5, 10]~[1, nil, 7]~1..5~-3..100~xs~[i, f]»",
        "«containsStr~hasPrefix~hasSuffix»({text}, {text})",
        "«all~any~none~one»({numbers}, {number predicate})",
        "«all~any~none~one»({texts}, {text predicate})",
        "({truth} ? {truth} : {truth})",
        "o«.k~?.m~['n n']~.k?.z» == «1~'a'~true~2.5~nil~s»",
        "«hasAnyKey~hasKeyPrefix»(«o~parseQuery(q)», «['k']~['a', s]~ws»)",
        "«s~'k'» in o",
        "«i~f~1» < «j~2.5» < «g~10»",
        "any([1, 2, 3], any([j, 2], # == «2~#~f»))",
        "xs[0] «==~>~!=» {number}",
    ),
    "numbers": (
        "map({numbers}, {number body})",
        "filter(«xs~[1, 2, 3]~1..4», # «== 1~!= nil~!= 3»)",
        "«xs~[1, 2, 3]~1..4»[«1:~:2~0:1~-2:~:-1~1:j~:»]",
        "reverse({numbers})",
        "take(«xs~[j]~1..4», «1~0~2~len(s)»)",
        "sort([«i~f», «g~1», 2], 'desc')",
        "uniq([1, 2, 1, j, 2])",
        "concat([1, 2], [3])",
    ),
    "texts": (
        "split({text} + 'x', {literal})",
        "splitAfter({text}, {literal})",
        "map(«ws~[s, t]», {text body})",
        "filter(«ws~[s, t]~keys(o)», # != 'a')",
        "sort(['b', 'a', 'é', 'B'])",
        "reverse(«ws~[s, t]»)",
    ),
}
"""Expressions of each kind: `«a~b»` is one of the alternatives, `{kind}` an expression of the kind, one level less deep."""

TOP = (
    *("{truth}", "{truth}", "{number}", "{number}", "{text}", "{text}", "{whole}", "{numbers}", "{texts}"),
    *("let v = {number}; v + i", "if {truth} { {number} } else { {number} }", "{text} | «upper()~trim()~replace('a', 'o')»"),
)
_CHOICE = re.compile(r"«([^«»]*)»")
_PART = re.compile(r"\{(\w+)(?: (#|predicate|body))?\}")
_DEPTH = 4


class Grammar:
    """Draws expressions by the rules."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._elements: list[str] = []

    def expression(self) -> str:
        """Draw an expression of any kind that a record can hold."""
        return self._filled(self._draw.choice(TOP), _DEPTH)

    def _filled(self, rule: str, depth: int) -> str:
        chosen = _CHOICE.sub(lambda found: self._draw.choice(found.group(1).split("~")), rule)
        return _PART.sub(lambda found: self._part(found.group(1), found.group(2), depth), chosen)

    def _of(self, kind: str, depth: int) -> str:
        is_leaf = depth <= 0 or self._draw.random() < 0.2
        return self._filled(self._draw.choice((LEAVES if is_leaf else RULES)[kind]), depth - 1)

    def _part(self, kind: str, role: str | None, depth: int) -> str:
        if kind == "literal":
            return self._literal()
        if kind == "index":
            return "#index" if self._elements else "3"  # both sides refuse it in a predicate other than of map
        if role == "#":
            return "#" if self._elements and self._elements[-1] == kind else self._of(kind, depth)
        if role is None:
            return self._of(kind, depth)
        self._elements.append(kind)
        body = self._of(kind, min(depth, 2)) if role == "body" else self._predicate(kind, min(depth, 2))
        self._elements.pop()
        return body

    def _predicate(self, kind: str, depth: int) -> str:
        limit = self._literal() if kind == "text" else self._draw.choice(("1", "2.5", "j"))
        comparison = self._draw.choice(("# «<~>~==~!=~>=» {limit}", "# != nil and # > {limit}", "{truth} or # == {limit}"))
        body = self._filled(comparison.replace("{limit}", limit.replace("{", "")), depth)
        return self._draw.choice((body, "{" + body + "}"))

    def _literal(self) -> str:
        value = self._draw.choice(_STRINGS)
        if "\\" in value or "\n" in value or self._draw.random() < 0.7:
            return json.dumps(value, ensure_ascii=False)
        return "'" + value.replace("'", "\\'") + "'"
