"""The threads of a leg's work, which outlive it."""

from threading import Barrier, Event, get_ident

import pytest

from pipelines.engine.connections import KeptThreads


def test_the_next_work_has_the_threads_of_the_last() -> None:
    threads, idents = KeptThreads(), set[int]()
    for _ in range(3):
        both = Barrier(2)

        def meets(both: Barrier = both) -> int:
            both.wait(60)
            return get_ident()

        with threads(2, "bucket") as workers:
            idents |= {future.result() for future in [workers.submit(meets), workers.submit(meets)]}
    assert len(idents) == 2
    assert get_ident() not in idents


def test_work_is_left_when_all_of_it_has_ended() -> None:
    """Also where a part of it fails: the next attempt must not meet another part of this one."""
    may_end, ended = Event(), list[str]()

    def fails() -> None:
        may_end.set()
        raise ValueError("no")

    def goes_on() -> None:
        may_end.wait(60)
        ended.append("it")

    with pytest.raises(ValueError, match="no"), KeptThreads()(2, "bucket") as workers:
        later = workers.submit(goes_on)
        workers.submit(fails).result()
    assert later.done()
    assert ended == ["it"]


def test_work_does_not_wait_for_that_of_others() -> None:
    threads, may_end = KeptThreads(), Event()
    with threads(2, "bucket") as slow:
        waiting = slow.submit(may_end.wait, 60)
        with threads(2, "bucket") as quick:
            quick.submit(len, "ab")
        assert not waiting.done()
        may_end.set()
    assert waiting.done()


def test_arguments_and_results_pass() -> None:
    with KeptThreads()(1, "append") as worker:
        assert worker.submit(sorted, [2, 1], reverse=True).result() == [2, 1]
