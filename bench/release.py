"""A release under measurement: this tree, or another checkout with a .venv of its own, such as the release before."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Release:
    """`command`: its `tallyflow`. `root`: its checkout, in which its processes run, as Python takes modules from there first."""

    name: str
    command: tuple[str, ...]
    root: Path

    @property
    def example(self) -> Path:
        """The pipeline file that is measured."""
        return self.root / "examples" / "orders" / "pipeline.yaml"

    def environment(self) -> dict[str, str]:
        """The variables of this process, without the one that would lead another tree's Python to this one."""
        return {name: value for name, value in os.environ.items() if self.root == _ROOT or name != "PYTHONPATH"}


HERE = Release("now", (sys.executable, "-m", "pipelines.cli"), _ROOT)


def release_before(root: Path) -> Release:
    """The release in another checkout, installed there by `make venv`. Raises FileNotFoundError."""
    # Not resolved: a path with links is what its .venv was made for.
    release = Release("before", (str((root / ".venv" / "bin" / "tallyflow").absolute()),), root.absolute())
    for needed in (Path(release.command[0]), release.example):
        if not needed.is_file():
            raise FileNotFoundError(f"{needed} is missing: name a checkout of Tallyflow in which `make venv` has run")
    return release
