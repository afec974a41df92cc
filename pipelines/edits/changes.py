"""The differences of two files of one pipeline, and what each needs of the pipeline that runs. Pure."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from pipelines.config import PipelineConfig, shape_of
from pipelines.runner.preflight import leaves


class Need(IntEnum):
    """What a change needs, the least first."""

    NOTHING = 0
    RESTART = 1
    DRAIN = 2
    REBUCKET = 3
    NEW_PIPELINE = 4

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Need.NOTHING: "holds at once",
    Need.RESTART: "from the next start on",
    Need.DRAIN: "after a drain",
    Need.REBUCKET: "rebucket",
    Need.NEW_PIPELINE: "a new pipeline",
}


@dataclass(frozen=True)
class Change:
    """One difference: its place in the file, both values as text, and what it needs. An item that came or went has an empty value."""

    path: str
    before: str
    after: str
    need: Need

    def __str__(self) -> str:
        if not self.before:
            return f"added: {self.after}"
        return f"was {self.before}, now {self.after}" if self.after else f"removed: {self.before}"


_NEEDS: tuple[tuple[re.Pattern[str], Need], ...] = (
    (re.compile(r"(checks|alerts|metadata|name)\b"), Need.NOTHING),
    (re.compile(r"buckets$"), Need.REBUCKET),
    (re.compile(r"sinks?(\[[^]]*\])?\.(table|connection_params\.(host|port|http_port|database|secure))$"), Need.DRAIN),
)
"""What a change below a path needs; any other needs a restart."""
_UNSHOWN = re.compile(r"(^nats|^state_uri|connection_params|password|token|secret)\b")
"""Places whose values no message shows: they may hold credentials."""
_NAMES = ("source_id", "column_name", "id", "name")
"""What names an item of a list, so that it is compared with its namesake; others, and transforms, go by their place."""
_LONGEST = 60
_MISSING = object()


def changes(before: PipelineConfig, after: PipelineConfig) -> list[Change]:
    """Return all differences, in the order of the file. What decides where state is stored comes first, and needs a new pipeline."""
    old, new = dict(leaves(shape_of(before))), dict(leaves(shape_of(after)))
    fixed = [key for key in {**old, **new} if key != "buckets" and old.get(key) != new.get(key)]
    found = [Change(key, _text(key, old.get(key, _MISSING)), _text(key, new.get(key, _MISSING)), Need.NEW_PIPELINE) for key in fixed]
    return found + [
        Change(path, _text(path, was), _text(path, now), _need(path)) for path, was, now in _differences(_file(before), _file(after))
    ]


def _file(config: PipelineConfig) -> dict[str, Any]:
    document: dict[str, Any] = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return document


def _need(path: str) -> Need:
    return next((need for pattern, need in _NEEDS if pattern.match(path)), Need.RESTART)


def _differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, value before, value after) of each part that differs; `_MISSING` where there is none."""
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from _differences(before.get(key, _MISSING), after.get(key, _MISSING), f"{path}.{key}" if path else key)
    elif (named := _by_name(before, after, _NAMES if path != "transforms" else ())) is not None:
        old, new = named
        for name in {**old, **new}:
            yield from _differences(old.get(name, _MISSING), new.get(name, _MISSING), f"{path}[{name}]")
        if [*old] != [*new] and {*old} == {*new}:
            yield path, ", ".join(map(str, old)), ", ".join(map(str, new))
    else:
        yield path, before, after


def _by_name(before: Any, after: Any, names: Sequence[str]) -> tuple[dict[Any, Any], dict[Any, Any]] | None:
    """Return the items of two lists of objects by what names them, else by their place; None for anything else."""
    if not all(isinstance(items, list) and items and all(isinstance(item, dict) for item in items) for items in (before, after)):
        return None
    for name in names:
        old, new = ({item.get(name): item for item in items} for items in (before, after))
        if None not in old and None not in new and (len(old), len(new)) == (len(before), len(after)):
            return old, new
    return dict(enumerate(before)), dict(enumerate(after))


def _text(path: str, value: Any) -> str:
    if value is _MISSING:
        return ""
    if _UNSHOWN.search(path):
        return "another value"
    if isinstance(value, dict) and not any(isinstance(one, dict | list) for one in value.values()):
        text = ", ".join(map(str, value.values()))
    else:
        text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
