"""Puts rows back that the sink has confirmed and the table has lost, as they were made (`lost_rows`).

In: the positions that a verification finds missing. Out: their rows in the table, each once, and a second verification.

It never doubles a row. Only positions that the sink has confirmed are touched; the sink never sends them again. Each block is sent after a
lookup of its positions in the table. One command at a time holds the lease `put-back`, and waits until no insert of an earlier command can
be running. It may be killed at any time and repeated. It changes nothing on the ledger: the rows are counted there already.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipelines.config import PipelineConfig
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.clickhouse.removal import removes_rows
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sinks import Table
from pipelines.counts import count_of
from pipelines.errors import HaltError, NotSupportedError, RefusedError, RetryableError
from pipelines.process.arrivals import FRAMES_PER_STEP
from pipelines.process.program import Program
from pipelines.progress import Progress, no_progress
from pipelines.proof.lost_rows import LostRows, Target, are_stored
from pipelines.proof.verification.result import Verification
from pipelines.proof.verification.run import Request, Subject, Verifier, verify_sink
from pipelines.protocol.bodies import REPROCESS_CHAIN
from pipelines.protocol.failpoints import reach
from pipelines.protocol.lease import INSERT_MAX_EXECUTION_SECONDS, Lease
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import PUT_BACK, STREAM_ID_KEY, Names
from pipelines.protocol.positions import NO_POSITIONS, RawPositions, position_keys, position_text, sequences_of
from pipelines.protocol.purge import purge_lease
from pipelines.sink.fit import misfits
from pipelines.sink.inserts import insert_block, with_owner

QUIET_SECONDS = float(INSERT_MAX_EXECUTION_SECONDS)
"""Longest time that an insert of a killed command may be on its way to ClickHouse."""
_LOOK_EVERY_SECONDS = 0.5


@dataclass(frozen=True)
class PutBack:
    """The result: `before` found `missing` rows; `rows` were inserted, fewer if another writer had put some back meanwhile.

    `after` is the second verification; `before` itself if nothing was missing.
    """

    before: Verification
    missing: int
    rows: int
    after: Verification


def put_back(
    config: PipelineConfig,
    log: JetStream,
    request: Request,
    feed_views: bool = False,
    progress: Progress = no_progress,
    frames_per_insert: int = FRAMES_PER_STEP,
) -> PutBack:
    """Verify the range of `request`, put back the rows that the sink's table lacks, and verify again. It may run beside the pipeline.

    `feed_views`: continue although materialized views get the rows once more. `frames_per_insert`: the most raw frames of one insert. Raise
    HaltError for a table whose rows cannot be put back (no position columns, other columns, rows that it removes by itself, views), for a
    pipeline that was never started, and, after the others are back, for rows that no stream holds any more. Raise FencedError while another
    command is at work. Raise RetryableError while a system is away: inserted rows stay, and the same call continues.
    """
    verifier = Verifier(config, log, request, progress)
    subject = verifier.subject()
    verifier.compare(subject)
    before, missing = verifier.report, verifier.missing
    if subject is None or not len(missing):
        if subject is not None and not subject.has_positions and before.findings:
            raise HaltError(
                f"putting rows back into {before.table}: it has no position columns, so the missing rows are unknown; give the table the "
                "position columns (docs/clickhouse.md)"
            )
        return PutBack(before, 0, 0, before)
    with closing(ClickHouse(config.sink)) as clickhouse:
        _check_table(config, clickhouse, before, feed_views)
        targets = [_target(clickhouse, subject.configs[version], part) for part, version in _parts(subject, missing)]
        names = Names(config.pipeline_id)
        with _lease(names, log, request) as lease:
            _check_nothing_is_remade(log, names, before.table)
            wait_until_quiet(clickhouse, _work(names), config.sink.max_insert_time.total_seconds(), progress)
            inserts = _Inserts(config, log, clickhouse, lease, progress)
            lost = LostRows(log, names, subject, frames_per_insert)
            rows = sum(inserts.insert(target, portion) for target in targets for portion in lost.portions(target))
        if are_stored(subject.config):
            _check_all_were_found(missing, inserts.found, rows, before.table)
    return PutBack(before, len(missing), rows, verify_sink(config, log, request, progress))


def _check_table(config: PipelineConfig, clickhouse: ClickHouse, before: Verification, feed_views: bool) -> None:
    database, name = config.sink.connection_params.database, config.sink.table
    if any(transform.config.makes_several for transform in config.transforms):
        raise NotSupportedError(
            f"putting rows back into {before.table}: rows of a function that makes several of a record are not supported yet; nothing was "
            "inserted. `tallyflow verify` names the records: restore the table from a backup, or send them to their topic once more"
        )
    table = clickhouse.inspect(database, name)
    removes = removes_rows(table) if table else ""
    if removes:
        raise HaltError(
            f"putting rows back into {before.table}: {removes} removes rows, and would remove these again; nothing was inserted. Remove it "
            "from the table first"
        )
    views = [view.full_name for view in clickhouse.views_on(database, name)]
    if views and not feed_views:
        raise HaltError(
            f"putting rows back into {before.table}: the materialized views {', '.join(views)} would get the rows again; nothing was "
            "inserted. If the views lack the rows, too, set feed_views. Otherwise detach the views, put the rows back, and attach the "
            "views again"
        )


def _parts(subject: Subject, missing: RawPositions) -> Iterator[tuple[RawPositions, str]]:
    """Yield the positions by the configuration under which their rows were made, in order.

    Rows that are stored say so themselves: what their frames hold is looked for under each.
    """
    if are_stored(subject.config):
        yield from ((missing, version) for version in subject.configs)
        return
    sequences = sequences_of(missing)
    for first, last, version in subject.history.rows_made(int(sequences[0]), int(sequences[-1])):
        part = missing[(sequences >= first) & (sequences <= last)]
        if len(part):
            yield part, version


def _target(clickhouse: ClickHouse, config: Program, missing: RawPositions) -> Target:
    """Return the positions with their table. Raise HaltError if the table does not take the rows as they were made."""
    table = clickhouse.inspect(config.database, config.table)
    if table is None:
        raise HaltError(f"putting rows back into {config.full_table}: the table does not exist; restore it first")
    if not are_stored(config):
        _check_columns(config, table)
    return Target(config, table, missing)


def _check_all_were_found(missing: RawPositions, found: RawPositions, rows: int, table: str) -> None:
    gone = np.setdiff1d(missing, found)
    if len(gone):
        raise HaltError(
            f"putting rows back into {table}: {rows:,} are back; the rows of {count_of(len(gone), 'other record')} (the first: raw "
            f"{position_text(int(gone[0]))}) were purged from the stream that the sink has read. Restore them from a backup, or send these "
            "records to their topic once more"
        )


def _check_columns(config: Program, table: Table, nulls: Sequence[str] = ()) -> None:
    faults = misfits(config, config.position_columns, table.columns, nulls)
    if faults:
        raise HaltError(
            f"putting rows back into {config.full_table}: its columns differ from those that the rows were made for: {'; '.join(faults)}; "
            "restore the columns first"
        )


@contextmanager
def _lease(names: Names, log: JetStream, request: Request) -> Iterator[Lease]:
    lease = Lease(log, names, request.directory, PUT_BACK)
    lease.acquire()
    try:
        purge_lease(log, names, PUT_BACK)
        yield lease
    finally:
        lease.release()


def _check_nothing_is_remade(log: JetStream, names: Names, table: str) -> None:
    plan = read_chain(log, names, REPROCESS_CHAIN).plan
    if plan is not None:
        raise HaltError(
            f"putting rows back into {table}: the rows of raw {plan.body.first}..{plan.body.last} are out of the table to be made anew; "
            "nothing was inserted. Finish that with `tallyflow apply FILE --reprocess` first"
        )


def wait_until_quiet(clickhouse: ClickHouse, work: str, longest_seconds: float, progress: Progress) -> None:
    """Wait until no statement of a killed command, named `work`, can be running: its effect must be in the table before the first lookup.

    `longest_seconds`: the longest an insert can take, for a server that does not list its inserts.
    """
    time.sleep(QUIET_SECONDS)
    while at_work := clickhouse.inserts_at_work(work):
        progress(f"waiting for {at_work} statements of an earlier command that ClickHouse still runs")
        time.sleep(_LOOK_EVERY_SECONDS)
    if at_work is None:
        time.sleep(max(0.0, longest_seconds - QUIET_SECONDS))


def _work(names: Names) -> str:
    """Return the name of the inserts of these commands in `system.processes`."""
    return f"tallyflow {names.pipeline} {PUT_BACK}"


class _Inserts:
    """The inserts of one command, under its lease."""

    def __init__(self, pipeline: PipelineConfig, log: JetStream, clickhouse: ClickHouse, lease: Lease, progress: Progress) -> None:
        self._pipeline, self._names = pipeline, Names(pipeline.pipeline_id)
        self._log, self._clickhouse, self._lease, self._progress = log, clickhouse, lease, progress
        self.found: RawPositions = NO_POSITIONS
        """The positions of the rows that were given, whether the table held them by then or not."""

    def insert(self, target: Target, rows: pa.Table) -> int:
        """Insert those of the rows that the table does not hold by now; return how many."""
        config = target.config
        if rows.num_rows:
            self.found = np.union1d(self.found, position_keys(rows))
            rows = rows.filter(pa.array(~np.isin(position_keys(rows), self._held(target.table, rows))))
        if not rows.num_rows:
            return 0
        rows = rows.unify_dictionaries().combine_chunks()
        _check_columns(config, target.table, [name for name in rows.column_names if rows.column(name).null_count])
        positions = position_keys(rows)
        if len(np.unique(positions)) < len(positions):
            raise HaltError(f"putting rows back into {config.full_table}: a record has several rows; none of its block was inserted")
        first, last = _span(rows)
        self._progress(f"inserting {rows.num_rows:,} rows of raw {first}..{last}")
        if self._lease.remaining_seconds <= INSERT_MAX_EXECUTION_SECONDS:
            raise RetryableError("putting rows back: waiting for the lease to be renewed (NATS is slow or away)")
        inserted = with_owner(self._pipeline, rows.select(config.insert_columns))
        block, token, work = insert_block(inserted), self._token(config, positions), _work(self._names)
        reach("repair.before-insert")
        try:
            self._clickhouse.insert(config.full_table, inserted.column_names, block, token, INSERT_MAX_EXECUTION_SECONDS, work)
        except RefusedError as error:
            raise HaltError(
                f"putting rows back into {config.full_table}: the table refuses them now: {error}; correct the table and try again"
            ) from error
        reach("repair.after-insert")
        return len(positions)

    def _held(self, table: Table, rows: pa.Table) -> RawPositions:
        stored = self._clickhouse.stored_positions(table, _span(rows))
        return position_keys(stored.rename_columns(["_tf_sequence", "_tf_ordinal"]))

    def _token(self, config: Program, positions: RawPositions) -> str:
        """Return an insert token for these positions, of this command alone: rows that are lost again must be another block."""
        state = self._log.state(self._names.stream("raw"))
        stream_id = state.metadata.get(STREAM_ID_KEY, "") if state else ""
        digest = hashlib.sha256(positions.tobytes()).hexdigest()[:32]
        return f"tf:{self._names.pipeline}:{stream_id}:{config.full_table}:put-back:{self._lease.holder.epoch}:{digest}"


def _span(rows: pa.Table) -> tuple[int, int]:
    """Return the first and the last raw sequence of the records of rows."""
    sequences = sequences_of(position_keys(rows))
    return int(sequences.min()), int(sequences.max())
