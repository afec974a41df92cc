"""Arrivals: they never step back, and go on after a reset where the server's clock had been ahead."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from pipelines.process.arrivals import arrivals
from pipelines.protocol.bodies import ClockReset
from pipelines.protocol.records import Message

START = datetime(1970, 1, 1, tzinfo=UTC)


def frames(*times: int, first: int = 1) -> list[Message]:
    return [Message("s", sequence, START + timedelta(microseconds=time), b"") for sequence, time in enumerate(times, first)]


def arrived(times: list[int], clock: int = 0, resets: tuple[ClockReset, ...] = (), first: int = 1) -> list[int]:
    return [frame.arrival_us for frame in arrivals(frames(*times, first=first), clock, resets)]


def test_an_arrival_stands_still_while_the_clock_is_back() -> None:
    assert arrived([10, 1000, 20, 30, 1001]) == [10, 1000, 1000, 1000, 1001]


def test_after_a_reset_arrivals_go_at_half_speed_until_caught_up() -> None:
    """Frame 2 was 980 ahead. Behind frame 3 the server's clock said 30; at 1970 it is where the arrival is, and goes ahead."""
    reset = ClockReset(3, 3, 30, 1000)
    assert arrived([10, 1000, 20, 30, 40, 130, 1968, 1970, 1972], resets=(reset,)) == [10, 1000, 1000, 1000, 1005, 1050, 1969, 1970, 1972]


def test_what_was_there_came_before_the_reset_whatever_its_times() -> None:
    reset = ClockReset(1, 3, 30, 20)
    assert arrived([20, 5000, 25, 31], resets=(reset,)) == [20, 30, 30, 31]


def test_the_last_reset_counts() -> None:
    resets = (ClockReset(2, 2, 20, 1000), ClockReset(4, 4, 40, 3000))
    assert arrived([10, 1000, 30, 3000, 60], resets=resets) == [10, 1000, 1005, 3000, 3010]


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=12), st.data())
def test_arrivals_never_step_back_wherever_reading_begins(times: list[int], data: st.DataObject) -> None:
    after = data.draw(st.integers(0, len(times) - 1))
    last = data.draw(st.integers(after, len(times)))
    ahead = max(arrived(times[:after]), default=0)
    resets = (ClockReset(after, last, data.draw(st.integers(0, 2000)), ahead),)
    whole = arrived(times, resets=resets)
    assert whole == sorted(whole)
    start = data.draw(st.integers(0, len(times) - 1))
    assert arrived(times[start:], whole[start - 1] if start else 0, resets, first=start + 1) == whole[start:]
