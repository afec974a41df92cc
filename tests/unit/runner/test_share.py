"""The legs of a share: what ends one, what all, and what is tried again."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.config.settings import settings_digest
from pipelines.engine.failures import from_failure
from pipelines.engine.inputs import Input, Offset
from pipelines.engine.lanes import LEAST_RECORDS, Lanes
from pipelines.engine.leg import LegStatus, ReplanError
from pipelines.engine.line import REPORT_EVERY_SECONDS, Answer, Gone, Joined, Process
from pipelines.engine.run_spec import RunSpec
from pipelines.errors import HaltError, RetryableError
from pipelines.protocol.topology import LegId
from pipelines.runner.leg_thread import RESTARTS_WITHOUT_PROGRESS, LegThread
from pipelines.runner.share import Share
from pipelines.runner.task import worked
from pipelines.testing import ManualClock

SECONDS = 10.0
RUN = RunSpec("", "pipeline", {}, {}, "", "")


class Always(Input):
    """An input with one more position each time."""

    limit = 1

    def _available(self, start: Offset) -> Offset:
        return {"sequence": start["sequence"] + 1}

    def _pause(self) -> float:
        return 60.0


class Quiet(Input):
    """An input without news."""

    limit = 1

    def _available(self, start: Offset) -> Offset:
        return start

    def _pause(self) -> float:
        return 60.0


class FakeLeg:
    """A leg whose batches raise what the test says, one after the other; then it asks for a stop."""

    name = "sink"

    def __init__(self, *errors: Exception | None, stop: threading.Event | None = None) -> None:
        self.stop, self.status = stop or threading.Event(), LegStatus()
        self.connections = SimpleNamespace(prove=lambda: None)
        self.errors, self.begun = list(errors), 0

    def open_input(self) -> Input:
        return Always()

    def patiently(self, attempt: Any) -> Any:
        return attempt()

    def begin(self) -> Offset:
        self.begun += 1
        self.status.state = "running"
        return {"sequence": self.status.batches}

    def show_progress(self) -> None:
        """Nobody looks."""

    def close(self) -> None:
        """Nothing is open."""

    def advance(self, end: Offset) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        self.status.batches += 1
        self.status.totals = {"rows_in": 10 * self.status.batches}
        if not self.errors:
            self.stop.set()

    is_between_plans = True

    def take_settings(self, settings: str) -> None:
        self.status.message, self.status.settings = settings, settings_digest(settings)


def run(leg: Any) -> tuple[LegThread, list[str]]:
    notes: list[str] = []
    thread = LegThread(leg, notes.append, lambda: None)
    thread.start()
    assert thread.join(SECONDS)
    return thread, notes


def test_a_stop_ends_a_leg_after_its_batch() -> None:
    leg = FakeLeg(None, None, None)
    thread, _ = run(leg)
    assert (leg.status.state, leg.status.batches, leg.begun) == ("stopped", 3, 1)
    assert (thread.rows_taken(), thread.rows_taken()) == (30, 0)


def test_a_halt_of_one_leg_leaves_the_others_working() -> None:
    stop = threading.Event()
    halted, other = FakeLeg(HaltError("damage"), stop=stop), FakeLeg(None, stop=stop)
    _, notes = run(halted)
    assert (halted.status.state, notes, stop.is_set()) == ("halted", ["sink halted: damage"], False)
    assert isinstance(from_failure(halted.status.failure), HaltError)
    run(other)
    assert other.status.batches == 1


def test_an_unknown_error_begins_again_and_halts_in_the_end() -> None:
    leg = FakeLeg(*[ValueError("words")] * 50)
    run(leg)
    assert leg.begun == 1 + RESTARTS_WITHOUT_PROGRESS
    assert "ended 6 times without progress, last with: ValueError: words" in leg.status.message


def test_progress_lets_a_leg_begin_again() -> None:
    leg = FakeLeg(*[ValueError("words"), None] * 12)
    run(leg)
    assert (leg.status.state, leg.begun) == ("stopped", 13)


def test_what_the_host_lacks_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.runner.leg_thread.FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr("pipelines.runner.leg_thread.MOST_WAIT_SECONDS", 0.002)
    leg = FakeLeg(*[OSError(28, "No space left on device")] * 20)
    _, notes = run(leg)
    assert (leg.status.state, leg.begun) == ("stopped", 21)
    assert "make room" in notes[0]


def test_ranges_planned_otherwise_begin_again() -> None:
    leg = FakeLeg(*[ReplanError("narrowed")] * 10)
    _, notes = run(leg)
    assert (leg.status.state, leg.begun, notes[0]) == ("stopped", 11, "narrowed")


def test_a_leg_takes_settings_behind_its_batch() -> None:
    leg = FakeLeg(None, None, None)
    news = list[str]()
    thread = LegThread(leg, news.append, lambda: news.append(f"{leg.status.batches} batches, under {leg.status.message!r}"))  # type: ignore[arg-type]
    leg.show_progress = lambda: thread.send_settings("{}") if leg.status.batches == 2 else None  # type: ignore[method-assign]
    thread.start()
    assert thread.join(SECONDS)
    assert news == ["0 batches, under ''", "2 batches, under '{}'"]
    assert leg.begun == 1


def test_an_open_plan_is_finished_before_settings_are_taken() -> None:
    leg = FakeLeg(None, None, None)
    thread = LegThread(leg, print, lambda: None)  # type: ignore[arg-type]
    thread.send_settings("{}")
    leg.is_between_plans = False
    leg.show_progress = lambda: setattr(leg, "is_between_plans", leg.status.batches == 2)  # type: ignore[method-assign]
    advance, seen = leg.advance, list[str]()

    def noted(end: Offset) -> None:
        seen.append(leg.status.message)
        advance(end)

    leg.advance = noted  # type: ignore[method-assign]
    thread.start()
    assert thread.join(SECONDS)
    assert seen == ["", "", "{}"]


class Spoken:
    """A runner that gives what the test says: an epoch, and answers; an error is raised. `reports`: what it was told."""

    given = Joined(1, {"sink": 3})

    def __init__(self, *answers: Any) -> None:
        self.answers, self.reports = list(answers), list[Any]()

    def on_stop(self, callback: Any) -> None:
        self.callback = callback

    def on_border(self, callback: Any) -> None:
        self.border = callback

    def join(self, join: Any) -> Joined:
        self.joined = join
        return self.given

    def note_gone(self, gone: Gone) -> Gone:
        raise AssertionError(f"a share tells of no end: {gone}")

    def report(self, report: Any) -> Answer:
        self.reports.append(report)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Answer)
        return answer


class OfOneLeg(Share):
    """A share whose legs do one batch."""

    def _made(self, name: LegId, epoch: int, lanes: int) -> LegThread:
        self.given = name, epoch
        return LegThread(FakeLeg(None), self._say, self._news.set)  # type: ignore[arg-type]


def share_of(line: Spoken, clock: ManualClock) -> OfOneLeg:
    nothing: Any = None
    return OfOneLeg(nothing, 0, nothing, line, {}, clock.seconds)


def test_a_process_works_on_the_share_that_it_is_given() -> None:
    line = Spoken(Answer(10.0))
    share = share_of(line, ManualClock())
    share.start(1, "7")
    share.stop()
    assert share.ended.wait(SECONDS)
    assert share.given == ("sink", 3)
    assert {report.share for report in line.reports} == {1}


class Hearing(Spoken):
    """Notes when a report says that the leg works, which then has nothing to do."""

    def __init__(self) -> None:
        super().__init__(Answer(10.0))
        self.has_heard = threading.Event()

    def report(self, report: Any) -> Answer:
        if report.legs["sink"].state == "running":
            self.has_heard.set()
        return super().report(report)


class OfAnIdleLeg(Share):
    """A share whose leg has nothing to read."""

    def _made(self, name: LegId, epoch: int, lanes: int) -> LegThread:
        leg: Any = FakeLeg(stop=self._stop)
        leg.open_input = Quiet
        return LegThread(leg, self._say, self._news.set)


def test_the_runner_hears_at_once_that_a_leg_has_begun() -> None:
    nothing: Any = None
    line = Hearing()
    share = OfAnIdleLeg(nothing, 0, nothing, line, {}, ManualClock().seconds)
    share.start(1, "7")
    assert line.has_heard.wait(0.5 * REPORT_EVERY_SECONDS)
    share.stop()
    assert share.ended.wait(SECONDS)


def test_a_leg_that_does_not_close_leaves_no_runner_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda one: raised.append(one.exc_value))
    nothing: Any = None
    share = OfAnIdleLeg(nothing, 0, nothing, Hearing(), {}, ManualClock().seconds)
    share.start(1, "7")
    damage, ended = ValueError("damage"), list[str]()

    def close() -> None:
        raise damage

    share._legs[0].leg.close = close
    share.at_the_end(lambda: ended.append("withdrawn"))
    share.stop()
    assert share.ended.wait(SECONDS)
    share._reporter.join(SECONDS)
    assert (ended, raised) == (["withdrawn"], [damage])


def test_a_process_tells_at_once_which_neighbour_has_ended() -> None:
    own = Process.own()
    ended = Process(own.host, own.pid, "the mark of another process")
    nothing: Any = None
    line = Spoken(Answer(10.0, asked=(own, ended)), Answer(10.0))
    share = OfAnIdleLeg(nothing, 0, nothing, line, {}, ManualClock().seconds)
    begun = time.monotonic()
    share.start(1, "7")
    while len(line.reports) < 2 and time.monotonic() - begun < SECONDS:
        time.sleep(0.01)
    share.stop()
    assert share.ended.wait(SECONDS)
    assert [report.gone for report in line.reports[:2]] == [(), (ended,)]
    assert all(report.gone == () for report in line.reports[2:])


class OfALane(Share):
    """A share that is told to be a lane."""

    served = 0

    def _serve_lane(self, number: int) -> None:
        self.served = number
        self._at_the_end.append(self._gone)

    def _gone(self) -> None:
        self.served = 0
        raise RetryableError("nobody is told")


def test_a_process_may_be_given_a_lane_and_serves_it_to_the_end() -> None:
    nothing: Any = None
    line = Spoken(Answer(10.0))
    line.given = Joined(4, {}, 2, 2)
    share = OfALane(nothing, 0, nothing, line, {}, ManualClock().seconds)
    share.start(1, "7")
    assert share.served == 2
    assert share.hold(1, 0.0, "7") == {}
    share.stop()
    assert share.ended.wait(SECONDS)
    assert share.served == 0
    assert {report.share for report in line.reports} == {4}


def test_a_share_reports_which_task_holds_it() -> None:
    line = Spoken(Answer(10.0))
    share = share_of(line, ManualClock())
    share.start(1, "7")
    share.stop()
    assert share.ended.wait(SECONDS)
    share.hold(1, 0.0, "8")
    share._report()
    assert (line.joined.task, line.reports[0].task, line.reports[-1].task) == ("7", "7", "")


def test_a_share_reports_its_next_task_at_once() -> None:
    nothing: Any = None
    line = Spoken(Answer(10.0))
    share = OfAnIdleLeg(nothing, 0, nothing, line, {}, ManualClock().seconds)
    share.start(1, "6")
    share.hold(1, 0.0, "6")
    until = time.monotonic() + 0.5 * REPORT_EVERY_SECONDS
    task = held(share, 2, SECONDS)
    while line.reports[-1].task != "7" and time.monotonic() < until:
        time.sleep(0.01)
    last = line.reports[-1].task
    share.stop()
    task.join(SECONDS)
    assert last == "7"


def test_a_share_reports_the_epoch_of_its_task() -> None:
    line = Spoken(Answer(10.0))
    share = share_of(line, ManualClock())
    for epoch in (3, 4):
        share.hold(epoch, 0.0, "7")
        share._report()
    assert [report.epoch for report in line.reports] == [3, 4]


def held(share: Share, epoch: int, seconds: float) -> threading.Thread:
    thread = threading.Thread(target=share.hold, args=(epoch, seconds, "7"))
    thread.start()
    return thread


def test_a_task_ends_with_its_epoch_and_the_share_goes_on() -> None:
    line = Spoken(Answer(10.0), Answer(10.0, ended_epoch=4))
    share = share_of(line, ManualClock())
    share._report()
    task = held(share, 4, SECONDS)
    share._report()
    task.join(SECONDS / 2)
    assert not task.is_alive()
    assert (share.is_over, share._stop.is_set()) == (False, False)
    assert share.hold(4, SECONDS, "7") == {}, "a late task of that epoch ends at once"


def test_a_border_is_asked_for_as_soon_as_it_is_heard_of() -> None:
    line = Spoken(Answer(10.0), Answer(10.0, ended_epoch=1))
    share = share_of(line, ManualClock())
    share.start(1, "7")
    task = held(share, 1, SECONDS)
    line.border()
    task.join(0.5 * REPORT_EVERY_SECONDS)
    assert not task.is_alive()
    share.stop()
    assert share.ended.wait(SECONDS)


def test_a_task_without_a_share_ends_with_its_epoch() -> None:
    line = Spoken(Answer(is_replaced=True))
    line.given = Joined(ended_epoch=2)
    share = share_of(line, ManualClock())
    share.start(2, "7")
    assert share.hold(2, SECONDS, "7") == {}
    assert share.ended.wait(SECONDS)


def ended_share() -> Share:
    """A share that was left between two tasks, such as to make room for a process that waits."""
    share = share_of(Spoken(Answer(10.0)), ManualClock())
    share.start(1, "7")
    share.stop()
    assert share.ended.wait(SECONDS)
    return share


def test_a_task_in_a_process_without_its_legs_asks_for_some() -> None:
    another = share_of(Spoken(Answer(10.0), Answer(10.0, ended_epoch=2)), ManualClock())
    another.start(2, "8")
    shares = iter([ended_share(), another])
    rows = [*worked(lambda: next(shares), 0, 2, SECONDS, "8")]
    assert [(row["leg"], row["has_ended"]) for row in rows] == [("sink", True), ("sink", False)]
    another.stop()
    assert another.ended.wait(SECONDS)


def test_a_task_that_is_given_no_other_legs_ends() -> None:
    line = Spoken(Answer(is_replaced=True))
    line.given = Joined(is_stopping=True)
    none = share_of(line, ManualClock())
    none.start(2, "8")
    shares = iter([ended_share(), none])
    rows = [*worked(lambda: next(shares), 0, 2, SECONDS, "8")]
    assert [(row["leg"], row["has_ended"]) for row in rows] == [("sink", True)]


def test_the_task_of_a_lane_that_leaves_ends() -> None:
    line = Spoken(Answer(10.0))
    line.given = Joined(2, lane=1, lanes=1)
    nothing: Any = None
    lane = OfALane(nothing, 0, nothing, line, {}, ManualClock().seconds)
    lane.start(1, "7")
    lane.stop()
    shares = iter([lane])
    assert [*worked(lambda: next(shares), 0, 1, SECONDS, "7")] == []


def test_an_idle_leg_takes_settings_at_once_and_says_so() -> None:
    nothing: Any = None
    line = Spoken(Answer(10.0), Answer(10.0), Answer(10.0, settings="{}"), Answer(10.0))
    share = OfAnIdleLeg(RUN, 0, nothing, line, {}, ManualClock().seconds)
    share.start(1, "7")
    until = time.monotonic() + SECONDS
    while not any(report.legs["sink"].settings for report in line.reports) and time.monotonic() < until:
        line.border()
        time.sleep(0.01)
    share.stop()
    assert share.ended.wait(SECONDS)
    last = line.reports[-1]
    assert (last.settings, last.legs["sink"].settings, last.legs["sink"].message) == (settings_digest("{}"), settings_digest("{}"), "{}")


def test_a_share_begins_under_the_settings_that_it_is_given() -> None:
    nothing: Any = None
    line = Spoken(Answer(10.0))
    line.given = Joined(1, {"sink": 3}, settings="{}")
    share = OfOneLeg(RUN, 0, nothing, line, {}, ManualClock().seconds)
    share.start(1, "7")
    share.stop()
    assert share.ended.wait(SECONDS)
    assert share._run.settings == "{}"
    assert {report.settings for report in line.reports} == {settings_digest("{}")}


def test_legs_ask_the_lanes_that_work() -> None:
    nothing: Any = None
    share = share_of(Spoken(Answer(10.0, lanes=(2, 3))), ManualClock())
    lanes = Lanes(nothing, "run")
    share._lanes.append(lanes)
    assert lanes.parts_for(LEAST_RECORDS) == 1
    share._report()
    assert lanes.parts_for(LEAST_RECORDS) == 3


def test_a_replaced_share_stops_and_may_not_insert() -> None:
    share = share_of(Spoken(Answer(10.0), Answer(is_replaced=True)), ManualClock())
    share.start(1, "7")
    assert share.ended.wait(SECONDS)
    assert share._held.lost.is_set()
    assert share._held.remaining_seconds == 0


def test_a_stop_of_the_runner_ends_the_share_with_a_report() -> None:
    line = Spoken(Answer(10.0))
    share = share_of(line, ManualClock())
    share.start(1, "7")
    line.callback()
    assert share.ended.wait(SECONDS)
    assert [report.has_ended for report in line.reports][-1]


def test_without_an_answer_the_right_runs_out_and_may_return() -> None:
    clock = ManualClock()
    line = Spoken(Answer(10.0), RetryableError("nobody answers"), Answer(10.0))
    share = share_of(line, clock)
    share._report()
    clock.sleep(11)
    share._say("words")
    share._report()
    assert (share._held.remaining_seconds, share._held.lost.is_set(), share._stop.is_set()) == (-1, False, False)
    share._report()
    assert share._held.remaining_seconds == 10
    assert [report.notes for report in line.reports] == [(), ("words",), ("words",)]
