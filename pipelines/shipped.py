"""Where the pages of docs/ and the examples lie: in the checkout, or below `share/tallyflow` of the environment of an installed wheel."""

import sysconfig
from pathlib import Path


def shipped(name: str, root: Path | None = None) -> Path:
    """Return the directory `docs` or `examples` as it was shipped with this code, whether it is there or not.

    `root`: the directory above the package `pipelines`; by default that of this module.
    """
    root = root or Path(__file__).resolve().parents[1]
    # Any distribution may put a `docs` beside us into site-packages; only a checkout has our project file.
    if (root / "pyproject.toml").is_file():
        return root / name
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    found = [Path(sysconfig.get_path("data", scheme)) / "share" / "tallyflow" / name for scheme in schemes]
    return next((place for place in found if place.is_dir()), found[0])
