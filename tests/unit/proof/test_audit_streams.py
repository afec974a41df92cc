"""What the messages of a stream tell of those that are gone."""

import pytest

from pipelines.proof.readers.streams import Subjects
from pipelines.protocol.records import Message
from pipelines.testing import MemoryLog

STREAM, BUCKETS = "tf-p-out", ("tf.p.out.0", "tf.p.out.1")
Stored = list[Message]


def stored(log: MemoryLog, count: int = 8) -> Stored:
    """So many frames, in turn of two buckets: the frame at sequence n begins at raw position 10 n."""
    last = dict.fromkeys(BUCKETS, 0)
    for number in range(1, count + 1):
        subject = BUCKETS[number % 2]
        headers = {"Tf-First": f"{10 * number}.0.0", "Nats-Expected-Last-Subject-Sequence": str(last[subject])}
        last[subject] = log.publish(subject, b"", headers, last[subject])
    return log.messages(STREAM)


def seen(messages: Stored) -> Subjects:
    subjects = Subjects(STREAM)
    for message in messages:
        subjects.see(message)
    return subjects


def test_a_whole_stream_lacks_nothing() -> None:
    found = seen(stored(log := MemoryLog()))
    found.settle(log, 9)
    assert (found.purged_to, found.removed) == (0, [])


@pytest.mark.parametrize("below", [2, 3, 5, 8])
def test_a_subject_may_be_purged_up_to_its_first_position(below: int) -> None:
    log = MemoryLog()
    stored(log)
    log.purge(STREAM, BUCKETS[0], below)
    left = [message for message in log.messages(STREAM) if message.subject == BUCKETS[0]]
    found = seen(log.messages(STREAM))
    found.settle(log, below)
    assert (found.purged_to, found.removed) == (10 * left[0].sequence if left[0].sequence > 2 else 0, [])


def test_a_lost_beginning_without_a_purge_is_a_fault() -> None:
    log = MemoryLog()
    stored(log)
    log.purge(STREAM, BUCKETS[0], 5)
    found = seen(log.messages(STREAM))
    found.settle(log, 3)
    assert (found.purged_to, found.removed) == (0, [])


def test_a_frame_that_is_gone_from_the_middle_is_named() -> None:
    log = MemoryLog()
    found = seen([message for message in stored(log) if message.sequence != 4])
    found.settle(log, 9)
    assert [str(gap) for gap in found.removed] == ["tf-p-out sequence 4 (tf.p.out.0)"]
    assert found.purged_to == 0


def test_a_purge_while_the_stream_is_read_is_no_fault() -> None:
    log = MemoryLog()
    first, *_ = stored(log)
    log.purge(STREAM, first.subject, 6)
    found = seen([first, *log.messages(STREAM)])
    assert [gap.sequence for gap in found.removed] == [5]
    found.settle(log, 6)
    assert (found.purged_to, found.removed) == (70, [])
