"""The common part of legs: what its status says while it begins, and how it reads on."""

from collections.abc import Iterator
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.engine.inputs import Input, Offset
from pipelines.engine.leg import Leg, fetch_behind, input_mark
from pipelines.errors import DataLossError
from pipelines.protocol.records import Message
from pipelines.testing import MemoryLog


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


STREAM = "tf-one-raw"
SUBJECT = "tf.one.raw.a"


class Lagging(MemoryLog):
    """A log of which a replica answers ranges that lacks what stands below `first_served`; it counts what the leader is asked."""

    first_served, asked_leader = 0, 0

    def fetch(self, stream: str, subject: str, after: int, to: int) -> Iterator[Message]:
        return (message for message in super().fetch(stream, subject, after, to) if message.sequence >= self.first_served)

    def get(self, stream: str, sequence: int) -> Message | None:
        self.asked_leader += 1
        return super().get(stream, sequence)


def log_of(*payloads: bytes) -> Lagging:
    log = Lagging()
    for sequence, payload in enumerate(payloads):
        log.publish(SUBJECT, payload, {}, sequence)
    return log


def behind(log: Any, mark: Message | None, to: int) -> list[int]:
    return [message.sequence for message in fetch_behind(log, mark and input_mark(mark), STREAM, SUBJECT, to)]


def test_a_leg_reads_on_behind_its_input_by_one_request() -> None:
    log = log_of(b"1", b"2", b"3", b"4")
    assert behind(log, None, 2) == [1, 2]
    assert behind(log, log.messages(STREAM)[1], 4) == [3, 4]
    assert behind(log, log.messages(STREAM)[3], 4) == []
    assert log.asked_leader == 0


@pytest.mark.parametrize("restored", [(b"1", b"other", b"3"), (b"1",)])
def test_a_leg_reads_nothing_behind_an_input_that_is_gone(restored: tuple[bytes, ...]) -> None:
    mark = log_of(b"1", b"2").messages(STREAM)[1]
    with pytest.raises(DataLossError, match=r"sequence 2, confirmed before, there is (another frame|nothing)"):
        behind(log_of(*restored), mark, 3)


@pytest.mark.parametrize(("first_served", "served"), [(3, [3, 4]), (4, [4]), (5, [])])
def test_what_a_replica_lacks_its_leader_may_have(first_served: int, served: list[int]) -> None:
    """Whoever reads then sees that the range has a gap, and tries again."""
    log = log_of(b"1", b"2", b"3", b"4")
    log.first_served = first_served
    assert behind(log, log.messages(STREAM)[1], 4) == served
    assert log.asked_leader == 1
