"""The sound part of a faulty pipeline file: the rules between its fields are checked too, so one run reports all faults."""

from contextlib import suppress
from functools import cache
from typing import Any, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from pipelines.config.base import Faults, Location, Model, is_map, model_for, models_in


@cache
def adapter_of(model: type[Model], name: str) -> TypeAdapter[Any]:
    """Build the validator of a field once: a faulty file may hold thousands of faulty objects."""
    return TypeAdapter(model.model_fields[name].rebuild_annotation())


class Unjudged(Exception):
    """A rule asked for a value that has a fault of its own; the rule reports nothing."""


class Partial:
    """Stands for an object of the file that has faults: its sound fields can be read, any other raises Unjudged.

    A field that holds faulty objects gives Partials of them.
    """

    def __init__(self, model: type[Model], raw: Any) -> None:
        self._model = model
        self._values: dict[str, Any] = {}
        for name, field in model.model_fields.items() if isinstance(raw, dict) else ():
            item = raw.get(field.alias or name)
            if item is None:
                self._default(name, field)
            else:
                self._check(name, field, item)

    def _check(self, name: str, field: FieldInfo, raw: Any) -> None:
        models = models_in(field.annotation)
        try:
            self._values[name] = adapter_of(self._model, name).validate_python(raw)
        except ValidationError:
            # The fault itself is reported by the validation of the whole file.
            many = get_origin(field.annotation) is tuple
            if models and raw and isinstance(raw, dict) and is_map(field.annotation):
                self._values[name] = {key: _stand_in(models, item) for key, item in raw.items()}
            elif models and raw and isinstance(raw, list if many else dict):
                self._values[name] = [_stand_in(models, item) for item in raw] if many else _stand_in(models, raw)

    def _default(self, name: str, field: FieldInfo) -> None:
        if field.is_required():
            return
        try:
            self._values[name] = field.get_default(call_default_factory=True, validated_data=self._values)
        except KeyError:
            # A default made from another field, which has a fault.
            return

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        derived = getattr(self._model, name, None)
        if isinstance(derived, property) and derived.fget:
            return derived.fget(self)
        if callable(derived):
            return lambda *arguments: derived(self, *arguments)
        if name in self._model.__class_vars__:
            return derived
        raise Unjudged

    def all_faults(self) -> Faults:
        """Yield the faults of this object and of every Partial in it, as far as the rules can be checked."""
        with suppress(Unjudged):
            # The rules only read attributes, which a Partial has.
            yield from self._model.faults(self)  # type: ignore[arg-type]
        for name, value in self._values.items():
            key = self._model.model_fields[name].alias or name
            items: list[tuple[Location, Any]] = [((key,), value)]
            if isinstance(value, list):
                items = [((key, index), item) for index, item in enumerate(value)]
            elif isinstance(value, dict):
                items = [((key, at), item) for at, item in value.items()]
            for at, item in items:
                if isinstance(item, Partial):
                    yield from (((*at, *location), message) for location, message in item.all_faults())


def _stand_in(models: list[type[Model]], raw: Any) -> Any:
    model = model_for(models, raw)
    if model is None:
        return Partial(Model, None)
    try:
        return model.model_validate(raw)
    except ValidationError:
        return Partial(model, raw)
