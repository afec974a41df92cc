"""How many lanes a run keeps, by a clock that the test moves."""

from collections.abc import Iterable
from itertools import pairwise

import pytest

from pipelines.runner.scaling import LIMITS, Mark, Scaling

SECOND = 1.0


class Load:
    """Legs that spend a share of each second on large plans; `lanes`: the number at each second."""

    def __init__(self, most: int = 7) -> None:
        self.scaling, self.most = Scaling(), most
        self.at, self.spent = 0.0, {"ingest": 0.0, "process": 0.0}
        self.lacking = 0
        self.lanes: list[int] = []

    def go_on(self, seconds: float, share: float = 0.0, leg: str = "process") -> list[int]:
        """Let a leg spend this share; return the numbers of lanes that followed one another."""
        self.lanes = [self.scaling.lanes]
        for _ in range(int(seconds / SECOND)):
            self.at += SECOND
            self.spent[leg] += share * SECOND
            self.look()
        return changes(self.lanes)

    def look(self) -> None:
        working = max(0, self.scaling.lanes - self.lacking)
        self.scaling = self.scaling.next(Mark(self.at, dict(self.spent)), working, self.most)
        self.lanes.append(self.scaling.lanes)


def changes(numbers: Iterable[int]) -> list[int]:
    found = list(numbers)
    return [found[0], *(after for before, after in pairwise(found) if before != after)]


def test_a_leg_that_is_always_behind_gets_lanes_up_to_the_most() -> None:
    load = Load(most=6)
    assert load.go_on(10 * LIMITS.busy_seconds, 0.9) == [0, 1, 3, 6]


@pytest.mark.parametrize("leg", ["ingest", "process"])
def test_any_leg_that_is_behind_is_enough(leg: str) -> None:
    assert Load(most=1).go_on(3 * LIMITS.busy_seconds, 0.9, leg) == [0, 1]


def test_a_single_large_plan_brings_no_lane() -> None:
    load = Load()
    load.go_on(LIMITS.busy_seconds)
    load.spent["process"] += 0.5 * LIMITS.busy_seconds
    assert load.go_on(4 * LIMITS.busy_seconds) == [0]


def test_a_plan_that_takes_longer_than_the_span_counts() -> None:
    load = Load()
    load.go_on(2 * LIMITS.busy_seconds)
    load.spent["process"] += 2 * LIMITS.busy_seconds
    assert load.go_on(LIMITS.busy_seconds + SECOND) == [0, 1]


def test_legs_that_keep_up_get_no_lane() -> None:
    assert Load().go_on(600, LIMITS.busy_share - 0.05) == [0]


def test_lanes_that_the_file_allows_no_more_go_at_once() -> None:
    load = Load()
    load.go_on(60, 0.9)
    load.most = 2
    assert load.go_on(60, 0.9) == [7, 2]


def test_lanes_go_by_halves_when_there_is_little_for_them() -> None:
    load = Load()
    load.go_on(60, 0.9)
    assert load.scaling.lanes == 7
    assert load.go_on(LIMITS.quiet_seconds - 20) == [7]
    assert load.go_on(4 * LIMITS.quiet_seconds, LIMITS.quiet_share) == [7, 3, 1, 0]


def test_lanes_stay_while_they_are_used_now_and_then() -> None:
    load = Load()
    load.go_on(60, 0.9)
    for _ in range(20):
        assert load.go_on(LIMITS.quiet_seconds / 2) == [7]
        load.go_on(LIMITS.quiet_seconds / 2, 2.5 * LIMITS.quiet_share)


@pytest.mark.parametrize("work", [0.3, 0.55, 0.65, 0.9, 1.0, 1.5, 3.0, 6.0])
def test_at_a_steady_load_the_number_comes_to_rest(work: float) -> None:
    """The leg has `work` seconds of work in each second; its own part of a plan is twice as large as a lane's."""
    load = Load(most=15)
    numbers = [0]
    for _ in range(3600):
        load.go_on(SECOND, min(1.0, work * 2 / (load.scaling.lanes + 2)))
        numbers.append(load.scaling.lanes)
    before, after = changes(numbers[:600]), changes(numbers[600:])
    assert before == sorted(before), "it only grew"
    assert len(after) == 1


def test_no_lane_is_added_while_one_has_no_process() -> None:
    load = Load()
    load.go_on(1.4 * LIMITS.busy_seconds, 0.9)
    load.lacking = 1
    assert load.go_on(20 * LIMITS.busy_seconds, 1.0) == [1]
    load.lacking = 0
    assert load.go_on(1.4 * LIMITS.busy_seconds, 1.0) == [1, 3]


def test_a_leg_that_begins_anew_is_no_reason_to_change() -> None:
    load = Load()
    load.go_on(10, 0.2)
    load.spent["process"] = 0.0
    assert load.go_on(60, 0.2) == [0]


def test_without_a_lane_to_add_or_to_take_nothing_changes() -> None:
    assert Load(most=0).go_on(600, 1.0) == [0]
    assert Load().go_on(600) == [0]
