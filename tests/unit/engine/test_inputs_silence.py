"""A source's input: what was read ahead, what is asked for, and a partition without a leader, which holds back no other."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.connectors.sources import Ahead, Words
from pipelines.engine.inputs import SourceInput
from pipelines.errors import DataLossError, RetryableError
from pipelines.testing import ManualClock


class Topic:
    """A source's partitions with their ends.

    Those in `silent` have no leader, those in `dead` one that does not answer. `asked`: each question. `sent`: the ends of what the source
    has sent by itself; with `is_all` False there is more than that.
    """

    words = Words("Kafka", "topic", "orders", "a restore")

    def __init__(self, ends: dict[int, int]) -> None:
        self.held, self.silent, self.dead, self.asked = ends, set[int](), set[int](), list[list[int]]()
        self.sent, self.is_all, self.is_lost, self.discarded = dict[int, int](), False, False, 0

    def facts(self) -> Any:
        return SimpleNamespace(partitions=tuple(sorted(self.held)))

    def ahead(self, starts: Mapping[int, int], seconds: float) -> Ahead:
        if self.is_lost:
            raise DataLossError("out of range")
        return Ahead({**starts, **self.sent}, self.is_all)

    def discard(self) -> None:
        self.discarded += 1

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


def input_of(topic: Any, clock: ManualClock, until: Mapping[int, int] | None = None) -> SourceInput:
    return SourceInput(topic, until, clock.seconds)


def test_the_others_go_on_while_the_silent_one_is_asked() -> None:
    clock = ManualClock()
    topic, start = Topic({0: 5, 1: 6, 2: 7}), {"0": 0, "1": 3, "2": 0}
    found = input_of(topic, clock)
    topic.silent = {1}
    assert found._available(start) == {"0": 5, "1": 3, "2": 7}
    topic.asked.clear()
    topic.held[0] = 9
    assert found._available(start) == {"0": 9, "1": 3, "2": 7}
    assert topic.asked == [[0, 2]]
    clock.advance(timedelta(seconds=0.5))
    assert found._available(start) == {"0": 9, "1": 3, "2": 7}
    topic.silent = set()
    assert found._available(start) == {"0": 9, "1": 6, "2": 7}
    topic.asked.clear()
    found._available(start)
    assert topic.asked == [[0, 1, 2]]


def test_an_unanswered_silent_one_is_asked_once_at_a_time() -> None:
    clock = ManualClock()
    topic, start = Topic({0: 5, 1: 6}), {"0": 0, "1": 3}
    found = input_of(topic, clock)
    found._silent, topic.dead = {1}, {1}
    for _ in range(5):
        assert found._available(start) == {"0": 5, "1": 3}
        clock.advance(timedelta(seconds=1))
    assert topic.asked.count([1]) == 1
    assert found._asked_silent is not None
    (future,) = found._asked_silent.values()
    future.set_result(None)
    assert found._available(start) == {"0": 5, "1": 6}


def test_a_run_to_the_present_end_waits_for_a_silent_partition() -> None:
    clock = ManualClock()
    topic, start = Topic({0: 50, 1: 60, 2: 70}), {"0": 0, "1": 0}
    found = input_of(topic, clock, {0: 5, 1: 6})
    topic.silent = {1}
    assert found.next(start, Event()) == {"0": 5, "1": 0}
    topic.silent = set()
    clock.advance(timedelta(seconds=0.5))
    assert found.next({"0": 5, "1": 0}, Event()) == {"0": 5, "1": 6}


def test_a_new_partition_joins_within_five_seconds() -> None:
    clock = ManualClock()
    topic = Topic({0: 5})
    found = input_of(topic, clock)
    assert found._available({"0": 0}) == {"0": 5}
    topic.held[1] = 3
    assert found._available({"0": 0}) == {"0": 5}
    clock.advance(timedelta(seconds=5))
    assert found._available({"0": 0}) == {"0": 5, "1": 3}


def test_a_new_partition_joins_behind_a_backlog_too() -> None:
    clock = ManualClock()
    topic = Topic({0: 5})
    found = input_of(topic, clock)
    found._available({"0": 0})
    topic.held[1] = 3
    for _ in range(4):
        clock.advance(timedelta(seconds=1))
        assert found._available({"0": 0}) == {"0": 5}
    clock.advance(timedelta(seconds=1))
    assert found._available({"0": 0}) == {"0": 5, "1": 3}


def test_a_cluster_that_is_away_is_waited_for() -> None:
    topic = Topic({0: 5})
    found = input_of(topic, ManualClock())
    topic.silent = {0}
    with pytest.raises(RetryableError):
        found._available({"0": 0})
    topic.silent = set()
    assert found._available({"0": 0}) == {"0": 5}


def test_a_reader_that_keeps_up_asks_for_nothing() -> None:
    topic, start = Topic({0: 5, 1: 6}), {"0": 5, "1": 6}
    found = input_of(topic, ManualClock())
    found._available(start)
    topic.asked.clear()
    topic.sent, topic.is_all = {1: 9}, True
    assert found._available(start) == {"0": 5, "1": 9}
    assert topic.asked == []


def test_a_reader_behind_a_backlog_asks_for_its_end() -> None:
    topic, start = Topic({0: 500, 1: 6}), {"0": 0, "1": 0}
    found = input_of(topic, ManualClock())
    found._available(start)
    topic.sent, topic.held = {0: 50}, {0: 700, 1: 6}
    assert found._available(start) == {"0": 700, "1": 6}


def test_the_ends_are_asked_for_every_five_seconds() -> None:
    clock = ManualClock()
    topic, start = Topic({0: 5}), {"0": 5}
    found = input_of(topic, clock)
    topic.is_all = True
    found._available(start)
    topic.held[0] = 3
    assert found._available(start) == {"0": 5}
    clock.advance(timedelta(seconds=5))
    assert found._available(start) == {"0": 3}


def test_what_cannot_be_read_ahead_is_left_to_the_leg() -> None:
    topic, start = Topic({0: 5}), {"0": 5}
    found = input_of(topic, ManualClock())
    found._available(start)
    topic.is_lost, topic.held = True, {0: 3}
    assert found._available(start) == {"0": 3}
    assert (topic.discarded, found._pause()) == (1, 0.25)
    topic.is_lost, topic.is_all, topic.sent = False, True, {0: 6}
    assert found._available(start) == {"0": 6}
    assert found._pause() == 0.0


def test_a_run_to_the_present_end_takes_nothing_beyond_it() -> None:
    topic, start = Topic({0: 5, 1: 6}), {"0": 5, "1": 5}
    found = input_of(topic, ManualClock(), {0: 5, 1: 6})
    found._available(start)
    topic.sent, topic.is_all = {0: 50, 1: 60}, True
    assert found._available(start) == {"0": 5, "1": 6}
