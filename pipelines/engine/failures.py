"""Errors that cross from one process to another, and come back as what they were."""

import re
from dataclasses import dataclass

from pipelines import errors
from pipelines.errors import FunctionHaltError, HaltError, TallyflowError, UndecidedError
from pipelines.protocol.codec import Count, Flag, Form, Text, from_text, to_text

_ERROR = re.compile(r"[A-Za-z_][\w.]*(: .*|(Error|Exception|Exit|Interrupt))$")
"""The line of a traceback that holds its error."""


@dataclass(frozen=True)
class _Failure(Form):
    """An error of ours, the `records` and `is_unwritten` of an UndecidedError, and the `stage` of a FunctionHaltError."""

    error: Text
    message: Text
    records: tuple[tuple[Count, Count, Count, Text, Text] | tuple[Count, Count, Count, Text, Text, Text], ...] = ()
    stage: Text = ""
    is_unwritten: Flag = False


def to_failure(error: TallyflowError) -> str:
    """Return an error of ours as text."""
    kind, message = type(error).__name__, str(error)
    if isinstance(error, UndecidedError):
        return to_text(_Failure(kind, message, tuple(map(tuple, error.records)), is_unwritten=error.is_unwritten))
    return to_text(_Failure(kind, message, stage=error.stage if isinstance(error, FunctionHaltError) else ""))


def from_failure(text: str) -> TallyflowError:
    """Return the error of a text of `to_failure`; a HaltError for a kind that this release does not know."""
    failure = from_text(_Failure, text)
    if failure.records:
        return UndecidedError(failure.message, failure.records, failure.is_unwritten)
    if failure.error == FunctionHaltError.__name__:
        return FunctionHaltError(failure.message, failure.stage)
    kind = getattr(errors, failure.error, HaltError)
    if not issubclass(kind, HaltError | errors.RetryableError | errors.ConflictError):
        kind = HaltError
    revived: TallyflowError = kind(failure.message)
    return revived


def last_message(text: str) -> str:
    """Return the end of the last Python traceback in `text`, the kind of error and its message; without a traceback the first line."""
    last_line, was_indented = "", False
    for line in text.splitlines():
        if was_indented and _ERROR.match(line):
            last_line = line
        was_indented = line.startswith(" ") if line.strip() else was_indented
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (last_line or next((line for line in lines if _ERROR.match(line)), None) or next(iter(lines), ""))[:500]
