"""The sink leg: out frames to ClickHouse, one insert per chunk, planned and confirmed on the ledger.

A chunk that ClickHouse refuses for single rows is cut until these stand alone: they are dead letters, the others are inserted. Every cut
and every refusal is on the ledger before the next insert (`sink.Pieces`), so a restart goes on with the very same pieces.

Always in the driver: one chunk at a time is decided, sent and confirmed in order, the rows are Arrow already, and encoding and sending
release the interpreter lock, so there is nothing for tasks to share out.
"""

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from pipelines.breaker import MEND, Cause, Sample, halt_for
from pipelines.connectors.clickhouse import ClickHouse
from pipelines.connectors.jetstream import check_contiguous
from pipelines.errors import HaltError, InvariantError, RefusedError, RetryableError
from pipelines.failpoints import reach
from pipelines.lease import INSERT_MAX_EXECUTION_SECONDS
from pipelines.ledger import Entry
from pipelines.legs.abandoned import abandoned_rows, close_abandoned, closing
from pipelines.legs.fit import check_arrow_types, misfits, way_on
from pipelines.legs.leg import Leg, check_input
from pipelines.legs.refused import Refused, place_of_row
from pipelines.legs.stage_config import StageConfig
from pipelines.letters.triage import fingerprint
from pipelines.naming import insert_token
from pipelines.records import POSITION_COLUMNS, Message
from pipelines.sink import Chunk, Pieces, chunk_rows, chunks, insert_block

MAX_REFUSED_ROWS = 1000
"""Of one chunk, by one start, with or without the circuit breaker: each costs inserts, and a ledger entry that names all before it."""


class SinkLeg(Leg):
    """Offset is {"sequence": last out sequence}. A plan is one chunk."""

    name = "sink"
    _clickhouse: ClickHouse | None = None
    _proposed: Chunk | None = None
    _seen = Sample()
    """Of chunks that are settled, as far as the circuit breaker has not judged them yet."""
    _refused_here = Sample()
    """Rows of the chunk in work that this start has found refused."""
    _decided: tuple[int, Pieces] | None = None
    """What followed from the last insert, and the sequence of the plan that it was made under."""

    @property
    def clickhouse(self) -> ClickHouse:
        if self._clickhouse is None:
            config = self.connections.config
            self._clickhouse = ClickHouse(config.sink, config.on_error.classes("clickhouse"))
        return self._clickhouse

    @property
    def _max_rejected_percent(self) -> int:
        return 100 if self.connections.run.accepted_config else self.connections.config.on_error.max_rejected_percent

    def close(self) -> None:
        super().close()
        if self._clickhouse is not None:
            self._clickhouse.close()

    def _start_offset(self) -> dict[str, int]:
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
        config = self._config_of(chunk)
        body = {"config": config.version, "table": config.full_table, "rows": chunk.rows, "digest": chunk.digest}
        return start, chunk.last, body

    def _config_of(self, chunk: Chunk) -> StageConfig:
        """The configuration that the chunk's rows were made under: they have its columns, whatever the file says now.

        Raises HaltError when the chunk is not of one configuration, or not for the table of this run's file.
        """
        versions = chunk.configs or {self.connections.run.stage_config}
        where = f"sending out sequences {chunk.first}-{chunk.last}"
        if len(versions) > 1 or "" in versions:
            raise HaltError(
                f"{where}: its frames do not name one configuration ({', '.join(sorted(versions))}): an older release wrote them, start "
                "that one once with --until-caught-up; or somebody else did, and only Tallyflow may write to its streams"
            )
        (version,) = versions
        config = self.connections.stage_config(version)
        if config.full_table != self._table:
            raise HaltError(
                f"{where}: these rows were made for table {config.full_table}, the file of this run says {self._table}; nothing was sent. "
                f"{way_on(self.connections.names.pipeline)}"
            )
        return config

    @property
    def _table(self) -> str:
        sink = self.connections.config.sink
        return f"{sink.connection_params.database}.{sink.table}"

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
        # An earlier attempt may have amended it.
        plan = self.chain.state.plan or plan
        start, to = plan.body["from"], plan.body["to"]
        chunk = self._proposed
        if chunk is None or chunk.first != start + 1 or chunk.last != to:
            chunk = self._planned_chunk(start, to)
        if chunk.digest != plan.body["digest"]:
            raise InvariantError(
                f"sending chunk {start + 1}-{to} of {self._stream} again: its rows are not those that were planned (digest {chunk.digest}, "
                f"planned {plan.body['digest']}); nothing was sent. Compare the table with the stream before anything else is done"
            )
        abandoned = abandoned_rows(plan.body, chunk.rows)
        if abandoned is not None:
            return close_abandoned(self.connections, plan, chunk, abandoned)
        self._check_plan(plan, chunk)
        refused = self._settle(plan, chunk)
        outcome = closing(self.connections, plan, chunk, refused)
        self._seen = self._with_chunk(chunk).rest
        self._proposed, self._refused_here = None, Sample()
        return outcome

    def _check_plan(self, plan: Entry, chunk: Chunk) -> None:
        """Raises HaltError for a plan of another configuration or table than its rows."""
        config, said = self._config_of(chunk), (plan.body["config"], plan.body["table"])
        if chunk.rows and said != (config.version, config.full_table):
            raise HaltError(
                f"sending out sequences {chunk.first}-{chunk.last}: their plan says configuration {said[0]} and table {said[1]}, the rows "
                f"are of configuration {config.version} for {config.full_table}; nothing was sent. Only Tallyflow may write to its "
                "streams; `tallyflow plan abandon` closes the plan"
            )

    def _settle(self, plan: Entry, chunk: Chunk) -> Refused:
        """Inserts what ClickHouse takes of the chunk; the rows that it does not. Each decision stands on the ledger before its effect."""
        config = self.connections.stage_config(plan.body["config"])
        pieces = Pieces.of(plan.body, chunk.rows)
        if not pieces.ends:
            return pieces.refused
        rows = chunk_rows(chunk, self._insert_columns(config))
        while pieces.ends:
            if self._decided is None or self._decided[0] != plan.sequence:
                self._decided = (plan.sequence, self._attempt(plan, chunk, rows, pieces))
            # After an append of unknown outcome the same decision is appended again: another attempt at the insert might end otherwise.
            before, pieces = pieces, self._decided[1]
            if pieces.ends or pieces.refused != before.refused:
                plan = self.chain.amend(**pieces.body())
                reach("sink.after-amend")
        return pieces.refused

    def _attempt(self, plan: Entry, chunk: Chunk, rows: pa.Table, pieces: Pieces) -> Pieces:
        """One insert of the next piece, and what follows from its outcome."""
        try:
            self._insert(plan, chunk, rows, pieces)
        except RefusedError as refusal:
            if plan.epoch != self.chain.state.epoch and time.monotonic() - self.begun < INSERT_MAX_EXECUTION_SECONDS:
                # Of an earlier runner: what it has sent may still be at work in ClickHouse, and must not land behind another decision.
                raise RetryableError(
                    f"inserting a chunk: waiting until no insert of an earlier runner can be at work; {refusal}"
                ) from refusal
            after = pieces.refuse(str(refusal), refusal.row)
            if after.refused != pieces.refused:
                self._check_refused(plan, chunk, pieces.sent, refusal)
            return after
        return pieces.inserted()

    def _check_refused(self, plan: Entry, chunk: Chunk, row: int, refusal: RefusedError) -> None:
        """Raises HaltError when a refused row must not be decided to be a dead letter: it is sent again by the next start."""
        name, reason = fingerprint("sink", "refused", "", str(refusal)), f"sink: refused: {refusal}"
        known = self._refused_here.causes.get(name)
        cause = Cause(name, reason, known.example if known else place_of_row(chunk, row), 1)
        if self.connections.config.on_error.rejected == "halt":
            raise halt_for(reason, cause.example) from refusal
        self._refused_here = self._refused_here.plus(0, [cause])
        self._with_chunk(chunk).judge(self._max_rejected_percent, MEND)
        if sum(each.records for each in self._refused_here.causes.values()) > MAX_REFUSED_ROWS:
            raise HaltError(
                f"inserting chunk {chunk.first}-{chunk.last} into {plan.body['table']}: more than {MAX_REFUSED_ROWS} of its rows are "
                f"refused, the last with: {refusal}. These are no single bad records; mend the table or the mapping and start again: "
                "rows refused so far stay dead letters, the rest of the chunk is inserted"
            ) from refusal

    def _with_chunk(self, chunk: Chunk) -> Sample:
        return self._seen.plus(chunk.rows, self._refused_here.causes.values())

    def _insert(self, plan: Entry, chunk: Chunk, rows: pa.Table, pieces: Pieces) -> None:
        """One attempt. ClickHouse cannot fence a late insert, so none starts that could outlive the lease."""
        # First: its answer may take long, and the lease is looked at behind it.
        self._check_columns(self.connections.stage_config(plan.body["config"]), rows)
        if self.lease.remaining_seconds <= INSERT_MAX_EXECUTION_SECONDS:
            raise RetryableError("inserting a chunk: waiting for the lease to be renewed (NATS is slow or away)")
        stream_id = self.connections.run.stream_ids["out"]
        of_chunk = insert_token(self.connections.names.pipeline, stream_id, plan.body["table"], chunk.first, chunk.last, chunk.digest)
        block = insert_block(rows.slice(pieces.sent, pieces.ends[0] - pieces.sent))
        token = pieces.token(of_chunk, chunk.rows)
        reach("sink.before-insert")
        self.clickhouse.insert(plan.body["table"], rows.column_names, block, token, INSERT_MAX_EXECUTION_SECONDS)
        reach("sink.after-insert")

    def _insert_columns(self, config: StageConfig) -> list[str]:
        """Those of the mapping that the rows were made under, and the position columns of the table as this run has found it.

        What the table has besides takes its DEFAULT.
        """
        now = self.connections.stage_config(self.connections.run.stage_config)
        return [*(target.name for target in config.targets), *now.position_columns]

    def _check_columns(self, config: StageConfig, rows: pa.Table) -> None:
        """Raises HaltError when the rows, made under `config`, do not fit the table as it is now; before every insert.

        A table that is gone is ClickHouse's to refuse.
        """
        check_arrow_types(config, rows)
        columns = self.clickhouse.columns(config.database, config.table)
        nulls = [name for name in rows.column_names if rows.column(name).null_count]
        position_columns = [name for name in rows.column_names if name in POSITION_COLUMNS]
        faults = misfits(config, position_columns, columns, nulls) if columns else []
        if faults:
            raise HaltError(
                f"inserting a chunk into {config.full_table}: the table was altered and does not take the rows any more that were made "
                f"under configuration {config.version}: {'; '.join(faults)}. Nothing of the chunk was sent. "
                f"{way_on(self.connections.names.pipeline)}"
            )
