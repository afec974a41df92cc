"""Pace of a running pipeline: the lag and the rate of each leg, measured every two seconds in a thread beside the legs.

While nothing waits and no leg moves it is measured every ten seconds, and again as soon as a leg reports that it has moved.

The figures are those of the last successful look, so reading them waits for no server. The legs' states show why a look failed.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sources import Source
from pipelines.engine.coordinator import LegView
from pipelines.errors import TallyflowError
from pipelines.protocol.ledger import ChainState, Done, Plan, read_chain
from pipelines.protocol.naming import REDRIVE, Names
from pipelines.protocol.tally import from_chains
from pipelines.protocol.topology import LegId, Topology, chain_of
from pipelines.runner.rounds import Rounds, reached

LOOK_EVERY_SECONDS = 2.0
RATE_SECONDS = 30.0
"""The period of the rates; shorter after a start."""
AGES_SECONDS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600)
"""Lower bounds of the age of the oldest waiting record in Kafka: Kafka gives offsets by time, and no time of an offset."""


@dataclass(frozen=True)
class LegPace:
    """The lag and the rate of a leg.

    `waiting`: records (before ingest: offsets of partitions with a leader) that no `done` of the leg covers, the batch in progress too.
    `waiting_seconds`: how long the oldest of them has waited; before ingest by its own time, rounded down to AGES_SECONDS.
    `rows_per_second`: None at the first look.
    """

    waiting: int = 0
    waiting_seconds: float = 0.0
    rows_per_second: float | None = None


class Pace(Rounds):
    """The thread. `legs` may be read by any thread: all legs by name, wherever they run; empty before the first look.

    `sources` by the ingest leg that reads them. `views`: the legs of this runner, as they report.
    """

    def __init__(
        self, log: JetStream, names: Names, topology: Topology, sources: Mapping[LegId, Source], views: Mapping[LegId, LegView]
    ) -> None:
        self.legs: Mapping[LegId, LegPace] = {}
        self.dead_letters = 0
        """The dead letters that have neither entered again nor been discarded."""
        self._log, self._names, self._topology, self._sources, self._views = log, names, topology, sources, views
        self._taken: deque[tuple[float, dict[LegId, int]]] = deque()
        super().__init__("pace", LOOK_EVERY_SECONDS, lambda: self.look(time.monotonic()), self._seen)

    def _seen(self) -> Hashable | None:
        """Return how far the legs are while the figures can only change with that: nothing waits, and every rate is 0."""
        is_still = self.legs and all(leg.waiting == leg.rows_per_second == 0 for leg in self.legs.values())
        return reached(self._topology, self._views) if is_still else None

    def look(self, now: float) -> None:
        """Measure once, at `now` of a monotonic clock."""
        try:
            # Downstream first, as the tally does: no leg seems to have read what the legs upstream have not written.
            chains = {leg: read_chain(self._log, self._names, chain_of(leg)) for leg in self._topology.downstream_first}
            tallied = from_chains(self._topology, chains, chains[REDRIVE])
            account = {leg.leg: leg for leg in tallied.legs}
            lags = {leg: self._lag(leg, chains[leg], account[leg].waiting) for leg in self._topology.legs}
        except TallyflowError:
            return
        taken = {leg: account[leg].rows_in for leg in self._topology.legs}
        self._taken.append((now, taken))
        while now - self._taken[0][0] > RATE_SECONDS:
            self._taken.popleft()
        since, first = self._taken[0]
        rates = {leg: (taken[leg] - first[leg]) / (now - since) for leg in taken} if now > since else {}
        self.dead_letters = tallied.dead_letters.waiting
        self.legs = {leg: LegPace(*lags[leg], rates.get(leg)) for leg in taken}

    def _lag(self, leg: LegId, chain: ChainState[Plan, Done], rows: int) -> tuple[int, float]:
        """Return what waits for a leg, and its age: in its stream, or in its source. `rows`: what waits according to the tally."""
        if leg.reads is None:
            return waiting_at(self._sources[leg], _reached(chain), datetime.now(UTC))
        waiting = max(0, rows)
        return waiting, self._age(leg.reads, chain) if waiting else 0.0

    def _age(self, role: str, chain: ChainState[Plan, Done]) -> float:
        message = self._log.get(self._names.stream(role), int(chain.to or 0) + 1)
        return max(0.0, (datetime.now(UTC) - message.time).total_seconds()) if message else 0.0


def _reached(ingest: ChainState[Plan, Done]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in (ingest.to or {}).items()}


def waiting_at(source: Source, reached: Mapping[int, int], now: datetime) -> tuple[int, float]:
    """Return the offsets of the source that wait beyond `reached` (by partition), and how long the oldest record has waited.

    Nothing is known of a partition without a leader; the status names it beside these figures.
    """
    ends, _ = source.known_ends(sorted(reached))
    known = {partition: reached[partition] for partition in ends}
    offsets = sum(max(0, end - known[partition]) for partition, end in ends.items())
    return offsets, age_at(source, known, now) if offsets else 0.0


def age_at(source: Source, reached: Mapping[int, int], now: datetime) -> float:
    """Return the largest of AGES_SECONDS such that a record at `reached` (by partition) or later is older; 0 if none is."""

    def is_younger(seconds: int) -> bool:
        since = source.first_since(sorted(reached), now - timedelta(seconds=seconds))
        return all(since[partition] <= offset for partition, offset in reached.items())

    older: Sequence[int] = AGES_SECONDS
    index = bisect_left(older, True, key=is_younger)
    return float(older[index - 1]) if index else 0.0
