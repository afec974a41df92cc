"""Short histories of the protocol, once for every place at which they may be struck; a failure names the place."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pipelines.testing import Fault
from support.protocol_world import World

Prepare = Callable[[World], None]
K = TypeVar("K")
ROUNDS = int(os.environ.get("TALLYFLOW_MODEL_ROUNDS", "1"))
"""How often each place is struck, each time in another way: in the next history, or with the next kind."""


@dataclass(frozen=True)
class History:
    """A history, its name, and at how many places it may be struck: its calls, or its publishes."""

    name: str
    places: int
    play: Callable[[Prepare], object]


def reported(place: str, play: Callable[[], object]) -> None:
    """Play; name the place in a failure."""
    try:
        play()
    except BaseException as error:
        raise AssertionError(f"{place}: {error}") from error


def arrange(call: int, kind: str, world: World) -> None:
    """Strike before the call of this number, counted from now."""
    world.strike = (world.calls + call, kind)


def dealt(histories: Sequence[History], kinds: Sequence[K]) -> Iterator[tuple[int, History, K]]:
    """Every place of the longest history, with a history and a kind in turn."""
    for place in range(1, max(history.places for history in histories) + 1):
        ways = [(history, kind) for kind in kinds for history in histories if place <= history.places]
        for turn in range(place, place + min(ROUNDS, len(ways))):
            yield place, *ways[turn % len(ways)]


def before_every_call(*histories: History, kinds: Sequence[str] = ("kill", "pause")) -> None:
    """Strike before each call of these histories, each time one of them, with one of the kinds."""
    for call, history, kind in dealt(histories, kinds):
        reported(f"{history.name}, {kind} before call {call} of {history.places}", partial(history.play, partial(arrange, call, kind)))


def at_every_publish(*histories: History) -> None:
    """Let each publish of these histories fail, each time of one of them, with one of the faults."""

    def fail(number: int, fault: Fault, world: World) -> None:
        world.log.fail_publish(fault, number)

    for number, history, fault in dealt(histories, tuple(Fault)):
        reported(f"{history.name}, {fault.value} at publish {number}", partial(history.play, partial(fail, number, fault)))
