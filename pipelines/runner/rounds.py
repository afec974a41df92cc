"""A periodic look, from a thread beside the legs."""

import threading
from collections.abc import Callable, Hashable, Mapping

from pipelines.engine.coordinator import LegView
from pipelines.protocol.topology import LegId, Topology

QUIET_ROUNDS = 5
"""While there is nothing new, one round of so many looks."""


class Rounds:
    """Calls `look` at once after `start`, and again `every_seconds` after the end of the last call, until `close`.

    `look` handles errors that pass: an error that it raises ends the thread. A subclass passes its own method.
    `seen`: cheap to ask; while it returns what it returned before the last look, a look would find nothing new, and only one of
    QUIET_ROUNDS looks. None: there may be news at any time.
    """

    def __init__(
        self, name: str, every_seconds: float, look: Callable[[], object], seen: Callable[[], Hashable | None] = lambda: None
    ) -> None:
        self._stopped = threading.Event()
        self._look, self._seen = look, seen
        self._thread = threading.Thread(target=self._keep, args=(every_seconds,), name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Wait for the look in progress; call it while the looked-at objects are open. May be called again, and without a start."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _keep(self, every_seconds: float) -> None:
        # At once: a pipeline may be run for some seconds only, again and again.
        before, quiet_rounds = None, 0
        while True:
            now = self._seen()
            quiet_rounds = quiet_rounds + 1 if now is not None and now == before else 0
            if quiet_rounds % QUIET_ROUNDS == 0:
                before = now
                self._look()
            if self._stopped.wait(every_seconds):
                return


def reached(topology: Topology, legs: Mapping[LegId, LegView]) -> Hashable | None:
    """Return how far each leg of a pipeline is, by its last report; None if one works for another runner, or waits, such as for room."""
    if set(topology.legs) - set(legs) or any(view.status.state != "running" for view in legs.values()):
        return None
    return tuple(tuple(legs[leg].status.reached.items()) for leg in topology.legs)
