"""Watermarks of event time by literal frames, and against an oracle that looks at all that came before each record."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.watermark_oracle import Frames, marks

from pipelines.process import watermarks
from pipelines.process.watermarks import TIME_COLUMN, FrameTimes, with_newest_before
from pipelines.protocol.bodies import NEVER, NOTHING, Watermarks
from pipelines.protocol.codec import from_text, to_text
from pipelines.protocol.naming import Names
from pipelines.protocol.records import HEADER_PARTITION, Message

NAMES = Names("orders")
WINDOW = 10
IDLE = 6


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watermarks, "IDLE_RECORDS", IDLE)


def message(sequence: int, partition: int | None) -> Message:
    subject = NAMES.redriven("events", 0) if partition is None else NAMES.raw("events", partition)
    return Message(subject, sequence, datetime(2026, 1, 1, tzinfo=UTC), b"", {HEADER_PARTITION: str(partition or 0)})


def rows_of(frames: Frames, first: int = 1) -> pa.Table:
    sequences = [sequence for sequence, (_, times) in enumerate(frames, first) for _ in times]
    times = [time for _, times in frames for time in times]
    rows = pa.table([pa.array(sequences, pa.uint64()), pa.array(times, pa.int64())], names=["_tf_sequence", TIME_COLUMN])
    return with_newest_before(rows)


def messages(frames: Frames, first: int = 1) -> list[Message]:
    return [message(sequence, partition) for sequence, (partition, _) in enumerate(frames, first)]


def reported(frames: Frames, before: Watermarks = NOTHING, first: int = 1, lateness: int = 0) -> tuple[list[list[int | None]], Watermarks]:
    """(the watermark of each record by frame, those behind the last)."""
    rows = rows_of(frames, first)
    times = FrameTimes.of(rows, messages(frames, first), before, WINDOW)
    flat = [None if mark == NEVER else mark for mark in times.watermarks(rows, lateness).tolist()]
    return [[flat.pop(0) for _ in records] for _, records in frames], times.last


def late(frames: Frames, lateness: int = 0) -> list[int]:
    """The times of late records."""
    found, _ = reported(frames, lateness=lateness)
    records = [pair for (_, times), of_frame in zip(frames, found, strict=True) for pair in zip(times, of_frame, strict=True)]
    return [time for time, mark in records if mark is not None and time < mark]


def test_a_record_follows_earlier_ones_of_its_partition() -> None:
    assert reported([(0, [5, 9, 7]), (0, [8])])[0] == [[None, 5, 9], [9]]
    assert late([(0, [5, 9, 7]), (0, [8])]) == late([(0, [5]), (0, [9]), (0, [7, 8])]) == [7, 8], "however ingest has cut frames"
    assert late([(0, [5, 9, 7]), (0, [8])], lateness=1) == [7]


def test_partitions_that_are_in_order_never_make_each_other_late() -> None:
    """The second is far behind the first, by more than the window, as in a backlog."""
    assert late([(0, []), (1, []), (0, [100, 101]), (1, [1, 2]), (0, [200]), (1, [3]), (1, [50])]) == []


def test_before_its_first_record_a_partition_is_waited_for() -> None:
    """Ingest writes an empty frame per partition at the first start."""
    _, waiting = reported([(0, []), (1, []), (0, [100, 200])])
    assert waiting.combined_us == NEVER
    assert reported([(1, [1])], waiting, first=4)[1].combined_us == 1


def test_a_silent_partition_may_return_a_window_behind() -> None:
    frames: Frames = [(0, [1]), (1, [1]), (0, [100] * IDLE)]
    assert reported(frames)[1].combined_us == 1
    frames = [*frames, (0, [100])]
    assert reported(frames)[1].combined_us == 100 - WINDOW
    assert late([*frames, (1, [90])]) == []
    assert late([*frames, (1, [89])]) == [89]


def test_the_combined_watermark_never_steps_back() -> None:
    frames: Frames = [(0, [100] * IDLE), (1, [95]), (1, [94])]
    assert [reported(frames[:end])[1].combined_us for end in (1, 2, 3)] == [90, 90, 90]
    assert late(frames) == [94]


def test_reentered_records_follow_and_move_no_watermark() -> None:
    frames: Frames = [(0, [100]), (None, [95, 89, 500, 96]), (0, [100])]
    found, last = reported(frames)
    assert found == [[None], [90, 90, 90, 90], [100]]
    assert (last.combined_us, last.newest_us, last.records) == (90, 500, 2)


def test_what_a_done_carries_comes_back() -> None:
    last = reported([(0, [5, 9]), (3, []), (None, [7])])[1]
    assert from_text(Watermarks, to_text(last)) == last
    assert from_text(Watermarks, "{}") == NOTHING


FRAMES = st.lists(st.tuples(st.sampled_from([0, 0, 1, 1, 2, None]), st.lists(st.integers(0, 60), max_size=4)), min_size=1, max_size=12)


@given(FRAMES, st.data())
def test_watermarks_equal_the_oracles_however_ranges_are_cut(frames: Frames, data: st.DataObject) -> None:
    border = data.draw(st.integers(0, len(frames)))
    expected = marks(frames, WINDOW, IDLE)
    before, between = reported(frames[:border])
    behind, last = reported(frames[border:], between, first=border + 1)
    assert before + behind == expected
    assert last == reported(frames)[1]


@given(FRAMES)
def test_who_has_seen_which_frame_does_not_matter(frames: Frames) -> None:
    """Tasks tell each other their frames in any order."""
    rows = rows_of(frames)
    whole = FrameTimes.of(rows, messages(frames), NOTHING, WINDOW)
    parts = [FrameTimes.of(rows, messages(frames)[half::2], NOTHING, WINDOW).rows() for half in (1, 0)]
    together = FrameTimes.of_rows([tuple(row) for part in parts for row in part], NOTHING, WINDOW)
    assert together.last == whole.last
    assert together.watermarks(rows, 3).tolist() == whole.watermarks(rows, 3).tolist()


@given(FRAMES)
def test_nothing_in_time_can_copy_what_may_be_forgotten(frames: Frames) -> None:
    """What has expired by the combined watermark lies a window or more before every record that is judged later."""
    for number, (partition, times) in enumerate(frames):
        combined = reported(frames[:number])[1].combined_us if number else NEVER
        for time, mark in zip(times, reported(frames)[0][number], strict=True):
            if combined != NEVER and (mark is None or time >= mark):
                assert time >= combined, (partition, time)
