"""What a pipeline's job is, in one word and the reasons for it: from what its runners say of themselves. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Literal

from pipelines.protocol.naming import LEGS

State = Literal["stopped", "starting", "running", "waiting", "halted", "stuck", "unreachable"]
STATES: tuple[State, ...] = ("stopped", "starting", "running", "waiting", "halted", "stuck", "unreachable")


@dataclass(frozen=True)
class JobState:
    """A pipeline on this host.

    `state`: `stopped` no runner lives; `starting` one is on its way; `running`; `waiting` for a system that is away, goes on by itself;
    `halted` at least one leg has, for a reason that does not pass, and its runner lives or has ended at that; `stuck` no batch ends
    although there is work; `unreachable` a runner lives and does not answer. `message` is the reason, in the runner's own words where it
    has said any.

    `legs` says the state of each leg that runs here. Of those that should and do not, `halted` are the ones whose runner has ended at
    their halt, `missing` the others. `halt` names a halt: that of another start has another name. `lag`: offsets that ingest has not
    confirmed; None where nobody tells. `pid`: None where no runner lives. `config_version`: of the stage configuration that new plans use.
    `snapshot`: all that `/status` says. `desired`: what was last wanted, None where nobody has said.
    """

    pipeline: str
    state: State
    message: str = ""
    legs: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    halted: tuple[str, ...] = ()
    halt: str = ""
    lag: int | None = None
    pid: int | None = None
    uptime: timedelta | None = None
    config_version: str | None = None
    snapshot: Mapping[str, Any] | None = None
    desired: Literal["running", "stopped"] | None = None

    @property
    def is_alive(self) -> bool:
        return self.pid is not None


def judge(snapshot: Mapping[str, Any], now: datetime, stuck_after: timedelta, sink_delay: timedelta = timedelta()) -> tuple[State, str]:
    """(state, message) of runners that answer. `stuck_after` is how long a leg may have work and end no batch; the sink, which lets its
    batches fill for `sink_delay`, so much longer.
    """
    legs = snapshot["legs"]
    for state in ("halted", "waiting"):
        said = [f"{name}: {leg['message']}" for name, leg in legs.items() if leg["state"] == state]
        if said:
            return ("halted" if state == "halted" else "waiting"), "; ".join(said)
    if not snapshot["ready"]:
        return "starting", "the legs are being started"
    if not snapshot["healthy"]:
        return "halted", "not healthy: a lease was lost to another runner"
    patience = {name: stuck_after + (sink_delay if name == "sink" else timedelta()) for name in legs}
    stuck = [name for name in legs if _waiting_rows(snapshot, name) > 0 and _idle(snapshot, name, now) > patience[name]]
    if stuck:
        minutes = max(_idle(snapshot, name, now) for name in stuck) / timedelta(minutes=1)
        return "stuck", f"{', '.join(stuck)}: there is work, and no batch has ended for {minutes:,.0f} minutes"
    return "running", ""


def _waiting_rows(snapshot: Mapping[str, Any], leg: str) -> int:
    """What is there for a leg to do, by the totals of the one before it; 0 where that one runs elsewhere."""
    if leg == LEGS[0]:
        return sum(snapshot["lag"].values())
    before = {later: earlier for earlier, later in pairwise(LEGS)}[leg]
    legs = snapshot["legs"]
    if before not in legs:
        return 0
    return int(legs[before]["totals"].get("rows_out", 0)) - int(legs[leg]["totals"].get("rows_in", 0))


def _idle(snapshot: Mapping[str, Any], leg: str, now: datetime) -> timedelta:
    """Since the last batch, or the start."""
    last = snapshot["legs"][leg]["last_batch"]
    uptime = timedelta(seconds=snapshot["uptime_seconds"])
    return min(uptime, now - datetime.fromisoformat(last["at"])) if last else uptime
