"""The parser of expr-lang: precedence climbing over the tokens, by the rules of parser/parser.go of expr 1.17.7."""

from collections.abc import Callable

from pipelines.expressions.expr_lang.lexer import Token, tokens
from pipelines.expressions.expr_lang.nodes import (
    MAX_DEPTH,
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

BINARY = {
    "|": 0,
    **dict.fromkeys(("or", "||"), 10),
    **dict.fromkeys(("and", "&&"), 15),
    **dict.fromkeys(("==", "!=", "<", ">", ">=", "<=", "in", "matches", "contains", "startsWith", "endsWith"), 20),
    "..": 25,
    **dict.fromkeys(("+", "-"), 30),
    **dict.fromkeys(("*", "/", "%"), 60),
    **dict.fromkeys(("**", "^"), 100),
    "??": 500,
}
"""The precedence of each binary operator; the higher binds first."""
_UNARY = {"not": 50, "!": 50, "-": 90, "+": 90}
_NEGATED = frozenset({"in", "matches", "contains", "startsWith", "endsWith"})
_COMPARISONS = frozenset({"<", ">", "<=", ">="})
_SPELLINGS = {"&&": "and", "||": "or", "^": "**", "!": "not"}
_TAKE_PREDICATE = ("all", "none", "any", "one", "filter", "map", "count", "sum", "find", "findIndex", "findLast", "findLastIndex")
PREDICATE_FUNCTIONS = frozenset({*_TAKE_PREDICATE, "groupBy", "sortBy", "reduce"})
"""The functions whose second argument is evaluated for each element."""
_POINTERS = {"map": ("index",), "reduce": ("index", "acc")}
"""What `#` may name beside the element, by the function whose predicate it stands in (checker.go of expr 1.17.7)."""


def parse(text: str) -> Node:
    """Parse `text`. Raises ValueError with one sentence and the position of the mistake."""
    parser = _Parser(tokens(text))
    node = parser.expression(0)
    if parser.current.kind != "end":
        raise parser.unexpected()
    return node


class _Parser:
    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._next = 0
        self._nesting = 0
        self._predicates: list[str] = []

    @property
    def current(self) -> Token:
        return self._tokens[self._next]

    def unexpected(self) -> ValueError:
        if self.current.text == ";":
            return fault("several expressions, separated by `;`, are not supported", self.current.at)
        return fault(f"{self.current} is not expected here", self.current.at)

    def _advance(self) -> Token:
        token = self.current
        if token.kind != "end":
            self._next += 1
        return token

    def _is(self, *texts: str) -> bool:
        return self.current.kind in ("operator", "bracket") and self.current.text in texts

    def _take(self, text: str) -> bool:
        """Step over `text` if it stands here, and report whether it did."""
        return self._is(text) and bool(self._advance())

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise fault(f"{text!r} is expected here, not {self.current}", self.current.at)

    def _name(self) -> Token:
        if self.current.kind != "name":
            raise fault(f"a name is expected here, not {self.current}", self.current.at)
        return self._advance()

    def expression(self, precedence: int) -> Node:
        self._nesting += 1
        if self._nesting > MAX_DEPTH:
            raise fault(f"the expression nests deeper than {MAX_DEPTH} levels", self.current.at)
        try:
            return self._expression(precedence)
        finally:
            self._nesting -= 1

    def _expression(self, precedence: int) -> Node:
        if precedence == 0 and self._is("let"):
            return self._let()
        if precedence == 0 and self._is("if"):
            return self._if()
        node = self._primary()
        previous = ""
        while (token := self._operator(precedence)) is not None:
            if previous == "??" and token.text != "??":
                raise fault(f"{token.text!r} and `??` cannot be mixed; put one of them in parentheses", token.at)
            node = self._binary(node, token)
            previous = token.text
        return self._conditional(node) if precedence == 0 else node

    def _operator(self, precedence: int) -> Token | None:
        """Step over a binary operator that binds at least as strongly; a negated one is two tokens, and its text starts with `not `."""
        token = self.current
        negated = self._is("not")
        operator = self._tokens[self._next + 1] if negated else token
        if negated and operator.text not in _NEGATED:
            raise fault(f"{operator} is not expected behind `not`", operator.at)
        if operator.kind != "operator" or BINARY.get(operator.text, -1) < precedence:
            return None
        self._next += 2 if negated else 1
        return Token("operator", f"not {operator.text}" if negated else operator.text, operator.at)

    def _binary(self, left: Node, token: Token) -> Node:
        operator = token.text.removeprefix("not ")
        if operator == "|":
            return self._call(self._name(), (left,))
        if operator in _COMPARISONS:
            return self._comparisons(left, token)
        binds = BINARY[operator]
        right = self.expression(binds if operator in ("**", "^") else binds + 1)
        node = Binary(token.at, _SPELLINGS.get(operator, operator), left, right)
        return Unary(token.at, "not", node) if token.text != operator else node

    def _comparisons(self, left: Node, token: Token) -> Node:
        """Parse `a < b < c`, which is `a < b and b < c`."""
        root: Node | None = None
        while True:
            right = self.expression(BINARY[token.text] + 1)
            node = Binary(token.at, token.text, left, right)
            root = node if root is None else Binary(token.at, "and", root, node)
            if not self._is(*_COMPARISONS):
                return root
            left, token = right, self._advance()

    def _let(self) -> Node:
        self._expect("let")
        name = self._name()
        self._expect("=")
        value = self.expression(0)
        self._expect(";")
        return Let(name.at, name.text, value, self.expression(0))

    def _if(self) -> Node:
        at = self._advance().at
        condition = self.expression(0)
        self._expect("{")
        then = self.expression(0)
        self._expect("}")
        self._expect("else")
        if self._is("if"):
            return Conditional(at, condition, then, self.expression(0))
        self._expect("{")
        otherwise = self.expression(0)
        self._expect("}")
        return Conditional(at, condition, then, otherwise)

    def _conditional(self, node: Node) -> Node:
        while self._is("?"):
            at = self._advance().at
            if self._take(":"):
                node = Conditional(at, node, node, self.expression(0))
            else:
                then = self.expression(0)
                self._expect(":")
                node = Conditional(at, node, then, self.expression(0))
        return node

    def _primary(self) -> Node:
        token = self.current
        if token.kind == "operator" and token.text in _UNARY:
            self._advance()
            operand = self.expression(_UNARY[token.text])
            match token.text:
                case "-" | "+" as sign:
                    return self._postfix(Unary(token.at, sign, operand))
            return self._postfix(Unary(token.at, "not", operand))
        if self._take("("):
            node = self.expression(0)
            self._expect(")")
            return self._postfix(node)
        if self._predicates and self._is("#", "."):
            return self._postfix(self._pointer())
        if self._is("::"):
            raise fault("`::` is not supported", token.at)
        return self._secondary()

    def _pointer(self) -> Node:
        at = self.current.at
        if self._take("#") and self.current.kind == "name" and self.current.at == at + 1:
            name, function = self._advance().text, self._predicates[-1]
            if name in _POINTERS.get(function, ()):
                return Pointer(at, name)
            raise fault(f"`#{name}` is unknown in {function}; there is `#`, and in map `#index`", at)
        return Pointer(at, "")

    def _secondary(self) -> Node:
        token = self.current
        if token.kind == "number":
            self._advance()
            return Constant(token.at, _number(token))
        if token.kind == "string":
            self._advance()
            return self._postfix(Constant(token.at, token.text))
        if token.kind == "name":
            self._advance()
            if token.text in _LITERALS:
                return Constant(token.at, _LITERALS[token.text])
            return self._postfix(self._call(token, ()) if self._is("(") else Name(token.at, token.text))
        if self._take("["):
            return self._postfix(Array(token.at, self._list("]", lambda: self.expression(0))))
        if self._is("{"):
            raise fault("a map is not supported", token.at)
        raise self.unexpected()

    def _list(self, closing: str, item: Callable[[], Node]) -> tuple[Node, ...]:
        """Parse items up to `closing`; a comma may stand before it."""
        items: list[Node] = []
        while not self._take(closing):
            if items:
                self._expect(",")
                if self._take(closing):
                    break
            items.append(item())
        return tuple(items)

    def _call(self, token: Token, piped: tuple[Node, ...]) -> Node:
        self._expect("(")
        if token.text not in PREDICATE_FUNCTIONS:
            return Call(token.at, token.text, piped + self._list(")", lambda: self.expression(0)))
        arguments = list(piped)

        def argument() -> Node:
            arguments.append(self._predicate(token.text) if len(arguments) == 1 else self.expression(0))
            return arguments[-1]

        self._list(")", argument)
        return Call(token.at, token.text, tuple(arguments))

    def _predicate(self, function: str) -> Node:
        at = self.current.at
        braced = self._take("{")
        self._predicates.append(function)
        body = self.expression(0)
        self._predicates.pop()
        if braced:
            self._expect("}")
        return Predicate(at, body)

    def _postfix(self, node: Node) -> Node:
        while self._is(".", "?.", "["):
            token = self._advance()
            optional = token.text == "?."
            if token.text == "[" or (optional and self._take("[")):
                node = self._index(node, token.at, optional)
            else:
                node = self._member(node, optional)
        return node

    def _member(self, node: Node, optional: bool) -> Node:
        token = self._advance()
        if token.kind != "name" and not (token.kind == "operator" and token.text.isalpha()):
            raise fault(f"a name is expected here, not {token}", token.at)
        chained = isinstance(node, Chain)
        member = Member(token.at, node.body if isinstance(node, Chain) else node, Constant(token.at, token.text), optional)
        if self._is("("):
            raise fault(f"{token.text!r} is a method, and values have none", token.at)
        return Chain(token.at, member) if chained or optional else member

    def _index(self, node: Node, at: int, optional: bool) -> Node:
        if self._take(":"):
            stop = None if self._is("]") else self.expression(0)
            self._expect("]")
            return Slice(at, node, None, stop)
        start = self.expression(0)
        if self._take(":"):
            stop = None if self._is("]") else self.expression(0)
            self._expect("]")
            return Slice(at, node, start, stop)
        self._expect("]")
        member = Member(at, node, start, optional)
        return Chain(at, member) if optional else member


_LITERALS: dict[str, bool | None] = {"true": True, "false": False, "nil": None}
_LARGEST = 2**63 - 1


def _number(token: Token) -> int | float:
    """Read a number as Go does: an integer of 64 bits, or a float if it has a point or an exponent."""
    text = token.text.replace("_", "").lower()
    try:
        if text.startswith(("0x", "0b", "0o")):
            value: int | float = int(text, 0)
        elif "." in text or "e" in text:
            value = float(text)
        else:
            value = int(text)
    except ValueError:
        raise fault("this is not a number", token.at) from None
    if (isinstance(value, int) and value > _LARGEST) or value == float("inf"):
        raise fault("the number is too large", token.at)
    return value
