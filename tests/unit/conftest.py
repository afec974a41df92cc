"""A clock that is moved by hand, and a log by it."""

import pytest

from pipelines.testing import ManualClock, MemoryLog


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(clock: ManualClock) -> MemoryLog:
    return MemoryLog(clock)
