"""One verification: the records of some hours of arrival through the reference in DuckDB, compared with ClickHouse. Reads only.

It may run beside the pipeline: it ends where the sink's confirmation ends, and reports everything that a purge leaves unproved.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa

from pipelines.config import PipelineConfig
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.clickhouse.removal import removes_rows
from pipelines.connectors.nats.client import JetStream
from pipelines.errors import HaltError
from pipelines.process.program import Program
from pipelines.progress import Progress, no_progress
from pipelines.proof.purged_rows import is_there, note_rows_by_number
from pipelines.proof.readers.streams import last_sequence, read_then_dropped
from pipelines.proof.readers.table import count_rows, position_batches, table_batches
from pipelines.proof.verification.columns import ColumnChoice, choose_columns
from pipelines.proof.verification.compared import Column, within
from pipelines.proof.verification.dead_letter_table import DeadLetterVerifier
from pipelines.proof.verification.findings import counts_of, find_dead_letters, find_other_bytes, note_lost_values, note_unsure_values
from pipelines.proof.verification.loading import FramesSeen, Source, load_span, reference_engine, snapshots_of
from pipelines.proof.verification.open_lefts import find_early_ends, note_open_lefts, rows_among, waiting_lefts
from pipelines.proof.verification.reference import Reference
from pipelines.proof.verification.result import OPEN, UNCONFIRMED, WAITING_RECORDS, WAITING_ROWS, Verification
from pipelines.proof.verification.rollups import RollupProof, note_rollups
from pipelines.proof.verification.rows import RowSide
from pipelines.proof.verification.span import (
    History,
    Span,
    arrivals_of,
    is_open,
    load_configs,
    read_history,
    same_dedup_from,
    span_of,
)
from pipelines.proof.verification.table import TableSide
from pipelines.protocol.bodies import REPROCESS_CHAIN
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.positions import NO_POSITIONS, RawPositions, last_position, sequences_of
from pipelines.protocol.purge import read_purged
from pipelines.protocol.records import instant
from pipelines.protocol.tally import Tally, tally
from pipelines.protocol.topology import DEAD_LETTERS, PROCESS

_POSITION_COLUMNS = {"_tf_sequence", "_tf_ordinal"}
_UNFINISHED = "rows of raw {}..{} that are out of the table to be made anew: finish that with `tallyflow apply FILE --reprocess`"
_CHANGED = "the values of column {}: without position columns the rows from before its mapping changed are unknown"


@dataclass(frozen=True)
class Request:
    """The range to verify: records that arrived from `since` (inclusive) to `until` (exclusive), aware UTC; None means without a limit.

    `with_kafka`: compare the bytes of the raw records with Kafka's, as far as Kafka still holds them. Of each kind of fault, `examples` are
    named. Tables and spilled data are in a new directory below `directory`, which is removed. `pipeline_directory`: the pipeline's own on
    this host, in which the snapshots of look-up tables are, unless state has a URI; None if it is `directory`.
    """

    directory: Path
    since: datetime | None = None
    until: datetime | None = None
    examples: int = 10
    with_kafka: bool = False
    pipeline_directory: Path | None = None


def verify(config: PipelineConfig, log: JetStream, request: Request, progress: Progress = no_progress) -> Verification:
    """Compare the tables of all sinks with the records, and the dead letters, of a range; raise as `verify_sink`."""
    ids = config.topology.file_id
    return Verification.together({ids(seen.sink_leg): verify_sink(seen, log, request, progress) for seen in config.by_table})


def verify_sink(config: PipelineConfig, log: JetStream, request: Request, progress: Progress = no_progress) -> Verification:
    """Compare the table of the config's sink with the records, or with the dead letters, of a range.

    Raise HaltError for a pipeline that was never started and for a table that cannot be compared, RetryableError while a system is away;
    then nothing was changed, and the same call may be repeated.
    """
    if config.sink_leg.kind == DEAD_LETTERS:
        return DeadLetterVerifier(config, log, request.directory, request.examples, progress).run(request.since, request.until)
    verifier = Verifier(config, log, request, progress)
    verifier.compare(verifier.subject())
    verifier.compare_rollups()
    return verifier.report


@dataclass(frozen=True)
class Subject:
    """The ledger's history, the configurations of its ranges, the last of them, and the columns whose values are compared.

    `lost`: as in `ColumnChoice`.
    """

    history: History
    configs: dict[str, Program]
    config: Program
    columns: list[Column]
    lost: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def has_positions(self) -> bool:
        return {*self.config.position_columns} >= _POSITION_COLUMNS

    def span(self, since: datetime | None, until: datetime | None) -> Span | None:
        return span_of(self.history, since, until, self.config, same_dedup_from(self.history, self.configs, self.config))


class Verifier:
    """One verification; use it once, `subject` first.

    `report` fills up meanwhile. `missing`: positions whose rows are missing in a table with position columns, ascending.
    """

    def __init__(self, config: PipelineConfig, log: JetStream, request: Request, progress: Progress = no_progress) -> None:
        self._config, self._log, self._request, self._progress = config, log, request, progress
        self._names, self._sink, self._leg = Names(config.pipeline_id), config.sink, config.sink_leg
        self._raw = self._names.stream("raw")
        self.report = Verification(config.pipeline_id, table=f"{config.sink.connection_params.database}.{config.sink.table}")
        self.missing: RawPositions = NO_POSITIONS
        self._removes = ""
        self._tally_before: Tally

    def subject(self) -> Subject | None:
        """Read the ledger and note the faults of the table's columns; return None before the first range."""
        self._progress("reading the ledger")
        self._tally_before = tally(self._log, self._names, self._config.topology)
        # First: records that arrive meanwhile do not belong to a range without an end.
        last_raw = last_sequence(self._log, self._raw)
        history = read_history(self._log, self._names, self._config.topology, self._leg, self._request.since)
        configs = load_configs(self._log, self._names, self._leg, history)
        self._note_unconfirmed(history, last_raw)
        if (remade := read_chain(self._log, self._names, REPROCESS_CHAIN).plan) is not None:
            self.report.cannot_prove(_UNFINISHED.format(remade.body.first, remade.body.last), remade.body.rows)
        until = self._request.until
        if until is not None and is_open(until, datetime.now(UTC), self._log.clock(self._raw)):
            self.report.cannot_prove(OPEN)
        if not history.plans:
            self._note_rows_of_nobody()
            return None
        compared = self._columns(history, configs)
        return Subject(history, configs, configs[history.plans[-1].version], compared.columns, compared.lost)

    def compare(self, subject: Subject | None) -> None:
        """Note the differences, as far as there is a span to compare."""
        if subject is None:
            return
        compare = self._compare_positions if subject.has_positions else self._compare_rows
        with reference_engine(self._request.directory) as engine:
            span = compare(engine, subject)
        if span is not None:
            if span.first <= span.last:
                self.report.arrivals, self.report.sequences = arrivals_of(subject.history, span), (span.first, span.last)
            if subject.has_positions:
                self.find_strangers()
                self._count_behind_purge(subject.history)

    def compare_rollups(self) -> None:
        """Note what the rollups have otherwise than the table, if the range has no end: a bucket holds rows of every arrival."""
        if not self._sink.rollups:
            return
        if self._request.since or self._request.until:
            self.report.leave_out("rollups: only a verification without --from and --to compares them")
        elif self._removes:
            self.report.leave_out(f"rollups: they keep the rows that {self._removes} removes from the table")
        else:
            self._progress("comparing rollups")
            with reference_engine(self._request.directory) as engine:
                proof = RollupProof(engine, self._sink, self._request.examples)
                note_rollups(proof, self._sink, self.report, self._sink_position)

    def _sink_position(self) -> tuple[int, bool]:
        """Return the last out sequence that the sink has confirmed, and whether it is inserting."""
        state = read_chain(self._log, self._names, self._leg.chain)
        return state.to or 0, state.plan is not None

    def _columns(self, history: History, configs: dict[str, Program]) -> ColumnChoice:
        """Return the columns that can be compared; note the others, and the part of the table's definition that removes rows."""
        with closing(ClickHouse(self._sink)) as clickhouse:
            table = clickhouse.inspect(self._sink.connection_params.database, self._sink.table)
        if table is None:
            raise HaltError(
                f"verifying table {self.report.table}: the table does not exist; start the pipeline to create it, or correct the sink in "
                "the pipeline file"
            )
        self._removes = removes_rows(table)
        if self._removes:
            self.report.leave_out(f"rows that {self._removes} has removed: they are reported as missing")
        is_joined = any(config.join for config in configs.values())
        compared = choose_columns(history, configs, self._config, table.columns, is_joined=is_joined)
        self.report.findings += compared.faults.values()
        for reason in compared.left_out.values():
            self.report.leave_out(reason)
        return compared

    def _load(self, reference: Reference, subject: Subject, span: Span) -> FramesSeen:
        """Read the records; note missing frames, and frames whose arrival differs from the one that process has used."""
        snapshots = snapshots_of(self._config, self._request.pipeline_directory or self._request.directory)
        source = Source(self._log, self._names, self._leg, subject.history, subject.configs, snapshots)
        seen = load_span(reference, source, span, self._progress)
        ledger_us = dict(zip(subject.history.sequences, subject.history.arrivals_us, strict=True))
        of_ledger = subject.history.frames(span.read_from, span.read_to)
        missing = [sequence for sequence in of_ledger if sequence not in seen.arrivals_us]
        other = [sequence for sequence in of_ledger if seen.arrivals_us.get(sequence, ledger_us[sequence]) != ledger_us[sequence]]
        self.report.find("streams", "missing", len(missing), self._frames_named(missing))
        self.report.find("streams", "different", len(other), self._frames_named(other), "arrival")
        return seen

    def _frames_named(self, sequences: Sequence[int]) -> list[dict[str, object]]:
        expected = "the raw frame that the ledger lists"
        return [{"position": f"{sequence}", "expected": expected} for sequence in sequences[: self._request.examples]]

    def _find_beside_rows(self, engine: duckdb.DuckDBPyConnection, subject: Subject, span: Span, seen: FramesSeen) -> None:
        """Note the differences in dead letters and, on request, in Kafka's bytes."""
        note_lost_values(engine, self.report, subject.history, (span.first, span.last), subject.lost)
        is_purged = read_purged(self._log, self._names, "dlq").below > 0
        find_dead_letters(engine, self.report, span, self._request.examples, is_purged)
        if self._request.with_kafka:
            self._progress("reading Kafka")
            find_other_bytes(engine, self.report, span, self._config.sources, seen.redriven, self._request.examples)

    # A table with positions.

    def _compare_positions(self, engine: duckdb.DuckDBPyConnection, subject: Subject) -> Span | None:
        request, config, columns, report = self._request, subject.config, subject.columns, self.report
        self._note_purged(subject.history)
        span = subject.span(request.since, request.until)
        if span is None:
            return None
        self._note_unread(subject.history, span)
        table = TableSide(engine, self._sink, columns, config.position_columns)
        reference = Reference(engine, columns, request.with_kafka)
        seen = self._load(reference, subject, span)
        if span.is_seeded:
            self._progress("reading which earlier records were accepted")
            self._seed(reference, table, span)
            engine.execute("INSERT INTO accepted_before SELECT DISTINCT position FROM dead_letters WHERE starts_with(stage, 'sink')")
        self._progress("looking for copies")
        reference.evaluate(config, span.bounds)
        self._progress("reading the table")
        report.checksums = table.sum_up(span.first, span.last)
        report.counts = counts_of(engine, span) | {"found": table.counts()["found"]}
        for name, count in table.defaults().items():
            report.leave_out(f"values of column {name} that the table's DEFAULT filled in", count)
        self._progress("comparing rows")
        report.findings += table.faults(request.examples)
        self.missing = table.missing
        note_unsure_values(report, table)
        self._find_beside_rows(engine, subject, span, seen)
        self._find_open_lefts(engine, subject, span)
        unsure = engine.execute("SELECT count(*) FROM dropped WHERE why = 'unsure'").fetchall()[0][0]
        report.cannot_prove("records without a row: they may be copies of records whose raw frames are purged", unsure)
        return span

    def _seed(self, reference: Reference, table: TableSide, span: Span) -> None:
        """Add the records before the span that were the first of their key: with a row in any table, or dropped by a later step."""
        bounds = span.read_from, span.first_replayed - 1
        for positions in table.positions(*bounds):
            reference.add_accepted_before(positions)
        for seen in self._config.by_sink:
            if seen.sink_leg != self._leg:
                for codes in position_batches(seen.sink, f"_tf_sequence BETWEEN {bounds[0]} AND {bounds[1]}"):
                    reference.add_accepted_before(pa.table({"position": codes}))
        for codes in read_then_dropped(self._log, self._names):
            is_before = (sequences_of(codes) >= bounds[0]) & (sequences_of(codes) <= bounds[1])
            reference.add_accepted_before(pa.table({"position": codes[is_before]}))

    def _find_open_lefts(self, engine: duckdb.DuckDBPyConnection, subject: Subject, span: Span) -> None:
        if subject.config.join is None:
            return
        note_open_lefts(engine, self.report, has_end=self._request.until is not None)
        if len(waiting := waiting_lefts(engine)):
            rows = rows_among(self._sink, waiting)
            # Later than both looks: a cause that process has not done yet would be on raw.
            is_still = last_sequence(self._log, self._raw) <= subject.history.last
            find_early_ends(engine, self.report, rows, is_still, self._request.examples)

    def find_strangers(self) -> None:
        """Note rows at positions that raw never had, if the range has no end: they would belong to no hour."""
        if self._request.since or self._request.until:
            return
        beyond = f"_tf_sequence > {last_sequence(self._log, self._raw)}"
        later = [batch.column("_tf_sequence").to_numpy() for batch in table_batches(self._sink, ("_tf_sequence",), beyond)]
        # Read again: frames that arrived meanwhile may have rows.
        last = last_sequence(self._log, self._raw)
        count = count_rows(self._sink, "_tf_sequence = 0") + sum(int((sequences > last).sum()) for sequences in later)
        self.report.find("rows", "extra", count, [{"expected": "no row", "found": "rows whose _tf_sequence is not in the raw stream"}])

    def _note_rows_of_nobody(self) -> None:
        """Note the rows of a table for which process has done nothing yet."""
        if not (self._request.since or self._request.until) and is_there(self._sink):
            self.report.cannot_prove("rows of the table, before process has done its first range", count_rows(self._sink, "true"))

    def _count_behind_purge(self, history: History) -> None:
        """Compare the number of all rows with the ledger's, if the records of some are purged and the range has no end."""
        if self._request.since or self._request.until or history.is_whole:
            return
        found = count_rows(self._sink, "_tf_sequence > 0")
        after = tally(self._log, self._names, self._config.topology)
        note_rows_by_number(self.report, self._sink, self._leg, found, self._tally_before, after)

    # A table without positions.

    def _compare_rows(self, engine: duckdb.DuckDBPyConnection, subject: Subject) -> Span | None:
        """Compare the multisets of all rows that were ever written; no smaller range can be proved."""
        history, report = subject.history, self.report
        if self._request.since or self._request.until or not history.is_whole:
            raise HaltError(
                f"verifying table {report.table}: it has no position columns, so only the whole table can be compared, and only while no "
                "raw frame is purged; give the table the position columns (docs/clickhouse.md)"
            )
        for column in subject.columns:
            if column.has_default:
                report.leave_out(f"the values of column {column.name}: the rows that its DEFAULT filled in are unknown")
        changed = [column for column in subject.columns if column.doubtful or column.unknown]
        columns = [column for column in subject.columns if not column.has_default and column not in changed]
        if not columns:
            raise HaltError(
                f"verifying table {report.table}: it has neither position columns nor a column whose values can be compared; give the "
                "table the position columns (docs/clickhouse.md)"
            )
        rows = RowSide(engine, self._sink, columns)
        is_quiet = self._is_quiet(history)
        row_count = rows.read()
        is_quiet = is_quiet and self._is_quiet(history)
        reference = Reference(engine, columns, self._request.with_kafka)
        span = Span(1, history.last, 1, 1)
        seen = self._load(reference, subject, span)
        reference.evaluate(subject.config, span.bounds, with_open=True)
        report.counts = counts_of(engine, span) | {"found": row_count}
        report.leave_out("the records of equal rows: without position columns equal rows cannot be distinguished")
        for column in changed:
            made = engine.execute(f"SELECT count(*) FROM expected WHERE {within((*column.doubtful, *column.unknown))}").fetchall()[0][0]  # noqa: S608
            report.cannot_prove(_CHANGED.format(column.name), made)
        for finding in rows.faults(last_position(history.confirmed_to), self._request.examples):
            # Excess rows may belong to records that are not confirmed yet.
            if finding.kind == "missing" or is_quiet:
                report.findings.append(finding)
            else:
                report.cannot_prove("rows that no confirmed record explains, while the pipeline writes: verify again", finding.count)
        self._find_beside_rows(engine, subject, span, seen)
        if subject.config.join is not None:
            note_open_lefts(engine, report, has_end=False)
        return span

    def _is_quiet(self, history: History) -> bool:
        return history.confirmed_to >= last_sequence(self._log, self._raw)

    # The unproved parts.

    def _note_purged(self, history: History) -> None:
        since = self._request.since
        if not history.is_whole and history.sequences:
            oldest = instant(history.arrivals_us[0])
            if since is None or since < oldest:
                self.report.leave_out(f"records that arrived before {oldest:%Y-%m-%d %H:%M:%S.%f} UTC: their raw frames are purged")

    def _note_unread(self, history: History, span: Span) -> None:
        """Note the raw frames of the range that are there, and of which event times decide that are purged."""
        first = history.first_since(self._request.since)
        if first < span.first:
            last = min(span.first - 1, span.last)
            self.report.leave_out(f"records of raw frames {first}..{last}: event times before them, which decide about them, are purged")

    def _note_unconfirmed(self, history: History, last_raw: int) -> None:
        """Note the raw frames of the range that the sink has not confirmed, and the waiting rows if the range has no end.

        A tick that process has not read has no record: a pipeline that ends may leave one, and what it ends waits until the next start.
        """
        since, until = self._request.since, self._request.until
        first = self._first_since(since or datetime.fromtimestamp(0, UTC))
        behind = self._first_since(until) if until is not None else 0
        last, before = behind - 1 if behind else last_raw, max(history.confirmed_to, first - 1)
        if first == 0 or last <= before:
            return
        unread_ticks = sum(1 for _ in self._log.fetch(self._raw, self._names.tick(), max(before, history.last), last))
        self.report.cannot_prove(UNCONFIRMED, last - before - unread_ticks)
        if until is None:
            account = tally(self._log, self._names, self._config.topology)
            self.report.cannot_prove(WAITING_RECORDS, account.waiting_for(PROCESS))
            self.report.cannot_prove(WAITING_ROWS, sum(max(0, leg.waiting) for leg in account.legs if leg.leg == self._leg))

    def _first_since(self, since: datetime) -> int:
        """Return the sequence of the first raw frame that came then or later; 0 if none did."""
        message = self._log.first_since(self._raw, self._names.subjects("raw"), since)
        return message.sequence if message else 0
