"""Which frames a verification compares, from where on it reads, and from where on it finds the copies itself."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from support.verification_case import CONFIG, KEYED, SECOND, TIMED, of

from pipelines.process.steps.dedup import Dedup
from pipelines.proof.verification.reference import Bounds
from pipelines.proof.verification.span import History, Plan, Span, arrivals_of, is_open, same_dedup_from, span_of
from pipelines.protocol.bodies import Watermarks
from pipelines.protocol.records import instant

START = datetime(1970, 1, 1, tzinfo=UTC)


def marks(seconds: int) -> Watermarks:
    return Watermarks(seconds * SECOND, seconds * SECOND)


def history(first: int = 1, confirmed_to: int = 10, last: int = 10) -> History:
    """A frame every 4 s, sequence n at 4n s; plans of two frames, event times as arrivals."""
    sequences = list(range(first, last + 1))
    plans = [Plan(to - 1, to, "v", marks(4 * to)) for to in range(2, last + 1, 2) if to >= first]
    return History(plans, sequences, [4 * one * SECOND for one in sequences], confirmed_to, is_whole=first == 1)


def after(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("until", "now", "clock", "found"),
    [(60, 60, 59, True), (60, 60, 60, False), (60, 59, 30, False), (60, 90, 59, True), (60, 30, 90, False)],
)
def test_a_range_ended_here_may_still_run_by_the_clock_of_nats(until: int, now: int, clock: int, found: bool) -> None:
    """A range that ends in the future is no such one: whoever asks for it knows."""
    assert is_open(after(until), after(now), after(clock)) == found


def test_without_bounds_all_that_is_confirmed_is_compared() -> None:
    assert span_of(history(confirmed_to=8), None, None, CONFIG, 1) == Span(1, 8, 1, 1)


@pytest.mark.parametrize(("since", "until", "first", "last"), [(8, 16, 2, 3), (9, 17, 3, 4), (0, 41, 1, 10), (40, 99, 10, 10)])
def test_a_range_includes_its_start_and_excludes_its_end(since: int, until: int, first: int, last: int) -> None:
    found = span_of(history(), after(since), after(until), CONFIG, 1)
    assert found is not None
    assert (found.first, found.last) == (first, last)


@pytest.mark.parametrize(("since", "until"), [(9, 11), (41, 99), (50, 40)])
def test_a_range_without_a_confirmed_frame_is_none(since: int, until: int) -> None:
    assert span_of(history(), after(since), after(until), CONFIG, 1) is None
    assert span_of(history(confirmed_to=2), after(12), None, CONFIG, 1) is None


def test_one_window_before_the_range_is_read() -> None:
    """Window 10 s: a record that arrives at 28 s may be a copy of one behind 18 s."""
    assert span_of(history(), after(28), None, KEYED, 1) == Span(7, 10, 5, 7)


def test_a_window_reaching_the_first_frame_needs_no_table() -> None:
    found = span_of(history(), after(12), None, KEYED, 1)
    assert found == Span(3, 10, 1, 1)
    assert found.bounds == Bounds(3 << 20, (11 << 20) - 1, 0)


def test_behind_a_purge_copies_are_judged_from_one_window_on() -> None:
    """The purged frames arrived at 16 s or before it: what they accepted is forgotten from 26 s on."""
    assert span_of(history(first=5), None, None, KEYED, 1) == Span(5, 10, 5, 8)
    assert span_of(history(first=5), after(36), None, KEYED, 1) == Span(9, 10, 7, 9)


def test_behind_a_change_of_the_window_copies_are_judged_anew() -> None:
    found = span_of(history(), None, None, KEYED, 5)
    assert found is not None
    assert (found.first_replayed, found.bounds.first_replayed) == (5, 5 << 20)
    plans = [Plan(1, 2, "a"), Plan(3, 4, "b")]
    configs = {"a": of(Dedup(("id",), 1)), "b": KEYED}
    both = History(plans, [1, 2, 3, 4], [1, 2, 3, 4], 4, True)
    assert same_dedup_from(both, configs, KEYED) == 3
    assert same_dedup_from(both, {"a": KEYED, "b": KEYED}, KEYED) == 1


def test_by_event_raw_is_read_from_behind_the_window() -> None:
    """Lateness 3 s, window 10 s: before the plan of frames 7 and 8 the newest time is 24 s, so what is older than 11 s is over."""
    assert span_of(history(), after(28), None, TIMED, 1) == Span(7, 10, 3, 7, marks(8))
    assert span_of(history(), after(40), None, TIMED, 1) == Span(10, 10, 5, 10, marks(16)), "not from the oldest plan on"
    assert span_of(history(), after(12), None, TIMED, 1) == Span(3, 10, 1, 1)


def test_by_event_behind_a_purge_the_first_plan_has_the_time() -> None:
    assert span_of(history(first=3), None, None, TIMED, 1) == Span(5, 10, 5, 9, marks(16))


def test_by_event_a_purge_may_have_gone_further_than_the_ledger() -> None:
    """To make room a purge ends within a range, and the ledger keeps the plans before it: what these tell is not that of frame 6."""
    known = history()
    cut = replace(known, sequences=known.sequences[5:], arrivals_us=known.arrivals_us[5:], is_whole=False)
    assert span_of(cut, None, None, TIMED, 1) == Span(7, 10, 7, 11, marks(24))
    assert span_of(cut, after(40), None, TIMED, 1) == Span(10, 10, 7, 11, marks(24)), "nor from a plan whose window is over"


def test_by_event_what_a_slow_partition_holds_back_is_read() -> None:
    """The newest time up to frame 4 is 16 s, but the combined watermark stands at 20 s behind frame 8: 7 s may still be looked for."""
    known = history()
    held = [replace(plan, watermarks=Watermarks(min(20, 4 * plan.to) * SECOND, 4 * plan.to * SECOND)) for plan in known.plans]
    assert span_of(replace(known, plans=held), after(36), None, TIMED, 1) == Span(9, 10, 1, 1)
    held[3] = replace(held[3], watermarks=Watermarks(21 * SECOND, 32 * SECOND))
    assert span_of(replace(known, plans=held), after(36), None, TIMED, 1) == Span(9, 10, 3, 9, marks(8))


def test_a_stretch_has_one_configuration() -> None:
    plans = [Plan(1, 2, "a"), Plan(3, 4, "b"), Plan(5, 6, "b"), Plan(7, 8, "a")]
    found = History(plans, list(range(1, 9)), list(range(1, 9)), 8, True)
    assert list(found.segments(2, 7)) == [(2, 2, "a"), (3, 6, "b"), (7, 7, "a")]
    assert list(found.segments(9, 12)) == []


def test_the_range_is_told_by_its_first_and_last_arrival() -> None:
    assert arrivals_of(history(), Span(3, 5, 3, 3)) == (instant(12 * SECOND), instant(20 * SECOND))
