"""What lanes rest on, piece by piece: writers with epochs, chains of states, and the rules. Together they are in test_lanes_model.py."""

from collections.abc import Sequence

import pytest

from pipelines.errors import FencedError, InvariantError, RetryableError
from pipelines.protocol.lanes.bodies import Generation, IngestState, Layout, ProcessState, Segments, lane_epoch, process_chain
from pipelines.protocol.lanes.chain import MAX_CHANGES, LaneChain, change_of, live_segments
from pipelines.protocol.lanes.rules import (
    Facts,
    Resume,
    Wishes,
    closer_of,
    config_at,
    last_config,
    next_assignment,
    raw_that_may_go,
    reached,
    resume_point,
    switched,
)
from pipelines.protocol.lanes.writer import LaneWriter
from pipelines.protocol.naming import Names
from pipelines.protocol.records import Message
from pipelines.testing import FIRST_INSTANT, Fault, MemoryLog

NAMES = Names("lanes")
SUBJECT = "tf.lanes.raw.orders.0.1"
STREAM = "tf-lanes-raw"
FIRST = Wishes("c1", 2, 1, 1)


def writer(log: MemoryLog, epoch: int) -> LaneWriter[int]:
    return LaneWriter(log, SUBJECT, epoch, int, -1)


def rows(log: MemoryLog) -> list[bytes]:
    return [message.payload for message in log.messages(STREAM) if message.payload]


def test_a_writer_appends_only_behind_the_last_position() -> None:
    log = MemoryLog()
    assert writer(log, 1).append(b"0-4", 0, 4, 5, {}) is not None
    assert writer(log, 2).append(b"3-6", 3, 6, 4, {}) is None
    assert writer(log, 2).append(b"5-6", 5, 6, 2, {}) is not None
    assert rows(log) == [b"0-4", b"5-6"]


def test_an_earlier_attempt_that_reads_a_later_one_is_fenced() -> None:
    log = MemoryLog()
    writer(log, 2).append(b"0", 0, 0, 1, {})
    with pytest.raises(FencedError, match="a lane of epoch 2 has taken this pipeline over"):
        writer(log, 1).append(b"1", 1, 1, 1, {})


def test_a_fence_repeats_the_last_position_and_its_headers() -> None:
    log = MemoryLog()
    writer(log, 1).append(b"0-4", 0, 4, 5, {"Tf-Base": "0"})
    assert writer(log, 2).fence().position == 4
    assert log.messages(STREAM)[-1].headers == {"Tf-Base": "0", "Tf-First": "4", "Tf-Last": "4", "Tf-Rows": "0", "Tf-Run": "2"}


def test_nothing_under_way_passes_a_fence() -> None:
    log = MemoryLog()
    mine = writer(log, 2)
    mine.append(b"0", 0, 0, 1, {})
    log.fail_publish(Fault.DELAYED)
    with pytest.raises(RetryableError):
        mine.append(b"1", 1, 1, 1, {})
    mine.fence()
    assert log.deliver() == 0


def test_a_lost_answer_counts_as_written() -> None:
    log = MemoryLog()
    mine = writer(log, 1)
    log.fail_publish(Fault.LOST_ACKNOWLEDGEMENT)
    assert mine.append(b"0-2", 0, 2, 3, {}) is None
    assert mine.tail.position == 2


def test_a_second_attempt_has_a_higher_epoch_than_the_first() -> None:
    assert lane_epoch(6, 0) > lane_epoch(5, 1) > lane_epoch(5, 0)


def test_ingest_resumes_where_every_subject_is_complete() -> None:
    state = IngestState(start=0, to=10, begin=0, rows=8)
    assert resume_point(state, []) == Resume(10, 8)
    # The first subject has a poll of which the second has nothing yet.
    cut = [{"Tf-Base": "20", "Tf-Base-Rows": "17", "Tf-Last": "29"}, {"Tf-Base": "10", "Tf-Base-Rows": "8", "Tf-Last": "19"}, {}]
    assert resume_point(state, cut) == Resume(20, 17)


def test_a_switch_stands_behind_all_that_was_written() -> None:
    state = ProcessState(start=0, to=10, config="c1")
    after = switched(state, "c2", [14, 12])
    assert [config_at(after, sequence) for sequence in (11, 14, 15)] == ["c1", "c1", "c2"]
    assert (after.start, after.to, last_config(after)) == (10, 10, "c2")
    assert reached(after, 13) == ("c1", ((14, "c2"),))
    assert reached(after, 14) == ("c2", ())


def frames(*ends: tuple[int, int]) -> list[Message]:
    return [Message(SUBJECT, sequence, FIRST_INSTANT, b"", {"Tf-Last": str(last)}) for sequence, last in ends]


@pytest.mark.parametrize(
    ("processed", "ingested", "below"),
    [(0, 100, 3), (3, 100, 5), (9, 100, 9), (9, 7, 5)],
    ids=["nothing is processed", "one frame is", "the last one stays", "ingest reads back from 7"],
)
def test_raw_goes_behind_its_bucket_and_behind_ingest(processed: int, ingested: int, below: int) -> None:
    assert raw_that_may_go(frames((3, 4), (5, 8), (9, 12)), processed, ingested) == below


def test_another_number_of_buckets_follows_a_drained_layout() -> None:
    before = next_assignment(None, FIRST, Facts(None, False), [0])
    more = Wishes("c1", 3, 1, 1)
    draining = next_assignment(before, more, Facts(None, True), [0])
    assert (draining.is_draining, draining.layout) == (True, before.layout)
    still = next_assignment(draining, more, Facts(None, True), [0])
    assert still.is_draining
    after = next_assignment(still, more, Facts(70, True, ("1.0.1", "1.1.2")), [0])
    assert (after.is_draining, after.layout) == (False, Layout(2, 3, 70, ("1.0.1", "1.1.2")))


def test_groups_change_once_the_ones_before_have_begun() -> None:
    before = next_assignment(None, FIRST, Facts(None, False), [0])
    split = Wishes("c1", 2, 2, 2)
    assert next_assignment(before, split, Facts(None, False), [0]).generation == before.generation
    after = next_assignment(before, split, Facts(None, True), [0])
    assert after.generation == Generation(2, ((0,), (1,)), ((0, 1),))
    assert after.shares == (("ingest.0", "process.1", "sink.1"), ("process.0", "sink.0"))
    assert closer_of(after.generation, 0) == 0


def test_a_layout_stays_until_its_buckets_have_sink_lanes() -> None:
    before = next_assignment(None, FIRST, Facts(None, False), [0])
    more = Wishes("c1", 3, 1, 1)
    after = next_assignment(next_assignment(before, more, Facts(None, False), [0]), more, Facts(70, False), [0])
    assert (after.layout.buckets, after.generation.groups) == (3, ((0, 1),))
    waiting = next_assignment(after, FIRST, Facts(None, False), [0])
    assert (waiting.is_draining, waiting.layout) == (False, after.layout)
    draining = next_assignment(waiting, FIRST, Facts(None, True), [0])
    assert (draining.is_draining, draining.generation.groups) == (True, ((0, 1, 2),))
    last = next_assignment(draining, FIRST, Facts(90, True), [0])
    assert (last.layout.buckets, last.generation.groups) == (2, ((0, 1, 2),))


def chain(log: MemoryLog, epoch: int) -> LaneChain[ProcessState]:
    made: LaneChain[ProcessState] = LaneChain(log, NAMES, process_chain(0), epoch)
    made.open()
    return made


def advance(lane: LaneChain[ProcessState], to: int, segments: Segments, rows_in: int = 0) -> None:
    start = 0 if lane.state.done is None else lane.body.to
    lane.advance(ProcessState(start=start, to=to, config="c1", segments=segments, counts={"rows_in": rows_in}))


def test_states_follow_each_other_and_add_up() -> None:
    log = MemoryLog()
    lane = chain(log, 1)
    advance(lane, 5, Segments(is_full=True), 3)
    advance(lane, 9, Segments(), 4)
    assert lane.state.totals == {"rows_in": 7}
    with pytest.raises(InvariantError, match="this one begins at 5"):
        lane.advance(ProcessState(start=5, to=12, config="c1"))


def test_a_replaced_lane_states_nothing_more() -> None:
    log = MemoryLog()
    old = chain(log, 1)
    advance(old, 5, Segments(is_full=True))
    chain(log, 2)
    with pytest.raises(FencedError):
        advance(old, 9, Segments())


def test_differences_of_segments_are_read_back_to_a_full_list() -> None:
    log = MemoryLog()
    lane = chain(log, 1)
    live: Sequence[str] = ()
    advance(lane, 1, Segments(("old",), is_full=True))
    for number in range(2, 2 * MAX_CHANGES):
        live = (*(name for name in live if name != f"s{number - 4}"), f"s{number}")
        removed = ["old"] if number == 2 else [f"s{number - 4}"]
        advance(lane, number, change_of(lane.body.segments, live, [f"s{number}"], removed))
    assert live_segments(log, NAMES, process_chain(0), chain(log, 2).state) == live
    assert len(live) == 4
