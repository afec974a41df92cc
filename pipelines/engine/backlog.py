"""A backlog of a source. While one is read, the legs behind it take larger batches: each has fixed costs, and its records are late already.

An event of 1.5 kB then takes a sixth less CPU in driver, JVM and workers, and less than half in ClickHouse (docs/benchmarks.md).
"""

from collections.abc import Callable

from pipelines.protocol.bodies import IngestDone, IngestPlan
from pipelines.protocol.ledger import ChainState, Log, read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.topology import LegId

BACKLOG_OFFSETS = 100_000
"""A plan of so many offsets reads a backlog: a leg that keeps up plans what has come within some tenths of a second."""
BACKLOG_BYTES = 64 * 1024 * 1024
"""A plan of so many bytes of frames does, too, however few its records are."""
_LOOK_EVERY_SECONDS = 0.5


class Backlog:
    """What ingest legs have planned; another process, or host, may run them. For one thread."""

    def __init__(self, log: Log, names: Names, ingests: tuple[LegId, ...], clock: Callable[[], float]) -> None:
        """Create without looking."""
        self._log, self._names, self._ingests, self._clock = log, names, ingests, clock
        self._look_at = clock()

    def is_read(self) -> bool:
        """Return whether one of the legs is reading a backlog. Its begin may be seen half a second late, its end at once.

        Raise what `read_chain` raises.
        """
        if self._clock() < self._look_at:
            return False
        is_read = any(_is_large(read_chain(self._log, self._names, leg.chain)) for leg in self._ingests)
        if not is_read:
            self._look_at = self._clock() + _LOOK_EVERY_SECONDS
        return is_read


def _is_large(state: ChainState[IngestPlan, IngestDone]) -> bool:
    if state.plan is None:
        return False
    plan, totals = state.plan.body, state.totals
    offsets = sum(plan.to.values()) - sum(plan.start.values())
    expected_bytes = offsets * totals.get("bytes", 0) / max(1, totals.get("offsets", 0))
    return offsets >= BACKLOG_OFFSETS or expected_bytes >= BACKLOG_BYTES
