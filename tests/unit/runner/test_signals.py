"""Signals that arrive while the run looks whether it is to stop."""

import signal
import threading

import pytest
from support.pipeline_case import kept_signals

from pipelines.runner.signals import on_stop_signals


@pytest.mark.timeout(30)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_within_a_look_at_the_event_sets_it(number: signal.Signals) -> None:
    stop = threading.Event()
    with kept_signals():
        on_stop_signals(stop.set)
        # `Event.wait` holds it for moments, in the thread in which Python calls the handler.
        with stop._cond:
            signal.raise_signal(number)
        assert stop.wait(20)


def test_another_thread_than_the_main_one_handles_no_signal() -> None:
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=on_stop_signals, args=(print,))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
