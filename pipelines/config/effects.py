"""When a change of each field of the pipeline file takes effect: what its declaration says (`base.Effect`), by its place in the file."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, get_origin

from pipelines.config.base import Effect, Model, effect_of_field, is_map, models_in
from pipelines.config.pipeline import PipelineConfig

ITEM, NAMED = "[]", "*"
"""What stands in a place for an item of a list, and for a name of the author's own."""
Place = tuple[str, ...]


@cache
def effects() -> dict[Place, Effect]:
    """Return the effect of every field that holds no further object, by its place. Of kinds of one object the slowest counts."""
    found: dict[Place, Effect] = {}
    for place, effect in _fields(PipelineConfig, (), None):
        found[place] = max(effect, found.get(place, effect))
    return found


def _fields(model: type[Model], at: Place, inherited: Effect | None) -> Iterator[tuple[Place, Effect]]:
    for name, field in model.model_fields.items():
        place = (*at, field.alias or name)
        # A mark holds for all below it.
        effect = effect_of_field(field) if inherited is None else inherited
        inner = models_in(field.annotation)
        if not inner:
            yield place, effect
        below = (NAMED,) if is_map(field.annotation) else (ITEM,) if get_origin(field.annotation) is tuple else ()
        for one in inner:
            yield from _fields(one, (*place, *below), None if effect == Effect.RESTART else effect)


def effect_at(path: str) -> Effect:
    """Return the effect of a change at a path such as `sinks[a].max_batch_size`: the slowest of all fields there; a restart if unknown."""
    place = tuple(re.sub(r"\[[^]]*\]", f".{ITEM}", path).split("."))
    return max((effect for field, effect in effects().items() if _overlap(field, place)), default=Effect.RESTART)


def _overlap(field: Place, place: Place) -> bool:
    """Return whether one lies at or below the other."""
    return all(part in (NAMED, other) for part, other in zip(field, place, strict=False))


def shown(place: Place) -> str:
    """Return a place as the documentation writes it, such as `sinks[].max_batch_size`."""
    return ".".join(place).replace(f".{ITEM}", ITEM)


@cache
def is_reloaded(model: type[Model], name: str) -> bool:
    """Return whether a running pipeline takes up a new value of a field of such an object."""
    return effect_of_field(model.model_fields[name]) == Effect.RELOAD


def json_value(model: Model, name: str) -> Any:
    """Return the value of a field as JSON values."""
    return model.model_dump(mode="json", include={name})[name]
