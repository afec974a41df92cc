"""A lane's chain: `open{epoch}` and states, appended by compare-and-set; the segments that a process lane's states list."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from pipelines.errors import DataLossError, InvariantError
from pipelines.protocol.lanes.bodies import ProcessState, Segments
from pipelines.protocol.ledger import Chain, ChainState, ChainType, Done, Entry, Log, Plan
from pipelines.protocol.naming import Names

S = TypeVar("S", bound=Done)
MAX_CHANGES = 8
"""Differences after which a state lists all segments: a start reads at most so many entries more."""


class LaneChain(Chain[Plan, S], Generic[S]):
    """One lane's chain, for the attempt that holds the epoch. Not thread-safe."""

    @property
    def body(self) -> S:
        """The lane's state. Raise InvariantError before the first one."""
        if self.state.done is None:
            raise InvariantError(f"reading {self._subject}: the lane has no state yet")
        return self.state.done.body

    def advance(self, state: S) -> Entry[S]:
        """Append the next state, whose range begins where the last one ended; its `counts` are added to the running totals."""
        if self.state.done is not None and state.start != self.state.to:
            raise InvariantError(f"advancing {self._subject}: its last state ended at {self.state.to}, this one begins at {state.start}")
        before = self.state.totals
        totals = {name: before.get(name, 0) + state.counts.get(name, 0) for name in {*before, *state.counts}}
        entry = self._decide(Entry(self._epoch, replace(state, totals=totals), self._done_at))
        self.state = replace(self.state, done=entry)
        return entry


def live_segments(log: Log, names: Names, kind: ChainType[Plan, ProcessState], state: ChainState[Plan, ProcessState]) -> tuple[str, ...]:
    """Return the segments that a process lane's last state lists, oldest first. Raise DataLossError if an entry is missing."""
    changes: list[Segments] = []
    entry = state.done
    while entry is not None:
        changes.append(entry.body.segments)
        if entry.body.segments.is_full:
            break
        message = log.get(names.stream("ledger"), entry.previous_done)
        if message is None:
            raise DataLossError(
                f"reading the segments of {names.chain(kind.leg)}: the ledger has lost entry {entry.previous_done}; "
                "restore all streams from one moment"
            )
        entry = kind.decode_done(message)
    live: list[str] = []
    for change in reversed(changes):
        live = [name for name in live if name not in change.removed] + list(change.added)
    return tuple(live)


def change_of(before: Segments, live: Sequence[str], added: Sequence[str], removed: Sequence[str]) -> Segments:
    """Return the entry for segments that changed since the state with `before`; `live`: all of them after the change."""
    if before.changes >= MAX_CHANGES:
        return Segments(tuple(live), is_full=True)
    return Segments(tuple(added), tuple(removed), changes=before.changes + 1)
