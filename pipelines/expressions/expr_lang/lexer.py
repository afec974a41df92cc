"""The tokens of an expression of expr-lang, by the rules of its lexer (parser/lexer of expr 1.17.7)."""

import re
from dataclasses import dataclass
from typing import Literal

from pipelines.expressions.expr_lang.nodes import fault

MAX_LENGTH = 4000
"""Limits the characters of an expression."""

TokenKind = Literal["name", "number", "string", "operator", "bracket", "end"]
_WORDS = frozenset({"not", "in", "or", "and", "matches", "contains", "startsWith", "endsWith", "let", "if", "else"})
_SPACE = frozenset("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(code) for code in range(0x2000, 0x200B)}
_NUMBER = re.compile(r"(0[xX][0-9a-fA-F_]*|0[oO][0-7_]*|0[bB][01_]*|[0-9_]*)(\.(?!\.)[0-9_]*)?([eE][+-]?[0-9_]*)?")
_OPERATOR = re.compile(r"\|\|?|::?|\?[.?]?|[&!=*<>][&=*]?|\.\.?|##?|[,;%+\-^/]")
_ESCAPE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}|U([0-9a-fA-F]{8})|([0-3][0-7]{2})")
_SHORT = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}


@dataclass(frozen=True)
class Token:
    """A token: its kind, its text (a string's is unescaped), and where it starts."""

    kind: TokenKind
    text: str
    at: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


def tokens(text: str) -> list[Token]:
    """Cut `text` into tokens, the last of kind `end`. Raises ValueError with the position of a mistake."""
    if len(text) > MAX_LENGTH:
        raise fault(f"the expression is longer than {MAX_LENGTH} characters", MAX_LENGTH)
    found: list[Token] = []
    at = 0
    while (at := _skip(text, at)) < len(text):
        token, at = _token(text, at)
        found.append(token)
    return [*found, Token("end", "", len(text))]


def _skip(text: str, at: int) -> int:
    """Return where the next token starts: behind spaces and comments."""
    while at < len(text):
        if text.startswith("//", at):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            if end < 0:
                raise fault("the comment has no end", at)
            at = end + 2
        elif text[at] in _SPACE:
            at += 1
        else:
            break
    return at


def _token(text: str, at: int) -> tuple[Token, int]:
    """Return the token at `at`, and where it ends."""
    first = text[at]
    if first in "\"'":
        return _string(text, at)
    if first == "`":
        return _raw_string(text, at)
    if first in "0123456789" or (first == "." and text[at + 1 : at + 2] in tuple("0123456789")):
        return _number(text, at)
    if first in "([{}])":
        return Token("bracket", first, at), at + 1
    if _is_word(first):
        end = at + 1
        while end < len(text) and _is_word(text[end]):
            end += 1
        word = text[at:end]
        return Token("operator" if word in _WORDS else "name", word, at), end
    if found := _OPERATOR.match(text, at):
        return Token("operator", found.group(), at), found.end()
    raise fault(f"the character {first!r} is not part of expr-lang", at)


def _is_word(character: str) -> bool:
    return character in "_$" or character.isalpha() or character.isdecimal()


def _number(text: str, at: int) -> tuple[Token, int]:
    found = _NUMBER.match(text, at)
    if found is None or (found.end() < len(text) and _is_word(text[found.end()])):
        raise fault("this is not a number", at)
    return Token("number", found.group(), at), found.end()


def _raw_string(text: str, at: int) -> tuple[Token, int]:
    """Read a string in backticks, in which two backticks are one."""
    found = re.compile(r"`((?:[^`]|``)*)`").match(text, at)
    if found is None:
        raise fault("the string has no end", at)
    return Token("string", _sound(found.group(1).replace("``", "`"), at), at), found.end()


def _string(text: str, at: int) -> tuple[Token, int]:
    quote, parts, end = text[at], [], at + 1
    while text[end : end + 1] != quote:
        if end >= len(text) or text[end] == "\n":
            raise fault("the string has no end", at)
        if text[end] == "\\":
            part, end = _escape(text, end, quote)
        else:
            part, end = "\n" if text[end] == "\r" else text[end], end + 1
        parts.append(part)
    return Token("string", _sound("".join(parts), at), at), end + 1


def _escape(text: str, at: int, quote: str) -> tuple[str, int]:
    """Return what the escape at `at` stands for, and where it ends."""
    following = text[at + 1 : at + 2]
    if following == quote:
        return quote, at + 2
    if following in _SHORT:
        return _SHORT[following], at + 2
    found = _ESCAPE.match(text, at + 1)
    if found is None:
        raise fault("the string has an escape that expr-lang does not know", at)
    octal = found.group(5)
    code = int(octal, 8) if octal else int(next(digits for digits in found.groups() if digits), 16)
    if code > 0x10FFFF:
        raise fault("the string has an escape beyond Unicode", at)
    # Go writes half a surrogate pair as the replacement character.
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else chr(code), found.end()


def _sound(value: str, at: int) -> str:
    if "\0" in value or any(0xD800 <= ord(character) <= 0xDFFF for character in value):
        raise fault("the string holds the character 0 or half a surrogate pair, which SQL text cannot hold", at)
    return value
