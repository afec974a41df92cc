"""A clock that is moved by hand, and a log by it; files in memory, and a disk that nothing waits for."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.files_in_memory import directory_in_memory

from pipelines.testing import ManualClock, MemoryLog


@pytest.fixture(autouse=True, scope="module")
def no_fsync() -> Iterator[None]:
    """No machine goes down in these tests; they spent a twentieth of their time waiting for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


ROOM_BYTES = 1024 * 1024 * 1024


@pytest.fixture(autouse=True, scope="module")
def memory() -> Iterator[Path]:
    """A directory in memory, if the machine has one, for all temporary files: to write and delete them on a disk took a third of the
    CPU of tests of key stores.
    """
    with (
        TemporaryDirectory(dir=directory_in_memory(ROOM_BYTES), ignore_cleanup_errors=True) as directory,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)


@pytest.fixture
def tmp_path(memory: Path) -> Iterator[Path]:
    """In memory, and gone behind the test."""
    with TemporaryDirectory(dir=memory, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock) -> MemoryLog:
    return MemoryLog(clock)
