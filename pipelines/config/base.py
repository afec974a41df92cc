"""Shared parts of the pipeline file's models: the frozen base, the scalar types, and how a rule reports a fault."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from enum import IntEnum
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from pipelines.config.durations import DURATION_PATTERN, SIZE_PATTERN, format_duration, parse_duration, parse_size

Location = tuple[str | int, ...]
Faults = Iterator[tuple[Location, str]]

UNSET_HOST = "unset.invalid"
"""The host of a server whose address is not set, in a command that connects to nothing."""

IDENTIFIER = r"^[A-Za-z_][A-Za-z0-9_]{0,126}$"


class External(str):
    """Text that came from the environment or a file, not from the pipeline file itself; never shown in a message."""


class LiteralSecret(SecretStr):
    """A secret written into the pipeline file itself: accepted, masked, and noted."""


class Model(BaseModel):
    """Base of every object of the pipeline file: frozen; unknown fields are faults; null means absent."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_by_name=True, validate_by_alias=True)

    not_supported: ClassVar[dict[str, str]] = {}
    """Fields of GlassFlow's format, or of Tallyflow elsewhere, that are refused here, with the reason."""

    unshown: ClassVar[frozenset[str]] = frozenset()
    """Fields other than `Secret` ones whose value no message may show."""

    unreached: ClassVar[Mapping[str, Any]] = {}
    """Fields that only connections read, with what replaces each in a command that connects to nothing, if its value is not set."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        names = {field.alias or name for name, field in cls.model_fields.items()} | cls.not_supported.keys()
        return {key: item for key, item in value.items() if item is not None or key not in names}

    def faults(self) -> Faults:
        """Yield the faults between sound fields as (location relative to this object, sentence).

        Also called with a `Partial` in place of self, so it only reads attributes.
        """
        yield from ()

    @model_validator(mode="after")
    def _no_faults(self) -> Self:
        report(type(self).__name__, self.faults())
        return self


def models_in(annotation: Any) -> list[type[Model]]:
    """List every model class that a field with this annotation can hold, directly, in a tuple or in a union."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]


def is_map(annotation: Any) -> bool:
    """Return whether a field with this annotation holds objects by names of the author's own."""
    return get_origin(annotation) is dict


def model_for(models: list[type[Model]], raw: Any) -> type[Model] | None:
    """Return the model of the object `raw`: the only one of `models`, or the one whose `type` it has."""
    if len(models) == 1:
        return models[0]
    kind = raw.get("type") if isinstance(raw, dict) else None
    return next((model for model in models if kind in get_args(model.model_fields["type"].annotation)), None)


def field_named(model: type[Model], key: str) -> FieldInfo | None:
    """Return the field that the file calls `key`."""
    return next((field for name, field in model.model_fields.items() if (field.alias or name) == key), None)


class Effect(IntEnum):
    """When a changed field takes effect, the soonest first.

    `AT_ONCE`: no runner reads it. `RELOAD`: a leg may go on under the new value behind any of its batches, because the value decides
    nothing about a row, its identity, a plan or a proof. `RESTART`: anything else.
    """

    AT_ONCE = 0
    RELOAD = 1
    RESTART = 2


_EFFECT = "x-effect"


def theirs(default: Any, description: str, effect: Effect = Effect.RESTART, **options: Any) -> Any:
    """Declare a field of GlassFlow's format; a required one has the default `...`. `effect`: of the field and of all below it."""
    return Field(default, description=description, json_schema_extra=_extra(effect), **options)


def ours(default: Any, description: str, effect: Effect = Effect.RESTART, **options: Any) -> Any:
    """Declare a field that GlassFlow's format does not have. `effect`: of the field and of all below it."""
    return Field(default, description=description, json_schema_extra={"x-ours": True, **_extra(effect)}, **options)


def _extra(effect: Effect) -> dict[str, Any]:
    return {} if effect == Effect.RESTART else {_EFFECT: effect.name.lower()}


def effect_of_field(field: FieldInfo) -> Effect:
    """Return when a change of a field takes effect: at the next start unless its declaration says otherwise."""
    extra = field.json_schema_extra
    return Effect[str(extra[_EFFECT]).upper()] if isinstance(extra, dict) and _EFFECT in extra else Effect.RESTART


def report(title: str, faults: Iterable[tuple[Location, str]]) -> None:
    """Raise one pydantic ValidationError with every fault, or return if there is none. Locations are relative to the validated object."""
    details = [
        InitErrorDetails(type=PydanticCustomError("rule", "{message}", {"message": message}), loc=location, input=None)
        for location, message in faults
    ]
    if details:
        raise ValidationError.from_exception_data(title, details, hide_input=True)


def repeated(items: Iterable[str]) -> list[tuple[int, str]]:
    """Return index and value of every item that appeared before."""
    seen: set[str] = set()
    again = []
    for index, item in enumerate(items):
        if item in seen:
            again.append((index, item))
        seen.add(item)
    return again


def matching(pattern: str, message: str) -> Callable[[str], str]:
    """Return a validator that raises ValueError(`message`) for text that does not match `pattern`."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        # `$` also matches before a final newline; fullmatch does not.
        if not compiled.fullmatch(text):
            raise ValueError(message)
        return text

    return check


def no_flag(value: Any) -> Any:
    """Refuse true and false where a number is expected; Python treats them as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("must be a whole number")
    return value


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        raise ValueError("must be a duration with its unit, such as 60s or 1h30m")
    return parse_duration(value.strip())


def _positive(duration: timedelta) -> timedelta:
    if duration <= timedelta(0):
        raise ValueError("must be longer than zero")
    return duration


def _size(value: Any) -> Any:
    return parse_size(value.strip()) if isinstance(value, str) else no_flag(value)


def _countable(number: int) -> int:
    # The largest number that NATS, Kafka and ClickHouse count to.
    if abs(number) >= 2**63:
        raise ValueError("is too large a number")
    return number


def _secret(value: Any) -> SecretStr:
    if isinstance(value, SecretStr):
        return value
    if not isinstance(value, str):
        raise ValueError("must be text: put it in quotes, or write ${NAME} or {file: PATH}")
    return SecretStr(str(value)) if isinstance(value, External) else LiteralSecret(value)


def _one_or_many(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _no_repeats(names: tuple[str, ...]) -> tuple[str, ...]:
    if repeated(names):
        raise ValueError("names a field twice")
    return names


_DURATION_SCHEMA = WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "x-type": "duration"})
_DURATION_TEXT = PlainSerializer(format_duration, return_type=str, when_used="json")

Text = Annotated[str, Field(min_length=1)]
Expression = Annotated[str, Field(min_length=1, max_length=4000)]
"""SQL or expr-lang over the fields of a record."""
Whole = Annotated[int, BeforeValidator(no_flag), AfterValidator(_countable)]
Positive = Annotated[int, Field(gt=0), BeforeValidator(no_flag), AfterValidator(_countable)]
Port = Annotated[int, Field(ge=1, le=65535), BeforeValidator(no_flag)]
Host = Annotated[
    str, AfterValidator(matching(r"^[A-Za-z0-9._-]+$|^[0-9A-Fa-f:.%]+$", "must be a host name or address, without scheme or port"))
]
Duration = Annotated[timedelta, BeforeValidator(_duration), _DURATION_TEXT, _DURATION_SCHEMA]
Window = Annotated[timedelta, BeforeValidator(_duration), AfterValidator(_positive), _DURATION_TEXT, _DURATION_SCHEMA]
Size = Annotated[
    int,
    BeforeValidator(_size),
    Field(ge=0),
    AfterValidator(_countable),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": SIZE_PATTERN}], "x-type": "size"}),
]
Secret = Annotated[
    SecretStr,
    BeforeValidator(_secret),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"], "additionalProperties": False},
            ],
            "x-type": "secret",
        }
    ),
]
Identifier = Annotated[
    str,
    AfterValidator(matching(IDENTIFIER, "must be letters, digits and underscores, not starting with a digit, at most 127 characters")),
    Field(json_schema_extra={"pattern": IDENTIFIER}),
]
FieldPath = Annotated[
    str,
    Field(max_length=512),
    AfterValidator(
        matching(
            r'^[^.\x00-\x1f"\\*]+(\.[^.\x00-\x1f"\\*]+)*$',
            "must be a field name, or names joined by single dots, without quotes, backslashes, * and control characters",
        )
    ),
]
Key = Annotated[
    tuple[FieldPath, ...],
    BeforeValidator(_one_or_many),
    AfterValidator(_no_repeats),
    Field(min_length=1),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}], "x-type": "field, or list of fields"}
    ),
]
