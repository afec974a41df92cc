"""The sink leg: out frames to ClickHouse, one insert per chunk, planned and confirmed on the ledger.

Always in the driver: one chunk at a time is decided, sent and confirmed in order, the rows are Arrow already, and encoding and sending
release the interpreter lock, so there is nothing for tasks to share out.
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from pipelines.connectors.clickhouse import ClickHouse
from pipelines.connectors.jetstream import check_contiguous
from pipelines.errors import InvariantError, RetryableError
from pipelines.failpoints import reach
from pipelines.lease import INSERT_MAX_EXECUTION_SECONDS
from pipelines.ledger import Entry
from pipelines.legs.leg import Leg, check_input, input_mark
from pipelines.naming import insert_token
from pipelines.records import Message
from pipelines.sink import Chunk, chunks, insert_block


class SinkLeg(Leg):
    """Offset is {"sequence": last out sequence}. A plan is one chunk."""

    name = "sink"
    _clickhouse: ClickHouse | None = None
    _proposed: Chunk | None = None

    @property
    def clickhouse(self) -> ClickHouse:
        if self._clickhouse is None:
            self._clickhouse = ClickHouse(self.connections.config.sink)
        return self._clickhouse

    def close(self) -> None:
        super().close()
        if self._clickhouse is not None:
            self._clickhouse.close()

    def start_offset(self) -> dict[str, int]:
        check_input(self.connections.log, self._stream, self.chain.state.done)
        return {"sequence": self.chain.state.to or 0}

    def covers(self, end: dict[str, int]) -> bool:
        return (self.chain.state.to or 0) >= end["sequence"]

    @property
    def _stream(self) -> str:
        return self.connections.names.stream("out")

    def propose(self, end: dict[str, int]) -> tuple[Any, Any, dict[str, Any]]:
        start = self.chain.state.to or 0
        check_input(self.connections.log, self._stream, self.chain.state.done)
        chunk = self._next_chunk(start, end["sequence"])
        self._proposed = chunk
        config = self.connections.stage_config(self.connections.run.stage_config)
        body = {"config": config.version, "table": config.full_table, "rows": chunk.rows, "digest": chunk.digest}
        return start, chunk.last, body

    def _next_chunk(self, after: int, to: int) -> Chunk:
        """The first chunk of what waits."""
        chunk = next(chunks(self._frames(after, to)), None)
        if chunk is None:
            raise RetryableError(f"reading {self._stream}: sequence {after + 1} is not served yet")
        check_contiguous(self._stream, [message.sequence for message in chunk.messages], after, chunk.last)
        return chunk

    def _planned_chunk(self, after: int, to: int) -> Chunk:
        """A chunk that an earlier start has planned, whatever that release's limits were."""
        messages = tuple(self._frames(after, to))
        check_contiguous(self._stream, [message.sequence for message in messages], after, to)
        return Chunk(messages)

    def _frames(self, after: int, to: int) -> Iterator[Message]:
        return self.connections.log.fetch(self._stream, self.connections.names.subjects("out"), after, to)

    def execute(self, session: SparkSession, plan: Entry) -> tuple[dict[str, int], dict[str, Any]]:
        start, to = plan.body["from"], plan.body["to"]
        chunk = self._proposed
        if chunk is None or chunk.first != start + 1 or chunk.last != to:
            chunk = self._planned_chunk(start, to)
        if chunk.digest != plan.body["digest"]:
            raise InvariantError(
                f"sending chunk {start + 1}-{to} of {self._stream} again: its rows are not those that were planned (digest {chunk.digest}, "
                f"planned {plan.body['digest']}); nothing was sent. Compare the table with the stream before anything else is done"
            )
        if chunk.rows:
            self._insert(plan, chunk)
        self._proposed = None
        counts = {"rows_in": chunk.rows, "rows_out": chunk.rows, "chunks": 1, "frames": len(chunk.messages)}
        return counts, {"input": input_mark(chunk.messages[-1])}

    def _insert(self, plan: Entry, chunk: Chunk) -> None:
        """One attempt. ClickHouse cannot fence a late insert, so none starts that could outlive the lease."""
        if self.lease.remaining_seconds <= INSERT_MAX_EXECUTION_SECONDS:
            raise RetryableError("inserting a chunk: waiting for the lease to be renewed (NATS is slow or away)")
        config = self.connections.stage_config(plan.body["config"])
        stream_id = self.connections.run.stream_ids["out"]
        token = insert_token(self.connections.names.pipeline, stream_id, plan.body["table"], chunk.first, chunk.last, chunk.digest)
        block = insert_block(chunk, config.insert_columns)
        reach("sink.before-insert")
        self.clickhouse.insert(plan.body["table"], config.insert_columns, block, token, INSERT_MAX_EXECUTION_SECONDS)
        reach("sink.after-insert")
