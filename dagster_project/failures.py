"""Our errors as Dagster failures: one message that says what to do, without our traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from pipelines.errors import RetryableError, TallyflowError

RETRY = dg.RetryPolicy(max_retries=3, delay=5, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS)
"""Retry policy of every step that talks to the systems; `errors_as_failures` decides which failures are retried."""


@contextmanager
def errors_as_failures() -> Iterator[None]:
    """Raise our errors as dg.Failure; only retryable ones allow retries.

    Any other exception is a bug and keeps its traceback.
    """
    try:
        yield
    except TallyflowError as error:
        raise dg.Failure(str(error), allow_retries=isinstance(error, RetryableError)) from None
