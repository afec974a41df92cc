"""The query of a run that ends by itself: when it starts again, and when it halts."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.engine.coordinator import Coordinator, LegView
from pipelines.runner.epochs import Epochs
from pipelines.runner.leg_thread import FIRST_WAIT_SECONDS, MOST_WAIT_SECONDS, RESTARTS_WITHOUT_PROGRESS
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
