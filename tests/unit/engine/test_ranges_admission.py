"""Admission: how far the next range goes, and when."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pipelines.engine import ranges
from pipelines.engine.ranges import LINGER_SECONDS, _SourceRangeReader, admit, offset_text

offsets = st.dictionaries(st.sampled_from(["0", "1", "2", "10"]), st.integers(0, 1000), max_size=4)


def test_everything_that_waits_is_admitted_without_a_limit() -> None:
    assert admit({"0": 5}, {"0": 500, "1": 7}, None) == {"0": 500, "1": 7}


def test_everything_is_admitted_up_to_the_limit() -> None:
    assert admit({"0": 5, "1": 0}, {"0": 10, "1": 5}, 10) == {"0": 10, "1": 5}


def test_a_backlog_is_shared_by_what_each_part_has_waiting() -> None:
    assert admit({"0": 100, "1": 0}, {"0": 400, "1": 100}, 40) == {"0": 130, "1": 10}


def test_a_part_with_nothing_waiting_stays_where_it_is() -> None:
    assert admit({"0": 100, "1": 50}, {"0": 400, "1": 50}, 10) == {"0": 110, "1": 50}


def test_a_small_part_is_not_starved_by_a_large_one() -> None:
    assert admit({"0": 0, "1": 0}, {"0": 1_000_000, "1": 1}, 10) == {"0": 10, "1": 1}


def test_a_new_partition_begins_at_its_beginning() -> None:
    assert admit({"0": 5}, {"0": 5, "1": 3}, 100) == {"0": 5, "1": 3}
    assert admit({"0": 5}, {"0": 5, "1": 300}, 100) == {"0": 5, "1": 100}


def test_an_end_that_goes_back_is_passed_on_to_the_leg() -> None:
    assert admit({"0": 9}, {"0": 4}, 100) == {"0": 4}
    assert admit({"0": 9, "1": 0}, {"0": 4, "1": 500}, 100) == {"0": 4, "1": 100}
    assert admit({"0": 9, "1": 0}, {"0": 4, "1": 500}, None) == {"0": 4, "1": 500}


@settings(deadline=None)
@given(offsets, offsets, st.integers(1, 2000))
def test_a_range_lies_between_start_and_end_within_the_limit(start: dict[str, int], available: dict[str, int], limit: int) -> None:
    end = admit(start, available, limit)
    assert set(end) == set(available)
    for part, offset in end.items():
        begin = start.get(part, 0)
        assert min(begin, available[part]) <= offset <= available[part]
    assert sum(max(0, end[part] - start.get(part, 0)) for part in end) <= limit + len(available)


@settings(deadline=None)
@given(offsets, offsets, st.integers(1, 2000))
def test_every_part_that_waits_makes_progress(start: dict[str, int], available: dict[str, int], limit: int) -> None:
    end = admit(start, available, limit)
    assert all(end[part] > start.get(part, 0) for part in available if available[part] > start.get(part, 0))


@settings(deadline=None)
@given(offsets, offsets, st.integers(1, 2000))
def test_a_backlog_is_drained_in_the_end(start: dict[str, int], available: dict[str, int], limit: int) -> None:
    for _ in range(sum(available.values()) + 1):
        end = admit(start, available, limit)
        if end == start:
            break
        start = {**start, **end}
    assert all(start.get(part, 0) >= offset for part, offset in available.items())


@settings(deadline=None)
@given(offsets)
def test_admitting_nothing_gives_the_start(start: dict[str, int]) -> None:
    assert admit(start, start, 10) == start


def test_an_offset_as_text_lists_its_parts() -> None:
    assert offset_text({"0": 12, "1": 7}) == "0:12,1:7"
    assert offset_text({}) == ""


class _Clock:
    """Time moved by hand; sleeping moves it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class _Growing(_SourceRangeReader):
    """A topic of one partition, whose end the test sets."""

    end = 0

    def _available(self, start: dict[str, int]) -> dict[str, int]:
        return {"0": self.end}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(ranges, "time", clock)
    return clock


def _plan(reader: _Growing, start: int, end: int) -> None:
    reader.end = end
    assert reader.latestOffset({"0": start}, ReadAllAvailable()) == {"0": end}


def test_a_small_range_makes_the_next_one_wait(clock: _Clock) -> None:
    reader = _Growing({"start": "0:0", "few": "100"})
    _plan(reader, 0, 99)
    assert sum(clock.slept) == 0
    clock.now += 0.1
    _plan(reader, 99, 120)
    assert sum(clock.slept) == pytest.approx(LINGER_SECONDS - 0.1)


def test_a_large_range_makes_nothing_wait(clock: _Clock) -> None:
    reader = _Growing({"start": "0:0", "few": "100"})
    _plan(reader, 0, 100)
    _plan(reader, 100, 101)
    assert sum(clock.slept) == 0


def test_the_first_record_after_a_quiet_spell_waits_for_nothing(clock: _Clock) -> None:
    reader = _Growing({"start": "0:0", "few": "100"})
    _plan(reader, 0, 1)
    clock.now += 60
    _plan(reader, 1, 2)
    assert sum(clock.slept) == 0
