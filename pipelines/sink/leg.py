"""The sink leg: out frames to the sink's table, one insert per chunk, planned and confirmed on the ledger.

If the sink refuses a chunk for single rows, the chunk is cut until these rows stand alone: they become dead letters, the others are
inserted. Before a cut or a refusal is decided, the table is asked which rows it has (`settling`). Every such decision is on the ledger
before the next insert (`chunks.Pieces`), so a restart continues with the same pieces.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from threading import Event

import pyarrow as pa

from pipelines.connectors.nats.client import check_contiguous
from pipelines.connectors.sinks import Sink
from pipelines.engine.connections import Connections
from pipelines.engine.inputs import Hold, Offset, StreamInput
from pipelines.engine.leg import LEG_MEANS, Leg, LegMeans, Tenure, check_input
from pipelines.errors import HaltError, InsertTooLargeError, InvariantError, RefusedError, RetryableError
from pipelines.process.fingerprints import fingerprint
from pipelines.process.program import Program
from pipelines.process.rejection_limit import MEND, Cause, Sample, halt_for
from pipelines.process.stage_config import config_of
from pipelines.protocol.bodies import SinkDone, SinkPlan
from pipelines.protocol.failpoints import reach
from pipelines.protocol.lease import INSERT_MAX_EXECUTION_SECONDS
from pipelines.protocol.ledger import Chain, Entry
from pipelines.protocol.naming import insert_token, inserts_of_chunk
from pipelines.protocol.records import POSITION_COLUMNS, Message
from pipelines.sink.abandoned import abandoned_rows, close_abandoned, closing
from pipelines.sink.chunks import Chunk, Pieces, Rows, chunk_rows, chunks, insert_block
from pipelines.sink.fit import check_arrow_types, misfits, way_on
from pipelines.sink.refused_rows import Refused, describe_row
from pipelines.sink.settling import Sent, stored_rows

CAUGHT_UP_DELAY_SECONDS = 0.05
"""Limit of the delay in a run that ends once it is caught up."""
MAX_REFUSED_ROWS = 1000
"""Limit of the refused rows of one chunk in one start, with or without the rejection limit.

Each costs inserts, and a ledger entry that names all refused rows before it.
"""
MAX_REFUSED_IN_PLAN = 20_000
"""Limit of the refused rows of one chunk in all starts: its plan names them all, and stays below 1 MiB."""
AMBIGUOUS_ATTEMPTS = 3
"""Refusals for a cause that may be the table's, or inserts that took too long, after which a piece is cut."""
MAX_AMBIGUOUS_ROWS = 3
"""Consecutive rows that may be refused for such a cause before the leg halts."""


@dataclass
class _Tries:
    """The attempts at one piece, under the plan of this sequence.

    `since`: when an insert of unknown outcome was last running (monotonic).
    """

    plan: int
    since: float | None
    too_large: InsertTooLargeError | None = None
    too_large_count: int = 0
    ambiguous: int = 0


class SinkLeg(Leg[SinkPlan, SinkDone]):
    """The sink leg; its offset is {"sequence": last out sequence}. A plan is one chunk."""

    _proposed: Chunk | None = None
    _seen = Sample()
    """Rows of settled chunks that the rejection limit has not checked yet."""
    _refused_here = Sample()
    """Rows of the chunk in work that this start has found refused."""
    _tries: "_Tries | None" = None
    """The attempts of this start at the piece in work."""
    _ambiguous_chunk = 0
    """The end of the last chunk that was refused AMBIGUOUS_ATTEMPTS times for a cause that may be the table's: it is cut at once."""
    _ambiguous_rows = 0
    """Consecutive rows, of this chunk and earlier ones, that were refused for such a cause."""
    _decided: tuple[int, Pieces] | None = None
    """The decision after the last insert, and the sequence of the plan of that insert."""

    def __init__(
        self,
        connections: Connections,
        chain: Chain[SinkPlan, SinkDone],
        tenure: Tenure,
        stop: Event,
        means: LegMeans = LEG_MEANS,
        cut: Callable[[Iterator[Message]], Iterator[Chunk]] = chunks,
    ) -> None:
        """Create without connecting. `cut`: frames into chunks."""
        super().__init__(connections, chain, tenure, stop, means)
        self._cut = cut

    def open_input(self) -> StreamInput:
        sink, connections = self.connections.config.sink, self.connections
        seconds = sink.max_delay_time.total_seconds()
        hold = Hold(sink.max_batch_size, seconds if connections.run.targets is None else min(seconds, CAUGHT_UP_DELAY_SECONDS))
        return StreamInput(connections.log, connections.names, self.name, connections.config.topology.upstream(self.name), hold)

    @property
    def _sink(self) -> Sink:
        return self.connections.sink

    @property
    def _max_rejected_percent(self) -> int:
        return 100 if self.connections.run.accepted_config else self.connections.config.on_error.max_rejected_percent

    def _start_offset(self) -> Offset:
        self._check_input()
        return {"sequence": self.chain.state.to or 0}

    def _check_input(self) -> None:
        done = self.chain.state.done
        check_input(self.connections.log, self._stream, done.body.input if done else None)

    def covers(self, end: Offset) -> bool:
        return (self.chain.state.to or 0) >= end["sequence"]

    @property
    def _stream(self) -> str:
        return self.connections.names.stream("out")

    def propose(self, end: Offset) -> SinkPlan:
        start = self.chain.state.to or 0
        self._check_input()
        chunk = self._next_chunk(start, end["sequence"])
        self._proposed = chunk
        config = self._config_of(chunk)
        if self.chain.state.done is None:
            self.chain.unless_overtaken(lambda: self._check_alone(0))
        return SinkPlan(start=start, to=chunk.last, config=config.version, table=config.full_table, rows=chunk.rows, digest=chunk.digest)

    def _config_of(self, chunk: Chunk) -> Program:
        """Return the configuration of the chunk's rows: they have its columns, whatever the file says now.

        Raise HaltError if the chunk is not of one configuration, or not for the table of this run's file.
        """
        versions = chunk.configs or {self.connections.run.stage_config}
        where = f"sending out sequences {chunk.first}-{chunk.last}"
        if len(versions) > 1 or "" in versions:
            raise HaltError(
                f"{where}: its frames do not name one configuration ({', '.join(sorted(versions))}). If an older release wrote them, start "
                "that release once with --until-caught-up. Otherwise find the foreign writer: only Tallyflow may write to its streams"
            )
        (version,) = versions
        config = config_of(self.connections, version)
        if config.full_table != self._table:
            raise HaltError(
                f"{where}: these rows were made for table {config.full_table}, the file of this run names {self._table}; nothing was sent. "
                f"{way_on(self.connections.names.pipeline)}"
            )
        return config

    @property
    def _table(self) -> str:
        return self._sink.target

    def _next_chunk(self, after: int, to: int) -> Chunk:
        """Return the first chunk of the waiting frames."""
        chunk = next(self._cut(self._frames(after, to)), None)
        if chunk is None:
            raise RetryableError(f"reading {self._stream}: NATS does not deliver sequence {after + 1} yet; retrying")
        check_contiguous(self._stream, [message.sequence for message in chunk.messages], after, chunk.last)
        return chunk

    def _planned_chunk(self, after: int, to: int) -> Chunk:
        """Return a chunk that an earlier start has planned, whatever the limits of its release were."""
        messages = tuple(self._frames(after, to))
        check_contiguous(self._stream, [message.sequence for message in messages], after, to)
        return Chunk(messages)

    def _frames(self, after: int, to: int) -> Iterator[Message]:
        return self.connections.log.fetch(self._stream, self.connections.names.subjects("out"), after, to)

    def execute(self, plan: Entry[SinkPlan]) -> SinkDone:
        # An earlier attempt may have amended the plan.
        plan = self.chain.state.plan or plan
        start, to = plan.body.start, plan.body.to
        chunk = self._proposed
        if chunk is None or chunk.first != start + 1 or chunk.last != to:
            chunk = self._planned_chunk(start, to)
        if chunk.digest != plan.body.digest:
            raise InvariantError(
                f"sending chunk {start + 1}-{to} of {self._stream} again: its rows differ from the planned rows (digest {chunk.digest}, "
                f"planned {plan.body.digest}); nothing was sent. Compare the table with the stream before you do anything else"
            )
        abandoned = abandoned_rows(plan.body.abandoned, chunk.rows)
        if abandoned is not None:
            return close_abandoned(self.connections, plan.body, chunk, abandoned)
        self._check_plan(plan.body, chunk)
        refused = self._settle(plan, chunk)
        if self.chain.state.done is None and self.connections.config.sink.delivery == "exactly_once":
            self.chain.unless_overtaken(lambda: self._check_alone(chunk.rows - len(refused)))
        outcome = closing(self.connections, plan.body, chunk, refused)
        self._seen = self._with_chunk(chunk).rest
        self._proposed, self._refused_here = None, Sample()
        return outcome

    def _check_alone(self, own: int) -> None:
        """Raise HaltError if a table that was empty holds more than the `own` rows of a sink without a `done`: another pipeline's rows.

        Two pipelines may both have found it empty at their start. Each counts again after its first insert, so at least one sees the
        other's rows.
        """
        if self.connections.config.sink.existing_rows == "keep":
            return
        now = config_of(self.connections, self.connections.run.stage_config)
        database, _, table = self._table.partition(".")
        count = self._sink.count_rows(database, table, "_tf_sequence" in now.position_columns)
        if count > own:
            raise HaltError(
                f"inserting the first chunk into {self._table}: it was empty when pipeline {self.connections.names.pipeline} started, and "
                f"now holds {count - own:,} rows of another writer. If that is another pipeline, records of both may be in the table "
                f"twice. {'Nothing was sent. ' if not own else ''}Stop both, empty the table, delete both (`tallyflow delete FILE "
                "--keep-table`) and start each with a table of its own. To keep the rows, set `existing_rows: keep` in the sink; "
                "audit, verify and the checks will report them as extra"
            )

    def _check_plan(self, plan: SinkPlan, chunk: Chunk) -> None:
        """Raise HaltError for a plan whose configuration or table differs from its rows'."""
        config = self._config_of(chunk)
        if chunk.rows and (plan.config, plan.table) != (config.version, config.full_table):
            raise HaltError(
                f"sending out sequences {chunk.first}-{chunk.last}: their plan names configuration {plan.config} and table {plan.table}, "
                f"the rows are of configuration {config.version} for {config.full_table}; nothing was sent. Only Tallyflow may write to "
                "its streams; `tallyflow plan abandon` closes the plan"
            )

    def _settle(self, plan: Entry[SinkPlan], chunk: Chunk) -> Refused:
        """Insert the rows of the chunk that the sink takes; return the refused ones. Each decision is on the ledger before its effect."""
        config = config_of(self.connections, plan.body.config)
        pieces = Pieces.of(plan.body.pieces, chunk.rows)
        if not pieces.ends:
            return pieces.refused
        rows = chunk_rows(chunk, self._insert_columns(config))
        while pieces.ends:
            if self._decided is None or self._decided[0] != plan.sequence:
                self._decided = (plan.sequence, self._attempt(plan, chunk, rows, pieces))
            # After an append of unknown outcome the same decision is appended again: another attempt at the insert might end otherwise.
            before, pieces = pieces, self._decided[1]
            if pieces.ends or pieces.refused != before.refused:
                plan = self.chain.amend(replace(plan.body, pieces=pieces.planned()))
                reach("sink.after-amend")
        return pieces.refused

    def _attempt(self, plan: Entry[SinkPlan], chunk: Chunk, rows: pa.Table, pieces: Pieces) -> Pieces:
        """Attempt one insert of the next piece; return the progress after its outcome."""
        if self._tries is None or self._tries.plan != plan.sequence:
            # An earlier runner may have sent the piece.
            self._tries = _Tries(plan.sequence, self.begun if plan.epoch != self.chain.state.epoch else None)
        tries = self._tries
        if tries.too_large is not None and tries.too_large_count >= AMBIGUOUS_ATTEMPTS:
            # Settle the piece before it is sent again; otherwise one of its inserts would always be on its way.
            return self._after_too_large(plan, chunk, rows, pieces, tries.too_large)
        try:
            self._insert(plan, chunk, rows, pieces)
        except RefusedError as refusal:
            return self._after_refusal(plan, chunk, rows, pieces, refusal)
        except InsertTooLargeError as error:
            if len(pieces.to_send()) > 1:
                tries.too_large, tries.too_large_count = error, tries.too_large_count + 1
            raise
        self._ambiguous_rows = 0
        return pieces.inserted()

    def _after_refusal(self, plan: Entry[SinkPlan], chunk: Chunk, rows: pa.Table, pieces: Pieces, refusal: RefusedError) -> Pieces:
        assert self._tries is not None
        if not refusal.is_known and self._ambiguous_chunk != chunk.last:
            self._tries.ambiguous += 1
            if self._tries.ambiguous < AMBIGUOUS_ATTEMPTS:
                raise RetryableError(f"inserting a chunk: {refusal}; retrying the same chunk with its token before it is cut") from refusal
            self._ambiguous_chunk = chunk.last
        if self.connections.config.sink.delivery == "exactly_once":
            stored = self._stored(plan, chunk, rows, pieces, str(refusal), refusal.is_whole)
            if len(stored):
                self._check_no_view(plan, refusal)
                return pieces.found(stored)
        row = int(pieces.to_send()[0])
        after = pieces.refuse(refusal.of_one_row, refusal.row)
        if after.refused != pieces.refused:
            self._check_refused(plan, chunk, row, refusal)
            self._check_ambiguous(plan, chunk, pieces, refusal)
        return after

    def _after_too_large(self, plan: Entry[SinkPlan], chunk: Chunk, rows: pa.Table, pieces: Pieces, error: InsertTooLargeError) -> Pieces:
        """Cut the piece, unless its rows are in the table.

        Raise RetryableError if the table cannot tell, or if a view may lack the rows.
        """
        assert self._tries is not None
        if self.connections.config.sink.delivery == "at_least_once":
            return pieces.cut()
        try:
            stored = self._stored(plan, chunk, rows, pieces, str(error), is_certain=False)
        except HaltError as halt:
            self._tries.too_large_count = 0
            raise RetryableError(f"{halt}. Or raise `max_insert_time` in the sink") from error
        if not len(stored):
            return pieces.cut()
        database, _, name = plan.body.table.partition(".")
        if self._sink.views_on(database, name):
            self._tries.too_large_count = 0
            raise RetryableError(
                f"{error}. The chunk is not cut: the table holds rows of it that a materialized view may lack. "
                "Raise `max_insert_time` in the sink, or detach the view"
            ) from error
        return pieces.found(stored)

    def _stored(self, plan: Entry[SinkPlan], chunk: Chunk, rows: pa.Table, pieces: Pieces, outcome: str, is_certain: bool) -> Rows:
        """Return the rows of the next piece that are in the table, by their numbers in the chunk."""
        assert self._tries is not None
        sending = pieces.to_send()
        age = None if self._tries.since is None else self.means.clock() - self._tries.since
        sent = Sent(plan.body.table, rows.take(sending), self._work(chunk), age, outcome)
        found: Rows = sending[stored_rows(self._sink, sent, self.connections.config.sink.max_insert_time, is_certain)]
        return found

    def _work(self, chunk: Chunk) -> str:
        return inserts_of_chunk(self.connections.names.pipeline, self.connections.run.stream_ids["out"], chunk.first, chunk.last)

    def _check_no_view(self, plan: Entry[SinkPlan], refusal: RefusedError) -> None:
        """Raise HaltError if the table that holds rows of a refused piece feeds views: these have not seen the rows (measured, 26.9)."""
        database, _, name = plan.body.table.partition(".")
        views = self._sink.views_on(database, name)
        if views:
            raise HaltError(
                f"inserting a chunk into {plan.body.table}: {refusal}. Rows of the chunk are in the table, and its materialized views "
                f"({', '.join(view.full_name for view in views)}) may lack them. Correct the table so that it takes the rows and start "
                "again: the same chunk is sent with its token, and the views get the missing rows. Or detach the views, start, and fill "
                "them from the table"
            ) from refusal

    def _check_ambiguous(self, plan: Entry[SinkPlan], chunk: Chunk, pieces: Pieces, refusal: RefusedError) -> None:
        """Raise HaltError if row after row is refused for a cause that may be the table's, and none is taken."""
        of_chunk = len(pieces.refused) if pieces.sent == len(pieces.refused) else 0
        if not refusal.is_known and max(self._ambiguous_rows, of_chunk) >= MAX_AMBIGUOUS_ROWS:
            raise HaltError(
                f"inserting chunk {chunk.first}-{chunk.last} into {plan.body.table}: the table refuses row after row and takes none, "
                f"with: {refusal}. Compare the table with the mapping, correct one of them and start again; the chunk waits"
            ) from refusal
        self._ambiguous_rows += not refusal.is_known
        if len(pieces.refused) >= MAX_REFUSED_IN_PLAN:
            raise HaltError(
                f"inserting chunk {chunk.first}-{chunk.last} into {plan.body.table}: {MAX_REFUSED_IN_PLAN} of its rows are refused, "
                f"more than its plan can name, the last with: {refusal}. Correct the table or the mapping and start again; the chunk waits"
            ) from refusal

    def _check_refused(self, plan: Entry[SinkPlan], chunk: Chunk, row: int, refusal: RefusedError) -> None:
        """Raise HaltError if a refused row must not become a dead letter: the next start sends it again."""
        name, reason = fingerprint("sink", "refused", "", refusal.of_one_row), f"sink: refused: {refusal.of_one_row}"
        known = self._refused_here.causes.get(name)
        cause = Cause(name, reason, known.example if known else describe_row(chunk, row), 1)
        if self.connections.config.on_error.rejected == "halt":
            raise halt_for(reason, cause.example) from refusal
        self._refused_here = self._refused_here.plus(0, [cause])
        self._with_chunk(chunk).check(self._max_rejected_percent, MEND)
        if sum(each.records for each in self._refused_here.causes.values()) > MAX_REFUSED_ROWS:
            raise HaltError(
                f"inserting chunk {chunk.first}-{chunk.last} into {plan.body.table}: more than {MAX_REFUSED_ROWS} of its rows are "
                f"refused, the last with: {refusal}. So many rows point at the table or the mapping: correct it and start again. "
                "Rows refused so far stay dead letters; the rest of the chunk is inserted"
            ) from refusal

    def _with_chunk(self, chunk: Chunk) -> Sample:
        return self._seen.plus(chunk.rows, self._refused_here.causes.values())

    def _insert(self, plan: Entry[SinkPlan], chunk: Chunk, rows: pa.Table, pieces: Pieces) -> None:
        """Attempt one insert.

        A sink cannot fence a late insert, so none starts if another runner may soon take over.
        """
        # First, because its answer may take long; the lease is checked after it.
        self._check_columns(config_of(self.connections, plan.body.config), rows)
        if self.tenure.remaining_seconds <= INSERT_MAX_EXECUTION_SECONDS:
            raise RetryableError("inserting a chunk: waiting for the lease to be renewed (NATS is slow or away)")
        stream_id = self.connections.run.stream_ids["out"]
        of_chunk = insert_token(self.connections.names.pipeline, stream_id, plan.body.table, chunk.first, chunk.last, chunk.digest)
        is_whole = len(sending := pieces.to_send()) == rows.num_rows
        block = insert_block(rows if is_whole else rows.take(sending))
        token = pieces.token(of_chunk, chunk.rows)
        seconds = math.ceil(self.connections.config.sink.max_insert_time.total_seconds())
        reach("sink.before-insert")
        try:
            self._sink.insert(plan.body.table, rows.column_names, block, token, seconds, self._work(chunk))
        except (RetryableError, HaltError):
            if self._tries is not None:
                self._tries.since = self.means.clock()
            raise
        reach("sink.after-insert")

    def _insert_columns(self, config: Program) -> list[str]:
        """Return the columns of the mapping under which the rows were made, and the position columns that this run has found in the table.

        Every other column of the table takes its DEFAULT.
        """
        now = config_of(self.connections, self.connections.run.stage_config)
        return [*(target.name for target in config.targets), *now.position_columns]

    def _check_columns(self, config: Program, rows: pa.Table) -> None:
        """Raise HaltError if the rows, made under `config`, do not fit the table as it is now; called before every insert.

        If the table is missing, the sink refuses the insert.
        """
        check_arrow_types(config, rows)
        columns = self._sink.columns(config.database, config.table)
        nulls = [name for name in rows.column_names if rows.column(name).null_count]
        position_columns = [name for name in rows.column_names if name in POSITION_COLUMNS]
        faults = misfits(config, position_columns, columns, nulls) if columns else []
        if faults:
            raise HaltError(
                f"inserting a chunk into {config.full_table}: the table was altered and no longer takes the rows that were made "
                f"under configuration {config.version}: {'; '.join(faults)}. Nothing of the chunk was sent. "
                f"{way_on(self.connections.names.pipeline)}"
            )
