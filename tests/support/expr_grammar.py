"""Random expressions of expr-lang over a fixed set of fields, and random records for them.

Left out are the differences that docs/expr-lang.md names: integers beyond 53 bits, a string cut inside a character, an index of a string,
parameters given several times, findLast as an operand (wrong in expr-lang 1.17.7), a bare JSON value as the result, a bare `split` of an empty text, text that is a number only for Go (hex,
underscores, infinite), letters with special cases, a predicate that fails behind the element that decides `filter`, and years beyond four
digits.
"""

import json
import random
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


class Grammar:
    """Draws expressions: each method gives the text of one whose value is of its kind, or nil, or whose evaluation fails."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._element: list[str] = []

    def expression(self) -> str:
        """Draw an expression of any kind that a record can hold."""
        return self._pick(self.truth, self.truth, self.number, self.number, self.text, self.text, self.whole, self.result_list)(4)

    def _pick(self, *options: Callable[..., str]) -> Callable[..., str]:
        return self._draw.choice(options)

    def _one(self, *options: str) -> str:
        return self._draw.choice(options)

    def _literal_text(self) -> str:
        value = self._draw.choice(_STRINGS)
        return (
            json.dumps(value, ensure_ascii=False)
            if "\\" in value or "\n" in value or self._draw.random() < 0.7
            else "'" + value.replace("'", "\\'") + "'"
        )

    def number(self, depth: int) -> str:
        if depth <= 0 or self._draw.random() < 0.2:
            return self._one("i", "j", "f", "g", "p.x", "1", "2.5", "10", "0", "0.5", "-3", "1_0", "0x1f", "1e2")
        n, less = self.number, depth - 1
        return self._pick(
            lambda: f"({n(less)} {self._one('+', '-')} {n(less)})",
            lambda: f"{n(less)} {self._one('+', '-')} {self._one('1', '2', '0.5', 'j')}",
            lambda: f"({n(less)}) * {self._one('1', '2', '3', '0.5')}",
            lambda: f"({n(less)} / {self._one('2', '4', 'j', 'f', '0', '0.0')})",
            lambda: f"-({n(less)})",
            lambda: f"{self._one('2', '3', '0.5', 'j', 'f')} {self._one('**', '^')} {self._one('2', '0.5', '3', '0')}",
            lambda: f"({self.truth(less)} ? {n(less)} : {n(less)})",
            lambda: f"({self._one('i', 'f', 'g', 'nil', 'p.x')} ?? {n(less)})",
            lambda: f"{self._one('abs', 'ceil', 'floor', 'round', 'float')}({n(less)})",
            lambda: f"{self._one('min', 'max')}({n(less)}, {n(less)})",
            lambda: f"toFloat({self._pick(self.number, self.text)(less)})",
            lambda: f"float({self._one('s', 't', 'ws[0]')})",
            lambda: f"{self._one('sum', 'mean', 'median', 'max', 'min')}({self.number_list(less)})",
            lambda: f"(xs[{self._one('0', '1', '-1', 'j', 'len(xs) - 1')}] + {n(less)})",
            lambda: f"let v = {n(less)}; v + {n(0)}" if depth == 4 else n(less),
            lambda: f"reduceless({n(less)})".replace("reduceless", "float"),
            lambda: self._of_element("number") or n(less),
        )()

    def whole(self, depth: int) -> str:
        """Draw an expression whose value is an integer of Go."""
        if depth <= 0 or self._draw.random() < 0.2:
            return self._one("1", "2", "7", "-4", "len(s)", "len(xs)", "int(j)", "0")
        less = depth - 1
        return self._pick(
            lambda: f"len({self._pick(self.text, lambda d: 'xs', lambda d: 'o', self.number_list, lambda d: 'parseQuery(q)')(less)})",
            lambda: f"int({self._one('i', 'j', 'f', 's', 't', 'xs[0]', 'ws[0]')})",
            lambda: f"toInt({self._one('i', 'j', 's', 't', 'b', 'at', 'nil')})",
            lambda: f"({self.whole(less)} {self._one('+', '-')} {self.whole(less)})",
            lambda: f"({self.whole(less)} % {self._one('2', '3', '-5', 'len(s)', 'int(j)')})",
            lambda: f"{self._one('indexOf', 'lastIndexOf')}({self.text(less)}, {self._one(self._literal_text(), 't')})",
            lambda: f"parseISO8601({self._one('at', 's')})",
            lambda: f"{self._one('bitand', 'bitor', 'bitxor', 'bitnand')}({self.whole(less)}, {self.whole(less)})",
            lambda: f"bitnot({self.whole(less)})",
            lambda: f"count({self.number_list(less)}, {self._predicate('number', less)})",
            lambda: f"{self._one('findIndex')}({self.number_list(less)}, {self._predicate('number', less)})",
            lambda: f"({self.truth(less)} ? {self.whole(less)} : {self.whole(less)})",
            lambda: "#index" if self._element else "3",
        )()

    def text(self, depth: int) -> str:
        if depth <= 0 or self._draw.random() < 0.2:
            return self._one("s", "t", "p.name", "q", self._literal_text(), self._literal_text())
        x, less = self.text, depth - 1
        return self._pick(
            lambda: f"({x(less)} + {x(less)})",
            lambda: (
                f"{self._one('upper', 'lower', 'trim', 'toString')}({self._pick(x, x, self.number, self.truth, lambda d: 'o.k', lambda d: 'xs[0]')(less)})"
            ),
            lambda: f"string({self._pick(x, self.number, self.truth, self.whole, lambda d: 'ws[0]')(less)})",
            lambda: f"{self._one('trimPrefix', 'trimSuffix')}({x(less)}, {self._one(self._literal_text(), 't')})",
            lambda: f"replace({x(less)}, {self._literal_text()}, {x(less)})",
            lambda: f"repeat({x(less)}, {self._one('0', '1', '3', 'j % 1', '-1', 'len(t)').replace('j % 1', '2')})",
            lambda: f"join({self.text_list(less)}, {self._literal_text()})",
            lambda: f"({self.truth(less)} ? {x(less)} : {x(less)})",
            lambda: f"({self._one('s', 'p.name', 'nil')} ?? {x(less)})",
            lambda: f"waterfall([{x(less)}, {self._pick(x, self.number)(less)}, 'end'])",
            lambda: f"waterfall({self._one('s', 'i', 'nil', 'b')}, {x(less)})",
            lambda: f"toDate({self._one('j ?? 5', 'parseISO8601(at)')})",
            lambda: f"getQueryParam(q, {self._one(chr(39) + 'a' + chr(39), chr(39) + 'cid' + chr(39), 's')})",
            lambda: f"(parseQuery(q)[{self._one(chr(39) + 'b' + chr(39), chr(39) + 'en' + chr(39))}] ?? 'none')",
            lambda: f"urlDecode({self._one('s', 'q', 't')})",
            lambda: f"extractPathType({self._one('s', chr(39) + '/g/collect' + chr(39))})",
            lambda: f"parseUserAgent(agent, {self._one(*(chr(39) + part + chr(39) for part in ('device', 'browser', 'os', 'x')))})",
            lambda: f"toBase64({x(less)})",
            lambda: f"fromBase64({self._one('toBase64(s)', 'toBase64(t)', 's + ' + chr(39) + '!' + chr(39))})",
            lambda: f"type({self._one('s', 'i', 'b', 'xs', 'o', 'o.k', 'xs[0]', 'len(s)', 'nil', 'at')})",
            lambda: f"{self.text_list(less)}[{self._one('0', '-1', '1')}] + ''",
            lambda: self._of_element("text") or x(less),
        )()

    def truth(self, depth: int) -> str:
        if depth <= 0 or self._draw.random() < 0.15:
            return self._one("b", "c", "true", "false", "b == true", "i > 2", "s != nil", "f == nil")
        less = depth - 1
        return self._pick(
            lambda: f"({self.truth(less)} {self._one('and', 'or', '&&', '||')} {self.truth(less)})",
            lambda: f"{self._one('not', '!')} ({self.truth(less)})",
            lambda: f"{self.number(less)} {self._one('<', '>', '<=', '>=', '==', '!=')} {self._pick(self.number, self.whole)(less)}",
            lambda: f"{self.text(less)} {self._one('<', '>', '<=', '>=', '==', '!=')} {self.text(less)}",
            lambda: f"{self._one('s', 'i', 'b', 'xs', 'o.k', 'o', 'ws[0]', 'p.x')} {self._one('==', '!=')} nil",
            lambda: f"{self.text(less)} {self._one('', 'not ')}{self._one('contains', 'startsWith', 'endsWith')} {self.text(less)}",
            lambda: (
                f"s {self._one('', 'not ')}matches {self._one(*(chr(39) + p + chr(39) for p in ('^a', 'b+c', '[0-9]+$', '(?i)HE', 'l.o', 'é')))}"
            ),
            lambda: (
                f"{self.text(less)} {self._one('', 'not ')}in {self._one('[' + self._literal_text() + ', ' + chr(39) + 'a' + chr(39) + ']', 'ws')}"
            ),
            lambda: (
                f"{self.number(less)} {self._one('', 'not ')}in {self._one('[1, 2.5, 10]', '[1, nil, 7]', '1..5', '-3..100', 'xs', '[i, f]')}"
            ),
            lambda: f"{self._one('containsStr', 'hasPrefix', 'hasSuffix')}({self.text(less)}, {self.text(less)})",
            lambda: f"{self._one('all', 'any', 'none', 'one')}({self.number_list(less)}, {self._predicate('number', less)})",
            lambda: f"{self._one('all', 'any', 'none', 'one')}({self.text_list(less)}, {self._predicate('text', less)})",
            lambda: f"({self.truth(less)} ? {self.truth(less)} : {self.truth(less)})",
            lambda: (
                f"o{self._one('.k', '?.m', '[' + chr(39) + 'n n' + chr(39) + ']', '.k?.z')} == {self._one('1', chr(39) + 'a' + chr(39), 'true', '2.5', 'nil', 's')}"
            ),
            lambda: (
                f"{self._one('hasAnyKey', 'hasKeyPrefix')}({self._one('o', 'parseQuery(q)')}, {self._one('[' + chr(39) + 'k' + chr(39) + ']', '[' + chr(39) + 'a' + chr(39) + ', s]', 'ws')})"
            ),
            lambda: f"{self._one('s', chr(39) + 'k' + chr(39))} in o",
            lambda: f"{self.number(0)} < {self.number(0)} < {self.number(0)}",
            lambda: f"xs[0] {self._one('==', '>', '!=')} {self.number(less)}",
        )()

    def number_list(self, depth: int) -> str:
        """Draw an array of numbers; one of a field may hold other elements."""
        if depth <= 0 or self._draw.random() < 0.3:
            return self._one("xs", "[1, 2, 3]", "[0.5, i]", "1..4", "[]", "[j]")
        less = depth - 1
        return self._pick(
            lambda: f"map({self.number_list(less)}, {self._element_body('number', less)})",
            lambda: f"filter({self.number_list(0)}, # {self._one('== 1', '!= nil', '!= 3')})",
            lambda: f"{self.number_list(0)}[{self._one('1:', ':2', '0:1', '-2:', ':-1', '1:j', ':')}]",
            lambda: f"reverse({self.number_list(less)})",
            lambda: f"take({self.number_list(0)}, {self._one('1', '0', '2', 'len(s)')})",
            lambda: f"sort([{self.number(0)}, {self.number(0)}, 2], 'desc')",
            lambda: "uniq([1, 2, 1, j, 2])",
            lambda: "concat([1, 2], [3])",
        )()

    def text_list(self, depth: int) -> str:
        if depth <= 0 or self._draw.random() < 0.3:
            return self._one("ws", "['a', 'b']", "[s, t]", "split('a,b,,c', ',')", "keys(o)", "keys(parseQuery(q))")
        less = depth - 1
        return self._pick(
            lambda: f"split({self.text(less)} + 'x', {self._literal_text()})",
            lambda: f"splitAfter({self.text(less)}, {self._literal_text()})",
            lambda: f"map({self.text_list(0)}, {self._element_body('text', less)})",
            lambda: f"filter({self.text_list(0)}, # != 'a')",
            lambda: "sort(['b', 'a', 'é', 'B'])",
            lambda: f"reverse({self.text_list(0)})",
        )()

    def result_list(self, depth: int) -> str:
        return self._pick(self.number_list, self.text_list)(depth - 1)

    def _of_element(self, kind: str) -> str:
        """Draw `#` where it is of the kind."""
        return "#" if self._element and self._element[-1] == kind else ""

    def _element_body(self, kind: str, depth: int) -> str:
        self._element.append(kind)
        body = {"number": self.number, "text": self.text}[kind](min(depth, 2))
        self._element.pop()
        return body

    def _predicate(self, kind: str, depth: int) -> str:
        self._element.append(kind)
        limit = self._literal_text() if kind == "text" else self._one("1", "2.5", "j")
        body = self._one(
            f"# {self._one('<', '>', '==', '!=', '>=')} {limit}",
            f"# != nil and # > {limit}",
            f"{self.truth(min(depth, 2))} or # == {limit}",
        )
        self._element.pop()
        return self._one(body, "{" + body + "}")
