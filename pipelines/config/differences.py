"""The differences of two pipeline files, each with its place, and when it takes effect. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.config.base import Effect
from pipelines.config.effects import effect_at
from pipelines.config.pipeline import PipelineConfig
from pipelines.config.text import leaves

MISSING = object()
"""In place of the value of an item that came or went, and of a field with its default."""
_NAMES = ("source_id", "column_name", "id", "name")
"""What names an item of a list, so that it is compared with its namesake; others, and transforms, go by their place."""


@dataclass(frozen=True)
class Difference:
    """One part that differs: its path in the file, and both values as JSON values."""

    path: str
    before: Any
    after: Any

    @property
    def effect(self) -> Effect:
        """When it takes effect: the slowest of the fields that differ. More lanes need slots, which a start of Spark gives."""
        if self.path == "lanes" and _lanes(self.after) > _lanes(self.before):
            return Effect.RESTART
        sides = (side for side in (self.before, self.after) if side is not MISSING)
        return max((effect_at(path) for side in sides for path in _paths(self.path, side)), default=Effect.RESTART)


def _lanes(value: Any) -> int:
    return int(PipelineConfig.model_fields["lanes"].default if value is MISSING else value)


def _paths(path: str, value: Any) -> list[str]:
    return [one for one, _ in leaves(value, f"{path}.")] if isinstance(value, dict) else [path]


def differences(before: PipelineConfig, after: PipelineConfig) -> Iterator[Difference]:
    """Yield the differences in the order of the file."""
    yield from _between(_document(before), _document(after))


def _document(config: PipelineConfig) -> dict[str, Any]:
    document: dict[str, Any] = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return document


def _between(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from _between(before.get(key, MISSING), after.get(key, MISSING), f"{path}.{key}" if path else key)
    elif (named := _by_name(before, after, _NAMES if path != "transforms" else ())) is not None:
        old, new = named
        for name in {**old, **new}:
            yield from _between(old.get(name, MISSING), new.get(name, MISSING), f"{path}[{name}]")
        if [*old] != [*new] and {*old} == {*new}:
            yield Difference(path, ", ".join(map(str, old)), ", ".join(map(str, new)))
    else:
        yield Difference(path, before, after)


def _by_name(before: Any, after: Any, names: Sequence[str]) -> tuple[dict[Any, Any], dict[Any, Any]] | None:
    """Return the items of two lists of objects by what names them, else by their place; None for anything else."""
    if not all(isinstance(items, list) and items and all(isinstance(item, dict) for item in items) for items in (before, after)):
        return None
    for name in names:
        old, new = ({item.get(name): item for item in items} for items in (before, after))
        if None not in old and None not in new and (len(old), len(new)) == (len(before), len(after)):
            return old, new
    return dict(enumerate(before)), dict(enumerate(after))
