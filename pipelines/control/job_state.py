"""The state of a pipeline's job, in one word with the reasons, from the answers of its runners. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from pipelines.protocol.outcomes import written_for
from pipelines.protocol.topology import DEAD_LETTERS, SINK, LegId, Topology

State = Literal["stopped", "starting", "running", "waiting", "halted", "stuck", "unreachable"]
STATES: tuple[State, ...] = ("stopped", "starting", "running", "waiting", "halted", "stuck", "unreachable")


@dataclass(frozen=True)
class JobState:
    """A pipeline on this host.

    `state`: `stopped` no runner lives; `starting` a runner is starting; `running`; `waiting` for an absent system, continues by itself;
    `halted` at least one leg has halted for a permanent reason, and its runner lives or has ended; `stuck` no batch ends although there is
    work; `unreachable` a runner lives and does not answer. `message` is the reason, in the runner's own words if it has given any.

    `legs` holds the state of each leg that runs here. Of the legs that should run here and do not, `halted` are the legs whose runner has
    ended at their halt, `missing` the others. `halt` names a halt: a halt of another start has another name. `lag`: offsets that ingest has
    not confirmed; None if unknown. `pid`: None if no runner lives. `config_version`: the stage configuration of new plans. `snapshot`: the
    whole answer of `/status`. `desired`: the desired state, None if it was never set.
    """

    pipeline: str
    state: State
    message: str = ""
    legs: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[LegId, ...] = ()
    halted: tuple[LegId, ...] = ()
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


def summarize(
    snapshot: Mapping[str, Any], topology: Topology, now: datetime, stuck_after: timedelta, sink_delay: timedelta = timedelta()
) -> tuple[State, str]:
    """Return (state, message) of runners that answer.

    `stuck_after` is the time for which a leg may have work and end no batch. A sink, which lets its batches fill for `sink_delay`, may take
    that much longer.
    """
    legs = snapshot["legs"]
    for state in ("halted", "waiting"):
        messages = [f"{name}: {leg['message']}" for name, leg in legs.items() if leg["state"] == state]
        if messages:
            return ("halted" if state == "halted" else "waiting"), "; ".join(messages)
    if not snapshot["ready"]:
        return "starting", "the legs are being started"
    if not snapshot["healthy"]:
        return "halted", "not healthy: a lease was lost to another runner"
    patience = {leg: stuck_after + (sink_delay if leg.kind in (SINK, DEAD_LETTERS) else timedelta()) for leg in map(LegId.parse, legs)}
    stuck = [leg for leg in patience if _waiting_rows(snapshot, topology, leg) > 0 and _idle(snapshot, leg, now) > patience[leg]]
    if stuck:
        minutes = max(_idle(snapshot, name, now) for name in stuck) / timedelta(minutes=1)
        return "stuck", f"{', '.join(stuck)}: there is work, and no batch has ended for {minutes:,.0f} minutes"
    return "running", ""


def _waiting_rows(snapshot: Mapping[str, Any], topology: Topology, leg: LegId) -> int:
    """Return the rows that wait for a leg, by the totals of the legs upstream; 0 if one of them runs elsewhere."""
    if leg.reads is None:
        return sum(count for partition, count in snapshot["lag"].items() if partition.rpartition("/")[0] == leg.name)
    legs, upstream = snapshot["legs"], topology.upstream(leg)
    if not legs.keys() >= {*upstream}:
        return 0
    written = sum(written_for(leg, before.kind, legs[before]["totals"]) for before in upstream)
    return written - int(legs[leg]["totals"].get(leg.counted_in, 0))


def _idle(snapshot: Mapping[str, Any], leg: str, now: datetime) -> timedelta:
    """Return the time since the last batch, or since the start."""
    last = snapshot["legs"][leg]["last_batch"]
    uptime = timedelta(seconds=snapshot["uptime_seconds"])
    return min(uptime, now - datetime.fromisoformat(last["at"])) if last else uptime
