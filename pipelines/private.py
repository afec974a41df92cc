"""Directories that only their owner may enter: what a pipeline and its servers keep holds records and passwords."""

import os
from pathlib import Path

OWNER_ONLY = 0o077
"""As umask: what a process makes, others can neither read nor enter."""


def private_directory(path: Path) -> None:
    """Makes the directory, private as are those that must be made above it; one of ours that is there already is closed to all others."""
    for directory in reversed([path, *path.parents]):
        if not directory.exists():
            directory.mkdir(mode=0o700, exist_ok=True)
    found = path.stat()
    if found.st_uid == os.geteuid() and found.st_mode & OWNER_ONLY:
        path.chmod(0o700)
