"""A clock that is moved by hand, and a log by it; a disk that nothing waits for."""

import os
from collections.abc import Iterator

import pytest

from pipelines.testing import ManualClock, MemoryLog


@pytest.fixture(autouse=True, scope="module")
def no_fsync() -> Iterator[None]:
    """No machine goes down in these tests; they spent a twentieth of their time waiting for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock) -> MemoryLog:
    return MemoryLog(clock)
