"""The versions that must be the same in every process of a run: what they make of a record depends on them."""

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version

_PACKAGES = ("tallyflow", "duckdb", "numpy", "pyarrow")


@lru_cache(maxsize=1)
def own_release() -> Mapping[str, str]:
    """Return the versions of this process, by the name of what has them."""
    return {"python": ".".join(map(str, sys.version_info[:2])), **{name: version(name) for name in _PACKAGES}}


def release_differences(other: Mapping[str, str]) -> str:
    """Return in words how another process's versions differ from this one's; empty if they do not."""
    own = own_release()
    names = sorted(name for name in {*own, *other} if own.get(name) != other.get(name))
    return ", ".join(f"{name} {other.get(name, 'none')} there, {own.get(name, 'none')} here" for name in names)
