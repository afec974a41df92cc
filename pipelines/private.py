"""Directories that only their owner may enter, and files that only their owner may read.

A pipeline and its servers store records and passwords there.
"""

import os
import secrets
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


def write_whole(path: Path, text: str, is_durable: bool = False) -> None:
    """Replace the file as a whole: a reader, or a crash in between, sees the old text or the new one, whoever else writes it as well.

    Only its owner may read it. `is_durable`: when this returns, file and name are there also after the host has lost its power.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    if is_durable:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
