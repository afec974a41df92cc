"""Where this host keeps what Tallyflow makes: pipelines, their state, and the local servers."""

import os
from collections.abc import Mapping
from pathlib import Path


def default_home(environment: Mapping[str, str] | None = None) -> Path:
    """Return TALLYFLOW_HOME, else `.tallyflow` in the working directory; absolute."""
    named = (os.environ if environment is None else environment).get("TALLYFLOW_HOME")
    return Path(named or ".tallyflow").resolve()
