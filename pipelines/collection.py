"""Python's cyclic collector: how often it looks for garbage, and not while a process imports."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

COLLECT_AFTER_OBJECTS = 50_000
"""Ten polls of Kafka."""


@contextmanager
def no_collection() -> Iterator[None]:
    """Let the collector rest, and never visit what was made meanwhile: imports make much, and hardly any of it is garbage.

    It looks thirty times otherwise, which takes 50 ms of a command's start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def collect_rarely() -> None:
    """Limit Python's cyclic collector to new objects, and run it rarely. Call this once, when the process is ready for its first batch.

    A poll of Kafka makes 5,000 objects, none of them in a cycle. By default the collector visits them after each 700, and now and then
    everything that was imported.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, 20, 100)
