"""Short histories of the protocol, once for every place at which they may be struck; a failure names the place."""

from collections.abc import Callable
from functools import partial

from pipelines.testing import Fault
from support.protocol_world import World

Prepare = Callable[[World], None]


def reported(place: str, play: Callable[[], object]) -> None:
    """Play; name the place in a failure."""
    try:
        play()
    except BaseException as error:
        raise AssertionError(f"{place}: {error}") from error


def arrange(call: int, kind: str, world: World) -> None:
    """Strike before the call of this number, counted from now."""
    world.strike = (world.calls + call, kind)


def before_every_call(calls: int, kind: str, history: Callable[[Prepare], object]) -> None:
    """Play the history with a strike of this kind before each of its calls."""
    for call in range(1, calls + 1):
        reported(f"{kind} before call {call} of {calls}", partial(history, partial(arrange, call, kind)))


def at_every_publish(publishes: int, fault: Fault, history: Callable[[Prepare], object]) -> None:
    """Play the history with this fault at each of its publishes."""

    def fail(number: int, world: World) -> None:
        world.log.fail_publish(fault, number)

    for number in range(1, publishes + 1):
        reported(f"{fault.value} at publish {number}", partial(history, partial(fail, number)))
