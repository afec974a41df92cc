"""A partition that has no leader holds back no other: what the planner plans, and when it asks again."""

from collections.abc import Sequence

import pytest

from pipelines.connectors import ranges
from pipelines.connectors.ranges import RANGE_SCHEMA, KafkaRanges
from pipelines.errors import RetryableError


class Topic:
    """Partitions with their ends; those in `silent` have no leader. `asked` remembers each question."""

    def __init__(self, ends: dict[int, int]) -> None:
        self.held, self.silent, self.asked = ends, set[int](), list[list[int]]()

    def known_ends(self, partitions: Sequence[int], _: float = 0.0) -> tuple[dict[int, int], dict[int, RetryableError]]:
        self.asked.append(list(partitions))
        found = {p: self.held[p] for p in partitions if p not in self.silent}
        if not found:
            raise RetryableError("no leader")
        return found, {p: RetryableError("no leader") for p in partitions if p in self.silent}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(ranges.time, "monotonic", lambda: clock[0])
    return clock


def test_the_others_go_on_and_the_silent_one_is_asked_beside_them_until_it_answers(now: list[float]) -> None:
    reader = KafkaRanges({"start": "0:0,1:0,2:0"}).streamReader(RANGE_SCHEMA)
    topic, start = Topic({0: 5, 1: 6, 2: 7}), {"0": 0, "1": 3, "2": 0}
    reader._partitions = (0, 1, 2)
    topic.silent = {1}
    assert reader._ends(topic, start) == {"0": 5, "1": 3, "2": 7}
    now[0] += 1
    topic.asked.clear()
    topic.held[0] = 9
    assert reader._ends(topic, start) == {"0": 9, "1": 3, "2": 7}
    assert topic.asked == [[0, 2]]
    now[0] += 5
    topic.silent = set()
    assert reader._ends(topic, start) == {"0": 9, "1": 6, "2": 7}
    topic.asked.clear()
    reader._ends(topic, start)
    assert topic.asked == [[0, 1, 2]]


def test_a_cluster_that_is_away_is_waited_for(now: list[float]) -> None:
    reader = KafkaRanges({"start": "0:0"}).streamReader(RANGE_SCHEMA)
    topic = Topic({0: 5})
    reader._partitions, topic.silent = (0,), {0}
    with pytest.raises(RetryableError):
        reader._ends(topic, {"0": 0})
    topic.silent = set()
    assert reader._ends(topic, {"0": 0}) == {"0": 5}
