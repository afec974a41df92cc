"""The sink leg: out frames to the sink's table in chunks, which are planned and confirmed on the ledger. `attempts` has the inserts."""

from collections.abc import Callable, Iterator
from threading import Event

from pipelines.connectors.nats.contiguous import check_contiguous
from pipelines.connectors.sinks import Sink
from pipelines.engine.backlog import Backlog
from pipelines.engine.connections import Connections
from pipelines.engine.inputs import Hold, Offset, StreamInput
from pipelines.engine.leg import LEG_MEANS, Leg, LegMeans, Tenure, check_input, fetch_behind
from pipelines.errors import HaltError, RetryableError
from pipelines.process.program import Program
from pipelines.process.stage_config import config_of
from pipelines.protocol.bodies import InputMark, PlannedPieces, SinkDone, SinkPlan
from pipelines.protocol.ledger import Chain, Entry
from pipelines.protocol.records import Message
from pipelines.rollups.feeds import rollups_of
from pipelines.sink.abandoned import abandoned_rows, close_abandoned, closing
from pipelines.sink.attempts import Attempts
from pipelines.sink.chunks import Chunk, chunks
from pipelines.sink.fit import way_on
from pipelines.sink.inserts import check_digest, insert_columns
from pipelines.sink.parts import in_parts
from pipelines.sink.rollups import RollupFeeds
from pipelines.sink.settling import why_unknown

BEHIND_DELAY_SECONDS = 1.0
"""Least interval between inserts that are not full while a backlog is read: ClickHouse's manual advises one insert per second.

https://clickhouse.com/docs/optimize/bulk-inserts
"""
CAUGHT_UP_DELAY_SECONDS = 0.05
"""Limit of the delay in a run that ends once it is caught up."""


class SinkLeg(Leg[SinkPlan, SinkDone]):
    """The sink leg; its offset is {"sequence": last out sequence}. A plan is one chunk."""

    _proposed: Chunk | None = None
    _input: StreamInput | None = None

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
        self._attempts = self._made_attempts()
        self._rollups = RollupFeeds(connections, tenure) if rollups_of(connections.config) else None

    def _made_attempts(self) -> Attempts:
        return Attempts(self.connections, self.chain, self.tenure, self.means.clock, lambda: self.begun)

    def open_input(self) -> StreamInput:
        log, names, clock = self.connections.log, self.connections.names, self.means.clock
        topology = self.connections.config.topology
        upstream, is_behind = topology.upstream(self.name), Backlog(log, names, topology.ingests, clock).is_read
        self._input = StreamInput(log, names, self.name, upstream, self._hold(), clock, self._fill_when_idle, is_behind)
        return self._input

    def _hold(self) -> Hold:
        sink = self.connections.config.sink
        seconds = sink.max_delay_time.total_seconds()
        if self.connections.run.targets is not None:
            seconds = min(seconds, CAUGHT_UP_DELAY_SECONDS)
        return Hold(sink.max_batch_size, seconds, BEHIND_DELAY_SECONDS)

    def take_settings(self, settings: str) -> None:
        super().take_settings(settings)
        if self._input is not None:
            self._input.hold = self._hold()

    def between_plans(self) -> None:
        self._feed_rollups()

    def _fill_when_idle(self) -> bool:
        return self._rollups is not None and not self._rollups.is_settled and self._feed_rollups()

    def _feed_rollups(self) -> bool:
        """Let the rollups have their views and the next part of earlier rows; return True if more of these can be filled in now."""
        if self._rollups is None or self.chain.state.plan is not None:
            return False
        self._rollups.ensure()
        has_filled = self._rollups.fill(self.chain.state.to or 0)
        self.status.warning = self._rollups.left
        return has_filled and bool(self._rollups.left)

    @property
    def _sink(self) -> Sink:
        return self.connections.sink

    def _start_offset(self) -> Offset:
        check_input(self.connections.log, self._stream, self._input_mark)
        return {"sequence": self.chain.state.to or 0}

    @property
    def _input_mark(self) -> InputMark | None:
        return self.chain.state.done.body.input if self.chain.state.done else None

    def covers(self, end: Offset) -> bool:
        return (self.chain.state.to or 0) >= end["sequence"]

    @property
    def _stream(self) -> str:
        return self.connections.names.stream(self.connections.out)

    def propose(self, end: Offset) -> SinkPlan:
        start = self.chain.state.to or 0
        chunk, ends = self._next_chunk(start, end["sequence"])
        self._proposed = chunk
        config = self._config_of(chunk)
        if self.chain.state.done is None:
            self.chain.unless_overtaken(lambda: self._check_alone(0))
        return SinkPlan(
            start=start,
            to=chunk.last,
            config=config.version,
            table=config.full_table,
            rows=chunk.rows,
            digest=chunk.digest,
            pieces=PlannedPieces(0, ends) if len(ends) > 1 else None,
        )

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
                f"{way_on(self.connections.names.pipeline, self.connections.config.topology.option(self.name))}"
            )
        return config

    @property
    def _table(self) -> str:
        return self._sink.target

    def _next_chunk(self, after: int, to: int) -> tuple[Chunk, tuple[int, ...]]:
        """Return the first chunk of the waiting frames, and the ends of its pieces: one, unless lanes may insert some."""
        waiting = self._cut(self._frames(to))
        first = next(waiting, None)
        if first is None:
            raise RetryableError(f"reading {self._stream}: NATS does not deliver sequence {after + 1} yet; retrying")
        parts = self.connections.lanes.parts_for(first.rows)
        chunk, ends = in_parts(first, waiting, parts if parts > 1 and self._may_be_in_parts() else 1, self._cut)
        check_contiguous(self._stream, [message.sequence for message in chunk.messages], after, chunk.last)
        return chunk, ends

    def _may_be_in_parts(self) -> bool:
        """Return True if the table can tell which rows it holds, or need not: only then may several inserts be refused at once."""
        if self.connections.config.sink.delivery == "at_least_once":
            return True
        now = config_of(self.connections, self.connections.run.stage_config)
        table = self._sink.inspect(now.database, now.table)
        return table is not None and not why_unknown(insert_columns(self.connections, now), table)

    def _planned_chunk(self, after: int, to: int) -> Chunk:
        """Return a chunk that an earlier start has planned, whatever the limits of its release were."""
        messages = tuple(self._frames(to))
        check_contiguous(self._stream, [message.sequence for message in messages], after, to)
        return Chunk(messages)

    def _frames(self, to: int) -> Iterator[Message]:
        return fetch_behind(self.connections.log, self._input_mark, self._stream, self.connections.names.subjects(self.connections.out), to)

    def execute(self, plan: Entry[SinkPlan]) -> SinkDone:
        # An earlier attempt may have amended the plan.
        plan = self.chain.state.plan or plan
        start, to = plan.body.start, plan.body.to
        chunk = self._proposed
        if chunk is None or chunk.first != start + 1 or chunk.last != to:
            chunk = self._planned_chunk(start, to)
        check_digest(chunk, self._stream, plan.body.digest)
        abandoned = abandoned_rows(plan.body.abandoned, chunk.rows)
        if abandoned is not None:
            return close_abandoned(self.connections, plan.body, chunk, abandoned)
        self._check_plan(plan.body, chunk)
        refused = self._attempts.settle(plan, chunk)
        if self.chain.state.done is None and self.connections.config.sink.delivery == "exactly_once":
            self.chain.unless_overtaken(lambda: self._check_alone(chunk.rows - len(refused)))
        outcome = closing(self.connections, plan.body, chunk, refused)
        self._attempts.limits.note_closed(chunk)
        self._proposed = None
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
