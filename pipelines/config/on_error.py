"""The `on_error` of the pipeline file: what becomes of rejected records, and which class an error of a system is of."""

from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from pipelines.config.base import External, Faults, Model, no_flag, ours
from pipelines.error_classes import TUNABLE, ErrorClasses, names_of, row_named, why_not
from pipelines.error_classes.rows import ErrorClass, System

_WORDS = ("dead_letter", "halt")
_Passing = dict[str, Literal["retryable", "halt"]]


class OnError(Model):
    """What becomes of rejected records, and overrides of the table of errors (docs/errors.md) by code or name."""

    rejected: Literal["dead_letter", "halt"] = ours(
        "dead_letter", "A record that a stage or ClickHouse rejects goes to the dead letters, or stops the leg before it does."
    )
    max_rejected_percent: Annotated[int, Field(ge=1, le=100), BeforeValidator(no_flag)] = ours(
        20,
        "The circuit breaker: of at least 1,000 records, more than so many rejected by one stage for one cause stop the leg before they "
        "become dead letters. 100 never does; `tallyflow run FILE --accept` lets them pass.",
    )
    clickhouse: dict[str, ErrorClass] = ours({}, "ClickHouse's errors by name, or by code in quotes: `retryable`, `record` or `halt`.")
    nats: _Passing = ours({}, "NATS's errors by name, or by code in quotes: `retryable` or `halt`.")
    kafka: _Passing = ours({}, "Kafka's errors by name, or by code in quotes: `retryable` or `halt`.")

    def classes(self, system: System) -> ErrorClasses:
        """How the connector of `system` tells its errors apart."""
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
    return f"there is no such code or name in docs/errors.md{hint}"


def _as_object(value: Any) -> Any:
    """A word stands for what becomes of rejected records."""
    if not isinstance(value, str):
        return value
    if value not in _WORDS:
        close = "" if isinstance(value, External) else "".join(f" (did you mean {word}?)" for word in get_close_matches(value, _WORDS, n=1))
        raise ValueError(f"must be one of {', '.join(_WORDS)}{close}, or an object with fields")
    return {"rejected": str(value)}


OnErrorField = Annotated[OnError, BeforeValidator(_as_object, json_schema_input_type=Literal["dead_letter", "halt"] | OnError)]
"""Either word of `rejected`, or the whole object."""
