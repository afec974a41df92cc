"""The progress of long work: the step that begins, and how much of it is done."""

from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """Receive the progress of a command or a job; called often, so it returns at once."""

    def __call__(self, step: str, done: int = 0, total: int = 0) -> None:
        """Take the step in work and, if it is countable, how many of `total` are done. A `total` of 0 is unknown."""


def no_progress(step: str, done: int = 0, total: int = 0) -> None:
    """Discard progress."""


def as_lines(write: Callable[[str], object]) -> Progress:
    """Return progress that writes each step once, when it begins."""
    last = ""

    def line(step: str, done: int = 0, total: int = 0) -> None:
        nonlocal last
        if step != last:
            last = step
            write(step)

    return line
