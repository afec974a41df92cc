"""Which snapshots a new plan of process names: the newest that the ledger offers of each table that its program reads.

In: the offers of the runner that fetches the tables. Out: digests by table. Kept: the last offers, for OFFER_SECONDS.
"""

import time
from collections.abc import Callable

from pipelines.config.durations import format_duration
from pipelines.engine.connections import Connections
from pipelines.errors import HaltError, RetryableError
from pipelines.process.program import Program
from pipelines.protocol.lookup_offers import Offered, last_offer

OFFER_SECONDS = 0.5
"""An offer is looked up at most once in this time."""


class SnapshotChoice:
    """The choice of one process leg."""

    def __init__(self, connections: Connections, clock: Callable[[], float] = time.monotonic) -> None:
        self._connections, self._clock = connections, clock
        self._offers: dict[str, Offered] = {}
        self._looked_at = -OFFER_SECONDS

    def newest(self, program: Program) -> dict[str, str]:
        """Return the snapshots that a plan under `program` names.

        Raise HaltError if one is older than the file allows, RetryableError while a table has none for this program.
        """
        if not program.lookups:
            return {}
        if self._clock() - self._looked_at >= OFFER_SECONDS:
            self._look(program)
            self._looked_at = self._clock()
        return {table: offered.offer.digest for table, offered in self._offers.items()}

    def _look(self, program: Program) -> None:
        log, names = self._connections.log, self._connections.names
        found = {}
        for table, spec in program.lookups.items():
            offered = last_offer(log, names, table)
            if offered is None or offered.offer.shape != spec.shape:
                raise RetryableError(f"looking up in table {table}: there is no snapshot of it yet; the runner that has process fetches it")
            self._check_age(table, offered)
            # A plan that names a snapshot must be finished with it, so it is opened first.
            self._connections.snapshots.open(table, offered.offer.digest)
            found[table] = offered
        self._offers = found

    def _check_age(self, table: str, offered: Offered) -> None:
        limit = self._connections.config.tables[table].max_age if table in self._connections.config.tables else None
        if limit is None:
            return
        age = self._connections.log.clock(self._connections.names.stream("ledger")) - offered.fetched_at
        if age > limit:
            raise HaltError(
                f"looking up in table {table}: its newest snapshot is {format_duration(age)} old, `max_age` is {format_duration(limit)}; "
                "`tallyflow status` and the log show why it could not be fetched again. Nothing was lost: start the pipeline when the "
                "table can be read, or raise max_age"
            )
