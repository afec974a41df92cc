"""The settings of a pipeline file: the values of the fields that a running pipeline takes up (`Effect.RELOAD`), as one line of JSON.

A process of a run gets new settings in this form, never a whole file. So it can take up nothing else, needs none of the variables and
files that the pipeline file refers to, and is sent no secret.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pipelines.config.base import Model
from pipelines.config.effects import is_reloaded, json_value
from pipelines.config.partial import adapter_of
from pipelines.config.pipeline import PipelineConfig


def settings_of(config: PipelineConfig) -> str:
    """Return the settings of a configuration."""
    return json.dumps(dict(_settings(config, "")), separators=(",", ":"), sort_keys=True)


def settings_digest(settings: str) -> str:
    """Return 16 hex digits that name the settings."""
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def with_settings(config: PipelineConfig, settings: str) -> PipelineConfig:
    """Return the configuration under other settings of its objects; everything else stays. Raise ValueError for a text that is none."""
    made = _with(config, "", json.loads(settings))
    assert isinstance(made, PipelineConfig)
    return made


def _inner(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object, a list or a map holds, by name."""
    if isinstance(value, Model):
        yield from ((name, getattr(value, name)) for name in type(value).model_fields)
    elif isinstance(value, tuple | dict):
        yield from ((str(key), item) for key, item in (value.items() if isinstance(value, dict) else enumerate(value)))


def _settings(value: Any, at: str) -> Iterator[tuple[str, Any]]:
    for name, item in _inner(value):
        if isinstance(value, Model) and is_reloaded(type(value), name):
            yield f"{at}{name}", json_value(value, name)
        elif isinstance(item, Model | tuple | dict):
            yield from _settings(item, f"{at}{name}.")


def _with(value: Any, at: str, settings: Mapping[str, Any]) -> Any:
    changed: dict[str, Any] = {}
    for name, item in _inner(value):
        place = f"{at}{name}"
        if not (isinstance(value, Model) and is_reloaded(type(value), name)):
            made = _with(item, f"{place}.", settings)
        elif place in settings:
            made = adapter_of(type(value), name).validate_python(settings[place])
        else:
            continue
        if made is not item:
            changed[name] = made
    if not changed:
        return value
    if isinstance(value, Model):
        return value.model_copy(update=changed)
    if isinstance(value, dict):
        return {**value, **changed}
    return tuple(changed.get(str(index), item) for index, item in enumerate(value))
