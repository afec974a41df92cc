"""The ClickHouse driver's exceptions as our errors, by the table of error_classes, and without values of rows."""

import re

from clickhouse_connect.driver.exceptions import ClickHouseError, Error, OperationalError
from urllib3.exceptions import HTTPError

from pipelines.error_classes import ErrorClasses
from pipelines.error_classes.rows import ErrorRow
from pipelines.errors import HaltError, InsertTooLargeError, RefusedError, RetryableError, TallyflowError

TABLE_CLASSES = ErrorClasses("clickhouse")

_VIOLATED_CONSTRAINT = 469
_CHECKED_FIRST = (252, _VIOLATED_CONSTRAINT)
"""Codes of what the server looks at before it writes anything: the partitions of a block, a constraint (measured, 26.9)."""
_PUSHING_TO_VIEW = "while pushing to view"
"""If a view refuses an insert, the table has stored the block all the same (measured, 26.9)."""
_SERVER = re.compile(r"DB::\w*Exception: ")
_TABLE_ID = re.compile(r" \([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\)")
_AT_ROW = re.compile(r"is violated at row (\d+)")
_VIEW = re.compile(r"while pushing to view ([\w.`-]+)")
_EXECUTING = ": while executing 'FUNCTION "
_TOO_LARGE = (159, 160, 241)
"""Codes of an insert that the server aborts for its time or memory: a smaller one may pass."""


def insert_error(doing: str, error: Exception, classes: ErrorClasses = TABLE_CLASSES) -> TallyflowError:
    """Map the driver's exception of an insert to our error, without a value of a row."""
    found = refusal(error, classes) or map_error(doing, error, classes, sends_rows=True)
    if isinstance(found, RetryableError) and isinstance(error, Error) and error.code in _TOO_LARGE:
        return InsertTooLargeError(str(found))
    return found


def map_error(doing: str, error: Exception, classes: ErrorClasses = TABLE_CLASSES, sends_rows: bool = False) -> TallyflowError:
    """Map the driver's exception to our error. Network trouble is retryable; an unknown code is a halt, never a drop.

    `sends_rows`: the server's message may quote a value of a row, so our message omits it.
    """
    if isinstance(error, TallyflowError):
        return error
    if not isinstance(error, ClickHouseError):
        if isinstance(error, HTTPError | OSError):
            return RetryableError(f"{doing}: ClickHouse did not answer ({type(error).__name__})")
        return HaltError(f"{doing}: {type(error).__name__}: {error}")
    code = error.code if isinstance(error, Error) else None
    text = _first_line(str(error))
    if code is None and isinstance(error, OperationalError) and error.__cause__ is not None:
        # urllib3 wraps the reason in the list of its attempts.
        reason = _first_line(str(getattr(error.__cause__, "reason", error.__cause__)))
        return RetryableError(f"{doing}: ClickHouse did not answer ({reason})")
    if code is None:
        return RetryableError(f"{doing}: {text}") if _may_pass(error, text) else HaltError(f"{doing}: {text}")
    row = classes.row(code, str(error))
    return _of_the_server(doing, str(error), _own_text(str(error), code, row) if sends_rows else text, code, row, classes)


def _of_the_server(doing: str, full_text: str, text: str, code: int, row: ErrorRow | None, classes: ErrorClasses) -> TallyflowError:
    if row is None:
        return HaltError(f"{doing}: ClickHouse error {code}: {text}; nothing was dropped: mend the cause and start again")
    if classes.of(row) == "retryable":
        return RetryableError(f"{doing}: ClickHouse error {code} ({row.name}): {text}; {row.remedy}")
    if _PUSHING_TO_VIEW in full_text:
        return HaltError(
            f"{doing}: ClickHouse error {code}: {text}; a materialized view on the table refuses these rows, which the table itself may "
            "hold already. Fix the view, or detach it, and start again: the same chunk is sent with its token, and nothing is doubled"
        )
    return HaltError(f"{doing}: ClickHouse error {code}: {text}; {row.remedy}")


def refusal(error: Exception, classes: ErrorClasses = TABLE_CLASSES) -> RefusedError | None:
    """Return the error of an insert that a smaller block may survive; None for any other.

    The message holds no value of the row.
    """
    text = str(error)
    if not isinstance(error, Error) or error.code is None or _PUSHING_TO_VIEW in text:
        return None
    row = classes.row(error.code, text)
    is_known = row is not None and classes.of(row) == "record"
    # An error that is not in the table, or does not name its cause, may still be caused by a row.
    if not is_known and row is not None and not classes.is_vague(row):
        return None
    own_text = _own_text(text, error.code, row)
    at = _AT_ROW.search(own_text)
    name = f" ({row.name})" if row else ""
    is_whole = error.code in _CHECKED_FIRST
    message, alone = (
        f"ClickHouse error {error.code}{name}: {words}" for words in (own_text, _AT_ROW.sub("is violated at row 1", own_text))
    )
    return RefusedError(message, int(at[1]) - 1 if at else None, is_whole, is_known, alone)


def _own_text(full_text: str, code: int, row: ErrorRow | None) -> str:
    """Return the server's message without a value of a row.

    Of an error that may quote a value, only text that is known to come from the table.
    """
    if row is not None and not row.may_be_record and not row.is_vague:
        return _first_line(full_text)
    if row is not None and row.words:
        return row.words
    if code == _VIOLATED_CONSTRAINT:
        return _TABLE_ID.sub("", _first_line(full_text).partition(". Column values: ")[0])
    _, mark, call = full_text.rpartition(_EXECUTING)
    view = _VIEW.findall(full_text)
    where = f", in {call.partition(' -> ')[0][:200]}" if mark else ""
    where += f", while pushing to view {view[-1]}" if view else ""
    return f"{row.meaning if row else 'an error that is not in the table of errors'}{where}"


def _may_pass(error: ClickHouseError, text: str) -> bool:
    """Return True for an error without a code of the network or an overloaded proxy; the driver's other errors are misuse."""
    status = re.search(r"HTTP status (\d{3})\b", text)
    if status:
        return status[1] in ("408", "429") or status[1] >= "500"
    return isinstance(error, OperationalError)


def _first_line(text: str) -> str:
    """Return the server's own message, without the driver's wrapping."""
    own_text = _SERVER.split(text, maxsplit=1)[-1]
    return own_text.strip().splitlines()[0][:500] if own_text.strip() else "no message"
