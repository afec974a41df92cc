"""The error of the local servers; its message names the next step."""

from pipelines.errors import TallyflowError


class LocalServerError(TallyflowError):
    """A local server could not be prepared, started or stopped; servers that did start are left running."""
