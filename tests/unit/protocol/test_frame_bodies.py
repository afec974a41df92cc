"""Frames whose bodies are dealt to several streams read as frames that have them themselves."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.errors import ConflictError, DataLossError, HaltError, RetryableError
from pipelines.protocol.frame_bodies import HEADER_BODY, with_bodies, with_body
from pipelines.protocol.naming import Names, all_roles, body_number
from pipelines.protocol.records import Message
from pipelines.testing import Fault, MemoryLog

NAMES = Names("orders")
RAW, OUT = NAMES.stream("raw"), NAMES.stream("out")
FIRST, SECOND = NAMES.raw("events", 0), NAMES.raw("events", 1)


def append(log: MemoryLog, subject: str, payload: bytes) -> int:
    last = log.last(RAW, subject)
    return log.publish(subject, payload, {"Tf-First": payload.decode()}, last.sequence if last else 0)


def read(log: MemoryLog, subject: str = NAMES.subjects("raw")) -> list[tuple[str, int, bytes, dict[str, str]]]:
    return [(m.subject, m.sequence, m.payload, m.headers) for m in log.fetch(RAW, subject, 0, 1000)]


def bodies(log: MemoryLog, streams: int = 3) -> list[bytes]:
    return [message.payload for number in range(1, streams + 1) for message in log.messages(f"{RAW}-{number}")]


def test_bodies_lie_by_partition_and_frames_refer_to_them() -> None:
    log = MemoryLog(streams=2)
    append(log, FIRST, b"a")
    append(log, SECOND, b"b")
    append(log, FIRST, b"c")
    assert [(m.payload, m.headers[HEADER_BODY]) for m in log.messages(RAW)] == [(b"", "1 1 1"), (b"", "2 1 1"), (b"", "1 2 1")]
    assert [m.payload for m in log.messages(f"{RAW}-1")] == [b"a", b"c"]
    assert [m.payload for m in log.messages(f"{RAW}-2")] == [b"b"]
    assert [(at, payload) for _, at, payload, _ in read(log)] == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert [(at, payload) for _, at, payload, _ in read(log, FIRST)] == [(1, b"a"), (3, b"c")]
    assert log.get(RAW, 2) == Message(SECOND, 2, log.clock.now, b"b", {"Tf-First": "b"})


def test_only_raw_and_out_are_dealt() -> None:
    subjects = [FIRST, NAMES.redriven("events", 1), NAMES.out(5), NAMES.dead_letters("process", 1), NAMES.chain("ingest")]
    assert [body_number(subject, 3) for subject in subjects] == [1, 2, 3, 0, 0]
    assert [body_number(subject, 1) for subject in subjects] == [0] * 5
    assert all_roles(2) == ("raw-1", "raw-2", "out-1", "out-2", "raw", "out", "dlq", "duplicates", "runs", "ledger")


@given(
    st.integers(2, 5),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40)), min_size=1, max_size=40),
)
def test_a_dealt_log_reads_as_one_that_is_not(streams: int, history: list[tuple[int, int]]) -> None:
    """In each step a frame is appended to a partition, and another partition is purged below some sequence, as a purge does."""
    plain, dealt = MemoryLog(), MemoryLog(streams=streams)
    for number, (partition, below) in enumerate(history):
        for log in (plain, dealt):
            append(log, NAMES.raw("events", partition), str(number).encode())
            purged = NAMES.raw("events", below % 7)
            if (last := log.last(RAW, purged)) is not None:
                log.purge(RAW, purged, min(below, last.sequence))
        assert read(dealt) == read(plain)
    for partition in range(7):
        assert read(dealt, NAMES.raw("events", partition)) == read(plain, NAMES.raw("events", partition))
    assert sorted(bodies(dealt, streams)) == sorted(message.payload for message in plain.messages(RAW))


def test_a_body_without_a_frame_is_not_read_and_purged() -> None:
    log = MemoryLog(streams=3)
    log.fail_publish(Fault.DROPPED, nth=2)
    with pytest.raises(RetryableError):
        append(log, FIRST, b"a")
    assert (read(log), bodies(log)) == ([], [b"a"])
    append(log, FIRST, b"a")
    append(log, FIRST, b"b")
    assert ([payload for _, _, payload, _ in read(log)], bodies(log)) == ([b"a", b"b"], [b"a", b"a", b"b"])
    log.purge(RAW, FIRST, 2)
    assert ([payload for _, _, payload, _ in read(log)], bodies(log)) == ([b"b"], [b"b"])


def test_a_body_that_gets_no_answer_has_no_frame() -> None:
    log = MemoryLog(streams=3)
    log.fail_publish(Fault.LOST_ACKNOWLEDGEMENT)
    with pytest.raises(RetryableError):
        append(log, FIRST, b"a")
    assert (log.messages(RAW), bodies(log)) == ([], [b"a"])


def test_the_frame_that_wins_has_its_own_body() -> None:
    log = MemoryLog(streams=3)
    log.fail_publish(Fault.DELAYED, nth=2)
    with pytest.raises(RetryableError):
        log.publish(FIRST, b"late", {"Tf-First": "1"}, 0)
    log.publish(FIRST, b"won", {"Tf-First": "1"}, 0)
    assert log.deliver() == 0
    with pytest.raises(ConflictError):
        log.publish(FIRST, b"lost", {"Tf-First": "1"}, 0)
    assert [payload for _, _, payload, _ in read(log)] == [b"won"]


def test_frames_from_before_they_were_dealt_are_read_too() -> None:
    log = MemoryLog()
    append(log, FIRST, b"a")
    log.streams = 2
    append(log, FIRST, b"b")
    append(log, FIRST, b"c")
    assert [payload for _, _, payload, _ in read(log)] == [b"a", b"b", b"c"]
    log.purge(RAW, FIRST, 1)
    assert bodies(log) == [b"b", b"c"]


def test_frames_with_their_own_bodies_come_one_by_one() -> None:
    log = MemoryLog()
    for payload in (b"a", b"b", b"c"):
        append(log, FIRST, payload)
    waiting = log._fetch(RAW, FIRST, 0, 10)
    assert next(with_bodies(waiting, log._fetch, log._get)).payload == b"a"
    assert [frame.payload for frame in waiting] == [b"b", b"c"]


def test_a_body_that_is_gone_is_a_loss() -> None:
    log = MemoryLog(streams=3)
    append(log, FIRST, b"a")
    del log._streams[f"{RAW}-1"][1]
    for look in (lambda: read(log), lambda: log.get(RAW, 1)):
        with pytest.raises(DataLossError, match=r"raw\.events\.0 at sequence 1: its body, at sequence 1 of tf-orders-raw-1, is gone"):
            look()


def test_a_frame_purged_while_it_is_read_is_passed_over() -> None:
    log = MemoryLog(streams=3)
    append(log, FIRST, b"a")
    append(log, FIRST, b"b")
    frames = list(log._fetch(RAW, FIRST, 0, 10))
    log.purge(RAW, FIRST, 2)
    assert [frame.payload for frame in with_bodies(frames, log._fetch, log._get)] == [b"b"]
    assert with_body(frames[0], log._get) is None


@pytest.mark.parametrize("change", [{"headers": {"Tf-First": "b"}}, {"subject": NAMES.raw("events", 3)}, {"payload": b"longer"}])
def test_a_body_of_another_frame_is_a_loss(change: dict[str, object]) -> None:
    log = MemoryLog(streams=3)
    append(log, FIRST, b"a")
    held = log._streams[f"{RAW}-1"]
    held[1] = replace(held[1], **change)  # type: ignore[arg-type]
    with pytest.raises(DataLossError, match="is another one"):
        log.get(RAW, 1)


@pytest.mark.parametrize("text", ["", "1 2", "1 2 3 4", "0x1 2 3", "1 -2 3", "a b c", "٣ 1 1", "1 99999999999999999999 1"])
def test_a_reference_that_is_none_halts(text: str) -> None:
    log = MemoryLog()
    log.publish(FIRST, b"", {HEADER_BODY: text}, 0)
    with pytest.raises(HaltError, match="only Tallyflow may write to its streams"):
        read(log)


def test_a_full_body_stream_refuses_the_frame() -> None:
    log = MemoryLog(streams=2)
    log.max_bytes = {f"{RAW}-1": 10}
    append(log, FIRST, b"12345678")
    with pytest.raises(RetryableError, match="full"):
        append(log, FIRST, b"12345678")
    assert append(log, SECOND, b"12345678") == 2


def test_the_extent_is_that_of_the_fullest_stream() -> None:
    log = MemoryLog(streams=2)
    for subject, payload in ((FIRST, b"1" * 30), (SECOND, b"2" * 50)):
        append(log, subject, payload)
    assert (log.extent(RAW).bytes, log.extent(RAW).last_sequence) == (80, 2)
    log.max_bytes = {RAW: 100, f"{RAW}-1": 100, f"{RAW}-2": 100}
    assert (log.extent(RAW).bytes, log.extent(RAW).max_bytes) == (50, 100)
    assert log.extent(OUT) is None
