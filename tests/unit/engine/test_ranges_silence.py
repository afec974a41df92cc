"""A partition that has no leader holds back no other: what the planner plans, and when it asks again."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from pipelines.connectors.sources import Words
from pipelines.engine import ranges
from pipelines.engine.ranges import RANGE_SCHEMA, SourceRanges
from pipelines.errors import RetryableError


class Topic:
    """A source's partitions with their ends.

    Those in `silent` have no leader, those in `dead` one that does not answer. `asked`: each question.
    """

    words = Words("Kafka", "topic", "orders", "a restore")

    def __init__(self, ends: dict[int, int]) -> None:
        self.held, self.silent, self.dead, self.asked = ends, set[int](), set[int](), list[list[int]]()

    def known_ends(self, partitions: Sequence[int]) -> tuple[dict[int, int], dict[int, RetryableError]]:
        return self.heard(self.ask_ends(partitions))

    def ask_ends(self, partitions: Sequence[int]) -> dict[Any, Future[None]]:
        self.asked.append(list(partitions))
        asked = {p: Future[None]() for p in partitions}
        for partition, future in asked.items():
            if partition not in self.dead:
                future.set_result(None)
        return asked

    def heard(self, asked: dict[Any, Future[None]]) -> tuple[dict[int, int], dict[int, RetryableError]]:
        found = {p: self.held[p] for p, future in asked.items() if future.done() and p not in self.silent}
        if not found:
            raise RetryableError("no leader")
        return found, {p: RetryableError("no leader") for p in asked if p not in found}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(ranges.time, "monotonic", lambda: clock[0])
    return clock


def test_the_others_go_on_while_the_silent_one_is_asked(now: list[float]) -> None:
    reader = SourceRanges({"start": "0:0,1:0,2:0"}).streamReader(RANGE_SCHEMA)
    topic, start = Topic({0: 5, 1: 6, 2: 7}), {"0": 0, "1": 3, "2": 0}
    reader._partitions = (0, 1, 2)
    topic.silent = {1}
    assert reader._ends(topic, start) == {"0": 5, "1": 3, "2": 7}
    topic.asked.clear()
    topic.held[0] = 9
    assert reader._ends(topic, start) == {"0": 9, "1": 3, "2": 7}
    assert topic.asked == [[0, 2]]
    now[0] += 0.5
    assert reader._ends(topic, start) == {"0": 9, "1": 3, "2": 7}
    topic.silent = set()
    assert reader._ends(topic, start) == {"0": 9, "1": 6, "2": 7}
    topic.asked.clear()
    reader._ends(topic, start)
    assert topic.asked == [[0, 1, 2]]


def test_an_unanswered_silent_one_is_asked_once_at_a_time(now: list[float]) -> None:
    reader = SourceRanges({"start": "0:0,1:0"}).streamReader(RANGE_SCHEMA)
    topic, start = Topic({0: 5, 1: 6}), {"0": 0, "1": 3}
    reader._partitions, reader._silent, topic.dead = (0, 1), {1}, {1}
    for _ in range(5):
        assert reader._ends(topic, start) == {"0": 5, "1": 3}
        now[0] += 1
    assert topic.asked.count([1]) == 1
    (future,) = reader._asked_silent.values()
    future.set_result(None)
    assert reader._ends(topic, start) == {"0": 5, "1": 6}


def test_a_query_to_the_present_end_leaves_no_partition_out(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = SourceRanges({"start": "0:0,1:0"}).streamReader(RANGE_SCHEMA)
    topic = Topic({0: 5, 1: 6})
    reader._partitions, reader._source, topic.silent = (0, 1), topic, {1}
    monkeypatch.setattr(reader, "_looked_at", float("inf"))
    with pytest.raises(RetryableError, match="no leader answers for partition 1; start the query again"):
        reader.prepareForTriggerAvailableNow()
    topic.silent, reader._silent = set(), set()
    reader.prepareForTriggerAvailableNow()
    assert reader._frozen == {"0": 5, "1": 6}


def test_a_cluster_that_is_away_is_waited_for(now: list[float]) -> None:
    reader = SourceRanges({"start": "0:0"}).streamReader(RANGE_SCHEMA)
    topic = Topic({0: 5})
    reader._partitions, topic.silent = (0,), {0}
    with pytest.raises(RetryableError):
        reader._ends(topic, {"0": 0})
    topic.silent = set()
    assert reader._ends(topic, {"0": 0}) == {"0": 5}
