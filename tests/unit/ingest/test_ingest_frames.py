"""The ingest stage: frames that cover a partition's range without a gap, whatever an earlier attempt left."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from pipelines.errors import InvariantError, RetryableError
from pipelines.ingest.writer import PartitionWriter, check_cover, last_offset
from pipelines.protocol.append import Appender, Tail, Written, together
from pipelines.protocol.records import RAW_SCHEMA, Framing, decode_frame, encode_frame
from pipelines.testing import Fault, MemoryLog, records

STREAM = "tf-p-raw"
SUBJECT = "tf.p.raw.s.0"
EMPTY = RAW_SCHEMA.empty_table()


def two_rows_per_frame(table: pa.Table) -> Iterator[tuple[pa.Table, bytes]]:
    for start in range(0, table.num_rows, 2):
        yield table.slice(start, 2), encode_frame(table.slice(start, 2))


class Writer(PartitionWriter):
    """A writer of one partition, and of no others at once."""

    def write(self, records: pa.Table, next_offset: int) -> None:
        together(self._appender.log, [self.writing(records, next_offset)])

    def skip(self, next_offset: int) -> None:
        together(self._appender.log, [self.skipping(next_offset)])


def writer(log: MemoryLog, start: int, end: int, tail: Tail[int] | None = None, run: str = "1") -> Writer:
    appender = Appender(log, STREAM, SUBJECT, last_offset, end - 1, tail, Framing(cut=two_rows_per_frame))
    return Writer(appender, start, end, {"Tf-Run": run})


def block(*offsets: int) -> pa.Table:
    return records(0, [f"{offset}".encode() for offset in offsets], offsets=offsets)


def stored(log: MemoryLog) -> list[tuple[int, int, list[int]]]:
    """(first, last, offsets of the rows) of each frame."""
    return [
        (int(m.headers["Tf-First"]), int(m.headers["Tf-Last"]), decode_frame(m.payload)["offset"].to_pylist()) for m in log.messages(STREAM)
    ]


def test_frames_cover_the_range_in_order() -> None:
    log = MemoryLog()
    one = writer(log, 0, 5)
    one.write(block(0, 1, 2, 3, 4), 5)
    assert stored(log) == [(0, 1, [0, 1]), (2, 3, [2, 3]), (4, 4, [4])]
    assert [(f.first, f.last, f.rows, f.sequence) for f in one.frames] == [(0, 1, 2, 1), (2, 3, 2, 2), (4, 4, 1, 3)]
    assert log.messages(STREAM)[0].headers["Tf-Run"] == "1"
    assert not one.must_read_back
    check_cover(one.frames, 0, 5, SUBJECT)


def test_gaps_belong_to_the_next_records_frame_or_the_last() -> None:
    log = MemoryLog()
    one = writer(log, 10, 30)
    one.write(block(12, 15, 20), 30)
    assert stored(log) == [(10, 15, [12, 15]), (16, 29, [20])]
    check_cover(one.frames, 10, 30, SUBJECT)


def test_an_empty_stretch_inside_a_range_waits_for_a_record() -> None:
    log = MemoryLog()
    one = writer(log, 0, 9)
    one.write(block(0), 1)
    one.write(EMPTY, 5)
    assert stored(log) == [(0, 0, [0])]
    one.write(block(6), 9)
    assert stored(log) == [(0, 0, [0]), (1, 8, [6])]


def test_an_empty_stretch_at_the_end_gets_an_empty_frame() -> None:
    log = MemoryLog()
    one = writer(log, 0, 5)
    one.write(block(0, 1), 2)
    one.write(EMPTY, 5)
    assert stored(log) == [(0, 1, [0, 1]), (2, 4, [])]
    assert decode_frame(log.messages(STREAM)[1].payload).schema == RAW_SCHEMA


def test_a_range_without_any_record_gets_one_empty_frame() -> None:
    log = MemoryLog()
    writer(log, 3, 8).write(EMPTY, 8)
    assert stored(log) == [(3, 7, [])]


def test_expired_offsets_get_a_frame_that_says_how_many_it_skips() -> None:
    log = MemoryLog()
    one = writer(log, 0, 9)
    one.skip(6)
    one.write(block(6, 8), 9)
    assert stored(log) == [(0, 5, []), (6, 8, [6, 8])]
    assert [m.headers.get("Tf-Skipped") for m in log.messages(STREAM)] == ["6", None]


def test_only_what_no_earlier_attempt_wrote_is_skipped() -> None:
    log = MemoryLog()
    writer(log, 0, 9).write(block(0, 1, 2), 3)
    one = writer(log, 0, 9)
    one.skip(6)
    assert stored(log)[-1] == (3, 5, [])
    assert log.messages(STREAM)[-1].headers["Tf-Skipped"] == "3"


def test_a_skip_that_an_earlier_attempt_covered_writes_nothing() -> None:
    log = MemoryLog()
    writer(log, 0, 9).write(block(0, 1, 2, 3, 4, 5), 6)
    one = writer(log, 0, 9)
    one.skip(6)
    assert len(stored(log)) == 3
    assert one.must_read_back


OFFSETS = (1, 2, 4, 5, 7, 8)


@pytest.mark.parametrize("cut", range(10))
def test_a_range_is_finished_wherever_an_earlier_attempt_ended(cut: int) -> None:
    """The earlier attempt passed the offsets before `cut`, in one frame, and died."""
    log = MemoryLog()
    if cut:
        early = encode_frame(block(*(o for o in OFFSETS if o < cut)))
        log.publish(SUBJECT, early, {"Tf-First": "0", "Tf-Last": str(cut - 1), "Tf-Rows": "0"}, 0)
    one = writer(log, 0, 9)
    one.write(block(*OFFSETS), 9)
    assert one.must_read_back == (cut > 0)
    frames = stored(log)
    assert [o for _, _, offsets in frames for o in offsets] == list(OFFSETS)
    assert [first for first, _, _ in frames] == [0, *(last + 1 for _, last, _ in frames[:-1])]
    assert frames[-1][1] == 8


@pytest.mark.parametrize("cut", range(1, 10))
@pytest.mark.parametrize("at", [1, 2, 3])
def test_another_attempt_may_come_between_any_two_frames(cut: int, at: int) -> None:
    """It writes up to `cut`, in frames of one record, just before our frame number `at`."""
    log = MemoryLog()
    publish, calls = log.publish, []

    def overtaken(*args: object) -> int:
        calls.append(1)
        if len(calls) == at:
            log.publish = publish
            other = writer(log, 0, 9, run="2")
            for offset in (o for o in OFFSETS if o < cut):
                other.write(block(offset), offset + 1)
        return publish(*args)

    log.publish = overtaken
    one = writer(log, 0, 9)
    one.write(block(*OFFSETS), 9)
    frames = stored(log)
    assert [o for _, _, offsets in frames for o in offsets] == list(OFFSETS)
    assert [first for first, _, _ in frames] == [0, *(last + 1 for _, last, _ in frames[:-1])]


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_lost_acknowledgement_is_covered_by_reading_back(nth: int) -> None:
    log = MemoryLog()
    log.fail_publish(Fault.LOST_ACKNOWLEDGEMENT, nth)
    one = writer(log, 0, 5)
    one.write(block(0, 1, 2, 3, 4), 5)
    assert stored(log) == [(0, 1, [0, 1]), (2, 3, [2, 3]), (4, 4, [4])]
    assert one.must_read_back


def test_a_lost_publish_is_retryable_and_the_range_repeatable() -> None:
    log = MemoryLog()
    log.fail_publish(Fault.DELAYED, 2)
    with pytest.raises(RetryableError):
        writer(log, 0, 5).write(block(0, 1, 2, 3, 4), 5)
    again = writer(log, 0, 5)
    again.write(block(0, 1), 2)
    log.deliver()
    again.write(block(2, 3, 4), 5)
    assert stored(log) == [(0, 1, [0, 1]), (2, 3, [2, 3]), (4, 4, [4])]


def test_the_anchor_lies_before_the_first_range() -> None:
    log = MemoryLog()
    log.publish(SUBJECT, encode_frame(EMPTY), {"Tf-First": "7", "Tf-Last": "6", "Tf-Rows": "0"}, 0)
    one = writer(log, 7, 9)
    one.write(block(7, 8), 9)
    assert stored(log)[1:] == [(7, 8, [7, 8])]
    assert not one.must_read_back


def frame(first: int, last: int) -> Written[int]:
    return Written(first, last, 1, 1, 1)


def test_frames_with_a_gap_or_overlap_break_the_protocol() -> None:
    check_cover([frame(0, 3), frame(4, 6)], 0, 7, SUBJECT)
    with pytest.raises(InvariantError, match="starts at offset 5, expected 4"):
        check_cover([frame(0, 3), frame(5, 6)], 0, 7, SUBJECT)
    with pytest.raises(InvariantError, match="starts at offset 3, expected 4"):
        check_cover([frame(0, 3), frame(3, 6)], 0, 7, SUBJECT)
    with pytest.raises(InvariantError, match="frames end before offset 4, the range ends before 7"):
        check_cover([frame(0, 3)], 0, 7, SUBJECT)
    with pytest.raises(InvariantError, match="frames end before offset 0"):
        check_cover([], 0, 7, SUBJECT)
