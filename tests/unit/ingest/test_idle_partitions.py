"""A partition from which nothing comes is marked once, and again after new records; one of which nothing is known is not."""

from datetime import timedelta

import pytest

from pipelines.errors import RetryableError
from pipelines.ingest.idle import IdlePartitions

KNOWN: frozenset[int] = frozenset()


class Looks:
    """The clock, and the marks that were written."""

    def __init__(self) -> None:
        self.now, self.marks = 0.0, list[dict[str, int]]()
        self.answers: list[bool | Exception] = []
        self.idle = IdlePartitions(timedelta(seconds=10), self._mark, lambda: self.now)

    def _mark(self, due: dict[str, int]) -> bool:
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, Exception):
            raise answer
        if answer:
            self.marks.append(due)
        return answer

    def at(self, now: float, start: dict[str, int], ends: dict[str, int], unknown: frozenset[int] = KNOWN) -> list[dict[str, int]]:
        self.now = now
        self.idle.look(start, ends, unknown)
        return self.marks


@pytest.fixture
def looks() -> Looks:
    return Looks()


def test_a_quiet_partition_is_marked_once_with_its_next_offset(looks: Looks) -> None:
    assert looks.at(0, {"0": 5}, {"0": 5}) == []
    assert looks.at(9.9, {"0": 5}, {"0": 5}) == []
    assert looks.at(10, {"0": 5}, {"0": 5}) == [{"0": 5}]
    assert looks.at(99, {"0": 5}, {"0": 5}) == [{"0": 5}]


def test_a_new_record_begins_the_time_anew(looks: Looks) -> None:
    looks.at(0, {"0": 5}, {"0": 5})
    looks.at(9, {"0": 5}, {"0": 6})
    assert looks.at(12, {"0": 6}, {"0": 6}) == []
    assert looks.at(22, {"0": 6}, {"0": 6}) == [{"0": 6}]
    looks.at(30, {"0": 6}, {"0": 7})
    looks.at(31, {"0": 7}, {"0": 7})
    assert looks.at(41, {"0": 7}, {"0": 7}) == [{"0": 6}, {"0": 7}]


def test_one_partition_may_be_quiet_while_others_are_not(looks: Looks) -> None:
    for second in range(12):
        looks.at(second, {"0": second, "1": 3}, {"0": second + 1, "1": 3})
    assert looks.marks == [{"1": 3}]


def test_a_partition_without_a_leader_is_not_idle(looks: Looks) -> None:
    for second in range(12):
        looks.at(second, {"0": 5}, {"0": 5}, frozenset({0}))
    assert looks.marks == []
    looks.at(12, {"0": 5}, {"0": 5})
    assert looks.at(22, {"0": 5}, {"0": 5}) == [{"0": 5}]


@pytest.mark.parametrize("answer", [False, RetryableError("raw is full")])
def test_a_mark_that_was_not_written_is_tried_again(looks: Looks, answer: bool | Exception) -> None:
    looks.answers = [answer]
    looks.at(0, {"0": 0}, {"0": 0})
    assert looks.at(10, {"0": 0}, {"0": 0}) == []
    assert looks.at(10.5, {"0": 0}, {"0": 0}) == [{"0": 0}]
