"""The last steps of a run."""

import threading

from pipelines.runner.ending import end

SECONDS = 20


def test_each_step_is_made_and_the_failed_ones_are_told() -> None:
    made, told = list[str](), list[str]()

    def fail() -> None:
        raise ValueError("damage")

    end([("one", lambda: made.append("one")), ("two", fail), ("three", lambda: made.append("three"))], told.append)
    assert (made, told) == (["one", "three"], ["while stopping: ValueError: damage"])


def test_a_step_that_takes_long_is_told_while_it_does() -> None:
    told, is_told = list[str](), threading.Event()

    def tell(message: str) -> None:
        told.append(message)
        # On a busy machine the quick step may be told, too.
        if message.endswith("topic orders"):
            is_told.set()

    def step() -> None:
        assert is_told.wait(SECONDS)

    end([("quick", lambda: None), ("topic orders", step)], tell, 0.01)
    assert told[-1:] == ["stopping: it still waits for topic orders"]
