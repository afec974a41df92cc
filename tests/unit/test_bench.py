"""What `make bench` measures without servers follows the code that it measures."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.step import PARTS, measure


@pytest.fixture
def collector() -> Iterator[None]:
    """A measurement tunes it, as a leg does."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("collector")
def test_a_step_of_the_process_leg_is_measured_by_its_parts(tmp_path: Path) -> None:
    cost = measure(tmp_path, size=200, events=40, buckets=2, repetitions=2)
    assert cost.ms.keys() == set(PARTS)
    assert (cost.events, cost.buckets, cost.repetitions) == (40, 2, 2)
