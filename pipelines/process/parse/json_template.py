"""Learns how a stream writes its JSON objects, as one regular expression that proves a text harmless.

A matching text has each known key at most once, with a value of the right JSON type that surely fits, and no other trouble (bad escapes,
NaN, stray commas). A text that does not match is unproven: the reader checks it closely.
"""

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.types.fields import SourceType, Tree
from pipelines.types.vectors import Mask, to_mask

MIN_ROWS = 512
"""Smaller batches are checked closely at once: compiling the pattern alone takes 0.6 ms.

Both cost the same at about 300 (1.5 kB) to 500 events (200 B); at 5,000 the template takes 30 % less (measured, DuckDB 2.0).
"""
_SAMPLES = 48
_MAX_MEMBERS = 64
_MAX_LEARN_BYTES = 64 * 1024
_GOOD_ENOUGH = 0.9
_PAUSE_BATCHES = 32

_WS = r"[ \t\r\n]*"
_HEX = "[0-9a-fA-F]"
_STRING = rf'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u(?:[0-9a-cA-CefEF]{_HEX}|[dD][0-7]){_HEX}{{2}})*"'
_ANY_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_FINITE_NUMBER = r"-?(?:0|[1-9][0-9]{0,19})(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,2})?"


def _scalar(number: str) -> str:
    return rf"(?:{_STRING}|{number}|true|false|null)"


def _flat_array(number: str) -> str:
    return rf"\[{_WS}(?:{_scalar(number)}{_WS}(?:,{_WS}{_scalar(number)}{_WS})*)?\]"


def _flat_object(number: str) -> str:
    member = rf"{_STRING}{_WS}:{_WS}{_scalar(number)}{_WS}"
    return rf"\{{{_WS}(?:{member}(?:,{_WS}{member})*)?\}}"


def _integer(digits: int, sign: str) -> str:
    return rf"{sign}(?:0|[1-9][0-9]{{0,{digits - 1}}})"


_VALUES = {
    "VARCHAR": _STRING,
    "BOOLEAN": "(?:true|false)",
    "TINYINT": _integer(2, "-?"),
    "SMALLINT": _integer(4, "-?"),
    "INTEGER": _integer(9, "-?"),
    "BIGINT": _integer(18, "-?"),
    "UTINYINT": _integer(2, ""),
    "USMALLINT": _integer(4, ""),
    "UINTEGER": _integer(9, ""),
    "UBIGINT": _integer(19, ""),
    "FLOAT": r"-?(?:0|[1-9][0-9]{0,19})(?:\.[0-9]+)?",
    "DOUBLE": _FINITE_NUMBER,
    "ARRAY": _flat_array(_FINITE_NUMBER),
    "OBJECT": _flat_object(_FINITE_NUMBER),
    "DECIMAL": rf"(?:{_STRING}|{_FINITE_NUMBER})",
}
"""Patterns of values of the engine's type (for JSON text: of its kind) that surely fit.

Integers are one digit short of the limit, floats far from it, inside JSON text, too.
"""
_UNREAD = rf"(?:{_scalar(_ANY_NUMBER)}|{_flat_array(_ANY_NUMBER)}|{_flat_object(_ANY_NUMBER)})"


class TemplateMemo:
    """The template of one reader, which reads `tree`; without a tree nothing is ever proven."""

    def __init__(self, tree: Tree | None) -> None:
        self._tree = tree
        self._pattern: str | None = None
        self._pause = 0

    def prove(self, texts: pa.Array) -> Mask | None:
        """Return the mask of the `texts` that are proven harmless; None if there is no template."""
        if self._tree is None or self._pause > 0:
            self._pause -= 1
            return None
        proven = self._match(texts)
        if proven is not None and proven.mean() >= _GOOD_ENOUGH:
            return proven
        self._pattern = learn(self._tree, _sample(texts))
        proven = self._match(texts)
        if proven is None or proven.mean() < _GOOD_ENOUGH:
            self._pause = _PAUSE_BATCHES
        return proven

    def _match(self, texts: pa.Array) -> Mask | None:
        if self._pattern is None:
            return None
        matches = pc.and_(pc.match_substring_regex(texts, self._pattern), pc.ends_with(texts, "}"))
        return to_mask(matches)

    def forget(self) -> None:
        """Drop the template, which has failed, until other texts have been seen."""
        self._pattern, self._pause = None, _PAUSE_BATCHES


def learn(tree: Tree, samples: Iterable[str]) -> str | None:
    """Return a pattern for objects like `samples`; None if they are too odd. The caller also checks that the text ends with a brace.

    Every member may be missing and is followed by a comma or by the end of the text; so a text that ends with `}` ended with a member.
    """
    order: list[str] = []
    nested: dict[str, _Members] = {}
    for text in samples:
        try:
            members = json.loads(text, object_pairs_hook=_Members)
        except (ValueError, RecursionError):
            continue
        if not isinstance(members, _Members):
            continue
        _merge(order, [key for key, _ in members])
        nested.update({key: value for key, value in members if isinstance(value, _Members)})
    if not order or len(order) > _MAX_MEMBERS or not all(map(_is_plain, order)):
        return None
    ends = rf"(?:,{_WS}|\}}$)"
    members_text = "".join(rf'(?:"{_escape(key)}"{_WS}:{_WS}{_value(tree.get(key), nested.get(key))}{_WS}{ends})?' for key in order)
    return rf"^{_WS}\{{{_WS}{members_text}$"


class _Members(list[tuple[str, Any]]):
    """The members of a JSON object in their order; a list of pairs that is no JSON array."""


def _value(wanted: "SourceType | Tree | None", sample: Any) -> str:
    """Return a pattern for the value of a member. In an object that is read, the members of `sample` must all be present in their order."""
    if isinstance(wanted, SourceType):
        kind = wanted.engine if not wanted.is_json_text else "DECIMAL" if len(wanted.kinds) > 1 else next(iter(wanted.kinds))
        return rf"(?:{_VALUES[kind]}|null)"
    if wanted is None:
        return _UNREAD
    members = dict(sample) if isinstance(sample, _Members) else {}
    if not members or len(members) < len(sample) or len(members) > _MAX_MEMBERS or not all(map(_is_plain, members)):
        return "null"
    inner = rf",{_WS}".join(rf'"{_escape(key)}"{_WS}:{_WS}{_value(wanted.get(key), value)}{_WS}' for key, value in members.items())
    return rf"(?:\{{{_WS}{inner}\}}|null)"


def _merge(order: list[str], keys: list[str]) -> None:
    """Add unknown `keys` after the key that precedes them."""
    index = 0
    for key in keys:
        if key not in order:
            order.insert(index, key)
        index = order.index(key) + 1


def _sample(texts: pa.Array) -> list[str]:
    step = max(1, len(texts) // _SAMPLES)
    rows = [texts[row].as_py() for row in range(0, len(texts), step)]
    return [text for text in rows if text is not None and len(text) <= _MAX_LEARN_BYTES]


def _is_plain(key: str) -> bool:
    return not any(character in '"\\' or character < " " or "\ud800" <= character <= "\udfff" for character in key)


def _escape(key: str) -> str:
    return "".join(
        rf"\{character}" if character.isascii() and not character.isalnum() and character != "_" else character for character in key
    )
