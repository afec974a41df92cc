"""Errors of NATS and its client as our errors, by the error table."""

from concurrent.futures import TimeoutError as FutureTimeoutError

import nats.errors
from nats.js.errors import APIError, ServiceUnavailableError

from pipelines.error_classes import ErrorClasses
from pipelines.errors import ConflictError, HaltError, RetryableError, TallyflowError

TABLE_CLASSES = ErrorClasses("nats")
_WRONG_LAST_SEQUENCE = 10071
_UNAVAILABLE = 503


def map_error(doing: str, error: BaseException, classes: ErrorClasses = TABLE_CLASSES) -> TallyflowError:
    """Map the driver's exception to our error; an unknown one is a halt."""
    if isinstance(error, APIError):
        return _of_the_server(doing, error, classes)
    # Not only the client's own: a wait for a future ends with the standard library's TimeoutError.
    of_connection = isinstance(error, nats.errors.Error | OSError | FutureTimeoutError)
    row = next(filter(None, (classes.row(kind.__name__) for kind in type(error).__mro__)), None) if of_connection else None
    if row is None:
        return HaltError(f"{doing}: {type(error).__name__}: {error}")
    if classes.of(row) == "retryable":
        return RetryableError(f"{doing}: NATS did not answer ({type(error).__name__})")
    return HaltError(f"{doing}: {error}; {row.remedy}")


def too_large(doing: str, classes: ErrorClasses = TABLE_CLASSES) -> TallyflowError:
    """Return the error of `map_error` for a message above the server's `max_payload`."""
    return map_error(doing, nats.errors.MaxPayloadError(), classes)


def _of_the_server(doing: str, error: APIError, classes: ErrorClasses) -> TallyflowError:
    # The answer to a pull has its code as text, or only in the kind of the error.
    status = _UNAVAILABLE if isinstance(error, ServiceUnavailableError) else int(error.code or 0)
    code = error.err_code or status
    if code == _WRONG_LAST_SEQUENCE:
        return ConflictError(f"{doing}: {error.description}")
    row = classes.row(code) or (classes.row(_UNAVAILABLE) if status == _UNAVAILABLE else None)
    text = f"{doing}: JetStream error {code}: {error.description}"
    if row is None:
        return HaltError(f"{text}; nothing was dropped: look it up in NATS's own list of errors")
    return RetryableError(f"{text}; {row.remedy}") if classes.of(row) == "retryable" else HaltError(f"{text}; {row.remedy}")
