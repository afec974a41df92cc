"""What a row of the table of errors is."""

from dataclasses import dataclass
from typing import Literal

System = Literal["clickhouse", "nats", "kafka", "tallyflow"]
ErrorClass = Literal["retryable", "record", "halt"]


@dataclass(frozen=True)
class ErrorRow:
    """One error: its code (None where the system gives only a name), its name, its class, what it means, what to do next.

    `may_be_record`: it is raised for what single values hold, so it may be made a `record`. `is_vague`: it does not tell whether a row or
    the table is the cause, so a chunk that meets it again and again is cut, and a row that meets it alone is a dead letter.
    `is_fixed`: the protocol answers it itself; no class but its own makes sense. `words`: only where the server says them with the code.
    """

    system: System
    code: int | None
    name: str
    error_class: ErrorClass
    meaning: str
    remedy: str
    may_be_record: bool = False
    is_fixed: bool = False
    words: str = ""
    is_vague: bool = False


Fact = tuple[int | None, str, str]
"""Code, name, meaning."""


def rows(
    system: System,
    error_class: ErrorClass,
    remedy: str,
    *facts: Fact,
    may_be_record: bool = False,
    is_fixed: bool = False,
    words: str = "",
    is_vague: bool = False,
) -> tuple[ErrorRow, ...]:
    """Errors that have their class and their remedy in common."""
    may_be_record = may_be_record or error_class == "record"
    return tuple(
        ErrorRow(system, code, name, error_class, meaning, remedy, may_be_record, is_fixed, words, is_vague)
        for code, name, meaning in facts
    )
