"""Inputs: how far the next batch goes, and when."""

from collections.abc import Callable
from datetime import timedelta
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.connectors.sources import SourceFacts
from pipelines.engine.inputs import FEW_OFFSETS, IDLE_SECONDS, LINGER_SECONDS, NO_HOLD, Hold, Input, Offset, SourceInput, StreamInput, admit
from pipelines.errors import RetryableError
from pipelines.protocol.bodies import ProcessDone, ProcessPlan
from pipelines.protocol.ledger import DONE_MARK, Chain
from pipelines.protocol.naming import Names
from pipelines.testing import SINGLE, ManualClock, MemoryLog

NAMES = Names("p")
INGEST, PROCESS, SINK = SINGLE.legs

offsets = st.dictionaries(st.sampled_from(["0", "1", "2", "10"]), st.integers(0, 1000), max_size=4)


def test_everything_that_waits_is_admitted_without_a_limit() -> None:
    assert admit({"0": 5}, {"0": 500, "1": 7}, None) == {"0": 500, "1": 7}


def test_everything_is_admitted_up_to_the_limit() -> None:
    assert admit({"0": 5, "1": 0}, {"0": 10, "1": 5}, 10) == {"0": 10, "1": 5}


def test_a_backlog_is_shared_by_what_each_part_has_waiting() -> None:
    assert admit({"0": 100, "1": 0}, {"0": 400, "1": 100}, 40) == {"0": 130, "1": 10}


def test_a_part_with_nothing_waiting_stays_where_it_is() -> None:
    assert admit({"0": 100, "1": 50}, {"0": 400, "1": 50}, 10) == {"0": 110, "1": 50}


def test_a_small_part_is_not_starved_by_a_large_one() -> None:
    assert admit({"0": 0, "1": 0}, {"0": 1_000_000, "1": 1}, 10) == {"0": 10, "1": 1}


def test_a_new_partition_begins_at_its_beginning() -> None:
    assert admit({"0": 5}, {"0": 5, "1": 3}, 100) == {"0": 5, "1": 3}
    assert admit({"0": 5}, {"0": 5, "1": 300}, 100) == {"0": 5, "1": 100}


def test_an_end_that_goes_back_is_passed_on_to_the_leg() -> None:
    assert admit({"0": 9}, {"0": 4}, 100) == {"0": 4}
    assert admit({"0": 9, "1": 0}, {"0": 4, "1": 500}, 100) == {"0": 4, "1": 100}
    assert admit({"0": 9, "1": 0}, {"0": 4, "1": 500}, None) == {"0": 4, "1": 500}


@settings(deadline=None)
@given(offsets, offsets, st.integers(1, 2000))
def test_a_range_lies_between_start_and_end_within_the_limit(start: dict[str, int], available: dict[str, int], limit: int) -> None:
    end = admit(start, available, limit)
    assert set(end) == set(available)
    for part, offset in end.items():
        begin = start.get(part, 0)
        assert min(begin, available[part]) <= offset <= available[part]
    assert sum(max(0, end[part] - start.get(part, 0)) for part in end) <= limit + len(available)


@settings(deadline=None)
@given(offsets, offsets, st.integers(1, 2000))
def test_every_part_that_waits_makes_progress(start: dict[str, int], available: dict[str, int], limit: int) -> None:
    end = admit(start, available, limit)
    assert all(end[part] > start.get(part, 0) for part in available if available[part] > start.get(part, 0))


@settings(deadline=None)
@given(offsets, offsets, st.integers(1, 2000))
def test_a_backlog_is_drained_in_the_end(start: dict[str, int], available: dict[str, int], limit: int) -> None:
    for _ in range(sum(available.values()) + 1):
        end = admit(start, available, limit)
        if end == start:
            break
        start = {**start, **end}
    assert all(start.get(part, 0) >= offset for part, offset in available.items())


@settings(deadline=None)
@given(offsets)
def test_admitting_nothing_gives_the_start(start: dict[str, int]) -> None:
    assert admit(start, start, 10) == start


class Stop(Event):
    """A stop whose waits move a clock by hand."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock, self.waited = clock, 0.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited += timeout
        self.clock.advance(timedelta(seconds=timeout))
        return self.is_set()


class Growing(SourceInput):
    """A topic of one partition, whose end the test sets."""

    end = 0

    def __init__(self, clock: ManualClock) -> None:
        source: Any = SimpleNamespace()
        super().__init__(source, clock=clock.seconds)

    def _available(self, start: Offset) -> Offset:
        return {"0": self.end}

    def reads(self, start: int, end: int, stop: Stop) -> None:
        self.end = end
        assert self.next({"0": start}, stop) == {"0": end}


@pytest.fixture
def stop(clock: ManualClock) -> Stop:
    return Stop(clock)


def test_a_small_batch_makes_the_next_one_wait(clock: ManualClock, stop: Stop) -> None:
    growing = Growing(clock)
    growing.reads(0, FEW_OFFSETS - 1, stop)
    assert stop.waited == 0
    clock.advance(timedelta(seconds=0.04))
    growing.reads(FEW_OFFSETS - 1, FEW_OFFSETS, stop)
    assert stop.waited == pytest.approx(LINGER_SECONDS - 0.04)


def test_a_large_batch_makes_nothing_wait(clock: ManualClock, stop: Stop) -> None:
    growing = Growing(clock)
    growing.reads(0, FEW_OFFSETS, stop)
    growing.reads(FEW_OFFSETS, FEW_OFFSETS + 1, stop)
    assert stop.waited == 0


def test_the_first_record_after_a_quiet_spell_waits_for_nothing(clock: ManualClock, stop: Stop) -> None:
    growing = Growing(clock)
    growing.reads(0, 1, stop)
    clock.advance(timedelta(seconds=60))
    growing.reads(1, 2, stop)
    assert stop.waited == 0


class Ended:
    """A topic of one partition with five records; whoever waits for a sixth one fails."""

    def facts(self) -> SourceFacts:
        return SourceFacts("topic", (0,))

    def known_ends(self, partitions: list[int]) -> tuple[dict[int, int], dict[int, RetryableError]]:
        return dict.fromkeys(partitions, 5), {}


def test_a_run_that_has_reached_its_end_waits_for_its_stop_only(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    source: Any = Ended()
    found, stop, pauses = SourceInput(source, {0: 5}, clock.seconds), Event(), list[float]()
    assert found.next({"0": 0}, stop) == {"0": 5}
    clock.advance(timedelta(seconds=2))

    def waits(pause: float) -> bool:
        pauses.append(pause)
        stop.set()
        found.wake()
        return found._woken.is_set()

    monkeypatch.setattr(found._woken, "wait", waits)
    assert found.next({"0": 5}, stop) == {"0": 5}
    assert pauses == [3.0]


class Told(Input):
    """An input whose looks the test gives, one after the other; an error is raised. It waits for a minute between them."""

    limit = 100

    def __init__(self, *looks: Any) -> None:
        super().__init__()
        self._looks = iter(looks)
        self.pauses: list[float] = []
        self._woken = SimpleNamespace(wait=self.pauses.append, clear=lambda: None, set=lambda: None)  # type: ignore[assignment]

    def _available(self, start: Offset) -> Offset:
        look = next(self._looks)
        if isinstance(look, Exception):
            raise look
        if isinstance(look, Event):
            look.set()
            return start
        return {"0": look}

    def _pause(self) -> float:
        return 60.0


def test_a_system_that_is_away_has_nothing_new() -> None:
    told = Told(RetryableError("away"), RetryableError("away"), 7)
    assert told.next({"0": 5}, Event()) == {"0": 7}
    assert told.pauses == [0.25, 0.25]


def test_nothing_new_is_no_batch() -> None:
    told = Told(5, 5, 6)
    assert told.next({"0": 5}, Event()) == {"0": 6}
    assert told.pauses == [60.0, 60.0]


def test_an_input_gives_a_batch_within_its_limit() -> None:
    assert Told(1000).next({"0": 5}, Event()) == {"0": 105}


def test_there_is_a_turn_before_each_look() -> None:
    stop = Event()
    told = Told(5, stop)
    turns = list[list[float]]()
    told.on_turn = lambda: turns.append([*told.pauses])
    told.next({"0": 5}, stop)
    told.next({"0": 5}, stop)
    assert turns == [[], [60.0]], "before each look, and none after a stop"


def test_a_stop_ends_the_wait_with_the_start() -> None:
    stop = Event()
    told = Told(5, stop)
    assert told.next({"0": 5}, stop) == {"0": 5}
    assert told.pauses == [60.0]
    assert told.next({"0": 5}, stop) == {"0": 5}


class Announcing(MemoryLog):
    """A log that keeps who wants to be woken, by subject; it refuses as many subscriptions as told."""

    refusals = 0

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.woken: list[tuple[str, Callable[[], None]]] = []
        self.heard = b""

    def on_message(self, subject: str, callback: Callable[[], None], containing: bytes) -> None:
        if self.refusals:
            self.refusals -= 1
            raise RetryableError("away")
        self.woken.append((subject, callback))
        self.heard = containing


@pytest.fixture
def log(clock: ManualClock) -> Announcing:
    return Announcing(clock)


def stream_input(log: Any, clock: ManualClock, hold: Hold = NO_HOLD, is_behind: Callable[[], bool] = lambda: False) -> StreamInput:
    return StreamInput(log, NAMES, SINK, (PROCESS,), hold, clock.seconds, is_behind=is_behind)


def grow(log: MemoryLog, frames: int) -> None:
    for _ in range(frames):
        found = log.last(NAMES.stream("out"), NAMES.out(0))
        log.publish(NAMES.out(0), b"", {}, found.sequence if found else 0)


def processed(log: MemoryLog, rows: int) -> None:
    chain = Chain(log, NAMES, PROCESS.chain, 1)
    chain.open()
    chain.plan(ProcessPlan(start=0, to=1, config="v1"))
    chain.done(ProcessDone(start=0, to=1, config="v1", counts={"rows_in": rows, "rows_out": rows}))


def test_a_stream_is_read_to_its_end(log: Announcing, clock: ManualClock) -> None:
    grow(log, 3)
    assert stream_input(log, clock).next({"sequence": 1}, Event()) == {"sequence": 3}


def test_a_stream_is_subscribed_once_to_the_legs_upstream(log: Announcing, clock: ManualClock) -> None:
    log.refusals = 1
    grow(log, 3)
    found = stream_input(log, clock)
    assert found.next({"sequence": 0}, Event()) == {"sequence": 3}
    assert found.next({"sequence": 1}, Event()) == {"sequence": 3}
    assert [subject for subject, _ in log.woken] == [NAMES.chain(PROCESS)]
    assert log.heard == DONE_MARK


def test_an_announcement_wakes_an_input_that_waits(log: Announcing, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    found, pauses = stream_input(log, clock), list[float]()

    def waits(pause: float) -> bool:
        pauses.append(pause)
        grow(log, 1)
        ((_, wake),) = log.woken
        wake()
        return found._woken.is_set()

    monkeypatch.setattr(found._woken, "wait", waits)
    assert found.next({"sequence": 0}, Event()) == {"sequence": 1}
    assert pauses == [IDLE_SECONDS]


def test_the_first_rows_after_a_quiet_time_are_not_held(log: Announcing, clock: ManualClock) -> None:
    grow(log, 1)
    processed(log, 10)
    assert stream_input(log, clock, Hold(rows=11, seconds=5.0))._available({"sequence": 0}) == {"sequence": 1}


def test_the_next_rows_are_held_until_enough_wait(log: Announcing, clock: ManualClock) -> None:
    grow(log, 2)
    processed(log, 10)
    few, many = (stream_input(log, clock, Hold(rows=rows, seconds=5.0)) for rows in (11, 10))
    for held in (few, many):
        held._available({"sequence": 0})
    assert few._available({"sequence": 1}) == {"sequence": 1}
    assert many._available({"sequence": 1}) == {"sequence": 2}


def test_another_hold_counts_from_the_last_batch(log: Announcing, clock: ManualClock) -> None:
    grow(log, 2)
    processed(log, 10)
    waiting = stream_input(log, clock, Hold(rows=1000, seconds=600.0))
    waiting._available({"sequence": 0})
    clock.advance(timedelta(seconds=2))
    assert (waiting._available({"sequence": 1}), waiting._pause()) == ({"sequence": 1}, 598.0)
    waiting.hold = Hold(rows=1000, seconds=3.0)
    assert (waiting._available({"sequence": 1}), waiting._pause()) == ({"sequence": 1}, 1.0)
    waiting.hold = Hold(rows=10, seconds=600.0)
    assert waiting._available({"sequence": 1}) == {"sequence": 2}


def test_rows_are_held_until_the_interval_is_over(log: Announcing, clock: ManualClock) -> None:
    grow(log, 2)
    processed(log, 10)
    waiting = stream_input(log, clock, Hold(rows=1000, seconds=5.0))
    waiting._available({"sequence": 0})
    clock.advance(timedelta(seconds=2))
    assert (waiting._available({"sequence": 1}), waiting._pause()) == ({"sequence": 1}, 3.0)
    clock.advance(timedelta(seconds=3))
    assert waiting._available({"sequence": 1}) == {"sequence": 2}
    assert (waiting._available({"sequence": 2}), waiting._pause()) == ({"sequence": 2}, IDLE_SECONDS)


def test_behind_a_backlog_rows_are_held_for_longer(log: Announcing, clock: ManualClock) -> None:
    grow(log, 2)
    processed(log, 10)
    answers = iter([True, True, False])
    waiting = stream_input(log, clock, Hold(rows=1000, seconds=0.25, behind_seconds=1.0), lambda: next(answers))
    assert waiting._available({"sequence": 0}) == {"sequence": 2}
    # The interval that always holds: nobody is asked.
    assert (waiting._available({"sequence": 1}), waiting._pause()) == ({"sequence": 1}, 0.25)
    clock.advance(timedelta(seconds=0.25))
    assert (waiting._available({"sequence": 1}), waiting._pause()) == ({"sequence": 1}, 0.75)
    clock.advance(timedelta(seconds=0.5))
    assert (waiting._available({"sequence": 1}), waiting._pause()) == ({"sequence": 1}, 0.25)
    assert waiting._available({"sequence": 1}) == {"sequence": 2}
    assert list(answers) == []


def test_behind_a_backlog_rows_are_held_no_longer_than_said(log: Announcing, clock: ManualClock) -> None:
    grow(log, 2)
    waiting = stream_input(log, clock, Hold(behind_seconds=1.0), lambda: True)
    waiting._available({"sequence": 0})
    assert waiting._available({"sequence": 1}) == {"sequence": 1}
    clock.advance(timedelta(seconds=1))
    assert waiting._available({"sequence": 1}) == {"sequence": 2}


def test_a_backlog_shortens_no_interval(log: Announcing, clock: ManualClock) -> None:
    grow(log, 2)
    processed(log, 10)
    waiting = stream_input(log, clock, Hold(rows=1000, seconds=5.0, behind_seconds=1.0), lambda: True)
    waiting._available({"sequence": 0})
    clock.advance(timedelta(seconds=4))
    assert (waiting._available({"sequence": 1}), waiting._pause()) == ({"sequence": 1}, 1.0)


def test_enough_rows_or_frames_are_not_held_behind_a_backlog(log: Announcing, clock: ManualClock) -> None:
    grow(log, 4)
    processed(log, 10)
    for hold in (Hold(rows=10, behind_seconds=1.0), Hold(frames=3, behind_seconds=1.0)):
        waiting = stream_input(log, clock, hold, lambda: True)
        waiting._available({"sequence": 0})
        assert waiting._available({"sequence": 1}) == {"sequence": 4}
    assert waiting._available({"sequence": 2}) == {"sequence": 2}
