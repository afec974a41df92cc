"""The `on_error` of the pipeline file: what happens to rejected records, and overrides of the error classes."""

from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pipelines.config.base import Effect, External, Faults, Model, no_flag, ours
from pipelines.error_classes import TUNABLE, ErrorClasses, names_of, row_named, why_not
from pipelines.error_classes.rows import ErrorClass, System

_WORDS = ("dead_letter", "halt")
_Passing = dict[str, Literal["retryable", "halt"]]


class OnError(Model):
    """What happens to rejected records, and overrides of the error table (docs/errors.md) by code or name."""

    rejected: Literal["dead_letter", "halt"] = ours(
        "dead_letter",
        "What happens to a record that a stage or ClickHouse rejects: it becomes a dead letter, or the leg halts before it does.",
        Effect.RELOAD,
    )
    max_rejected_percent: Annotated[int, Field(ge=1, le=100), BeforeValidator(no_flag)] = ours(
        20,
        "The rejection limit: if one stage rejects more than this share of at least 1,000 records for one cause, the leg halts before they "
        "become dead letters. 100 disables the limit; `tallyflow run FILE --accept` lets the records pass.",
        Effect.RELOAD,
    )
    clickhouse: dict[str, ErrorClass] = ours({}, "ClickHouse errors by name, or by code in quotes: `retryable`, `record` or `halt`.")
    nats: _Passing = ours({}, "NATS errors by name, or by code in quotes: `retryable` or `halt`.")
    kafka: _Passing = ours({}, "Kafka errors by name, or by code in quotes: `retryable` or `halt`.")

    def classes(self, system: System) -> ErrorClasses:
        """Return how the connector of `system` classifies its errors."""
        return ErrorClasses(system, getattr(self, system))

    def faults(self) -> Faults:
        for system in TUNABLE:
            given: dict[str, ErrorClass] = getattr(self, system)
            seen: set[str] = set()
            for key, wanted in given.items():
                row = row_named(system, key)
                fault = _unknown(system, key) if row is None else why_not(row, wanted)
                if row is not None and row.name in seen:
                    fault = f"{row.name} is given twice, by code and by name"
                if fault:
                    yield (system, key), fault
                seen |= {row.name} if row else set()


def _unknown(system: System, key: str) -> str:
    close = get_close_matches(key.upper() if system == "clickhouse" else key, names_of(system), n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"docs/errors.md has no such code or name{hint}"


def _as_object(value: Any) -> Any:
    """Expand a single word to the object whose `rejected` it is."""
    if not isinstance(value, str):
        return value
    if value not in _WORDS:
        close = "" if isinstance(value, External) else "".join(f" (did you mean {word}?)" for word in get_close_matches(value, _WORDS, n=1))
        raise ValueError(f"must be one of {', '.join(_WORDS)}{close}, or an object with fields")
    return {"rejected": str(value)}


OnErrorField = Annotated[OnError, BeforeValidator(_as_object, json_schema_input_type=Literal["dead_letter", "halt"] | OnError)]
"""Either word of `rejected`, or the whole object."""
