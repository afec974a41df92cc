"""A look every few seconds, from a thread of its own, until it is closed."""

import threading

from pipelines.runner.rounds import Rounds

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
