"""Makes rows anew that were made under an earlier mapping: from raw, by the stages of the edited file, while the pipeline stands.

In: the edited file, its table, which it fits already, and the ranges of raw sequences whose rows have something otherwise. Out: the same
positions in the table, each once, with the values of the edited file; the ledger names the ranges, so that the proofs know.

Which records have a row was decided when they were processed, and stays: exactly the positions that the table holds get a row. A portion is
computed whole, then planned on the chain `reprocess` with its positions, then deleted, then inserted. So a command that was killed leaves
an open plan at most, and the next one carries it out from the positions in it: it waits until nothing of the killed one can be running,
deletes the range once more, and inserts all of it. All leases of the pipeline are held meanwhile, so no leg writes or purges.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.config import PipelineConfig
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sinks import Table
from pipelines.dead_letters.dry_run import program_of_tables
from pipelines.errors import HaltError, RefusedError, RetryableError
from pipelines.process import stage_config
from pipelines.process.arrivals import Arrived, steps
from pipelines.process.program import Program
from pipelines.progress import Progress, no_progress
from pipelines.proof.put_back import wait_until_quiet
from pipelines.proof.remakable import check_table
from pipelines.proof.rows_anew import Portion, RowsAnew, Trial, joined_rows
from pipelines.proof.verification.span import read_history
from pipelines.protocol.bodies import REPROCESS_CHAIN, ReprocessDone, ReprocessPlan
from pipelines.protocol.failpoints import reach
from pipelines.protocol.lease import INSERT_MAX_EXECUTION_SECONDS, Lease, acquire_all, release_all
from pipelines.protocol.ledger import Chain, read_chain
from pipelines.protocol.naming import PUT_BACK, REPROCESS, STREAM_ID_KEY, Names
from pipelines.protocol.positions import RawPositions, decoded, encoded, sequences_of
from pipelines.protocol.purge import purge_lease
from pipelines.sink.inserts import insert_block, with_owner

_LOOK_EVERY_SECONDS = 0.2


def try_ranges(config: PipelineConfig, program: Program, table: Table, log: JetStream, progress: Progress = no_progress) -> Trial:
    """Compute the rows that `program` makes of all ranges that were made otherwise; change nothing. Raise as `reprocess`.

    `table`: with the columns that it will have.
    """
    with closing(ClickHouse(config.sink)) as clickhouse:
        return RowsAnew(config, program, table, log, clickhouse, progress).tried()


def reprocess(config: PipelineConfig, log: JetStream, directory: Path, progress: Progress = no_progress) -> int:
    """Make the rows anew that were made otherwise than the file makes them; return their number.

    The table fits the file, nothing of the pipeline runs, and no row waits. Nothing is deleted before all rows of all ranges could be
    computed. Raise NotSupportedError for an edit, or a table, with which this is not exact, HaltError if rows of the table would get none,
    FencedError while a runner is there, RetryableError while a system is away: the same call continues.
    """
    names = Names(config.pipeline_id)
    program = program_of_tables(config).seen_from(config.sink_leg)
    with closing(ClickHouse(config.sink)) as clickhouse, _leases(config, names, log, directory) as leases:
        rows = RowsAnew(config, program, _inspected(clickhouse, program), log, clickhouse, progress)
        check_table(config, program, rows.table, clickhouse)
        _check_nothing_waits(config, names, log)
        stage_config.store(log, names, program)
        chain = Chain(log, names, REPROCESS_CHAIN, leases[-1].holder.epoch)
        chain.open()
        work = _work(names)
        wait_until_quiet(clickhouse, work, config.sink.max_insert_time.total_seconds(), progress)
        anew = _Anew(rows, chain, leases)
        if chain.state.plan is not None:
            anew.finish(chain.state.plan.body)
        return anew.all_ranges()


def _work(names: Names) -> str:
    """Return the name of these statements in `system.processes`."""
    return f"tallyflow {names.pipeline} {REPROCESS}"


@contextmanager
def _leases(config: PipelineConfig, names: Names, log: JetStream, directory: Path) -> Iterator[list[Lease]]:
    """Hold the leases of all legs, then that of work on the table's rows."""
    leases = [*acquire_all(log, names, directory, (*config.topology.legs, PUT_BACK)).values()]
    try:
        purge_lease(log, names, PUT_BACK)
        yield leases
    finally:
        release_all(leases)


def _check_nothing_waits(config: PipelineConfig, names: Names, log: JetStream) -> None:
    sink, process = (read_chain(log, names, leg.chain) for leg in (config.sink_leg, config.topology.process))
    written = log.state(names.stream(config.sink_leg.input_role))
    if sink.plan is not None or process.plan is not None or (written is not None and written.last_sequence > (sink.to or 0)):
        raise HaltError(
            f"making rows of {config.sink.table} anew: rows still wait for the table; nothing was changed. `tallyflow apply FILE "
            "--reprocess` delivers them first"
        )


def _inspected(clickhouse: ClickHouse, program: Program) -> Table:
    table = clickhouse.inspect(program.database, program.table)
    if table is None:
        raise HaltError(f"making rows of {program.full_table} anew: the table does not exist; restore it first")
    return table


class _Anew:
    """The work of one command, under its leases."""

    def __init__(self, rows: RowsAnew, chain: Chain[ReprocessPlan, ReprocessDone], leases: Sequence[Lease]) -> None:
        self._rows, self._chain, self._leases = rows, chain, leases
        self._clickhouse, self._table, self._program = rows.clickhouse, rows.table, rows.program

    def all_ranges(self) -> int:
        """Make the rows of all ranges anew; return their number."""
        history, ranges = self._rows.ranges()
        self._refuse_failed(self._rows.tried())
        count, trial = 0, Trial()
        for first, last in ranges:
            for portion in self._rows.portions(history, first, last, trial):
                self._refuse_failed(trial)
                self._plan(portion)
                count += len(portion.positions)
        return count

    def _refuse_failed(self, trial: Trial) -> None:
        if trial.failed:
            raise HaltError(
                f"making rows of {self._program.full_table} anew: the edited file makes no row of {trial.failed:,} records that have one: "
                f"{'; '.join(trial.examples)}. Nothing of them was changed: give the file what takes these records, or apply it without "
                "--reprocess"
            )

    def _plan(self, portion: Portion) -> None:
        number = self._chain.state.to or 0
        plan = ReprocessPlan(
            start=number,
            to=number + 1,
            first=portion.first,
            last=portion.last,
            config=self._program.version,
            table=self._program.full_table,
            rows=len(portion.positions),
            positions=encoded(portion.positions),
        )
        self._chain.plan(plan)
        reach("reprocess.after-plan")
        self._carry_out(plan, portion.rows)

    def finish(self, plan: ReprocessPlan) -> None:
        """Carry out the plan that a killed command has left, under the file as it is now: its rows are deleted once more, and inserted."""
        if plan.table != self._program.full_table:
            raise HaltError(
                f"making rows anew: rows of {plan.table}, raw {plan.first}..{plan.last}, are out of that table, and the file writes "
                f"{self._program.full_table}; put the table of the file back, and apply it with --reprocess"
            )
        history = read_history(self._rows.log, self._rows.names, self._rows.config.topology, self._rows.config.sink_leg, None)
        positions, trial = decoded(plan.positions), Trial()
        made = [self._rows.made(step, _of(step, positions), trial) for step in steps(self._rows.frames(history, positions))]
        self._refuse_failed(trial)
        if plan.config != self._program.version:
            plan = replace(plan, config=self._program.version)
            self._chain.amend(plan)
        self._carry_out(plan, joined_rows(made))

    def _carry_out(self, plan: ReprocessPlan, rows: pa.Table | None) -> None:
        """Delete the rows of a plan, insert the new ones, and close it."""
        if rows is not None and rows.num_rows:
            self._rows.progress(f"replacing {plan.rows:,} rows of raw {plan.first}..{plan.last}")
            self._check_leases()
            owner = self._rows.names.pipeline if self._rows.config.sink.names_pipeline else ""
            self._clickhouse.delete_rows(self._table, (plan.first, plan.last), owner, _work(self._rows.names))
            reach("reprocess.after-delete")
            self._wait_for_deletions()
            if len(left := self._rows.held(plan.first, plan.last)):
                raise HaltError(
                    f"making rows of {plan.table} anew: {len(left):,} rows of raw {plan.first}..{plan.last} are there after they were "
                    "deleted; nothing was inserted. Another writer puts rows of this pipeline there: find it, and apply the file again"
                )
            self._insert(plan, rows)
            reach("reprocess.after-insert")
        done = ReprocessDone(
            start=plan.start, to=plan.to, first=plan.first, last=plan.last, config=plan.config, counts={"rows_out": plan.rows}
        )
        self._chain.done(done)

    def _wait_for_deletions(self) -> None:
        while at_work := self._clickhouse.deletions_at_work(self._table):
            self._rows.progress(f"waiting for {at_work} mutations of {self._table.full_name}")
            time.sleep(_LOOK_EVERY_SECONDS)

    def _insert(self, plan: ReprocessPlan, rows: pa.Table) -> None:
        self._check_leases()
        inserted = with_owner(self._rows.config, rows.select(self._program.insert_columns))
        arguments = insert_block(inserted), self._token(plan), INSERT_MAX_EXECUTION_SECONDS, _work(self._rows.names)
        try:
            self._clickhouse.insert(plan.table, inserted.column_names, *arguments, max_partitions=0)
        except RefusedError as error:
            raise HaltError(
                f"making rows of {plan.table} anew: the table refuses the rows of raw {plan.first}..{plan.last}: {error}. They are out of "
                "the table, and the ledger knows them: correct the table, and apply the file with --reprocess again"
            ) from error

    def _check_leases(self) -> None:
        if min(lease.remaining_seconds for lease in self._leases) <= INSERT_MAX_EXECUTION_SECONDS:
            raise RetryableError("making rows anew: waiting for the lease to be renewed (NATS is slow or away)")

    def _token(self, plan: ReprocessPlan) -> str:
        """Return an insert token of this command alone: the rows of a killed one were deleted, and the table remembers its tokens."""
        state = self._rows.log.state(self._rows.names.stream("raw"))
        stream_id = state.metadata.get(STREAM_ID_KEY, "") if state else ""
        digest = hashlib.sha256(plan.positions.encode()).hexdigest()[:32]
        epoch = self._leases[-1].holder.epoch
        return f"tf:{self._rows.names.pipeline}:{stream_id}:{plan.table}:{REPROCESS}:{epoch}:{plan.to}:{digest}"


def _of(step: Sequence[Arrived], positions: RawPositions) -> RawPositions:
    """Return those of some ascending positions that are of the frames of a step."""
    low, high = np.searchsorted(sequences_of(positions), [step[0].message.sequence, step[-1].message.sequence + 1])
    return positions[low:high]
