"""Directories that only their owner may enter: a pipeline and its servers store records and passwords there."""

import os
from pathlib import Path

OWNER_ONLY = 0o077
"""The umask: other users can neither read nor enter what the process creates."""


def private_directory(path: Path) -> None:
    """Create the directory and its missing parents, private; make an existing one of ours private too."""
    for directory in reversed([path, *path.parents]):
        if not directory.exists():
            directory.mkdir(mode=0o700, exist_ok=True)
    found = path.stat()
    if found.st_uid == os.geteuid() and found.st_mode & OWNER_ONLY:
        path.chmod(0o700)
