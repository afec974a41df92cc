"""Shares of a run: who has one, for how long, and under which epoch."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.config.settings import settings_digest
from pipelines.engine.coordinator import (
    FREE_SECONDS,
    IDLE_SECONDS,
    RIGHT_SECONDS,
    SILENT_SECONDS,
    UNHEARD_SECONDS,
    WAITING_SECONDS,
    Coordinator,
    LegView,
)
from pipelines.engine.leg import LegStatus
from pipelines.engine.line import Gone, Held, Join, Joined, NatsLine, Process, Report, serve
from pipelines.engine.release import own_release
from pipelines.errors import FencedError, HaltError, RetryableError
from pipelines.protocol.lease import TTL_SECONDS, Lease
from pipelines.protocol.naming import Names
from pipelines.testing import SINGLE, Fault, ManualClock, MemoryLog

NAMES = Names("p")
LEG = SINGLE.sinks[0]
ONE, OTHER, THIRD = (Process("elsewhere", pid, mark) for pid, mark in ((1, "a"), (2, "b"), (3, "c")))


class Case:
    """A coordinator of one share of one leg, over a lease that is held."""

    def __init__(self, home: Path) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock)
        self.lease = Lease(self.log, NAMES, home, LEG, self.clock.seconds, self.clock.sleep)
        self.lease.acquire()
        self.view = LegView(LEG, self.lease)
        self.announced: list[str] = []
        self.coordinator = Coordinator([[LEG]], {LEG: self.view}, self.announced.append, self.clock.seconds)

    def join(self, process: Process) -> dict[str, int]:
        return self.coordinator.join(Join(0, process, dict(own_release()))).epochs

    def report(self, process: Process, **facts: Any) -> Any:
        return self.coordinator.report(Report(0, process, **{"task": "7", **facts}))


def _join(share: int, process: Process) -> Join:
    return Join(share, process, dict(own_release()))


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path)
    yield made
    made.log.come_back()
    made.lease.release()


def test_the_first_process_works_under_the_epoch_of_the_lease(case: Case) -> None:
    assert case.join(ONE) == {LEG: 1}
    assert case.report(ONE).seconds == RIGHT_SECONDS


def test_a_second_process_waits_while_the_first_may_insert(case: Case) -> None:
    case.join(ONE)
    case.report(ONE)
    case.clock.sleep(RIGHT_SECONDS - 0.1)
    assert case.join(OTHER) == {}
    case.clock.sleep(0.1)
    assert case.join(OTHER) == {LEG: 2}
    assert case.report(ONE).is_replaced
    assert not case.report(OTHER).is_replaced


def test_a_right_ends_with_the_lease(case: Case) -> None:
    case.join(ONE)
    case.log.go_away()
    case.clock.sleep(TTL_SECONDS - 3)
    assert case.report(ONE).seconds == 3


def test_a_process_of_another_release_is_given_nothing(case: Case) -> None:
    other = {**own_release(), "duckdb": "0.1", "tallyflow": "9.9"}
    with pytest.raises(HaltError, match=r"a worker on elsewhere:1 .* duckdb 0\.1 there, .*, tallyflow 9\.9 there, .* here"):
        case.coordinator.join(Join(0, ONE, other))
    assert case.join(OTHER) == {LEG: 1}


def test_a_process_that_names_no_release_is_given_nothing(case: Case) -> None:
    with pytest.raises(HaltError, match="duckdb none there"):
        case.coordinator.join(Join(0, ONE))


def test_a_process_with_a_task_is_not_asked_to_leave(case: Case) -> None:
    case.join(ONE)
    case.clock.sleep(IDLE_SECONDS)
    case.report(ONE)
    assert case.join(OTHER) == {}
    assert not case.report(ONE).is_stopping


def test_a_process_without_a_task_makes_room_for_one_with_a_task(case: Case) -> None:
    case.join(ONE)
    case.report(ONE)
    case.clock.sleep(IDLE_SECONDS - 0.1)
    assert (case.join(OTHER), case.report(ONE, task="").is_stopping) == ({}, False)
    case.clock.sleep(0.1)
    assert (case.join(OTHER), case.report(ONE, task="").is_stopping) == ({}, True)
    case.report(ONE, task="", has_ended=True)
    assert case.join(OTHER) == {LEG: 2}


def test_a_process_is_given_what_is_free_whatever_its_task_is(tmp_path: Path) -> None:
    clock = ManualClock()
    log = MemoryLog(clock)
    views = {}
    for leg in SINGLE.legs:
        lease = Lease(log, NAMES, tmp_path, leg, clock.seconds, clock.sleep)
        lease.acquire()
        views[leg] = LegView(leg, lease)
    coordinator = Coordinator([[leg] for leg in SINGLE.legs], views, lambda _: None, clock.seconds)
    died = Process(Process.own().host, Process.own().pid, "the mark of another process")
    assert [coordinator.join(_join(1, process)).share for process in (ONE, OTHER, died)] == [1, 0, 2]
    assert coordinator.has_joined
    given = coordinator.join(_join(0, THIRD))
    assert (given.share, dict(given.epochs)) == (2, {SINGLE.legs[2]: 2})
    for view in views.values():
        view.lease.release()


def test_a_share_whose_process_has_left_is_given_at_once(case: Case) -> None:
    case.join(ONE)
    case.report(ONE)
    case.report(ONE, has_ended=True)
    assert case.join(OTHER) == {LEG: 2}


def test_a_share_whose_process_died_here_is_given_at_once(case: Case) -> None:
    died = Process(Process.own().host, Process.own().pid, "the mark of another process")
    case.join(died)
    case.report(died)
    assert case.join(OTHER) == {LEG: 2}


def test_a_process_on_the_same_host_tells_of_a_dead_one(case: Case) -> None:
    case.join(ONE)
    case.report(ONE)
    refused = case.coordinator.join(_join(0, OTHER))
    assert (refused.epochs, refused.held_by) == ({}, (ONE,))
    given = case.coordinator.join(replace(_join(0, OTHER), gone=refused.held_by))
    assert given.epochs == {LEG: 2}
    assert case.report(ONE).is_replaced


def test_a_process_that_joins_again_has_a_new_epoch(case: Case) -> None:
    assert [case.join(ONE) for _ in range(3)] == [{LEG: 1}, {LEG: 2}, {LEG: 3}]


def test_an_unknown_epoch_is_never_given_twice(case: Case) -> None:
    case.join(ONE)
    case.clock.sleep(TTL_SECONDS)
    case.log.fail_publish(Fault.LOST_ACKNOWLEDGEMENT)
    with pytest.raises(RetryableError):
        case.join(OTHER)
    assert case.join(OTHER) == {LEG: 3}


def test_a_share_of_a_lost_lease_is_given_to_nobody(case: Case) -> None:
    case.join(ONE)
    case.lease.lost.set()
    assert case.report(ONE).is_replaced
    case.clock.sleep(TTL_SECONDS)
    with pytest.raises(FencedError, match="the lease was lost"):
        case.join(OTHER)


def test_reports_show_the_legs_and_their_notes_are_announced(case: Case) -> None:
    case.join(ONE)
    assert not case.coordinator.has_begun
    case.report(ONE, legs={LEG: LegStatus(state="running", reached={"0": 7})}, notes=("one", "two"))
    assert case.coordinator.has_begun and case.coordinator.changed.is_set()
    assert (case.coordinator.reached, case.announced, case.view.process) == ([{"0": 7}], ["one", "two"], ONE)


def test_a_replaced_process_changes_nothing(case: Case) -> None:
    case.join(ONE)
    case.clock.sleep(TTL_SECONDS)
    case.join(OTHER)
    case.report(ONE, legs={LEG: LegStatus(state="running")}, notes=("words",))
    assert (case.view.status.state, case.announced) == ("starting", [])


def test_a_stop_reaches_callbacks_and_reports(case: Case) -> None:
    called: list[str] = []
    case.coordinator.on_stop(lambda: called.append("stop"))
    case.join(ONE)
    case.coordinator.stop()
    assert (called, case.report(ONE).is_stopping) == (["stop"], True)


def test_a_halt_comes_back_as_its_own_kind(case: Case) -> None:
    case.coordinator.fail(LEG, FencedError("taken over"))
    assert isinstance(case.view.failure, FencedError)
    assert (case.coordinator.has_halted, case.announced) == (True, [f"{LEG} halted: taken over"])


class Wire:
    """What carries requests between two connections, in memory."""

    def __init__(self) -> None:
        self.served: dict[str, Any] = {}

    def serve(self, subject: str, answer: Any) -> None:
        self.served[subject] = answer

    def request(self, subject: str, payload: bytes) -> bytes:
        found: bytes = self.served[subject](payload)
        return found

    def notify(self, subject: str) -> None:
        raise RetryableError("away")


def test_an_error_crosses_the_line_as_its_own_kind(case: Case) -> None:
    wire: Any = Wire()
    serve(case.coordinator, wire, "run")
    line = NatsLine(wire, "run")
    assert line.join(_join(0, ONE)).epochs == {LEG: 1}
    assert line.report(Report(0, ONE)).seconds == RIGHT_SECONDS
    case.lease.lost.set()
    with pytest.raises(FencedError, match="the lease was lost"):
        line.join(_join(0, ONE))


def test_a_stop_that_nobody_hears_is_said_in_the_next_answer(case: Case) -> None:
    wire: Any = Wire()
    serve(case.coordinator, wire, "run")
    line = NatsLine(wire, "run")
    line.join(_join(0, ONE))
    case.coordinator.stop()
    assert line.report(Report(0, ONE)).is_stopping


def test_a_right_runs_out_without_answers_and_ends_when_lost() -> None:
    clock = ManualClock()
    held = Held(clock.seconds)
    held.extend(0.0, 10.0)
    clock.sleep(4)
    assert held.remaining_seconds == 6
    clock.sleep(7)
    assert held.remaining_seconds == -1
    held.extend(clock.seconds(), 10.0)
    held.lost.set()
    assert held.remaining_seconds == 0


def test_legs_of_a_silent_process_are_shown_as_waiting(case: Case) -> None:
    case.join(ONE)
    case.report(ONE, legs={LEG: LegStatus(state="running")})
    case.clock.sleep(SILENT_SECONDS)
    case.coordinator.look()
    assert case.view.status.state == "running"
    case.clock.sleep(1)
    case.coordinator.look()
    assert (case.view.status.state, case.view.failure) == ("waiting", None)
    assert "no report from elsewhere:1 for 4 s: NATS does not answer" in case.view.status.message
    case.report(ONE, legs={LEG: LegStatus(state="running")})
    case.coordinator.look()
    assert case.view.status.state == "running"


class Crowd(Case):
    """A coordinator of one leg and two lanes, both kept."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.coordinator = Coordinator([[LEG], [], []], {LEG: self.view}, self.announced.append, self.clock.seconds)
        self.coordinator.keep_lanes(2)

    def given(self, process: Process, share: int) -> tuple[int, dict[str, int], int]:
        joined = self.coordinator.join(_join(share, process))
        return joined.share, joined.epochs, joined.lane

    def hear(self, share: int, process: Process, **facts: Any) -> Any:
        return self.coordinator.report(Report(share, process, **{"task": "7", **facts}))


@pytest.fixture
def crowd(tmp_path: Path) -> Iterator[Crowd]:
    made = Crowd(tmp_path)
    yield made
    made.lease.release()


NEIGHBOUR, FAR = Process("elsewhere", 4, "d"), Process("far", 5, "e")


def test_a_neighbour_tells_of_a_process_that_died(crowd: Crowd) -> None:
    """One that waits on another host cannot; nor can one there that works."""
    assert [crowd.given(*one)[0] for one in ((ONE, 0), (NEIGHBOUR, 1), (FAR, 2))] == [0, 1, 2]
    calls: list[str] = []
    crowd.coordinator.on_border(lambda: calls.append("report"))
    assert crowd.hear(1, NEIGHBOUR).asked == ()
    waiting = Process("far", 6, "f")
    assert [crowd.given(waiting, 0)[1] for _ in range(3)] == [{}, {}, {}]
    assert calls == ["report"], "once, not for each time that it asks"
    assert crowd.hear(1, NEIGHBOUR).asked == (ONE,)
    assert crowd.hear(2, FAR, gone=(ONE,)).asked == ()
    assert crowd.given(waiting, 0)[1] == {}
    assert crowd.hear(1, NEIGHBOUR, gone=(ONE,)).asked == ()
    assert crowd.given(waiting, 0) == (0, {LEG: 2}, 0)
    crowd.clock.sleep(WAITING_SECONDS)
    assert crowd.hear(1, NEIGHBOUR).asked == (), "nobody waits"
    assert crowd.hear(0, ONE).is_replaced


def test_a_process_that_ended_with_its_task_is_given_up(case: Case) -> None:
    case.coordinator.join(replace(_join(0, ONE), task="7"))
    case.clock.sleep(UNHEARD_SECONDS)
    assert case.coordinator.unheard_tasks == set(), "nobody waits"
    assert case.join(OTHER) == {}
    assert case.coordinator.unheard_tasks == {"7"}
    case.coordinator.give_up({"6", "8"})
    assert case.join(OTHER) == {}
    case.coordinator.give_up({"7"})
    assert case.join(OTHER) == {LEG: 2}
    assert case.report(ONE).is_replaced


def test_a_process_that_its_daemon_has_seen_end_is_given_up(case: Case) -> None:
    wire: Any = Wire()
    serve(case.coordinator, wire, "run")
    line = NatsLine(wire, "run")
    case.join(ONE)
    assert line.note_gone(Gone((OTHER,))) == Gone()
    assert case.join(THIRD) == {}
    assert line.note_gone(Gone((OTHER, ONE))) == Gone((ONE,))
    assert case.announced == ["with an executor have ended: elsewhere:1; other processes take their shares over"]
    case.coordinator.look()
    assert case.view.status.message == "its process elsewhere:1 has ended, another one is to take over"
    assert case.report(ONE).is_replaced, "a report that was on its way gives no right"
    assert case.join(THIRD) == {LEG: 2}


def test_a_process_that_reports_is_not_asked_about(case: Case) -> None:
    case.join(ONE)
    case.report(ONE, task="7")
    case.clock.sleep(UNHEARD_SECONDS - 0.1)
    assert (case.join(OTHER), case.coordinator.unheard_tasks) == ({}, set())


@pytest.mark.parametrize("later", ["8", ""], ids=["in another task", "without a task"])
def test_a_process_outlives_an_earlier_task_of_its_own(case: Case, later: str) -> None:
    case.coordinator.join(replace(_join(0, ONE), task="7"))
    case.report(ONE, task=later)
    case.clock.sleep(UNHEARD_SECONDS)
    assert (case.join(OTHER), case.coordinator.unheard_tasks) == ({}, {later} - {""})
    case.coordinator.give_up({"7"})
    assert case.join(OTHER) == {}


def test_legs_are_given_before_lanes_whatever_is_asked_for(crowd: Crowd) -> None:
    assert crowd.given(ONE, 2) == (0, {LEG: 1}, 0)
    assert crowd.given(OTHER, 2) == (2, {}, 2)
    assert crowd.given(THIRD, 0) == (1, {}, 1)
    assert crowd.coordinator.join(_join(0, Process("elsewhere", 4, "d"))).lane == 0
    assert (crowd.coordinator.lanes, crowd.coordinator.has_joined) == (2, True)


def test_a_lane_keeps_its_share_as_long_as_it_reports(crowd: Crowd) -> None:
    crowd.given(ONE, 0)
    crowd.given(OTHER, 1)
    assert crowd.hear(1, OTHER).seconds == RIGHT_SECONDS
    crowd.clock.sleep(RIGHT_SECONDS)
    assert crowd.coordinator.lanes == 0


def test_a_lane_makes_room_for_legs_that_nobody_works_on(crowd: Crowd) -> None:
    crowd.given(ONE, 0)
    crowd.given(OTHER, 1)
    for _ in range(int(RIGHT_SECONDS)):
        crowd.clock.sleep(1)
        crowd.coordinator.look()
        assert not crowd.hear(1, OTHER).is_stopping
    for _ in range(int(FREE_SECONDS)):
        crowd.clock.sleep(1)
        crowd.coordinator.look()
    assert crowd.hear(1, OTHER, has_ended=True).is_stopping
    assert crowd.given(OTHER, 1) == (0, {LEG: 2}, 0)


def test_a_lane_stays_while_the_legs_have_a_process(crowd: Crowd) -> None:
    crowd.given(ONE, 0)
    crowd.given(OTHER, 1)
    for _ in range(int(TTL_SECONDS) - 1):
        crowd.clock.sleep(1)
        crowd.hear(0, ONE)
        crowd.coordinator.look()
        assert not crowd.hear(1, OTHER).is_stopping


def test_a_run_starts_with_its_legs_only(case: Case) -> None:
    coordinator = Coordinator([[LEG], [], []], {LEG: case.view}, case.announced.append, case.clock.seconds)
    assert (coordinator.begin_epoch(), coordinator.most_lanes) == ((1, [""]), 2)
    assert coordinator.join(_join(2, ONE)).epochs == {LEG: 1}
    assert coordinator.has_joined
    assert coordinator.join(_join(0, OTHER)) == Joined(held_by=(ONE,))
    coordinator.keep_lanes(1)
    assert not coordinator.has_joined
    assert coordinator.join(_join(2, OTHER)).lane == 1
    assert (coordinator.has_joined, coordinator.begin_epoch()) == (True, (2, ["", ""]))


def test_legs_are_told_which_lanes_work(crowd: Crowd) -> None:
    crowd.given(ONE, 0)
    assert crowd.hear(0, ONE).lanes == ()
    crowd.given(OTHER, 2)
    assert crowd.hear(0, ONE).lanes == (2,)
    crowd.given(THIRD, 1)
    assert crowd.hear(0, ONE).lanes == (1, 2)
    crowd.clock.sleep(RIGHT_SECONDS - 1)
    crowd.hear(1, THIRD)
    crowd.clock.sleep(1)
    assert crowd.hear(0, ONE).lanes == (1,)


SETTINGS = '{"lanes":2}'


def test_legs_are_sent_new_settings_once(crowd: Crowd) -> None:
    crowd.given(ONE, 0)
    crowd.given(OTHER, 1)
    told = list[str]()
    crowd.coordinator.on_border(lambda: told.append("report"))
    assert crowd.hear(0, ONE).settings == ""
    crowd.coordinator.take_settings(SETTINGS, 2)
    assert told == ["report"], "nobody waits for the second to be over"
    assert (crowd.hear(0, ONE).settings, crowd.hear(1, OTHER).settings) == (SETTINGS, ""), "a lane takes none"
    assert crowd.hear(0, ONE).settings == SETTINGS, "an answer may be lost"
    assert crowd.hear(0, ONE, settings=settings_digest(SETTINGS)).settings == ""
    crowd.coordinator.take_settings("{}", 2)
    assert crowd.hear(0, ONE, settings=settings_digest(SETTINGS)).settings == "{}"


def test_a_process_that_joins_later_is_given_the_settings(crowd: Crowd) -> None:
    crowd.given(ONE, 0)
    crowd.coordinator.take_settings(SETTINGS, 2)
    crowd.hear(0, ONE, has_ended=True)
    assert crowd.coordinator.join(_join(0, OTHER)).settings == SETTINGS
    assert crowd.coordinator.join(_join(1, THIRD)).settings == ""


def test_a_run_has_no_more_lanes_than_the_file_allows_now(crowd: Crowd) -> None:
    crowd.coordinator.take_settings(SETTINGS, 1)
    assert (crowd.coordinator.allowed_lanes, crowd.coordinator.most_lanes) == (1, 2)
    crowd.coordinator.take_settings(SETTINGS, 9)
    assert crowd.coordinator.allowed_lanes == 2


def test_a_lane_that_is_not_kept_leaves_and_is_not_asked(crowd: Crowd) -> None:
    crowd.given(ONE, 0)
    crowd.given(OTHER, 1)
    crowd.given(THIRD, 2)
    crowd.coordinator.begin_epoch()
    crowd.coordinator.keep_lanes(1)
    assert (crowd.hear(0, ONE).lanes, crowd.coordinator.lanes) == ((1,), 1)
    assert not crowd.hear(1, OTHER).is_stopping
    assert crowd.hear(2, THIRD, has_ended=True).is_stopping
    assert crowd.coordinator.join(_join(2, THIRD)) == Joined(is_stopping=True), "a late task is sent away"
    assert not crowd.coordinator.is_border_due
    crowd.coordinator.keep_lanes(2)
    for share, process in enumerate((ONE, OTHER, THIRD)):
        crowd.hear(share, process, epoch=1)
    assert crowd.coordinator.join(replace(_join(2, THIRD), epoch=1)).lane == 2
    crowd.coordinator.keep_lanes(1)
    crowd.coordinator.keep_lanes(2)
    assert crowd.coordinator.is_border_due, "its task has ended"


def test_a_border_is_due_when_lanes_are_to_join(crowd: Crowd) -> None:
    crowd.coordinator.keep_lanes(0)
    number, places = crowd.coordinator.begin_epoch()
    crowd.coordinator.join(replace(_join(0, ONE), epoch=number))
    assert not crowd.coordinator.is_border_due
    crowd.coordinator.keep_lanes(2)
    assert (len(places), crowd.coordinator.is_border_due) == (1, True)
    crowd.clock.sleep(SILENT_SECONDS + 1)
    assert not crowd.coordinator.is_border_due, "a process that reports nothing would keep its task"
    assert crowd.hear(0, ONE).ended_epoch == number - 1
    assert crowd.coordinator.is_border_due
    borders: list[str] = []
    crowd.coordinator.on_border(lambda: borders.append("border"))
    for _ in range(3):
        crowd.coordinator.end_epoch()
    assert (borders, crowd.hear(0, ONE).ended_epoch) == (["border"], number)
    assert crowd.coordinator.begin_epoch() == (number + 1, [""] * 3)
    assert not crowd.coordinator.is_border_due


def test_no_border_is_due_while_a_task_has_not_begun(crowd: Crowd) -> None:
    """Its process may take long to start, and the others would be without a task until it has ended."""
    crowd.coordinator.keep_lanes(1)
    number, places = crowd.coordinator.begin_epoch()
    crowd.coordinator.join(replace(_join(0, ONE), epoch=number))
    crowd.coordinator.keep_lanes(0)
    crowd.coordinator.keep_lanes(2)
    assert (len(places), crowd.coordinator.is_border_due) == (2, False)
    crowd.coordinator.join(replace(_join(1, OTHER), epoch=number - 1))
    assert not crowd.coordinator.is_border_due, "that is a task of the epoch before"
    crowd.hear(1, OTHER, epoch=number)
    assert crowd.coordinator.is_border_due


def _reached(end: int) -> dict[str, LegStatus]:
    return {LEG: LegStatus(state="running", reached={"0": end})}


def test_a_border_is_due_when_a_lost_task_works_again(case: Case) -> None:
    """Without progress none is: the fourth failure then ends the query, which a runner counts."""
    case.coordinator.begin_epoch()
    case.coordinator.join(replace(_join(0, ONE), epoch=1))
    case.report(ONE, epoch=1, legs=_reached(5))
    assert not case.coordinator.is_border_due
    case.coordinator.join(replace(_join(0, OTHER), epoch=1, gone=(ONE,)))
    for status in ({LEG: LegStatus()}, _reached(5)):
        case.report(OTHER, epoch=1, legs=status)
        assert not case.coordinator.is_border_due
    case.report(OTHER, epoch=1, legs=_reached(6))
    assert case.coordinator.is_border_due
    case.clock.sleep(SILENT_SECONDS + 1)
    assert not case.coordinator.is_border_due, "lost again"
    case.coordinator.begin_epoch()
    case.report(OTHER, epoch=2, legs=_reached(7))
    assert not case.coordinator.is_border_due


def test_no_border_is_due_when_a_process_made_room(case: Case) -> None:
    """Where the next epoch's tasks go is Spark's choice: one border would bring about the next."""
    case.coordinator.begin_epoch()
    case.join(ONE)
    case.report(ONE, epoch=1, legs=_reached(5), has_ended=True)
    case.coordinator.join(replace(_join(0, OTHER), epoch=1))
    case.report(OTHER, epoch=1, legs=_reached(6))
    case.coordinator.join(replace(_join(0, OTHER), epoch=1))
    case.report(OTHER, epoch=1, legs=_reached(7))
    assert not case.coordinator.is_border_due


def test_a_border_is_due_when_a_lost_lane_is_back_and_legs_move(crowd: Crowd) -> None:
    crowd.coordinator.begin_epoch()
    for share, process in enumerate((ONE, OTHER, THIRD)):
        crowd.coordinator.join(replace(_join(share, process), epoch=1))
    crowd.coordinator.join(replace(_join(1, NEIGHBOUR), epoch=1, gone=(OTHER,)))
    assert not crowd.coordinator.is_border_due
    crowd.hear(0, ONE, epoch=1, legs=_reached(1))
    assert crowd.coordinator.is_border_due


def test_a_lane_that_died_before_holds_up_no_border(crowd: Crowd) -> None:
    crowd.given(ONE, 0)
    crowd.given(OTHER, 1)
    crowd.coordinator.keep_lanes(0)
    number, _ = crowd.coordinator.begin_epoch()
    crowd.clock.sleep(SILENT_SECONDS + 1)
    crowd.hear(0, ONE, epoch=number)
    crowd.coordinator.keep_lanes(1)
    assert crowd.coordinator.is_border_due


def test_a_task_is_to_run_where_the_process_of_its_share_is(crowd: Crowd) -> None:
    """Whatever task took the process there, and as long as it has that share; a process with none has no place."""
    crowd.coordinator.keep_lanes(1)
    assert crowd.coordinator.begin_epoch() == (1, ["", ""])
    crowd.coordinator.join(replace(_join(0, ONE), epoch=1, task="10"))
    crowd.coordinator.join(replace(_join(1, OTHER), epoch=1, task="11"))
    crowd.hear(0, ONE, task="10")
    crowd.hear(0, ONE, task="")
    crowd.coordinator.note_places({"10": "here", "12": "elsewhere"})
    assert crowd.coordinator.begin_epoch() == (2, ["here", ""])
    crowd.hear(0, ONE, task="20")
    crowd.hear(1, OTHER, task="21")
    crowd.coordinator.note_places({"21": "there"})
    assert crowd.coordinator.begin_epoch() == (3, ["here", "there"]), "what is not told anew stays"
    crowd.coordinator.keep_lanes(2)
    crowd.coordinator.join(replace(_join(0, THIRD), epoch=3, task="30", gone=(ONE,)))
    assert crowd.coordinator.begin_epoch() == (4, ["", "there", ""])


def test_a_border_is_due_while_a_new_task_has_no_place(crowd: Crowd) -> None:
    """Tried again in its first epoch, it would go to any executor, also to one without a warm Python."""
    coordinator = crowd.coordinator
    coordinator.has_places = True
    coordinator.keep_lanes(1)
    coordinator.begin_epoch()
    coordinator.join(replace(_join(0, ONE), epoch=1, task="10"))
    assert not coordinator.is_border_due, "the other task has not begun"
    coordinator.join(replace(_join(1, OTHER), epoch=1, task="11"))
    assert coordinator.is_border_due
    coordinator.note_places({"10": "here"})
    assert coordinator.begin_epoch() == (2, ["here", ""])
    crowd.hear(0, ONE, task="20", epoch=2)
    crowd.hear(1, OTHER, task="21", epoch=2)
    assert not coordinator.is_border_due, "Spark was asked, and tells nothing of the other one"
    coordinator.keep_lanes(2)
    coordinator.note_places({})
    coordinator.begin_epoch()
    crowd.hear(0, ONE, task="30", epoch=3)
    crowd.hear(1, OTHER, task="31", epoch=3)
    coordinator.join(replace(_join(2, THIRD), epoch=3, task="32"))
    assert coordinator.is_border_due, "for the lane that has come"


def test_no_border_is_due_for_the_place_of_a_task_tried_again(case: Case) -> None:
    """Spark counts its failures in an epoch; it is due once the task has come further."""
    case.coordinator.has_places = True
    case.coordinator.begin_epoch()
    case.coordinator.join(replace(_join(0, ONE), epoch=1, task="10"))
    case.coordinator.note_places({"10": "here"})
    case.coordinator.begin_epoch()
    case.coordinator.join(replace(_join(0, OTHER), epoch=2, task="20", gone=(ONE,)))
    assert not case.coordinator.is_border_due


def test_a_process_without_a_share_hears_of_the_border(crowd: Crowd) -> None:
    crowd.coordinator.keep_lanes(0)
    number, _ = crowd.coordinator.begin_epoch()
    crowd.given(ONE, 0)
    crowd.coordinator.end_epoch()
    assert crowd.coordinator.join(_join(0, OTHER)) == Joined(held_by=(ONE,), ended_epoch=number)


def test_a_leg_shows_the_seconds_of_its_large_batches(case: Case) -> None:
    case.join(ONE)
    case.report(ONE, legs={LEG: LegStatus(state="running", seconds_busy=3.0, seconds_large=2.5)})
    assert case.coordinator.seconds_large == {LEG: 2.5}
