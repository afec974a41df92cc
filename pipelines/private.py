"""Directories that only their owner may enter: what a pipeline and its servers keep holds records and passwords."""

from pathlib import Path

OWNER_ONLY = 0o077
"""As umask: what a process makes, others can neither read nor enter."""


def private_directory(path: Path) -> None:
    """Makes the directory, private as are those that must be made above it; closes it to all others where it is there already."""
    for directory in reversed([path, *path.parents]):
        if not directory.exists():
            directory.mkdir(mode=0o700, exist_ok=True)
    path.chmod(0o700)
