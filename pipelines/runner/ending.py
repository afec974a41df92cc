"""The last steps of a run: each is made, whatever another one meets, and one that takes long is told."""

import threading
from collections.abc import Callable, Iterable

LONG_SECONDS = 15.0


def end(steps: Iterable[tuple[str, Callable[[], object]]], announce: Callable[[str], object], long_seconds: float = LONG_SECONDS) -> None:
    """Call the steps, one after the other, each with what it waits for; raise nothing.

    Announce a step that fails, since the run's own outcome is more important, and what is still waited for after `long_seconds`.
    """
    for waits_for, step in steps:
        telling = threading.Timer(long_seconds, announce, [f"stopping: it still waits for {waits_for}"])
        telling.daemon = True
        telling.start()
        try:
            step()
        except Exception as error:
            announce(f"while stopping: {type(error).__name__}: {error}")
        finally:
            telling.cancel()
