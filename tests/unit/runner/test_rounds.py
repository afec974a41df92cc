"""A look every few seconds, from a thread of its own, until it is closed."""

import threading
from types import SimpleNamespace
from typing import Any

from pipelines.engine.leg import LegStatus
from pipelines.runner.pace import LegPace, Pace
from pipelines.runner.rounds import QUIET_ROUNDS, Rounds, reached
from pipelines.testing import LEGS, SINGLE

LONG = 60.0


def test_the_first_look_comes_at_once_and_close_is_prompt() -> None:
    looked = threading.Event()
    rounds = Rounds("looking", LONG, looked.set)
    rounds.start()
    assert looked.wait(LONG)
    rounds.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "looking"]


def test_looks_come_again_and_none_after_close() -> None:
    looks: list[str] = []
    third = threading.Event()

    def look() -> None:
        looks.append(threading.current_thread().name)
        if len(looks) == 3:
            third.set()

    rounds = Rounds("looking", 0.001, look)
    rounds.start()
    assert third.wait(LONG)
    rounds.close()
    count = len(looks)
    assert set(looks) == {"looking"}
    rounds.close()
    assert len(looks) == count


def test_close_waits_for_the_look_in_work() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def look() -> None:
        begun.set()
        may_end.wait(LONG)
        ended.set()

    rounds = Rounds("looking", LONG, look)
    rounds.start()
    assert begun.wait(LONG)
    closing = threading.Thread(target=rounds.close)
    closing.start()
    assert not ended.is_set()
    may_end.set()
    closing.join(LONG)
    assert ended.is_set()


def test_what_was_never_started_may_be_closed() -> None:
    looks: list[str] = []
    Rounds("looking", LONG, lambda: looks.append("a look")).close()
    assert looks == []


def looks_in_rounds(seen: list[Any]) -> list[int]:
    """The rounds that looked, of as many as `seen` names what was seen at."""
    looks: list[int] = []
    at, is_over = -1, threading.Event()

    def see() -> Any:
        nonlocal at
        at += 1
        if at == len(seen):
            is_over.set()
        return seen[min(at, len(seen) - 1)]

    rounds = Rounds("looking", 0.001, lambda: looks.append(at), see)
    rounds.start()
    assert is_over.wait(LONG)
    rounds.close()
    return [look for look in looks if look < len(seen)]


def test_while_nothing_new_is_seen_one_round_of_five_looks() -> None:
    assert QUIET_ROUNDS == 5
    assert looks_in_rounds(["a"] * 12) == [0, 5, 10]
    assert looks_in_rounds(["a", "a", "b", "b", "a"]) == [0, 2, 4]
    assert looks_in_rounds([None] * 4) == [0, 1, 2, 3]
    assert looks_in_rounds(["a", "a", None, "a", "a"]) == [0, 2, 3], "there may have been news in the third round"


def views(*positions: int, state: str = "running") -> Any:
    statuses = [LegStatus(state=state, reached={"0": at}) for at in positions]
    return {leg: SimpleNamespace(status=status) for leg, status in zip(LEGS, statuses, strict=False)}


def test_legs_that_wait_or_work_elsewhere_are_looked_at() -> None:
    assert reached(SINGLE, views(1, 2)) is None
    assert reached(SINGLE, views(1, 2, 3, state="waiting")) is None
    assert reached(SINGLE, views(1, 2, 3)) == reached(SINGLE, views(1, 2, 3)) != reached(SINGLE, views(1, 2, 4))


def test_a_pace_rests_only_at_zero_lag_and_zero_rates() -> None:
    pace = Pace(*[None] * 2, SINGLE, {}, views(1, 2, 3))  # type: ignore[arg-type]
    assert pace._seen() is None, "before the first look"
    still = LegPace(0, 0.0, 0.0)
    pace.legs = dict.fromkeys(LEGS, still)
    assert pace._seen() is not None
    for leg_pace in (LegPace(0), LegPace(1, 0.0, 0.0), LegPace(0, 0.0, 0.1)):
        pace.legs = {**dict.fromkeys(LEGS, still), LEGS[1]: leg_pace}
        assert pace._seen() is None, leg_pace
