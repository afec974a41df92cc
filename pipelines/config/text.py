"""The text of a pipeline file as a tree of dicts, lists and scalars: YAML (safe loader) or JSON, a repeated key is a fault."""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from pipelines.config.base import Location
from pipelines.errors import ConfigurationError, Fault

MAX_CHARACTERS = 1_000_000


def path_text(location: Location) -> str:
    """`("sources", 0, "topic")` as `sources[0].topic`."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in location)
    return text.removeprefix(".")


def read_tree(text: str, name: str) -> tuple[Any, list[Fault]]:
    """The tree of `text`, and a fault per repeated key, with its line. Raises ConfigurationError if it is neither YAML nor JSON."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigurationError(name, [Fault("", f"is longer than {MAX_CHARACTERS:,} characters: not a pipeline file")])
    try:
        # JSON may be indented with tabs, YAML may not; JSON strings hold no raw tab.
        parsed, is_json = json.loads(text), True
        text = text.replace("\t", " ")
    except ValueError:
        parsed, is_json = None, False
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        faults = [Fault(path_text(at), message) for at, message in _repeated_keys(node, (), set())]
        tree = parsed if is_json else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(name, [_syntax_fault(error)]) from None
    except RecursionError:
        raise ConfigurationError(name, [Fault("", "is nested too deeply")]) from None
    if not isinstance(tree, dict):
        raise ConfigurationError(name, [Fault("", "must be an object with fields such as version, pipeline_id, sources and sink")])
    return tree, faults


def _repeated_keys(node: yaml.Node | None, at: Location, seen: set[int]) -> Iterator[tuple[Location, str]]:
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _repeated_keys(item, (*at, index), seen)
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            line = key.start_mark.line + 1
            if name in lines:
                yield (*at, name), f"is given twice, in line {lines[name]} and line {line}"
            lines.setdefault(name, line)
            yield from _repeated_keys(value, (*at, name), seen)


def _syntax_fault(error: Exception) -> Fault:
    """What is wrong and where, without the text: the offending line can hold a password."""
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = getattr(error, "problem", None) or "not valid YAML or JSON"
    return Fault("", where + re.sub(r"'(?!<[a-z ]+>')[^']{2,}'", "'...'", problem))
