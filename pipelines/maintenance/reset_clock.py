"""Lets arrivals that are ahead of NATS's clock advance again: one entry of the process chain, which every reader of raw applies."""

from dataclasses import dataclass, replace
from datetime import datetime

from pipelines.errors import HaltError
from pipelines.maintenance.inspect import KeyState
from pipelines.process.arrivals import microseconds
from pipelines.protocol.bodies import ClockReset
from pipelines.protocol.records import instant


@dataclass(frozen=True)
class Reset:
    """The arrival of the last processed record, and NATS's clock; they meet at `met` if that clock does not step again."""

    arrival: datetime
    server: datetime

    @property
    def met(self) -> datetime:
        return self.arrival + (self.arrival - self.server)


def reset_clock(state: KeyState) -> Reset:
    """Reset the clock; change nothing if no processed or waiting record has an arrival ahead. Safe to kill, and to repeat.

    Raise FencedError while the process leg runs, HaltError if a range was begun and not finished, or before the first record.
    """
    log, names = state.connections.log, state.names
    with state.held() as (chain, found):
        body, raw = state.last(found), names.stream("raw")
        if found.plan is not None:
            raise HaltError(
                f"resetting the clock of {names.pipeline}: a range was begun and is not finished; start the pipeline, which finishes it "
                "before it looks at the clock, then reset it"
            )
        held = log.state(raw)
        last = held.last_sequence if held else body.to
        # Read after the end of raw: every message there is older.
        server_us = microseconds(log.clock(raw))
        # A runner that has taken the leg over meanwhile may have purged some.
        waiting = chain.unless_overtaken(lambda: list(log.scan(raw, body.to, last)))
        waiting_us = max((microseconds(frame.time) for frame in waiting), default=0)
        if max(body.clock_us, waiting_us) > server_us:
            reset = ClockReset(body.to, last, server_us, body.clock_us)
            chain.restate(replace(body, clock_resets=(*body.clock_resets, reset)))
        return Reset(instant(max(body.clock_us, waiting_us)), instant(server_us))
