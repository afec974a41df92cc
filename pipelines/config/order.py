"""The order in which the transforms of a file run. Pure; also called over a `Partial`."""

from collections import Counter
from typing import Any

_OF_GLASSFLOW = ("filter", "dedup", "stateless")
"""GlassFlow runs its transforms in this order, whatever the order of the file (cmd/glassflow/dedup_component.go)."""


def in_order(config: Any) -> list[tuple[int, Any]]:
    """Return the transforms as they run, each with its index in the file."""
    transforms = list(enumerate(config.transforms))
    if not runs_as_glassflow(config):
        return transforms
    # A kind that GlassFlow does not have is reported where the order is asked for.
    return sorted(transforms, key=lambda entry: (*_OF_GLASSFLOW, entry[1].type).index(entry[1].type))


def runs_as_glassflow(config: Any) -> bool:
    """Return whether GlassFlow's order applies: the file asks for it, or GlassFlow would take its transforms."""
    if config.transforms_order is not None:
        return bool(config.transforms_order == "glassflow")
    kinds = Counter((transform.type, transform.source_id) for transform in config.transforms)
    return all(kind in _OF_GLASSFLOW for kind, _ in kinds) and max(kinds.values(), default=0) <= 1
