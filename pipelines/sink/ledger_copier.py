"""Copies the ledger into its ClickHouse table, on a thread beside the legs.

It never stops or slows them: its errors are in the status. The holder of the sink's lease copies, starting after the last sequence in the
table. As with the sink's chunks, an insert starts only while the remaining lease is longer than the insert may run, and a block is sent
with its token until the answer is definite. A new holder reads the table only when no insert of an earlier holder can be running. So no
entry is in the table twice, not even before merges.
"""

import threading
import time
from dataclasses import dataclass
from typing import Any

from pipelines.config import ClickHouseSink
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sql import filled
from pipelines.errors import RetryableError, TallyflowError
from pipelines.protocol.lease import INSERT_MAX_EXECUTION_SECONDS, Lease
from pipelines.protocol.naming import Names
from pipelines.sink.inserts import insert_block
from pipelines.sink.ledger_table import LEDGER_SCHEMA, Block, blocks

COPY_SECONDS = 5.0
LAST_COPY_SECONDS = 15.0
_DEDUP_WINDOW = 1000


@dataclass
class CopyStatus:
    """The state of the copier.

    `copied_to`: the last sequence known to be in the table. `message`: why it does not continue, or empty.
    """

    table: str
    copied_to: int = 0
    state: str = "starting"
    message: str = ""


class LedgerCopier:
    """Copies the ledger for as long as its runner holds the sink's lease."""

    def __init__(self, sink: ClickHouseSink, names: Names, log: JetStream, stream_id: str, lease: Lease) -> None:
        self._database, self._table = sink.connection_params.database, str(sink.ledger_table)
        self._clickhouse = ClickHouse(sink)
        self._names, self._log, self._stream_id, self._lease = names, log, stream_id, lease
        self._copied_to: int | None = None
        self._pending: Block | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="ledger-table", daemon=True)
        self.status = CopyStatus(f"{self._database}.{self._table}")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> str:
        """Make a last copy, if ClickHouse answers soon; return why entries are left, or an empty text.

        The next start copies the remaining entries.
        """
        self._stop.set()
        self._thread.join(LAST_COPY_SECONDS)
        if self._thread.is_alive():
            return f"{self.status.table}: ClickHouse did not answer within {LAST_COPY_SECONDS:.0f} s"
        self.status.state = "stopped"
        return f"{self.status.table}: {self.status.message}" if self.status.message else ""

    def _keep(self) -> None:
        # An insert of an earlier holder may still be running; before the first holder there was none.
        if self._lease.holder.epoch > 1:
            time.sleep(INSERT_MAX_EXECUTION_SECONDS)
        while not self._stop.is_set():
            self._attempt()
            self._stop.wait(COPY_SECONDS)
        self._attempt()
        self._clickhouse.close()

    def _attempt(self) -> None:
        try:
            self.copy()
        except RetryableError as error:
            self.status.state, self.status.message = "waiting", str(error)
        except Exception as error:
            # The thread's edge: for any error the legs continue, the status shows it, and the copy is retried from the end of the table.
            self._copied_to = self._pending = None
            message = str(error) if isinstance(error, TallyflowError) else f"{type(error).__name__}: {error}"
            self.status.state, self.status.message = "waiting", message
        else:
            self.status.state, self.status.message = "running", ""

    def copy(self) -> int:
        """Copy the entries that the table lacks; return their number. May be called again after any failure."""
        if self._copied_to is None:
            self._copied_to = self._prepare()
        copied = 0
        if self._pending is not None:
            copied += self._insert(self._pending)
        state = self._log.state(self._names.stream("ledger"))
        last = state.last_sequence if state else 0
        messages = self._log.fetch(self._names.stream("ledger"), self._names.chains(), self._copied_to, last)
        for block in blocks(messages, self._names):
            copied += self._insert(block)
        return copied

    def _prepare(self) -> int:
        """Create the table if it is missing; return the last sequence that it holds."""
        where: dict[str, Any] = {"database": self._database, "table": self._table}
        self._clickhouse.command(
            f"creating table {self.status.table}", filled("clickhouse/create_ledger_table", **where, window=_DEDUP_WINDOW)
        )
        asked = {"pipeline": self._names.pipeline, "stream_id": self._stream_id}
        found = self._clickhouse.rows(f"reading table {self.status.table}", filled("clickhouse/ledger_copied_to", **where), asked)
        self.status.copied_to = int(found[0][0])
        return self.status.copied_to

    def _insert(self, block: Block) -> int:
        """Attempt one insert; the block stays pending until the answer is definite."""
        if self._lease.remaining_seconds <= INSERT_MAX_EXECUTION_SECONDS:
            raise RetryableError(f"copying the ledger to {self.status.table}: waiting for the lease to be renewed (NATS is slow or away)")
        self._pending = block
        pipeline = self._names.pipeline
        token = block.token(pipeline, self._stream_id, self.status.table)
        rows = insert_block(block.rows(pipeline, self._stream_id))
        self._clickhouse.insert(self.status.table, LEDGER_SCHEMA.names, rows, token, INSERT_MAX_EXECUTION_SECONDS)
        self._pending = None
        self._copied_to = self.status.copied_to = block.last
        return len(block.messages)
