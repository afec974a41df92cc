"""Whether a run has confirmed everything up to the ends of its sources."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.connectors.nats.client import JetStream
from pipelines.protocol.ledger import ChainState, read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.topology import LegId

Targets = Mapping[LegId, Mapping[int, int]]
"""The frozen ends of the sources: by ingest leg, the next offset of each partition."""


def begun(legs: Iterable[LegId], log: JetStream, names: Names) -> dict[LegId, dict[int, int]]:
    """Return the offsets up to which each ingest leg has written, or has planned to: the least end at which a run can stop."""
    states = {leg: read_chain(log, names, leg.chain) for leg in legs}
    ends = {leg: state.plan.body.to if state.plan else state.to or {} for leg, state in states.items()}
    return {leg: {int(partition): end for partition, end in end.items()} for leg, end in ends.items()}


def has_reached_the_end(leg: LegId, state: ChainState[Any, Any], targets: Targets, log: JetStream, names: Names) -> bool:
    """Return True if the leg has confirmed its whole input: up to the target of a source, or all of the stream that it reads.

    Ask in the order of the data: the input of a leg is complete once the legs upstream have reached their ends.
    """
    if leg.reads is None:
        reached = state.to or {}
        return all(reached.get(str(partition), 0) >= end for partition, end in targets.get(leg, {}).items())
    stream = log.state(names.stream(leg.reads))
    return stream is not None and (state.to or 0) >= stream.last_sequence


class LegsLeft:
    """The legs of a run, and those before them, that have not confirmed everything up to the ends of the sources.

    `legs` come in the order of the data. The ends are frozen: a leg that has once reached them is asked no more, whatever arrives behind.
    """

    def __init__(self, legs: Iterable[LegId], targets: Targets, log: JetStream, names: Names) -> None:
        self._legs, self._targets, self._log, self._names = deque(legs), targets, log, names

    def are_none(self) -> bool:
        """Return True if no leg is left. Raise the errors of the log."""
        while self._legs and self._has_reached_the_end(self._legs[0]):
            self._legs.popleft()
        return not self._legs

    def _has_reached_the_end(self, leg: LegId) -> bool:
        state = read_chain(self._log, self._names, leg.chain)
        return has_reached_the_end(leg, state, self._targets, self._log, self._names)
