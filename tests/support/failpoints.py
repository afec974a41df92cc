"""The failpoints of the sources."""

import re
from pathlib import Path

_PIPELINES = Path(__file__).parents[2] / "pipelines"


def failpoints() -> list[str]:
    """Return the name of every place that a runner or a command may be killed at, sorted."""
    sources = (path.read_text(encoding="utf-8") for path in _PIPELINES.rglob("*.py"))
    return sorted({name for source in sources for name in re.findall(r'\breach\("([^"]+)"\)', source)})
