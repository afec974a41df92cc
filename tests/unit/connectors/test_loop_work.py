import asyncio
import gc
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from pipelines.connectors.nats.loop_work import LoopWork


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop in a thread of its own."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


async def told(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def failing() -> int:
    raise ValueError("told")


def test_what_a_coroutine_returns_or_raises_is_given_on(loop: asyncio.AbstractEventLoop) -> None:
    assert LoopWork(loop, told(7)).result(10) == 7
    with pytest.raises(ValueError, match="told"):
        LoopWork(loop, failing()).result(10)


def test_each_of_many_threads_gets_its_own_result(loop: asyncio.AbstractEventLoop) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda number: LoopWork(loop, told(number)).result(10), range(500))) == list(range(500))


def test_work_goes_on_while_nobody_waits_yet(loop: asyncio.AbstractEventLoop) -> None:
    begun = threading.Event()

    async def noting() -> int:
        begun.set()
        return 1

    work = LoopWork(loop, noting())
    assert begun.wait(10)
    assert work.result(10) == 1


def test_what_takes_too_long_is_cancelled_by_its_caller(loop: asyncio.AbstractEventLoop) -> None:
    ended = threading.Event()

    async def waiting() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    work = LoopWork(loop, waiting())
    with pytest.raises(TimeoutError):
        work.result(0.01)
    work.cancel()
    assert ended.wait(10)
    with pytest.raises(CancelledError):
        work.result(10)


def test_what_cancels_itself_is_an_error_that_can_be_caught(loop: asyncio.AbstractEventLoop) -> None:
    """`asyncio.CancelledError` is no Exception: it would pass by whoever maps errors."""

    async def cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(Exception) as caught:
        LoopWork(loop, cancelled()).result(10)
    assert isinstance(caught.value, CancelledError)


def test_an_error_for_which_nobody_waits_is_not_logged(loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture) -> None:
    work = LoopWork(loop, failing())
    assert LoopWork(loop, told(1)).result(10) == 1
    del work
    gc.collect()
    assert LoopWork(loop, told(2)).result(10) == 2
    assert caplog.text == ""


def test_a_loop_that_has_stopped_keeps_nobody_for_longer(loop: asyncio.AbstractEventLoop) -> None:
    stopped = asyncio.new_event_loop()
    coroutine = told(1)
    work = LoopWork(stopped, coroutine)
    with pytest.raises(TimeoutError):
        work.result(0.01)
    work.cancel()
    coroutine.close()
    stopped.close()
