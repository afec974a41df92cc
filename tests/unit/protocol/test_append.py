"""The position rule: what an appender writes, and what it finds already there."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

import pyarrow as pa
import pytest

from pipelines.errors import FencedError, InvariantError, RetryableError
from pipelines.protocol.append import Appender, Tail, Written, append_rows, appending_rows, last_position, together
from pipelines.protocol.ledger import Append, Outcome
from pipelines.protocol.positions import Position
from pipelines.protocol.records import FRAMING, Framing, Message, decode_frame, encode_frame
from pipelines.testing import Fault, MemoryLog

STREAM = "tf-p-out"
SUBJECT = "tf.p.out.0"
FAR = Position(1000, 0, 0)


def rows(*positions: tuple[int, int]) -> pa.Table:
    sequence, ordinal = zip(*positions, strict=True) if positions else ((), ())
    columns = {"_tf_sequence": pa.array(sequence, pa.uint64()), "_tf_ordinal": pa.array(ordinal, pa.uint32())}
    return pa.table({**columns, "_tf_emit": pa.array([0] * len(sequence), pa.uint32())})


TABLE = rows((1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1))
POSITIONS = [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]


def appender(
    log: MemoryLog, tail: Tail[Position] | None = None, limit: Position = FAR, cut: list[int] | None = None, subject: str = SUBJECT
) -> Appender[Position]:
    framing = FRAMING if cut is None else in_frames_of(cut)
    return Appender(log, STREAM, subject, last_position, limit, tail, framing)


def stored(log: MemoryLog) -> list[list[tuple[int, int]]]:
    frames = [decode_frame(message.payload) for message in log.messages(STREAM)]
    return [list(zip(f["_tf_sequence"].to_pylist(), f["_tf_ordinal"].to_pylist(), strict=True)) for f in frames]


def flat(log: MemoryLog) -> list[tuple[int, int]]:
    return [row for frame in stored(log) for row in frame]


@pytest.fixture
def cut() -> list[int]:
    """Sizes of the next frames; the last one repeats."""
    return [2]


def in_frames_of(sizes: list[int]) -> Framing:
    def cut_frames(table: pa.Table) -> Iterator[tuple[pa.Table, bytes]]:
        start = 0
        while start < table.num_rows:
            part = table.slice(start, sizes.pop(0) if len(sizes) > 1 else sizes[0])
            yield part, encode_frame(part)
            start += part.num_rows

    return Framing(cut=cut_frames)


def test_a_frame_says_which_positions_it_covers() -> None:
    log = MemoryLog()
    (frame,) = append_rows(appender(log), TABLE)
    (message,) = log.messages(STREAM)
    assert message.headers == {"Tf-First": "1.0.0", "Tf-Last": "3.1.0", "Tf-Rows": "6", "Tf-Bytes": str(TABLE.nbytes)}
    assert frame == Written(Position(1, 0), Position(3, 1), 6, 1, len(message.payload))
    assert last_position(message) == Position(3, 1, 0)
    assert message.rows == 6


def test_extra_headers_go_with_the_frame() -> None:
    log = MemoryLog()
    appender(log).append(b"x", Position(1, 0), Position(1, 0), 1, {"Tf-Run": "7"})
    assert log.messages(STREAM)[0].headers["Tf-Run"] == "7"


def test_frames_follow_each_other_without_reading_the_tail_again(cut: list[int]) -> None:
    log = MemoryLog()
    writer = appender(log, Tail(0, None), cut=cut)
    log.last = None
    append_rows(writer, TABLE)
    assert stored(log) == [[(1, 0), (1, 1)], [(2, 0), (2, 1)], [(3, 0), (3, 1)]]
    assert writer.known_tail == Tail(3, Position(3, 1))


def test_an_empty_table_writes_and_reads_nothing() -> None:
    log = MemoryLog()
    log.go_away()
    writer = appender(log)
    assert append_rows(writer, rows()) == []
    assert writer.known_tail is None


def test_a_replay_writes_nothing() -> None:
    log = MemoryLog()
    append_rows(appender(log), TABLE)
    assert append_rows(appender(log), TABLE) == []
    assert flat(log) == POSITIONS


@pytest.mark.parametrize("rows_before", range(7))
def test_what_lies_beyond_the_tail_is_written(rows_before: int) -> None:
    log = MemoryLog()
    append_rows(appender(log), TABLE.slice(0, rows_before))
    append_rows(appender(log), TABLE)
    assert flat(log) == POSITIONS


@pytest.mark.parametrize("rows_before", range(1, 7))
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_a_stale_tail_is_read_again(cut: list[int], rows_before: int, size: int) -> None:
    """Another attempt, cut elsewhere, came after this one looked."""
    log = MemoryLog()
    late = appender(log, cut=cut)
    assert late.tail == Tail(0, None)
    append_rows(appender(log, cut=cut), TABLE.slice(0, rows_before))
    cut[:] = [size]
    append_rows(late, TABLE)
    assert flat(log) == POSITIONS


def test_two_attempts_that_alternate_write_each_row_once(cut: list[int]) -> None:
    log = MemoryLog()
    one, other = appender(log, cut=cut), appender(log, cut=cut)
    assert one.tail == other.tail == Tail(0, None)
    publish, turns = log.publish, [other, one, other]

    def interleaved(*args: object) -> int:
        if turns:
            append_rows(turns.pop(), TABLE.slice(0, 2 * (3 - len(turns)) - 1))
        return publish(*args)

    log.publish = interleaved
    append_rows(one, TABLE)
    log.publish = publish
    append_rows(other, TABLE)
    assert flat(log) == POSITIONS


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_lost_acknowledgement_is_found_on_the_subject(cut: list[int], nth: int) -> None:
    log = MemoryLog()
    log.fail_publish(Fault.LOST_ACKNOWLEDGEMENT, nth)
    append_rows(appender(log, cut=cut), TABLE)
    assert stored(log) == [[(1, 0), (1, 1)], [(2, 0), (2, 1)], [(3, 0), (3, 1)]]


@pytest.mark.parametrize("fault", [Fault.DROPPED, Fault.DELAYED])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_missing_frame_is_retryable_and_may_be_repeated(cut: list[int], nth: int, fault: Fault) -> None:
    log = MemoryLog()
    writer = appender(log, cut=cut)
    log.fail_publish(fault, nth)
    with pytest.raises(RetryableError):
        append_rows(writer, TABLE)
    assert len(stored(log)) == nth - 1
    cut[:] = [3]
    log.deliver()
    append_rows(writer, TABLE)
    log.deliver()
    assert flat(log) == POSITIONS


def test_a_frame_delayed_beyond_the_repetition_loses(cut: list[int]) -> None:
    log = MemoryLog()
    writer = appender(log, cut=cut)
    log.fail_publish(Fault.DELAYED)
    with pytest.raises(RetryableError):
        append_rows(writer, TABLE)
    append_rows(writer, TABLE)
    assert log.deliver() == 0
    assert flat(log) == POSITIONS


def test_a_tail_beyond_the_limit_is_a_newer_runner(cut: list[int]) -> None:
    log = MemoryLog()
    old = appender(log, limit=Position(3, 9), cut=cut)
    assert old.tail == Tail(0, None)
    append_rows(appender(log, cut=cut), rows(*POSITIONS, (4, 0)))
    with pytest.raises(FencedError, match="beyond"):
        append_rows(old, TABLE)
    assert flat(log) == [*POSITIONS, (4, 0)]


def test_a_tail_at_the_limit_is_another_attempt_at_the_range(cut: list[int]) -> None:
    log = MemoryLog()
    late = appender(log, limit=Position(3, 1), cut=cut)
    assert late.tail == Tail(0, None)
    append_rows(appender(log, cut=cut), TABLE)
    assert append_rows(late, TABLE) == []


def test_a_message_that_goes_back_is_foreign() -> None:
    log = MemoryLog()
    writer = appender(log)
    append_rows(writer, TABLE)
    log.publish(SUBJECT, b"?", {"Tf-Last": "1.0.0"}, 1)
    with pytest.raises(InvariantError, match="foreign message stands at 2"):
        append_rows(writer, rows((4, 0)))


def test_append_returns_none_where_the_subject_has_the_frame() -> None:
    log = MemoryLog()
    append_rows(appender(log), TABLE)
    assert appender(log).append(b"x", Position(2, 0), Position(4, 0), 1) is None
    assert appender(log).append(b"x", Position(3, 1), Position(4, 0), 1) is None
    assert appender(log).append(b"x", Position(3, 2), Position(4, 0), 1) is not None


def test_the_tail_is_that_of_the_own_subject() -> None:
    log = MemoryLog()
    append_rows(Appender(log, STREAM, "tf.p.out.1", last_position, FAR), TABLE)
    assert appender(log).tail == Tail(0, None)
    log.clock.advance(timedelta(seconds=1))
    append_rows(appender(log), TABLE)
    assert appender(log).tail == Tail(2, Position(3, 1))


def test_a_server_refusing_its_own_sequence_breaks_the_protocol() -> None:
    log = MemoryLog()
    append_rows(appender(log), TABLE)
    stale = Message(SUBJECT, 0, log.clock.now, b"", {"Tf-Last": "0.0.0"})
    log.last = lambda stream, subject: stale
    with pytest.raises(InvariantError, match="refused at its own last sequence"):
        appender(log).append(b"x", Position(4, 0), Position(4, 0), 1)


@pytest.mark.parametrize("sizes", [[1], [2], [3], [7], [2, 1, 4]])
def test_a_frame_may_end_between_rows_of_a_record(sizes: list[int]) -> None:
    places = [(1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 1, 3), (1, 1, 4), (2, 0, 2)]
    columns = zip(
        ("_tf_sequence", "_tf_ordinal", "_tf_emit"), zip(*places, strict=True), (pa.uint64(), pa.uint32(), pa.uint32()), strict=True
    )
    table = pa.table({name: pa.array(values, kind) for name, values, kind in columns})
    log = MemoryLog()
    # A kill after each frame: the next attempt cuts otherwise, and appends what is not there.
    for end in range(1, len(places) + 1):
        append_rows(appender(log, cut=[*sizes]), table.slice(0, end))
        append_rows(appender(log, cut=[2]), table.slice(0, end))
    frames = [decode_frame(message.payload).to_pylist() for message in log.messages(STREAM)]
    assert [tuple(row.values()) for frame in frames for row in frame] == places
    assert log.messages(STREAM)[-1].headers["Tf-Last"] == "2.0.2"


class Counting(MemoryLog):
    """A log that notes the subjects of each call of `publish_all`."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[str]] = []

    def publish_all(self, appends: Sequence[Append]) -> list[Outcome]:
        self.calls.append([append.subject[-1] for append in appends])
        return super().publish_all(appends)


def on_three_subjects(log: MemoryLog) -> list[list[Written[Position]]]:
    """Six, two and no rows, in frames of two."""
    tables = zip("012", (TABLE, TABLE.slice(0, 2), TABLE.slice(0, 0)), strict=True)
    return together(log, [appending_rows(appender(log, cut=[2], subject=f"tf.p.out.{n}"), table) for n, table in tables])


def test_subjects_are_appended_to_at_once_frame_by_frame() -> None:
    log = Counting()
    written = on_three_subjects(log)
    assert log.calls == [["0", "1"], ["0"], ["0"]]
    assert [[(frame.first, frame.rows, frame.sequence) for frame in frames] for frames in written] == [
        [(Position(1, 0, 0), 2, 1), (Position(2, 0, 0), 2, 3), (Position(3, 0, 0), 2, 4)],
        [(Position(1, 0, 0), 2, 2)],
        [],
    ]


def test_nothing_at_once_takes_no_call() -> None:
    log = Counting()
    assert together(log, []) == []
    assert log.calls == []


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("fault", [Fault.DROPPED, Fault.DELAYED])
def test_where_one_of_several_appends_fails_the_others_stand(nth: int, fault: Fault) -> None:
    """Another attempt writes what lacks, and nothing twice."""
    log = MemoryLog()
    log.fail_publish(fault, nth)
    with pytest.raises(RetryableError):
        on_three_subjects(log)
    assert [message.subject[-1] for message in log.messages(STREAM)] == ["1" if nth == 1 else "0"]
    on_three_subjects(log)
    log.deliver()
    assert sorted(flat(log)) == sorted([*POSITIONS, *POSITIONS[:2]])


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_lost_answer_among_several_is_found_on_its_subject(nth: int) -> None:
    log = MemoryLog()
    log.fail_publish(Fault.LOST_ACKNOWLEDGEMENT, nth)
    on_three_subjects(log)
    assert sorted(flat(log)) == sorted([*POSITIONS, *POSITIONS[:2]])
