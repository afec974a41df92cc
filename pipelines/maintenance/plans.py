"""Open plans of the legs: their facts, and the abandonment of rows of the sink that cannot be delivered.

Abandoned rows become dead letters of the sink with the code `abandoned`: they are counted, may be redriven, and no row of them is ever
inserted. Their numbers are in the plan before the first dead letter is written, so that every later runner finishes exactly this plan.
Process and ingest plans cannot be abandoned: the effects of a range of process are known to its own replay alone, and offsets that ingest
has not read are no records yet, so no dead letter could hold them.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.config import PipelineConfig
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.nats.contiguous import check_contiguous
from pipelines.connectors.sinks import Sink, open_sink
from pipelines.engine.connections import Connections
from pipelines.engine.run_spec import RunSpec
from pipelines.errors import HaltError, InvariantError, RetryableError
from pipelines.protocol.bodies import ProcessPlan, SinkPlan
from pipelines.protocol.existence import check_started
from pipelines.protocol.failpoints import reach
from pipelines.protocol.lease import INSERT_MAX_EXECUTION_SECONDS, Lease
from pipelines.protocol.ledger import Chain, ChainState, Done, Entry, Plan, read_chain
from pipelines.protocol.naming import STREAM_ID_KEY, Names, inserts_of_chunk
from pipelines.protocol.records import HEADER_FIRST, HEADER_LAST, decode_columns
from pipelines.protocol.topology import LegId, Topology
from pipelines.sink.abandoned import Numbers, abandoned_rows, abandonment, close_abandoned
from pipelines.sink.chunks import Chunk, Pieces, Rows, chunks
from pipelines.sink.settling import NEEDED_COLUMNS, Sent, stored_rows
from pipelines.sink.waiting import headers

Announce = Callable[[str], None]


@dataclass(frozen=True)
class OpenPlan:
    """The open plan of a leg. `begin` and `to` as the leg counts: offsets by partition, or the sequence before the first, and the last.

    `config`, `table`, `rows`: as far as the leg names them. For the sink: the number of its `settled` rows (in the table or refused)
    according to the ledger, `refused` and `abandoned` ones; `pieces` that are still to be sent.
    """

    leg: LegId
    begin: Any
    to: Any
    since: datetime
    config: str = ""
    table: str = ""
    rows: int | None = None
    settled: int = 0
    refused: int = 0
    pieces: int = 0
    abandoned: int = 0


def open_plans(log: JetStream, names: Names, topology: Topology) -> list[OpenPlan]:
    """Return the open plan of each leg that has one, in the order of the data. Raise HaltError for a pipeline that was never started."""
    check_started(log, names)
    states = {leg: read_chain(log, names, leg.chain) for leg in topology.legs}
    return [_described(log, names, leg, state, state.plan) for leg, state in states.items() if state.plan is not None]


def _described(log: JetStream, names: Names, leg: LegId, state: ChainState[Plan, Done], plan: Entry[Plan]) -> OpenPlan:
    body, after = plan.body, state.done.sequence if state.done else 0
    entries = log.fetch(names.stream("ledger"), names.chain(leg), after, plan.sequence)
    since = next(message.time for message in entries if leg.chain.decode(message).kind == Plan.KIND)
    open_plan = OpenPlan(leg, body.start, body.to, since)
    if isinstance(body, ProcessPlan):
        return replace(open_plan, config=body.config)
    if not isinstance(body, SinkPlan):
        return open_plan
    pieces = Pieces.of(body.pieces, body.rows)
    of_chunk = replace(
        open_plan, config=body.config, table=body.table, rows=body.rows, abandoned=body.abandoned.rows if body.abandoned else 0
    )
    return replace(of_chunk, settled=pieces.settled, refused=len(pieces.refused), pieces=len(pieces.ends))


@dataclass(frozen=True)
class GivenUp:
    """The rows to abandon: `rows`, of them `waiting` ones that were never sent, in out sequences `first`..`last` (inclusive; 0 if none).

    In the open plan `stored` rows were found in `table` and stay, `refused` ones are dead letters anyway. `positions`: the first and the
    last raw position of each bucket's part, in words.
    """

    rows: int
    waiting: int
    stored: int
    refused: int
    first: int
    last: int
    table: str
    positions: tuple[str, ...]


@dataclass(frozen=True)
class Reached:
    """What an abandonment reaches: NATS, the sink of `leg`, and the connections with which dead letters are written.

    `lease` makes the lease of `leg`.
    """

    leg: LegId
    log: JetStream
    sink: Sink
    connections: Connections
    lease: Callable[[], Lease]


def reached(config: PipelineConfig, config_text: str, leg: LegId, directory: Path) -> Reached:
    """Connect to what an abandonment of rows of a sink leg reaches; `directory` is the pipeline's on this host."""
    log, seen = JetStream.of(config).connect(), config.seen_from(leg)
    connections = Connections(RunSpec.beside(config_text, config), keep_partitions=True, log=log, config=seen)

    def lease() -> Lease:
        directory.mkdir(parents=True, exist_ok=True)
        return Lease(log, Names(config.pipeline_id), directory, leg)

    return Reached(leg, log, open_sink(seen), connections, lease)


class Abandonment:
    """The abandonment of rows of a sink. It holds the sink's lease from the beginning until `close`.

    Raise FencedError while a runner has the sink, HaltError for a pipeline that was never started.
    """

    def __init__(
        self,
        config: PipelineConfig,
        reached: Reached,
        announce: Announce,
        wait: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink_config, self._names = config.seen_from(reached.leg).sink, Names(config.pipeline_id)
        self._announce, self._wait, self._clock = announce, wait, clock
        self._log, self._sink, self._connections = reached.log, reached.sink, reached.connections
        assert reached.leg.reads is not None
        self._out = reached.leg.reads
        with ExitStack() as opened:
            for connection in (self._log, self._connections, self._sink):
                opened.callback(connection.close)
            check_started(self._log, self._names)
            lease = reached.lease()
            epoch = lease.acquire()
            opened.callback(lease.release)
            self._chain = Chain(self._log, self._names, reached.leg.chain, epoch)
            self._chain.open()
            self._began = clock()
            state = self._log.state(self._names.stream(self._out))
            self._end = state.last_sequence if state else 0
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def find(self, with_waiting: bool, is_not_stored: bool) -> GivenUp:
        """Find the rows that `run` would abandon: rows of the open plan that are not in the table, and all waiting rows if `with_waiting`.

        `is_not_stored`: the operator has verified that the table holds none of the plan's rows; needed if it has no position columns. The
        call waits until no insert of an earlier runner can be running. Raise HaltError if the rows cannot be identified.
        """
        return self._chain.unless_overtaken(lambda: self._find(with_waiting, is_not_stored))

    def _find(self, with_waiting: bool, is_not_stored: bool) -> GivenUp:
        self._chunk, self._given_up = None, np.zeros(0, dtype=np.intp)
        stored = refused = 0
        plan = self._chain.state.plan
        if plan is not None:
            self._chunk = self._planned(plan.body)
            self._given_up, stored, refused = self._split(plan.body, self._chunk, is_not_stored)
        out = self._names.stream(self._out)
        behind = self._chunk.last if self._chunk else self._chain.state.to or 0
        self._with_waiting = with_waiting
        waiting = [frame for frame in headers(self._log, out, behind, self._end) if with_waiting and frame.rows]
        frames = [*(self._chunk.messages if self._chunk and len(self._given_up) else ()), *waiting]
        count = sum(frame.rows for frame in waiting)
        bounds: dict[str, tuple[str, str]] = {}
        for frame in (frame for frame in frames if frame.rows):
            first, _ = bounds.get(frame.subject, (frame.headers[HEADER_FIRST], ""))
            bounds[frame.subject] = (first, frame.headers[HEADER_LAST])
        return GivenUp(
            rows=len(self._given_up) + count,
            waiting=count,
            stored=stored,
            refused=refused,
            first=frames[0].sequence if frames else 0,
            last=frames[-1].sequence if frames else 0,
            table=plan.body.table if plan else "",
            positions=tuple(f"{first}..{last}" for first, last in bounds.values()),
        )

    def run(self, reason: str) -> int:
        """Abandon the rows of `find`; return their number. Safe to kill: the sink, or a repetition, finishes what was decided."""
        return self._chain.unless_overtaken(lambda: self._run(reason))

    def _run(self, reason: str) -> int:
        count = 0
        plan = self._chain.state.plan
        if plan is not None and self._chunk is not None:
            if plan.body.abandoned is None:
                plan = self._chain.amend(replace(plan.body, abandoned=abandonment(self._given_up, self._chunk.rows, reason)))
                reach("plan.after-amend")
            count += self._closed(plan.body, self._chunk)
        if self._with_waiting:
            for chunk in self._waiting_chunks(self._chain.state.to or 0):
                version = next(iter(chunk.configs), "")
                given_up = abandonment(np.arange(chunk.rows), chunk.rows, reason)
                body = SinkPlan(
                    start=self._chain.state.to or 0,
                    to=chunk.last,
                    config=version,
                    rows=chunk.rows,
                    digest=chunk.digest,
                    abandoned=given_up,
                )
                count += self._closed(self._chain.plan(body).body, chunk)
        return count

    def _closed(self, plan: SinkPlan, chunk: Chunk) -> int:
        abandoned = abandoned_rows(plan.abandoned, chunk.rows) or ()
        done = close_abandoned(self._connections, plan, chunk, abandoned)
        reach("plan.after-letters")
        self._chain.done(done)
        return len(abandoned)

    def _waiting_chunks(self, after: int) -> Iterator[Chunk]:
        stream = self._names.stream(self._out)
        for chunk in chunks(self._log.fetch(stream, self._names.subjects(self._out), after, self._end)):
            check_contiguous(stream, [message.sequence for message in chunk.messages], after, chunk.last)
            after = chunk.last
            yield chunk

    def _planned(self, plan: SinkPlan) -> Chunk:
        start, to, stream = plan.start, plan.to, self._names.stream(self._out)
        messages = tuple(self._log.fetch(stream, self._names.subjects(self._out), start, to))
        check_contiguous(stream, [message.sequence for message in messages], start, to)
        chunk = Chunk(messages)
        if chunk.digest != plan.digest:
            raise InvariantError(
                f"giving up out sequences {start + 1}-{to}: they are not what was planned (digest {chunk.digest}, planned "
                f"{plan.digest}); nothing was changed. Compare the table with the stream before anything else is done"
            )
        return chunk

    def _split(self, plan: SinkPlan, chunk: Chunk, is_not_stored: bool) -> tuple[Numbers, int, int]:
        """Return (numbers of the plan's rows to abandon, number of other rows that are stored, number of refused ones)."""
        refused = [row for row, _ in Pieces.of(plan.pieces, chunk.rows).refused]
        before = abandoned_rows(plan.abandoned, chunk.rows)
        if before is not None:
            # An earlier command has decided it.
            return np.array([row for row, _ in before], dtype=np.intp), chunk.rows - len(before) - len(refused), len(refused)
        is_left = np.ones(chunk.rows, dtype=bool)
        is_left[refused] = False
        is_left &= ~self._is_stored(plan, chunk, is_not_stored)
        given_up = np.flatnonzero(is_left)
        return given_up, chunk.rows - len(given_up) - len(refused), len(refused)

    def _is_stored(self, plan: SinkPlan, chunk: Chunk, is_not_stored: bool) -> np.ndarray:
        """Return the mask of the chunk's rows that the table holds, by their positions.

        If it has no position columns, `is_not_stored` is trusted.
        """
        if not chunk.rows:
            return np.zeros(0, dtype=bool)
        database, _, table = plan.table.partition(".")
        columns = {column.name for column in self._sink.columns(database, table)}
        if not columns or (is_not_stored and not columns.issuperset(NEEDED_COLUMNS)):
            # A dropped table has no rows.
            return np.zeros(chunk.rows, dtype=bool)
        if not columns.issuperset(NEEDED_COLUMNS):
            raise HaltError(
                f"giving up a plan of table {plan.table}: it has not the columns {', '.join(NEEDED_COLUMNS)}, so nobody "
                f"can tell by position which of the {chunk.rows:,} rows it holds already. Look yourself: if none is there, say "
                "--not-stored; else delete those that are, and say it then"
            )
        rows = pa.concat_tables([decode_columns(frame.payload, NEEDED_COLUMNS) for frame in chunk.messages if frame.rows])
        out = self._log.state(self._names.stream(self._out))
        stream_id = out.metadata[STREAM_ID_KEY] if out else ""
        work = inserts_of_chunk(self._names.pipeline, stream_id, chunk.first, chunk.last)
        most = self._sink_config.max_insert_time

        def look() -> Rows:
            sent = Sent(plan.table, rows, work, self._clock() - self._began, "the plan is given up")
            return stored_rows(self._sink, sent, most, is_certain=False)

        is_stored = np.zeros(chunk.rows, dtype=bool)
        is_stored[self._patiently(look)] = True
        return is_stored

    def _patiently(self, look: Callable[[], Rows]) -> Rows:
        """Return the result of `look`, once no insert of an earlier runner can be running.

        Raise its RetryableError if that takes too long.
        """
        deadline = self._began + max(INSERT_MAX_EXECUTION_SECONDS, self._sink_config.max_insert_time.total_seconds()) + 1
        while True:
            try:
                return look()
            except RetryableError as waiting:
                if self._clock() > deadline:
                    raise
                self._announce(str(waiting))
                self._wait(0.5)
