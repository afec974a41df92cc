"""The query of a run that ends by itself: when it starts again, and when it halts."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.engine.coordinator import UNHEARD_SECONDS, Coordinator, LegView
from pipelines.engine.line import Join, Process, Report
from pipelines.engine.release import own_release
from pipelines.runner.epochs import BEGIN_SECONDS, EPOCH_SECONDS, SLOT_SECONDS, Epochs
from pipelines.runner.leg_thread import FIRST_WAIT_SECONDS, MOST_WAIT_SECONDS, RESTARTS_WITHOUT_PROGRESS
from pipelines.runner.scaling import LIMITS, Scaling
from pipelines.runner.spark_engine import SparkEngine
from pipelines.testing import SINGLE, ManualClock

FULL = "org.apache.spark.SparkException: java.io.IOException: No space left on device"
BUG = "java.lang.IllegalStateException: something else"


class Ending(Epochs):
    """A query whose every start ends at once with `error`."""

    def __init__(self, error: str) -> None:
        self.clock, self.error = ManualClock(), error
        self.announced: list[str] = []
        lease: Any = SimpleNamespace()
        self.views = {leg: LegView(leg, lease) for leg in SINGLE.legs}
        nothing: Any = None
        coordinator = Coordinator([SINGLE.legs], self.views, self.announced.append, self.clock.seconds)
        super().__init__(nothing, nothing, Path("run"), coordinator, nothing, clock=self.clock.seconds)
        self.starts: list[float] = []
        self._start()

    def _start(self) -> None:
        self.starts.append(self.clock.seconds())
        self._due = None
        self._query = SimpleNamespace(isActive=False, exception=lambda: self.error)  # type: ignore[assignment]

    def look_for(self, looks: int) -> None:
        for _ in range(looks):
            self.look()
            self.clock.sleep(0.25)


@pytest.fixture
def ending() -> Ending:
    return Ending(BUG)


def test_a_query_that_ended_starts_again_at_once(ending: Ending) -> None:
    ending.look()
    assert ending.starts == [0, 0]
    assert ending.announced == [f"starting the tasks again after: {BUG}"]


def test_a_query_without_progress_halts_every_leg_for_good(ending: Ending) -> None:
    ending.look_for(50)
    assert len(ending.starts) == 1 + RESTARTS_WITHOUT_PROGRESS
    assert all("ended 6 times without progress" in str(view.failure) for view in ending.views.values())


def test_progress_lets_a_query_start_again(ending: Ending) -> None:
    for batch in range(20):
        ending.views[SINGLE.legs[0]].status.reached = {"0": batch}
        ending.look()
    assert len(ending.starts) == 21


def test_a_full_disk_below_spark_is_waited_for_never_a_halt() -> None:
    ending = Ending(FULL)
    ending.look_for(400)
    waits = [after - before for before, after in pairwise(ending.starts)]
    assert len(waits) > RESTARTS_WITHOUT_PROGRESS
    assert FIRST_WAIT_SECONDS <= waits[0] < 1
    assert MOST_WAIT_SECONDS <= waits[-1] <= MOST_WAIT_SECONDS + 0.5
    for view in ending.views.values():
        assert (view.failure, view.status.state, "make room" in view.status.message) == (None, "waiting", True)


def test_after_a_batch_waits_for_the_host_begin_anew() -> None:
    ending = Ending(FULL)
    ending.look_for(100)
    ending.views[SINGLE.legs[0]].status.reached = {"0": 1}
    begun = len(ending.starts)
    ending.look_for(70)
    assert min(after - before for before, after in pairwise(ending.starts[begun:])) < 2


class Going(Epochs):
    """A query that runs, of three legs and at most three lanes; a process has joined for each leg."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.announced: list[str] = []
        lease: Any = SimpleNamespace(lost=Event(), holder=SimpleNamespace(epoch=1), raise_epoch=lambda: 2, remaining_seconds=60.0)
        self.views = {leg: LegView(leg, lease) for leg in SINGLE.legs}
        self.coordinator = Coordinator([*([leg] for leg in SINGLE.legs), (), (), ()], self.views, self.announced.append, self.clock.seconds)
        nothing: Any = None
        super().__init__(nothing, nothing, Path("run"), self.coordinator, nothing, clock=self.clock.seconds)
        self._query = SimpleNamespace(isActive=True)  # type: ignore[assignment]
        self.borders: list[float] = []
        self.crashed: set[str] = set()
        self.coordinator.on_border(self._border)
        self._begin()
        self.members = [self.join(number) for number in range(3)]

    def join(self, number: int) -> int:
        process = Process("elsewhere", number, "")
        return self.coordinator.join(Join(number, process, dict(own_release()), epoch=self.epoch, task=str(number))).share

    def _begin(self) -> None:
        self.epoch, _ = self.coordinator.begin_epoch()
        self._began = self.clock.seconds()

    def _border(self) -> None:
        self.borders.append(self.clock.seconds())
        self._begin()

    def _crashed_tasks(self) -> set[str]:
        return self.crashed

    def go_on(self, seconds: float, large: float) -> None:
        """Let process spend so much of the time on large plans."""
        for _ in range(int(2 * seconds)):
            self.clock.sleep(0.5)
            self.views[SINGLE.legs[1]].status.seconds_large += 0.5 * large
            for number in self.members:
                self.coordinator.report(Report(number, Process("elsewhere", number, ""), epoch=self.epoch, task=str(number)))
            self.look()


def test_a_share_whose_task_crashed_is_given_to_the_next_process() -> None:
    going, waiting = Going(), Process("far", 9, "")
    going.members.remove(1)
    wanted = Join(1, waiting, dict(own_release()), epoch=going.epoch, task="9")
    going.go_on(UNHEARD_SECONDS, 0)
    assert going.coordinator.join(wanted).epochs == {}
    going.look()
    assert going.coordinator.join(wanted).epochs == {}, "the process that had it may live"
    going.crashed = {"0", "1"}
    going.look()
    given = going.coordinator.join(wanted)
    assert (given.share, [*given.epochs]) == (1, [SINGLE.legs[1]])
    assert going.coordinator.join(replace(wanted, process=Process("far", 10, ""))).epochs == {}, "what reports has not ended"


def test_an_epoch_ends_early_when_lanes_are_to_join() -> None:
    going = Going()
    going.go_on(10, 0.9)
    assert (going.coordinator.tasks, len(going.borders)) == (4, 1)
    going.members.append(going.join(3))
    going.go_on(10, 0.9)
    assert (going.coordinator.tasks, len(going.borders)) == (6, 2)
    assert going.announced == ["lanes: 2 instead of 1, by the load", "lanes: 4 instead of 2, by the load"]


def test_an_epoch_ends_by_itself_after_its_time() -> None:
    going = Going()
    going.go_on(2.5 * EPOCH_SECONDS, 0)
    assert (going.borders, going.announced) == ([EPOCH_SECONDS, 2 * EPOCH_SECONDS], [])


def test_an_epoch_waits_behind_its_time_for_a_task_to_begin() -> None:
    """Spark gives up an executor whose tasks have ended, with the legs in it, while that of a new lane starts its Python."""
    going = Going()
    going.go_on(10, 0.9)
    (first,) = going.borders
    going.go_on(EPOCH_SECONDS, 0.9)
    assert going.borders == [first]
    going.members.append(going.join(3))
    going.go_on(1, 0)
    assert len(going.borders) == 2


def test_an_epoch_whose_lane_gets_no_slot_ends_in_the_end() -> None:
    going = Going()
    going.go_on(10, 0.9)
    (first,) = going.borders
    going.go_on(EPOCH_SECONDS + BEGIN_SECONDS, 0)
    assert going.borders == [first, first + EPOCH_SECONDS + BEGIN_SECONDS]


def test_no_epoch_ends_early_where_lanes_leave() -> None:
    going = Going()
    going.scaling = Scaling(3)
    going.go_on(1, 0)
    going.members += [going.join(number) for number in (3, 4, 5)]
    going.go_on(LIMITS.quiet_seconds + 1, 0)
    assert (going.coordinator.tasks, len(going.borders)) == (4, 1)


def test_a_lane_without_a_slot_is_told_of_once() -> None:
    going = Going()
    going.go_on(10, 0.9)
    going.go_on(3 * SLOT_SECONDS, 0.9)
    told = [note for note in going.announced if "slot" in note]
    assert told == ["waiting for a free task slot of Spark: the run keeps 4 now; give the master more cores, or stop what holds them"]
    assert going.coordinator.tasks == 4, "no further one is added"


@pytest.mark.parametrize(
    ("master", "slots", "lanes", "shares"),
    [
        ("local[4,4]", 4, 0, [["ingest"], ["process"], ["sink"]]),
        ("local[2,4]", 2, 0, [["ingest", "sink"], ["process"]]),
        ("local", 1, 0, [["ingest", "process", "sink"]]),
        ("spark://host:7077", 2, 0, [["ingest"], ["process"], ["sink"]]),
        ("local[4,4]", 4, 3, [["ingest"], ["process"], ["sink"], []]),
        ("local[2,4]", 2, 3, [["ingest", "sink"], ["process"]]),
        ("spark://host:7077", 2, 2, [["ingest"], ["process"], ["sink"], [], []]),
    ],
)
def test_legs_and_lanes_have_a_task_each_where_there_are_slots(master: str, slots: int, lanes: int, shares: list[list[str]]) -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master, defaultParallelism=slots))
    assert SparkEngine().shares(session, SINGLE.legs, lanes) == [tuple(share) for share in shares]
