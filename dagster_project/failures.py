"""Our errors as Dagster shows them best: one message that says what to do, without a traceback of ours."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from pipelines.errors import RetryableError, TallyflowError

RETRY = dg.RetryPolicy(max_retries=3, delay=5, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS)
"""Of every step that talks to the systems; `errors_as_failures` says which failures are tried again."""


@contextmanager
def errors_as_failures() -> Iterator[None]:
    """Only what passes by itself is tried again, where the step has a retry policy. Anything else is a bug and keeps its traceback."""
    try:
        yield
    except TallyflowError as error:
        raise dg.Failure(str(error), allow_retries=isinstance(error, RetryableError)) from None
