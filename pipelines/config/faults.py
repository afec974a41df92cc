"""Pydantic's errors as faults: the path as in the file, what is expected, and the value found (never a secret)."""

from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from pipelines.config.base import External, Location, Model, field_named, is_map, model_for, models_in
from pipelines.config.interpolate import Unavailable
from pipelines.config.pipeline import PipelineConfig
from pipelines.config.text import path_text
from pipelines.errors import Fault

_SENTENCES = {
    "missing": "is required",
    "string_type": "must be text: put it in quotes",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    "int_parsing_size": "is too large a number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "tuple_type": "must be a list",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "must be an object with fields"),
    "value_error": "{error}",
    "rule": "{message}",
}
"""Sentence by the type of pydantic's error, with the names of its context."""
_WITHOUT_VALUE = {"missing", "rule", "too_short", "string_too_short", "string_too_long", "union_tag_not_found"}
_MAX_SHOWN = 60


def faults_of(error: ValidationError, tree: Any, root: type[Model] = PipelineConfig) -> Iterator[Fault]:
    """Yield one fault per error of the validation of `tree` as a `root`, in the order of the model."""
    for details in error.errors(include_url=False):
        # A list that only looks empty because its items have faults.
        if details["type"] == "too_short" and details["input"]:
            continue
        # A default that would be made from a field which has its own fault.
        if details["type"] == "default_factory_not_called" or isinstance(details["input"], Unavailable):
            continue
        location, model = _locate(details["loc"], tree, root)
        if details["type"] in ("union_tag_invalid", "union_tag_not_found"):
            location = (*location, "type")
        sentence = _sentence(details, location, model)
        yield Fault(path_text(location), sentence + _shown(details, location, sentence))


def _locate(loc: Location, tree: Any, root: type[Model]) -> tuple[Location, type[Model] | None]:
    """Return the path in the file and the model that holds its last part; pydantic adds the names of union members."""
    path: list[str | int] = []
    holder: type[Model] | None = root
    models: list[type[Model]] = [root]
    is_name = False
    value = tree
    for position, key in enumerate(loc):
        if key == "[key]":
            # Pydantic's mark of a name, not of what stands behind it.
            continue
        if isinstance(key, int):
            path.append(key)
            value = value[key] if isinstance(value, list) and key < len(value) else None
            continue
        if is_name:
            # A name of the author's own, behind which one of the same models stands.
            path.append(key)
            value, is_name = value.get(key) if isinstance(value, dict) else None, False
            continue
        holder = model_for(models, value) if models else None
        field = field_named(holder, key) if holder else None
        if field is None and not (isinstance(value, dict) and key in value) and position < len(loc) - 1:
            continue
        path.append(key)
        models, is_name = (models_in(field.annotation), is_map(field.annotation)) if field else ([], False)
        value = value.get(key) if isinstance(value, dict) else None
    return tuple(path), holder


def _sentence(details: ErrorDetails, location: Location, holder: type[Model] | None) -> str:
    context = details.get("ctx", {})
    kind = details["type"]
    if kind == "extra_forbidden":
        return _unknown(str(location[-1]), holder)
    if kind == "literal_error":
        return _choice(str(context["expected"]).replace(" or ", ", ").replace("'", "").split(", "), details["input"])
    if kind == "union_tag_invalid":
        return _choice(str(context["expected_tags"]).replace("'", "").split(", "), context.get("tag"))
    if kind == "union_tag_not_found":
        return "is required"
    if location[-1] == "column_type" and isinstance(details["input"], External):
        # The grammar's message holds the text.
        return "must be a supported ClickHouse type"
    return _SENTENCES[kind].format(**context) if kind in _SENTENCES else details["msg"]


def _unknown(key: str, holder: type[Model] | None) -> str:
    if holder is None:
        return "unknown field"
    if key in holder.not_supported:
        return holder.not_supported[key]
    names = [field.alias or name for name, field in holder.model_fields.items()]
    close = get_close_matches(key, names, n=1)
    return f"unknown field; did you mean {close[0]!r}?" if close else f"unknown field; known here: {', '.join(sorted(names))}"


def _choice(expected: list[str], got: Any) -> str:
    close = get_close_matches(got, expected, n=1) if isinstance(got, str) and not isinstance(got, External) else []
    hint = f" (did you mean {close[0]}?)" if close else ""
    if got == "datetime":
        # GlassFlow's reference page shows it, its list of types does not have it.
        hint = " (for a time: string if it is ISO 8601, int64 if it is unix seconds)"
    return f"must be {'one of ' if len(expected) > 1 else ''}{', '.join(expected)}{hint}"


def _shown(details: ErrorDetails, location: Location, sentence: str) -> str:
    value = details["input"]
    if details["type"] in _WITHOUT_VALUE or details["type"] == "extra_forbidden" or hidden_names() & set(location):
        return ""
    if details["type"] == "union_tag_invalid":
        value = value.get("type") if isinstance(value, dict) else None
    if isinstance(value, External):
        return "; the value comes from the environment or a file and is not shown"
    if not isinstance(value, str | int | float | bool):
        return ""
    if isinstance(value, str) and "@" in value:
        return "; the value is not shown, because it may hold a password before its @"
    text = repr(value)
    if isinstance(value, str) and text in sentence:
        return ""
    return f", got {text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + '...'}"


@cache
def hidden_names() -> frozenset[str]:
    """Return the names of the fields whose value no message may show."""
    names: set[str] = set()
    waiting: list[type[Model]] = [PipelineConfig]
    while waiting:
        model = waiting.pop()
        names |= model.unshown
        for name, field in model.model_fields.items():
            if SecretStr in _types_in(field.annotation):
                names.add(field.alias or name)
            waiting.extend(models_in(field.annotation))
    return frozenset(names)


def _types_in(annotation: Any) -> set[Any]:
    arguments = getattr(annotation, "__args__", ())
    return {annotation}.union(*(_types_in(argument) for argument in arguments)) if arguments else {annotation}
