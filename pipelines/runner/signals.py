"""The signals that end a run."""

import signal
import threading
from collections.abc import Callable


def on_stop_signals(request_stop: Callable[[], object]) -> None:
    """Call `request_stop` on SIGTERM and SIGINT from now on, where this is the main thread; else do nothing.

    It is called on a thread of its own: Python runs a handler within whatever the main thread is doing, and an event that is asked at that
    moment is locked, so that to set it there would wait for good.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def received(*_: object) -> None:
        threading.Thread(target=request_stop, name="stop", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, received)
