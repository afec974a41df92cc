"""The sections of a pipeline file that only connections read, for commands that connect to nothing."""

from collections.abc import Iterator
from typing import Any

from pipelines.config.base import UNSET_HOST, Location, Model, field_named, is_map, model_for, models_in
from pipelines.config.interpolate import Unavailable
from pipelines.config.pipeline import PipelineConfig
from pipelines.config.text import path_text


def without_connections(tree: Any) -> tuple[Any, set[str]]:
    """Return the tree of a file with `Model.unreached` in place of each such field that lacks a value, and the paths of those values."""
    excused: set[str] = set()
    return _replaced(tree, [PipelineConfig], (), excused), excused


def _replaced(raw: Any, models: list[type[Model]], at: Location, excused: set[str]) -> Any:
    if isinstance(raw, list):
        return [_replaced(item, models, (*at, index), excused) for index, item in enumerate(raw)]
    model = model_for(models, raw) if models else None
    if model is None or not isinstance(raw, dict):
        return raw
    found = {}
    for key, value in raw.items():
        missing = [*_missing(value, (*at, key))] if key in model.unreached else []
        if missing:
            excused |= {path_text(location) for location in missing}
            found[key] = _stand_in(model.unreached[key], len(excused))
        else:
            field = field_named(model, key)
            inner = models_in(field.annotation) if field else []
            if field and is_map(field.annotation) and isinstance(value, dict):
                found[key] = {name: _replaced(item, inner, (*at, key, name), excused) for name, item in value.items()}
            else:
                found[key] = _replaced(value, inner, (*at, key), excused)
    return found


def _stand_in(value: Any, number: int) -> Any:
    """Return what replaces a field: no two servers that are not known are the same one."""
    return f"unset-{number}.invalid" if value == UNSET_HOST else value


def _missing(value: Any, at: Location) -> Iterator[Location]:
    """Yield where a value from outside the file is missing."""
    if isinstance(value, Unavailable):
        if value.is_outside:
            yield at
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _missing(item, (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _missing(item, (*at, index))
