"""What can go wrong with the local servers: one error, whose message says what to do next."""

from pipelines.errors import TallyflowError


class LocalServerError(TallyflowError):
    """A local server could not be prepared, started or stopped; servers that did start are left running."""
