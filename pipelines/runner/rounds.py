"""A periodic look, from a thread beside the legs."""

import threading
from collections.abc import Callable


class Rounds:
    """Calls `look` at once after `start`, and again `every_seconds` after the end of the last call, until `close`.

    `look` handles errors that pass: an error that it raises ends the thread. A subclass passes its own method.
    """

    def __init__(self, name: str, every_seconds: float, look: Callable[[], object]) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep, args=(every_seconds, look), name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Wait for the look in progress; call it while the looked-at objects are open. May be called again, and without a start."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _keep(self, every_seconds: float, look: Callable[[], object]) -> None:
        # At once: a pipeline may be run for some seconds only, again and again.
        while True:
            look()
            if self._stopped.wait(every_seconds):
                return
