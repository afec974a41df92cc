"""The installed pyspark, instead of the zip with a copy of it that Spark puts first on the path of its Python workers.

Python keeps no byte code of what is in a zip: each daemon compiled what it imports, and each worker what it imports later.
"""

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def leave_out_copies() -> None:
    """Take what lies inside the installed pyspark, zips and a jar, from the path of this process and its children.

    Before the first import of pyspark. The zip of a Spark that lies elsewhere stays, as it may be of another release.
    """
    installed = PathFinder.find_spec("pyspark", [entry for entry in sys.path if not entry.endswith(".zip")])
    if installed is None or installed.origin is None:
        return
    package = Path(installed.origin).resolve().parent
    sys.path[:] = _outside(package, sys.path)
    if given := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(_outside(package, given.split(os.pathsep)))


def _outside(package: Path, entries: list[str]) -> list[str]:
    return [entry for entry in entries if not Path(entry).resolve().is_relative_to(package)]
