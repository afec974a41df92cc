"""The tokens of a ClickHouse type's text, read one by one: names, numbers, quoted strings and marks."""

import re
from collections.abc import Iterator
from typing import NoReturn

_TIME_ZONE = re.compile(r"[A-Za-z0-9_+\-/]{1,64}\Z", re.ASCII)
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>-?[0-9]{1,20})|(?P<quoted>'(?:[^'\\]|\\.|'')*')|(?P<mark>[(),=`]))", re.S | re.A
)
_ESCAPES = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


class Cursor:
    """A place in a text. Every method leaves it after what it read; each raises ValueError, with the position, for anything else."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(self._scan())
        self.cursor = 0

    def number(self, what: str, low: int, high: int) -> int:
        number = int(self.take("number", what))
        if not low <= number <= high:
            self.fail(f"{what} between {low} and {high}", at=self.cursor - 1)
        return number

    def zone(self) -> str:
        zone = self.quoted("a time zone such as 'UTC'")
        if not _TIME_ZONE.match(zone):
            self.fail("a time zone such as 'UTC' or 'Europe/Berlin'", at=self.cursor - 1)
        return zone

    def quoted(self, what: str) -> str:
        literal = self.take("quoted", what)[1:-1]
        unknown = next((found for found in re.findall(r"\\(.)", literal, flags=re.S) if found not in _ESCAPES), None)
        if unknown is not None:
            self.fail(f"a known escape in the string, got \\{unknown}", at=self.cursor - 1)
        return re.sub(r"\\(.)|''", lambda found: _ESCAPES[found[1]] if found[1] else "'", literal, flags=re.S)

    def mark(self, mark: str) -> None:
        if not self.skip(mark):
            self.fail(repr(mark))

    def skip(self, mark: str) -> bool:
        """Read the mark if it comes next; return whether it does."""
        is_next = self.peek() == mark
        self.cursor += is_next
        return is_next

    def peek(self) -> str:
        return self.tokens[self.cursor][1] if self.cursor < len(self.tokens) else ""

    def take(self, kind: str, what: str) -> str:
        if self.cursor >= len(self.tokens) or self.tokens[self.cursor][0] != kind:
            self.fail(what)
        self.cursor += 1
        return self.tokens[self.cursor - 1][1]

    def _scan(self) -> Iterator[tuple[str, str, int]]:
        position, end = 0, len(self.text.rstrip())
        while position < end:
            token = _TOKEN.match(self.text, position, end)
            if token is None or token.lastgroup is None:
                while self.text[position].isspace():
                    position += 1
                raise ValueError(f"type {self.text[:200]!r}, position {position + 1}: unexpected text")
            yield token.lastgroup, token[token.lastgroup], token.start(token.lastgroup)
            position = token.end()

    def fail(self, expected: str, at: int | None = None) -> NoReturn:
        """Raise ValueError at the token number `at`, by default the next one."""
        at = self.cursor if at is None else at
        position = self.tokens[at][2] if at < len(self.tokens) else len(self.text)
        raise ValueError(f"type {self.text[:200]!r}, position {position + 1}: expected {expected}")
