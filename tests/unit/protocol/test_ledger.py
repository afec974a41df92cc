"""The chain: open, plan, done, and what becomes of them when an answer is lost or another runner takes over."""

import json
from dataclasses import dataclass, replace

import pytest

from pipelines.errors import DataLossError, FencedError, HaltError, InvariantError, RetryableError
from pipelines.protocol.bodies import Offsets
from pipelines.protocol.codec import Count, Text
from pipelines.protocol.ledger import DONE_MARK, FORMAT, Chain, ChainState, ChainType, Done, Entry, Open, Plan, read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.records import Message
from pipelines.testing import FIRST_INSTANT, Fault, MemoryLog

NAMES = Names("p")
STREAM = NAMES.stream("ledger")
SUBJECT = NAMES.chain("example")


@dataclass(frozen=True, kw_only=True)
class Planned(Plan):
    start: Count | None
    to: Count
    config: Text = ""
    pieces: tuple[Count, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Closed(Done):
    start: Count | None
    to: Count
    tails: Offsets | None = None


KIND = ChainType("example", Planned, Closed)


def planned(start: int | None, to: int, config: str = "") -> Planned:
    return Planned(start=start, to=to, config=config)


def closed(own: Chain, counts: dict[str, int], **more: object) -> Entry:
    """Closes the open plan."""
    plan = own.state.plan.body if own.state.plan else planned(0, 1)
    return own.done(Closed(start=plan.start, to=plan.to, counts=counts, **more))


def amended(own: Chain, *pieces: int) -> Entry:
    return own.amend(replace(own.state.plan.body if own.state.plan else planned(0, 1), pieces=pieces))


def chain(log: MemoryLog, epoch: int = 1) -> Chain:
    return Chain(log, NAMES, KIND, epoch)


def opened(log: MemoryLog, epoch: int = 1) -> Chain:
    own = chain(log, epoch)
    own.open()
    return own


def stored(log: MemoryLog) -> list[Entry]:
    return [KIND.decode(message) for message in log.messages(STREAM)]


def kinds(log: MemoryLog) -> list[str]:
    return [entry.kind for entry in stored(log)]


def test_an_entry_survives_its_encoding() -> None:
    entry = Entry(3, planned(4, 7), previous_done=2, open_plan=0)
    message = Message(SUBJECT, 9, FIRST_INSTANT, entry.encode())
    assert KIND.decode(message) == replace(entry, sequence=9)
    envelope = {"format": FORMAT, "kind": "plan", "epoch": 3, "previous_done": 2, "open_plan": 0}
    assert json.loads(entry.encode()) == {**envelope, "start": 4, "to": 7}


def test_only_a_done_has_the_mark_of_one() -> None:
    log = MemoryLog()
    own = opened(log)
    own.plan(planned(None, 5, '"kind":"done"'))
    closed(own, {})
    assert [DONE_MARK in message.payload for message in log.messages(STREAM)] == [False, False, True]


def test_an_empty_chain_has_no_end() -> None:
    assert read_chain(MemoryLog(), NAMES, KIND) == ChainState()
    assert ChainState().to is None


def test_open_plan_done_move_the_end_of_the_chain() -> None:
    log = MemoryLog()
    own = opened(log, epoch=7)
    own.plan(planned(None, 5, "v1"))
    assert (own.state.to, own.state.plan.body.config) == (None, "v1")
    closed(own, {"rows_in": 10}, tails={"3": 1})
    assert (own.state.to, own.state.plan, own.state.done.body.tails) == (5, None, {"3": 1})
    assert [(e.kind, e.epoch) for e in stored(log)] == [("open", 7), ("plan", 7), ("done", 7)]
    assert read_chain(log, NAMES, KIND) == own.state


def test_a_done_repeats_the_range_of_its_plan() -> None:
    log = MemoryLog()
    own = opened(log)
    own.plan(planned(4, 9))
    done = closed(own, {})
    assert (done.body.start, done.body.to) == (4, 9)


def test_totals_add_up_over_ranges() -> None:
    own = opened(MemoryLog())
    for to, counts in ((1, {"rows_in": 3, "rows_out": 2}), (2, {"rows_in": 4}), (3, {"rejected.parse": 5})):
        own.plan(planned(to - 1, to))
        closed(own, counts)
    assert own.state.done.body.counts == {"rejected.parse": 5}
    assert own.state.done.body.totals == {"rows_in": 7, "rows_out": 2, "rejected.parse": 5}


def test_totals_go_on_after_a_takeover() -> None:
    log = MemoryLog()
    first = opened(log)
    first.plan(planned(0, 1))
    closed(first, {"rows_in": 3})
    second = opened(log, epoch=2)
    second.plan(planned(1, 2))
    assert closed(second, {"rows_in": 4}).body.totals == {"rows_in": 7}


def test_a_second_plan_needs_the_first_closed() -> None:
    own = opened(MemoryLog())
    own.plan(planned(0, 1))
    with pytest.raises(InvariantError, match="still open"):
        own.plan(planned(1, 2))


def test_done_needs_an_open_plan() -> None:
    with pytest.raises(InvariantError, match="none is open"):
        closed(opened(MemoryLog()), {})


def test_an_amended_plan_stands_for_the_first_one() -> None:
    log = MemoryLog()
    own = opened(log)
    own.plan(planned(None, 5, "v1"))
    first = amended(own, 1)
    assert own.state.plan == first
    assert first.body == replace(planned(None, 5, "v1"), pieces=(1,))
    assert read_chain(log, NAMES, KIND) == own.state
    taken_over = opened(log, epoch=2)
    assert taken_over.state.plan == first
    amended(taken_over, 2)
    closed(taken_over, {"rows_in": 3})
    assert kinds(log) == ["open", "plan", "plan", "open", "plan", "done"]
    assert (own.state.epoch, taken_over.state.plan, taken_over.state.to) == (1, None, 5)
    with pytest.raises(FencedError):
        amended(own, 3)


def test_amending_needs_an_open_plan() -> None:
    with pytest.raises(InvariantError, match="none is open"):
        amended(opened(MemoryLog()), 1)


@pytest.mark.parametrize("fault", list(Fault))
def test_an_amendment_of_unknown_outcome_may_be_repeated(fault: Fault) -> None:
    log = MemoryLog()
    own = opened(log)
    own.plan(planned(None, 5))
    log.fail_publish(fault, 1)
    try:
        amended(own, 1)
    except RetryableError:
        log.deliver()
        amended(own, 1)
    assert [entry.body.pieces for entry in stored(log) if entry.kind == "plan"] == [(), (1,)]


def test_a_takeover_keeps_the_open_plan_open() -> None:
    log = MemoryLog()
    first = opened(log)
    first.plan(planned(0, 1))
    closed(first, {"n": 1})
    first.plan(planned(1, 8, "old"))
    second = opened(log, epoch=2)
    assert (second.state.to, second.state.plan.body.to, second.state.plan.body.config) == (1, 8, "old")
    closed(second, {"n": 7})
    assert second.state.to == 8


def test_an_open_plan_survives_many_takeovers() -> None:
    log = MemoryLog()
    opened(log).plan(planned(0, 4))
    for epoch in range(2, 12):
        assert opened(log, epoch).state.plan.body.to == 4


@pytest.mark.parametrize("ranges", [1, 2, 50])
def test_the_state_is_read_in_at_most_three_gets(ranges: int) -> None:
    log = MemoryLog()
    own = opened(log)
    for to in range(1, ranges + 1):
        own.plan(planned(to - 1, to))
        closed(own, {"n": 1})
    own.plan(planned(ranges, ranges + 1))
    opened(log, epoch=2)

    log.go_away(0)
    reads = []
    reader = MemoryLog.get
    counted = type(
        "Counted",
        (),
        {"last": lambda self, *a: reads.append(a) or log.last(*a), "get": lambda self, *a: reads.append(a) or reader(log, *a)},
    )
    state = read_chain(counted(), NAMES, KIND)
    assert (state.epoch, state.to, state.plan.body.to, len(reads)) == (2, ranges, ranges + 1, 3)


def test_a_purge_below_the_last_done_leaves_the_state_readable() -> None:
    log = MemoryLog()
    own = opened(log)
    for to in range(1, 6):
        own.plan(planned(to - 1, to))
        closed(own, {"n": 1})
    log.purge(STREAM, SUBJECT, own.state.done.sequence)
    assert read_chain(log, NAMES, KIND) == own.state


def test_a_linked_entry_that_is_missing_is_data_loss() -> None:
    log = MemoryLog()
    own = opened(log)
    own.plan(planned(0, 1))
    closed(own, {})
    own.plan(planned(1, 2))
    log.purge(STREAM, SUBJECT, own.state.plan.sequence)
    with pytest.raises(DataLossError, match="entry 3 is missing"):
        read_chain(log, NAMES, KIND)


def advance(own: Chain, step: str) -> None:
    if step == "open":
        own.open()
    elif step == "plan":
        own.plan(planned(0, 5))
    else:
        closed(own, {"n": 5})


STEPS = ("open", "plan", "done")


@pytest.mark.parametrize("failing", STEPS)
def test_a_lost_acknowledgement_is_found_to_be_ours(failing: str) -> None:
    log = MemoryLog()
    own = chain(log)
    for step in STEPS:
        if step == failing:
            log.fail_publish(Fault.LOST_ACKNOWLEDGEMENT)
        advance(own, step)
    assert kinds(log) == ["open", "plan", "done"]
    assert own.state == read_chain(log, NAMES, KIND)


@pytest.mark.parametrize("fault", [Fault.DROPPED, Fault.DELAYED])
@pytest.mark.parametrize("failing", STEPS)
def test_a_lost_publish_is_retryable_and_may_be_repeated(failing: str, fault: Fault) -> None:
    log = MemoryLog()
    own = chain(log)
    for step in STEPS:
        if step == failing:
            log.fail_publish(fault)
            with pytest.raises(RetryableError):
                advance(own, step)
            log.deliver()
        advance(own, step)
    assert own.state == read_chain(log, NAMES, KIND)
    assert own.state.to == 5
    assert kinds(log)[-2:] == ["plan", "done"]


@pytest.mark.parametrize("failing", ["plan", "done"])
def test_an_outage_after_a_lost_acknowledgement_is_waited_out(failing: str) -> None:
    """Stored, but neither the answer nor the look-up came through: the repetition meets its own entry."""
    log = MemoryLog()
    own = opened(log)
    for step in STEPS[1:]:
        if step == failing:
            log.fail_publish(Fault.LOST_ACKNOWLEDGEMENT)
            publish = log.publish

            def lose_everything(*args: object) -> int:
                log.publish = publish  # noqa: B023
                try:
                    return publish(*args)  # noqa: B023
                finally:
                    log.go_away(1)

            log.publish = lose_everything
            with pytest.raises(RetryableError, match="did not answer"):
                advance(own, step)
        advance(own, step)
    assert kinds(log) == ["open", "plan", "done"]
    assert own.state == read_chain(log, NAMES, KIND)


@pytest.mark.parametrize("at", ["plan", "done"])
def test_a_runner_is_fenced_by_a_higher_epoch(at: str) -> None:
    log = MemoryLog()
    old = opened(log, epoch=1)
    if at == "done":
        old.plan(planned(0, 5))
    opened(log, epoch=2)
    before = kinds(log)
    with pytest.raises(FencedError, match=r"epoch 2.*ours is 1"):
        advance(old, at)
    assert kinds(log) == before


def test_a_late_start_of_an_older_runner_is_fenced() -> None:
    log = MemoryLog()
    opened(log, epoch=2)
    with pytest.raises(FencedError):
        chain(log, epoch=1).open()
    assert kinds(log) == ["open"]


def test_a_fenced_runner_stays_fenced() -> None:
    log = MemoryLog()
    old = opened(log, epoch=1)
    new = opened(log, epoch=2)
    for _ in range(2):
        with pytest.raises(FencedError):
            old.plan(planned(0, 5))
    new.plan(planned(0, 5))
    with pytest.raises(FencedError):
        old.plan(planned(0, 5))


def test_a_late_decision_of_an_older_runner_loses_against_open() -> None:
    log = MemoryLog()
    old = opened(log, epoch=1)
    log.fail_publish(Fault.DELAYED)
    with pytest.raises(RetryableError):
        old.plan(planned(0, 5))
    new = opened(log, epoch=2)
    assert log.deliver() == 0
    assert read_chain(log, NAMES, KIND) == new.state


def test_open_meets_an_entry_between_its_look_and_its_append() -> None:
    log = MemoryLog()
    old = opened(log, epoch=1)
    new = chain(log, epoch=2)
    publish = log.publish

    def overtaken(*args: object) -> int:
        log.publish = publish
        old.plan(planned(0, 5))
        return publish(*args)

    log.publish = overtaken
    assert new.open().plan.body.to == 5
    assert [(e.kind, e.epoch) for e in stored(log)] == [("open", 1), ("plan", 1), ("open", 2)]


def test_a_chain_may_be_opened_again_by_its_own_runner() -> None:
    log = MemoryLog()
    own = opened(log)
    own.plan(planned(0, 5))
    own.open()
    assert closed(own, {}).body.to == 5


def test_a_reference_to_another_kind_or_chain_is_foreign() -> None:
    log = MemoryLog()
    own = opened(log)
    own.plan(planned(0, 5))
    other = NAMES.chain("other")
    log.publish(other, own.state.plan.encode(), {}, 0)
    for references in ({"previous_done": 1, "open_plan": 2}, {"previous_done": 0, "open_plan": 1}, {"previous_done": 3, "open_plan": 2}):
        last = log.last(STREAM, SUBJECT)
        record = {**json.loads(Entry(9, Open()).encode()), **references}
        log.publish(SUBJECT, json.dumps(record).encode(), {}, last.sequence)
        with pytest.raises(HaltError, match=r"no entry of a ledger .*refers to"):
            read_chain(log, NAMES, KIND)


@pytest.mark.parametrize("step", ["done", "restate"])
def test_a_done_of_another_range_than_its_plan_is_never_written(step: str) -> None:
    log = MemoryLog()
    own = opened(log)
    own.plan(planned(0, 5))
    if step == "restate":
        closed(own, {})
    before = kinds(log)
    with pytest.raises(InvariantError, match="the range is 0 to 5, not 0 to 6"):
        getattr(own, step)(Closed(start=0, to=6))
    assert kinds(log) == before
