"""One JSON form per frozen dataclass: for entries of the ledger, and for items and reports of tasks.

Encode a `Form` with `to_record` or `to_text`, decode it with `from_record` or `from_text`; no other module knows the JSON. Fields are
stored under their names; fields with their default are left out. A decoder trusts nothing: it checks the types, ranges and sizes that the
dataclass declares, it rejects unknown fields, and `__post_init__` checks conditions between fields.
"""

import json
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError

from pipelines.types.columns import quote_identifier

_LONG = 2**63
_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
_SHOWN = 3
"""Limit of the faults that a message names."""


def _table(name: str) -> str:
    for part in name.split(".", 1) if name else ():
        quote_identifier(part)
    return name


Count = Annotated[int, Strict(), Field(ge=0, lt=_LONG)]
"""A number of things, a sequence of a stream, or an ordinal."""
Long = Annotated[int, Strict(), Field(ge=-_LONG, lt=_LONG)]
"""An instant or a duration in microseconds, or an offset, which is -1 before the first."""
Text = Annotated[str, Strict()]
Flag = Annotated[bool, Strict()]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PartitionKey = Annotated[str, Strict(), Field(pattern=r"^(0|[1-9][0-9]{0,9})$")]
"""A Kafka partition, or a bucket, as a key of JSON."""
StorePlace = Annotated[str, Strict(), Field(pattern=r"^((dedup|join)-(left|right)/)?(0|[1-9][0-9]{0,9})$")]
"""A store and a bucket as `naming.listed_as` names them, which is also the name of a directory."""
Version = Annotated[str, Strict(), Field(pattern=r"^[A-Za-z0-9_-]{0,64}$")]
"""The version of a stage configuration, which is a token of a subject."""
Digest = Annotated[str, Strict(), Field(pattern=r"^[0-9a-f]{0,64}$")]
SnapshotDigest = Annotated[str, Strict(), Field(pattern=r"^[0-9a-f]{64}$")]
"""The SHA-256 of a snapshot, which is the name of its file."""
TableName = Annotated[str, Strict(), Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
"""The name of a look-up table, which is a token of a subject and the name of a directory."""
Base64 = Annotated[str, Strict(), Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]
FullTable = Annotated[str, Strict(), AfterValidator(_table)]
"""`database.table`, or nothing."""


class Form:
    """The base of a frozen dataclass with a JSON form."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


F = TypeVar("F", bound=Form)


class FormError(ValueError):
    """A JSON value does not match a form. `unknown`: the fields, of the value or within it, that the form does not have."""

    def __init__(self, message: str, unknown: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.unknown = unknown


_ADAPTERS: dict[type[Form], TypeAdapter[Any]] = {}


def _adapter(form: type[Form]) -> TypeAdapter[Any]:
    # Made at first use, which takes milliseconds. Two threads that make one do no harm.
    if form not in _ADAPTERS:
        _ADAPTERS[form] = TypeAdapter(form)
    return _ADAPTERS[form]


def to_record(value: Form) -> dict[str, Any]:
    """Encode a form as JSON values."""
    record: dict[str, Any] = _adapter(type(value)).dump_python(value, mode="json", exclude_defaults=True)
    return record


def from_record(form: type[F], record: object) -> F:
    """Decode JSON values. Raise FormError if they do not match the form."""
    try:
        value: F = _adapter(form).validate_python(record)
        return value
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
    paths = [(".".join(map(str, fault["loc"])), fault) for fault in faults]
    unknown = tuple(path for path, fault in paths if fault["type"] in _UNKNOWN)
    shown = "; ".join(f"{path[:80]}: {fault['msg'][:200]}" for path, fault in paths[:_SHOWN])
    raise FormError(shown, unknown)


def to_text(value: Form) -> str:
    """Encode a form as one line of JSON, the same for equal values."""
    return json.dumps(to_record(value), separators=(",", ":"), sort_keys=True)


def from_text(form: type[F], text: str | bytes) -> F:
    """Decode a text of `to_text`. Raise FormError if it does not match the form."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormError(f"no JSON ({type(error).__name__})") from error
    return from_record(form, record)
