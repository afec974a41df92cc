"""The text of a pipeline file as a tree of dicts, lists and scalars: YAML (core tags only) or JSON; a repeated key is a fault.

The text may be hostile: the parser's events are counted before anything is built from them, so depth, aliases and merge keys cost no more
than a file of MAX_VALUES values. A number, a flag or null is a plain scalar of at most MAX_NUMBER_CHARACTERS; a date is text.
"""

import json
import re
from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import yaml

from pipelines.config.base import Location
from pipelines.errors import ConfigurationError, Fault

MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 50
MAX_VALUES = 50_000
"""Values of a file, keys included; the values behind an alias or a merge key count each time."""
MAX_NUMBER_CHARACTERS = 64
"""Longer numbers are text, which no numeric field accepts: Python takes minutes to parse millions of digits."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"
_SCALARS = {f"{_CORE}{kind}" for kind in ("str", "int", "float", "bool", "null")}
_RESOLVER: Any = yaml.resolver.Resolver()
_CONSTRUCTOR = yaml.constructor.SafeConstructor()
_UNANCHORED = "starts with *, which YAML reads as an alias, and its anchor does not come before it; put text in quotes"
# Neither a tag nor an anchor is shown: a password that is not in quotes may begin like one.
_TAGGED = "has a tag, which no pipeline file may have; put text that starts with ! in quotes"
_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_SURROGATE = re.compile(r"\\ud[89a-f][0-9a-f]{2}", re.IGNORECASE)
_HALF_A_SURROGATE_PAIR = re.compile("[\ud800-\udfff]")


class _Value(NamedTuple):
    """A value of the tree, and how many values it stands for."""

    content: Any
    size: int


_ABSENT = _Value(None, 1)
"""Replaces a value with a fault, so that no further message is shown for it."""


def path_text(location: Location) -> str:
    """Format a location: `("sources", 0, "topic")` as `sources[0].topic`.

    An overlong field name is cut, and control characters are escaped.
    """
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{_shown(key)}" for key in location)
    return text.removeprefix(".")


def location_of(path: str) -> Location:
    """Return the location that `path_text` has formatted; of a name with a dot or a bracket only a part that may be no location."""
    return tuple(int(index) if index else name for index, name in _PART.findall(path))


def _shown(name: str) -> str:
    cut = name if len(name) <= 80 else name[:80] + "..."
    return cut if cut.isprintable() else cut.encode("unicode_escape").decode()


def read_tree(text: str, name: str) -> tuple[Any, list[Fault]]:
    """Read the tree of `text`, and a fault with its line per repeated key and per tag that no pipeline file has.

    Raises ConfigurationError, and nothing else, for text that is neither YAML nor JSON, too large, or nested too deeply.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigurationError(name, [Fault("", f"is longer than {MAX_CHARACTERS:,} characters: not a pipeline file")])
    try:
        tree, faults = _read(text)
    except _UnreadableError as error:
        raise ConfigurationError(name, [error.fault]) from None
    return _copied(tree), [*faults]


@lru_cache(maxsize=4)
def _read(text: str) -> tuple[Any, tuple[Fault, ...]]:
    """Do `read_tree`; a run, and a command, read one text several times."""
    try:
        parsed, is_json = json.loads(text, parse_int=_json_number(int), parse_float=_json_number(float)), True
        # Read as YAML for its lines. That may not be indented with tabs, and JSON strings hold no raw tab; it has no surrogate pairs.
        text = _SURROGATE.sub(r"\\u0020", text.replace("\t", " "))
    except ValueError:
        parsed, is_json = None, False
    except RecursionError:
        raise _UnreadableError(_too_deep(())) from None
    try:
        composer = _Composer(text)
        composed = composer.tree()
    except (yaml.YAMLError, ValueError) as error:
        raise _UnreadableError(_syntax_fault(error)) from None
    tree = parsed if is_json else composed
    if not isinstance(tree, dict):
        raise _UnreadableError(Fault("", "must be an object with fields such as version, pipeline_id, sources and sink"))
    return tree, (*composer.faults, *_surrogates(tree, ()))


def _copied(value: Any) -> Any:
    """Return a tree of its own, which the caller may change."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [*map(_copied, value)] if isinstance(value, list) else value


def _json_number(kind: type[int] | type[float]) -> Any:
    return lambda digits: kind(digits) if len(digits) <= MAX_NUMBER_CHARACTERS else digits


def _surrogates(value: Any, at: Location) -> Iterator[Fault]:
    """Yield a fault per text with half of a surrogate pair: no server or terminal accepts it."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _surrogates(key, at)
            yield from _surrogates(item, (*at, str(key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _surrogates(item, (*at, index))
    elif isinstance(value, str) and _HALF_A_SURROGATE_PAIR.search(value):
        yield Fault(path_text(at), "holds half of a surrogate pair, which is not text")


class _UnreadableError(Exception):
    """The text is no pipeline file."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault


class _Composer:
    """Builds the tree of one document from the parser's events."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._anchors: dict[str, _Value | None] = {}
        self._values = 0
        self.faults: list[Fault] = []

    def tree(self) -> Any:
        """Build the first document, None if there is none. Raise _UnreadableError, YAMLError or ValueError."""
        next(self._events)
        if isinstance(next(self._events), yaml.StreamEndEvent):
            return None
        tree = self._value(next(self._events), ()).content
        next(self._events)
        following = next(self._events)
        if not isinstance(following, yaml.StreamEndEvent):
            raise _UnreadableError(Fault("", f"{_where(following)}a second document begins: a file is one pipeline"))
        return tree

    def _value(self, event: Any, at: Location) -> _Value:
        self._count(1, event, at)
        if len(at) > MAX_DEPTH:
            raise _UnreadableError(_too_deep(at))
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, at)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, at)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(event, at)
        else:
            value = self._mapping(event, at)
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _alias(self, event: Any, at: Location) -> _Value:
        if event.anchor not in self._anchors:
            return self._refuse(event, at, _UNANCHORED)
        value = self._anchors[event.anchor]
        if value is None:
            return self._refuse(event, at, "is an alias of what holds it")
        self._count(value.size, event, at)
        return value

    def _scalar(self, event: Any, at: Location) -> _Value:
        plain, quoted = event.implicit
        if len(event.value) > MAX_NUMBER_CHARACTERS and event.tag is None:
            return _Value(event.value, 1)
        tag = event.tag if event.tag not in (None, "!") else _RESOLVER.resolve(yaml.ScalarNode, event.value, (plain, quoted))
        if tag not in _SCALARS:
            return _Value(event.value, 1) if event.tag is None else self._refuse(event, at, _TAGGED)
        if tag == f"{_CORE}str":
            return _Value(event.value, 1)
        kind = tag.removeprefix(_CORE)
        try:
            if len(event.value) > MAX_NUMBER_CHARACTERS:
                raise ValueError
            construct = getattr(_CONSTRUCTOR, f"construct_yaml_{kind}")
            return _Value(construct(yaml.ScalarNode(tag, event.value)), 1)
        except (ValueError, KeyError, IndexError, OverflowError):
            return self._refuse(event, at, f"is not a valid {kind}")

    def _sequence(self, event: Any, at: Location) -> _Value:
        if event.tag not in (None, "!", f"{_CORE}seq"):
            self._refuse(event, at, _TAGGED)
        items: list[Any] = []
        size = 1
        while not isinstance(following := next(self._events), yaml.SequenceEndEvent):
            item = self._value(following, (*at, len(items)))
            items.append(item.content)
            size += item.size
        return _Value(items, size)

    def _mapping(self, event: Any, at: Location) -> _Value:
        if event.tag not in (None, "!", f"{_CORE}map"):
            self._refuse(event, at, _TAGGED)
        own: dict[Any, Any] = {}
        merged: list[dict[Any, Any]] = []
        lines: dict[str, int] = {}
        size = 1
        while not isinstance(key := next(self._events), yaml.MappingEndEvent):
            is_merge = isinstance(key, yaml.ScalarEvent) and key.value == "<<" and key.implicit[0] and key.tag is None
            name = key.value if isinstance(key, yaml.ScalarEvent) else "?"
            inner: Location = (*at, name)
            field = self._value(key, inner).content
            item = self._value(next(self._events), inner)
            size += 1 + item.size
            line = key.start_mark.line + 1
            if not isinstance(field, Hashable):
                self._refuse(key, inner, "a field name must be text")
            elif name in lines:
                self.faults.append(Fault(path_text(inner), f"is given twice, in line {lines[name]} and line {line}"))
            elif is_merge and item is not _ABSENT:
                merged += self._merged(key, inner, item.content)
            else:
                own[field] = item.content
            lines.setdefault(name, line)
        for one in merged:
            for field, content in one.items():
                own.setdefault(field, content)
        return _Value(own, size)

    def _merged(self, event: Any, at: Location, brought: Any) -> list[dict[Any, Any]]:
        """Return the objects that `<<` merges in; earlier ones win."""
        objects = brought if isinstance(brought, list) else [brought]
        if all(isinstance(one, dict) for one in objects):
            return objects
        self._refuse(event, at, "a merge key takes an object, or a list of objects")
        return []

    def _count(self, values: int, event: Any, at: Location) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise _UnreadableError(
                Fault(path_text(at[:4]), f"{_where(event)}the file holds more than {MAX_VALUES:,} values, aliases counted")
            )

    def _refuse(self, event: Any, at: Location, message: str) -> _Value:
        self.faults.append(Fault(path_text(at), _where(event) + message))
        return _ABSENT


def _where(event: Any) -> str:
    mark = event.start_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: "


def _too_deep(at: Location) -> Fault:
    return Fault(path_text(at[:4]), f"is nested too deeply: at most {MAX_DEPTH} levels")


def _syntax_fault(error: Exception) -> Fault:
    """Describe what is wrong and where, without the text: the offending line can hold a password."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = getattr(error, "problem", None) or "not valid YAML or JSON"
    return Fault("", where + re.sub(r"'(?!<[a-z ]+>')[^']{2,}'", "'...'", problem))


def leaves(shape: dict[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is no object itself in a tree of objects, by path."""
    for key, value in shape.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{at}{key}.")
        else:
            yield f"{at}{key}", value
