"""Ticks of the process leg's input: they stand for time that passes while no frame comes, so none is appended while frames wait."""

from datetime import timedelta

from pipelines.engine.inputs import Hold
from pipelines.process.ticks import TickedInput
from pipelines.protocol.naming import Names
from pipelines.protocol.topology import LegId
from pipelines.testing import ManualClock, MemoryLog

NAMES = Names("p")
RAW = NAMES.stream("raw")


def frames(log: MemoryLog) -> int:
    state = log.state(RAW)
    return state.last_sequence if state else 0


def test_frames_that_are_held_behind_a_backlog_need_no_tick(log: MemoryLog, clock: ManualClock) -> None:
    log.publish(NAMES.raw("s", 0), b"", {}, 0)
    log.publish(NAMES.raw("s", 1), b"", {}, 0)
    found = TickedInput(log, NAMES, LegId("process"), (), lambda: 0, clock.seconds, Hold(behind_seconds=1.0), lambda: True)
    assert found._available({"sequence": 0}) == {"sequence": 2}
    assert found._available({"sequence": 1}) == {"sequence": 1}
    assert frames(log) == 2
    clock.advance(timedelta(seconds=1))
    assert found._available({"sequence": 1}) == {"sequence": 2}
    assert found._available({"sequence": 2}) == {"sequence": 2}
    assert frames(log) == 3
