"""The look-up tables of a running pipeline: fetched before its first plan, and again at intervals, from a thread beside the legs.

In: the tables of the pipeline file. Out: a durable snapshot of each, offered on the ledger to the process leg. Kept: what `status` shows.
The runner that holds the lease of process does it. A fetch that fails keeps the snapshot before. A snapshot goes when no entry of the
process chain names it, so it is there as long as the raw frames of its plans.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipelines.config import PipelineConfig
from pipelines.connectors.nats.client import JetStream, fetch_whole
from pipelines.connectors.tables import fetch
from pipelines.engine.coordinator import LegView
from pipelines.errors import ConflictError, HaltError, TallyflowError
from pipelines.lookups.spec import TableSpec
from pipelines.lookups.storage import Snapshots
from pipelines.protocol.bodies import PROCESS_CHAIN, ProcessDone, ProcessPlan
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.lookup_offers import LookupOffer, Offered, last_offer, offer
from pipelines.protocol.naming import Names
from pipelines.runner.rounds import Rounds

LOOK_EVERY_SECONDS = 0.25
SWEEP_EVERY_SECONDS = 60.0
UNNAMED_SECONDS = 600.0
"""A snapshot goes after no plan has named it for so long: longer than any process takes from reading an offer to appending its plan."""


@dataclass
class TableState:
    """Facts of one table. `newest`: its newest snapshot; `failure`: of the last fetch, empty if it went well.

    On the clock of this thread: when that snapshot was `fetched`, when the last fetch was `begun`, since when no plan has named a digest.
    """

    spec: TableSpec
    newest: Offered | None = None
    fetched: float = 0.0
    failure: str = ""
    begun: float = 0.0
    unnamed_since: dict[str, float] = field(default_factory=dict)


class LookupTables(Rounds):
    """The thread. `tables` may be read by any thread: empty before `fetch_first`."""

    def __init__(
        self,
        config: PipelineConfig,
        log: JetStream,
        state_storage: str,
        announce: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        unnamed_seconds: float = UNNAMED_SECONDS,
    ) -> None:
        self._config, self._log, self._names = config, log, Names(config.pipeline_id)
        self._snapshots, self._announce, self._clock = Snapshots(state_storage), announce, clock
        self._unnamed_seconds, self._next_sweep = unnamed_seconds, clock() + SWEEP_EVERY_SECONDS
        self._leg: LegView | None = None
        self._fetched: dict[str, pa.RecordBatch] = {}
        self._named: dict[tuple[str, str], int] = {}
        """The last entry of the process chain that names a snapshot, by table and digest."""
        self._read_to = 0
        self.tables: dict[str, TableState] = {}
        super().__init__("lookup tables", LOOK_EVERY_SECONDS, self.look)

    def fetch_first(self, specs: Mapping[str, TableSpec]) -> None:
        """Fetch every table that the program reads, before anything starts; call it again for those that are away.

        A table of which the ledger has a snapshot already may be away. Raise RetryableError or HaltError for another that cannot be read.
        """
        for name, spec in specs.items():
            state = self.tables.setdefault(name, TableState(spec))
            if name in self._fetched or state.failure:
                continue
            try:
                self._fetched[name] = fetch(name, self._config.tables[name], spec)
            except TallyflowError as error:
                before = last_offer(self._log, self._names, name)
                if before is None or before.offer.shape != spec.shape or not self._snapshots.has(name, before.offer.digest):
                    raise
                age = self._log.clock(self._names.stream("ledger")) - before.fetched_at
                state.newest, state.fetched = before, self._clock() - age.total_seconds()
                self._fail(name, state, error)

    def offer_first(self, leg: LegView) -> None:
        """Offer what `fetch_first` has found, for the runner that holds the lease of `leg`, before its legs start."""
        self._leg = leg
        for name, state in self.tables.items():
            state.begun = self._clock()
            if name in self._fetched:
                self._offer(name, state, self._fetched[name])
                del self._fetched[name]

    def take_settings(self, config: PipelineConfig) -> None:
        """Fetch by other intervals and limits from the next look on. For any thread."""
        self._config = config

    def look(self) -> None:
        """Fetch the tables that are due; now and then delete snapshots that nothing names."""
        if self._leg is None or self._leg.failure is not None or self._leg.lease.lost.is_set():
            return
        for name, state in self.tables.items():
            table = self._config.tables[name]
            # From the beginning of a fetch on, so that a slow one does not make snapshots older.
            if self._clock() < state.begun + table.refresh.total_seconds():
                continue
            state.begun = self._clock()
            try:
                self._offer(name, state, fetch(name, table, state.spec))
            except (TallyflowError, pa.ArrowException, OSError, MemoryError) as error:
                self._fail(name, state, error)
        if self._clock() >= self._next_sweep:
            self._next_sweep = self._clock() + SWEEP_EVERY_SECONDS
            self._try_to_sweep()

    def _offer(self, name: str, state: TableState, rows: pa.RecordBatch) -> None:
        """Make a snapshot durable, then offer it behind the last offer."""
        stored = self._snapshots.put(name, state.spec, rows)
        made = LookupOffer(stored.digest, state.spec.shape, stored.rows, stored.bytes)
        before = last_offer(self._log, self._names, name)
        try:
            offer(self._log, self._names, name, made, before.sequence if before else 0)
        except ConflictError as error:
            raise HaltError(f"offering the snapshot of table {name}: another runner has offered one; it holds this pipeline") from error
        state.newest, state.fetched = last_offer(self._log, self._names, name), self._clock()
        if state.failure:
            self._announce(f"table {name} is fetched again")
        state.failure = ""

    def _fail(self, name: str, state: TableState, error: Exception) -> None:
        message = str(error) if isinstance(error, TallyflowError) else f"fetching table {name}: {type(error).__name__}: {error}"
        if message != state.failure:
            since = f"{state.newest.fetched_at:%Y-%m-%d %H:%M:%S}" if state.newest else ""
            self._announce(f"{message}; the snapshot of {since} UTC stays in use")
        state.failure = message

    def _try_to_sweep(self) -> None:
        try:
            self.sweep()
        except TallyflowError as error:
            self._announce(f"looking for snapshots that nothing names: {error}")

    def sweep(self) -> None:
        """Delete the snapshots that no entry of the process chain has named, and none has offered, for `unnamed_seconds`."""
        first = self._read_names()
        self._named = {key: sequence for key, sequence in self._named.items() if sequence >= first}
        for name, state in self.tables.items():
            offered = last_offer(self._log, self._names, name)
            kept = {digest for table, digest in self._named if table == name} | ({offered.offer.digest} if offered else set())
            unnamed = [digest for digest in self._snapshots.digests(name) if digest not in kept]
            state.unnamed_since = {digest: state.unnamed_since.get(digest, self._clock()) for digest in unnamed}
            gone = [digest for digest, since in state.unnamed_since.items() if self._clock() - since >= self._unnamed_seconds]
            self._snapshots.delete(name, gone)

    def _read_names(self) -> int:
        """Read what entries of the process chain have named since the last call; return the sequence of the first entry that is left."""
        ledger, subject = self._names.stream("ledger"), self._names.chain(PROCESS_CHAIN.leg)
        end = read_chain(self._log, self._names, PROCESS_CHAIN).sequence
        # Whole: an entry that a lagging replica leaves out may name what would be deleted.
        for message in fetch_whole(self._log, ledger, subject, self._read_to, end):
            body = PROCESS_CHAIN.decode(message).body
            if isinstance(body, ProcessPlan | ProcessDone):
                self._named |= dict.fromkeys(body.lookups.items(), message.sequence)
        self._read_to = max(self._read_to, end)
        return next((message.sequence for message in self._log.fetch(ledger, subject, 0, end)), 0)

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return what `status` shows of each table with a snapshot, as JSON values."""
        return {
            name: {
                "snapshot": state.newest.offer.digest,
                "rows": state.newest.offer.rows,
                "bytes": state.newest.offer.bytes,
                "age_seconds": round(self._clock() - state.fetched, 1),
                "failure": state.failure,
            }
            for name, state in self.tables.items()
            if state.newest is not None
        }
