"""The common part of legs: what its status says while it begins."""

from threading import Event
from types import SimpleNamespace
from typing import Any

from pipelines.engine.inputs import Input, Offset
from pipelines.engine.leg import Leg


class Beginning(Leg[Any, Any]):
    """A leg that only begins; it notes its state while it checks what it continues from."""

    def __init__(self) -> None:
        chain: Any = SimpleNamespace(
            leg="process", open=lambda: None, unless_overtaken=lambda attempt: attempt(), state=SimpleNamespace(totals={})
        )
        nothing: Any = None
        tenure: Any = SimpleNamespace(lost=Event())
        super().__init__(nothing, chain, tenure, Event())
        self.states: list[str] = []

    def _start_offset(self) -> Offset:
        self.states.append(self.status.state)
        return {"sequence": 7}

    def open_input(self) -> Input:
        raise NotImplementedError

    def covers(self, end: Offset) -> bool:
        raise NotImplementedError

    def propose(self, end: Offset) -> Any:
        raise NotImplementedError

    def execute(self, plan: Any) -> Any:
        raise NotImplementedError


def test_a_leg_is_starting_until_its_state_is_checked() -> None:
    """Or a run that is caught up from the start would end before the check."""
    leg = Beginning()
    leg.patiently(lambda: None)
    assert leg.begin() == {"sequence": 7}
    assert (leg.states, leg.status.state, leg.status.reached) == (["starting"], "running", {"sequence": 7})
