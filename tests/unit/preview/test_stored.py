"""Raw frames for a preview or a comparison: the range that is asked for, and what before it dedup must know."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pipelines.errors import HaltError
from pipelines.preview.stored import Span, limited, parse_span, raw_frames
from pipelines.process.arrivals import microseconds
from pipelines.protocol.bodies import PROCESS_CHAIN, ProcessDone, ProcessPlan
from pipelines.protocol.ledger import Chain
from pipelines.protocol.naming import Names
from pipelines.protocol.purge import Purged
from pipelines.protocol.records import HEADER_PARTITION, HEADER_ROWS, HEADER_TOPIC, encode_frame
from pipelines.testing import FIRST_INSTANT, MemoryLog, records

NAMES = Names("clicks")
RANGE = Span(5, 6)


def hour(number: float) -> datetime:
    return FIRST_INSTANT + timedelta(hours=number)


@pytest.fixture
def log() -> Any:
    """Six frames, one an hour, each processed as it arrives."""
    log = MemoryLog()
    chain = Chain(log, NAMES, PROCESS_CHAIN, 1)
    chain.open()
    for number in range(6):
        log.clock.now = hour(number)
        headers = {HEADER_TOPIC: "clicks", HEADER_PARTITION: "0", HEADER_ROWS: "1"}
        log.store(NAMES.raw("clicks", 0), encode_frame(records(0, [b"{}"], first=number)), headers, None)
        chain.plan(ProcessPlan(start=number, to=number + 1, config="v"))
        chain.done(ProcessDone(start=number, to=number + 1, config="v", clock_us=microseconds(log.clock.now)))
    return log


def purge(log: Any, below: int) -> None:
    log.purge(NAMES.stream("raw"), NAMES.subjects("raw"), below)
    log.store(NAMES.purged("raw"), Purged(below=below, since=hour(below - 1)).encode(), {}, None)


def read(log: Any, span: Span, window: timedelta | None = None) -> tuple[list[int], int, str]:
    found = raw_frames(log, NAMES, span, window)
    return [frame.message.sequence for frame in found.frames], found.first, found.memory


@pytest.mark.parametrize(
    ("window", "sequences", "memory"),
    [(None, [5, 6], "none"), (90, [4, 5, 6], "window"), (30, [5, 6], "window"), (600, [1, 2, 3, 4, 5, 6], "whole")],
)
def test_the_window_before_the_range_is_read_too(log: Any, window: int | None, sequences: list[int], memory: str) -> None:
    assert read(log, RANGE, timedelta(minutes=window) if window else None) == (sequences, 5, memory)


def test_a_window_that_raw_no_longer_holds_is_named(log: Any) -> None:
    purge(log, 4)
    assert read(log, RANGE, timedelta(hours=10)) == ([4, 5, 6], 5, "cut")
    assert read(log, RANGE, timedelta(hours=1)) == ([4, 5, 6], 5, "window")


def test_a_range_is_cut_to_what_raw_holds(log: Any) -> None:
    purge(log, 4)
    assert read(log, Span(1, 99)) == ([4, 5, 6], 4, "none")
    assert read(log, Span(since=hour(4.5))) == ([6], 6, "none")
    for span in (Span(1, 3), Span(7, 9), Span(since=hour(6))):
        with pytest.raises(HaltError, match="it holds sequences 4 to 6"):
            read(log, span)


def test_a_limit_ends_with_a_whole_frame(log: Any) -> None:
    assert [frame.message.sequence for frame in limited(raw_frames(log, NAMES, Span(1, 6)).frames, 3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("1h", Span(since=timedelta(hours=1))),
        ("2026-01-31T12:00:00", Span(since=datetime(2026, 1, 31, 12, tzinfo=UTC))),
        ("17", Span(17, 17)),
        ("17..20", Span(17, 20)),
    ],
)
def test_ranges_are_times_or_sequences(text: str, span: Span) -> None:
    assert parse_span(text) == span


@pytest.mark.parametrize("text", ["", "1..", "0..3", "soon"])
def test_other_text_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match="must be a time span such as 1h, an instant"):
        parse_span(text)


def test_a_range_does_not_end_before_it_begins() -> None:
    with pytest.raises(ValueError, match="ends before it begins: 20"):
        parse_span("20..17")
