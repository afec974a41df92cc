"""One verification: the records of some hours of arrival through the reference in DuckDB, compared with ClickHouse. Reads only.

May run beside the pipeline: it goes as far as the sink has confirmed. What lies behind a purge cannot be proved, and is told.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.config import PipelineConfig
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.clickhouse.removal import removes_rows
from pipelines.connectors.duckdb import open_spilling_engine
from pipelines.connectors.kafka.settings import client_settings
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sql import filled
from pipelines.errors import HaltError
from pipelines.process.arrivals import Arrived
from pipelines.process.stage_config import StageConfig
from pipelines.proof.audit.streams import Subjects, read_frames
from pipelines.proof.positions import count_rows, table_batches, topic_batches
from pipelines.proof.verification.columns import Judged, judged
from pipelines.proof.verification.frames import read_batches
from pipelines.proof.verification.reference import Column, Reference
from pipelines.proof.verification.result import OPEN, UNCONFIRMED, WAITING_RECORDS, WAITING_ROWS, Checksum, Finding, Gap, Verification
from pipelines.proof.verification.rows import RowSide
from pipelines.proof.verification.span import History, Span, is_open, load_configs, read_history, same_dedup_from, span_of, told_range
from pipelines.proof.verification.table import TableSide, examples_of
from pipelines.protocol.naming import Names, is_redriven
from pipelines.protocol.positions import ORDINAL_BITS, position_keys
from pipelines.protocol.purge import read_purged
from pipelines.protocol.records import HEADER_PARTITION, decode_columns, instant
from pipelines.protocol.tally import tally

ENGINE_MEMORY = "640MiB"
"""Of DuckDB alone; what does not fit spills to disk."""
_POSITION_COLUMNS = {"_tf_sequence", "_tf_ordinal"}
Tell = Callable[[str], None]
_UNSURE = "values of column {}, once {}, that differ in rows of that time: nothing tells whether it was renamed or made anew"
_RENAMED = "the values of column {}, once {}: no position columns tell which rows are of that time"


@dataclass(frozen=True)
class Request:
    """What to verify: records that arrived from `since` (inclusive) to `until` (exclusive), aware UTC; None means as far as can be proved.

    `with_kafka`: that raw holds the bytes that Kafka holds is verified, too, as far as Kafka has not let the records go.
    Of each kind of fault, `examples` are named. Tables and what spills lie in a new directory below `directory`, which is removed.
    """

    directory: Path
    since: datetime | None = None
    until: datetime | None = None
    examples: int = 10
    with_kafka: bool = False


def verify(config: PipelineConfig, log: JetStream, request: Request, tell: Tell = lambda doing: None) -> Verification:
    """Compares. Raises HaltError for a pipeline that was never started and for what cannot be compared at all, RetryableError while a
    system is away; then nothing was changed, and the same call may be repeated.
    """
    verifier = Verifier(config, log, request, tell)
    subject = verifier.subject()
    return verifier.verification(subject, verifier.compare(subject) if subject else None)


@dataclass(frozen=True)
class Subject:
    """What the ledger tells, the configurations of its ranges, the last of them, and the columns whose values are compared.

    `gone`: as in `Judged`.
    """

    history: History
    configs: dict[str, StageConfig]
    config: StageConfig
    columns: list[Column]
    gone: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def has_positions(self) -> bool:
        return {*self.config.position_columns} >= _POSITION_COLUMNS

    def span(self, since: datetime | None, until: datetime | None) -> Span | None:
        """As `span_of`."""
        return span_of(self.history, since, until, self.config, same_dedup_from(self.history, self.configs, self.config))


@dataclass
class Found:
    """What was found so far. `last_fault`: the last position that is missing in the table or extra there; 0 for none. `missing`: positions
    whose rows are missing in a table with position columns, ascending.
    """

    findings: list[Finding] = field(default_factory=list)
    not_proven: list[Gap] = field(default_factory=list)
    not_compared: list[Gap] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    checksums: list[Checksum] = field(default_factory=list)
    last_fault: int = 0
    missing: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))

    def cannot_prove(self, what: str, count: int | None = None) -> None:
        """Note records or rows of the range that nothing explains; none with a `count` of 0."""
        if count != 0:
            self.not_proven.append(Gap(what, count))

    def leaves_out(self, what: str, count: int | None = None) -> None:
        """Note what was not compared, though every row of the range is explained; nothing with a `count` of 0."""
        if count != 0:
            self.not_compared.append(Gap(what, count))


class Verifier:
    """One verification, or one slice of one; use it once. `follows`: the frames before the range are those of another slice, which tells
    what is wrong with them.
    """

    def __init__(
        self, config: PipelineConfig, log: JetStream, request: Request, tell: Tell = lambda doing: None, follows: bool = False
    ) -> None:
        self._config, self._log, self._request, self._tell, self._follows = config, log, request, tell, follows
        self._names, self._sink = Names(config.pipeline_id), config.sink
        self._table = f"{config.sink.connection_params.database}.{config.sink.table}"
        self._redriven: list[int] = []
        self._partitions: dict[int, int | None] = {}
        self.found = Found()

    def subject(self) -> Subject | None:
        """Notes what is wrong with the table's columns; None before the first range."""
        self._tell("reading the ledger")
        # First: what comes in meanwhile does not belong to a range without an end.
        last_raw = self._last_raw()
        history = read_history(self._log, self._names, self._request.since)
        configs = load_configs(self._log, self._names, history)
        self._note_unconfirmed(history.confirmed_to, last_raw)
        until = self._request.until
        if until is not None and is_open(until, datetime.now(UTC), self._log.clock(self._names.stream("raw"))):
            self.found.cannot_prove(OPEN)
        if not history.plans:
            return None
        config = configs[history.plans[-1].version]
        found = self._columns(history, configs)
        return Subject(history, configs, config, found.columns, found.gone)

    def compare(self, subject: Subject, threads: int = 2) -> Span | None:
        """Notes what differs; what was compared, None where there is nothing. `threads`: of DuckDB."""
        run = self._verify_range if subject.has_positions else self._verify_all
        with (
            TemporaryDirectory(prefix="verification-", dir=self._directory()) as directory,
            open_spilling_engine(Path(directory), ENGINE_MEMORY, threads) as engine,
        ):
            span = run(engine, subject)
        if span is not None and subject.has_positions:
            self.find_strangers()
        return span

    def verification(self, subject: Subject | None, span: Span | None) -> Verification:
        """All that was found."""
        found = self.found
        if subject is None or span is None:
            return Verification(
                self._config.pipeline_id,
                self._table,
                findings=found.findings,
                not_proven=found.not_proven,
                not_compared=found.not_compared,
            )
        arrivals, sequences = told_range(subject.history, span), (span.first, span.last)
        facts = (found.counts, found.checksums, found.findings, found.not_proven, found.not_compared)
        return Verification(self._config.pipeline_id, self._table, arrivals, sequences, *facts)

    def _directory(self) -> Path:
        self._request.directory.mkdir(parents=True, exist_ok=True)
        return self._request.directory

    def _columns(self, history: History, configs: dict[str, StageConfig]) -> Judged:
        """The columns that can be compared; notes the others, and what of the table removes rows."""
        clickhouse = ClickHouse(self._sink)
        try:
            table = clickhouse.inspect(self._sink.connection_params.database, self._sink.table)
        finally:
            clickhouse.close()
        if table is None:
            raise HaltError(
                f"verifying table {self._table}: it does not exist; start the pipeline to create it, or correct the sink of the file"
            )
        removes = removes_rows(table)
        if removes:
            self.found.leaves_out(f"rows that {removes} has removed: they are found missing")
        found = judged(history, configs, self._config, table.columns)
        self.found.findings += found.faults.values()
        for said in found.left_out.values():
            self.found.leaves_out(said)
        return found

    # -- a table with positions ---------------------------------------------------------------------------------------------------------

    def _verify_range(self, engine: duckdb.DuckDBPyConnection, subject: Subject) -> Span | None:
        request, config, columns = self._request, subject.config, subject.columns
        self._tell_purged(subject.history)
        span = subject.span(request.since, request.until)
        if span is None:
            return None
        table = TableSide(engine, self._sink, columns, config.position_columns)
        reference = Reference(engine, columns, request.with_kafka)
        self._read(reference, subject, span)
        if span.is_seeded:
            self._tell("reading which earlier records were accepted")
            for positions in table.positions(span.read_from, span.first_judged - 1):
                reference.add_accepted_before(positions)
            engine.execute("INSERT INTO accepted_before SELECT position FROM letters WHERE stage = 'sink'")
        self._tell("looking for copies")
        reference.judge(config, span.bounds)
        self._tell("reading the table")
        self.found.checksums = table.sum_up(span.first, span.last)
        self.found.counts = _counts(engine, span) | {"found": table.counts()["found"]}
        for name, count in table.defaults().items():
            self.found.leaves_out(f"values of column {name} that the table's DEFAULT gave", count)
        self._tell("comparing rows")
        self.found.findings += table.faults(request.examples, config.topic)
        self.found.last_fault, self.found.missing = table.last_fault, table.missing
        for column, count in table.unsure.items():
            self.found.cannot_prove(_UNSURE.format(column.name, ", ".join(column.former)), count)
        self._tell_gone(engine, subject, span)
        self._find_letters(engine, span, config.topic)
        self._find_other_bytes(engine, span, config.topic)
        unsure = engine.execute("SELECT count(*) FROM dropped WHERE why = 'unsure'").fetchall()[0][0]
        self.found.cannot_prove("records without a row: they may be copies of records whose raw frames are purged", unsure)
        return span

    def _read(self, reference: Reference, subject: Subject, span: Span) -> None:
        history = subject.history
        self._tell("reading dead letters")
        for letters in self._letters(span):
            reference.add_letters(letters)
        clock_us = history.arrival_us(span.read_from)
        for first, last, version in history.segments(span.read_from, span.last):
            self._tell(f"reading raw {first}..{last}")
            seen: dict[int, int] = {}
            frames = read_batches(self._log, self._names, first, last, clock_us, history.resets, partial(self._see, seen))
            reference.load(frames, subject.configs[version])
            reference.add_frames(self._partitions)
            self._partitions.clear()
            self._check_frames(history, max(first, span.first) if self._follows else first, last, seen)
            clock_us = max([clock_us, *seen.values()])

    def _see(self, seen: dict[int, int], frame: Arrived) -> None:
        """Keeps nothing of the frame itself."""
        sequence = frame.message.sequence
        seen[sequence] = frame.arrival_us
        if is_redriven(frame.message.subject):
            self._redriven.append(sequence)
            self._partitions[sequence] = None
        else:
            self._partitions[sequence] = int(frame.message.headers[HEADER_PARTITION])

    def _check_frames(self, history: History, first: int, last: int, seen: dict[int, int]) -> None:
        """Notes frames that are gone, and those whose arrival is not what process has taken it for."""
        known = {sequence: history.arrival_us(sequence) for sequence in history.frames(first, last)}
        gone = sorted(known.keys() - seen.keys())
        if gone:
            self.found.findings.append(
                Finding("streams", "missing", len(gone), None, [_frame(one) for one in gone[: self._request.examples]])
            )
        other = [sequence for sequence, arrival_us in known.items() if seen.get(sequence, arrival_us) != arrival_us]
        if other:
            examples = [_frame(one) for one in other[: self._request.examples]]
            self.found.findings.append(Finding("streams", "different", len(other), "arrival", examples))

    def _letters(self, span: Span) -> "list[pa.Table]":
        """Of the records that are read: `position`, `stage`, `code`."""
        found = []
        for message in read_frames(self._log, self._names, "dlq", Subjects(self._names.stream("dlq"))):
            letters = decode_columns(message.payload, ("_tf_sequence", "_tf_ordinal", "stage", "code"))
            letters = letters.append_column("position", pa.array(position_keys(letters)))
            sequences = letters.column("_tf_sequence").to_numpy()
            found.append(letters.filter(pa.array((sequences >= span.read_from) & (sequences <= span.last))))
        return found

    def _find_letters(self, engine: duckdb.DuckDBPyConnection, span: Span, topic: str) -> None:
        faults = filled("reference/letter_faults", first=span.bounds.first, last=span.bounds.last)
        is_purged = read_purged(self._log, self._names, "dlq").below > 0
        for kind, count in engine.execute(f"SELECT kind, count(*) FROM ({faults}) GROUP BY kind ORDER BY kind").fetchall():  # noqa: S608
            if kind == "missing" and is_purged:
                self.found.cannot_prove("records that must be dead letters: the oldest dead letters are discarded and gone", count)
                continue
            told = (
                "SELECT position, coalesce('a dead letter of ' || wanted, 'no dead letter') AS wanted, "  # noqa: S608
                f"coalesce('one of ' || found, 'none') AS found FROM ({faults}) WHERE kind = '{kind}'"
            )
            self.found.findings.append(Finding("dead letters", kind, count, None, examples_of(engine, told, self._request.examples, topic)))
        wide = engine.execute(
            "SELECT count(*) FROM letters WHERE code = 'row_too_large' AND position >= ?", [span.bounds.first]
        ).fetchall()[0][0]
        self.found.leaves_out("dead letters of rows that are too large for a frame: their size is not computed again", wide)
        ended = engine.execute(
            "SELECT count(*) FROM letters WHERE code = 'internal_error' AND position BETWEEN ? AND ?", [span.bounds.first, span.bounds.last]
        ).fetchall()[0][0]
        self.found.leaves_out("dead letters of records that a stage ended on: they are believed", ended)

    def _find_other_bytes(self, engine: duckdb.DuckDBPyConnection, span: Span, topic: str) -> None:
        if not self._request.with_kafka:
            return
        self._tell("reading Kafka")
        bounds = {"first": span.bounds.first, "last": span.bounds.last}
        engine.execute("CREATE TABLE redriven AS SELECT unnest($sequences::UBIGINT[]) AS sequence", {"sequences": self._redriven})
        of_partitions = (
            'SELECT "partition", min("offset"), max("offset") FROM parsed '
            'WHERE position BETWEEN $first AND $last AND position >> 20 NOT IN (SELECT sequence FROM redriven) GROUP BY "partition"'
        )
        offsets = engine.execute(of_partitions, bounds).fetchall()
        within = {partition: (first, last) for partition, first, last in offsets}
        engine.execute('CREATE TABLE kafka ("partition" INTEGER, "offset" BIGINT, bytes UBIGINT)')
        for batch in topic_batches(client_settings(self._config.sources[0]), topic, ["value"], within):
            engine.register("batch", batch)
            engine.execute("INSERT INTO kafka SELECT _tf_partition, _tf_offset, hash(value) FROM batch")
            engine.unregister("batch")
        self.found.counts["in Kafka"] = int(engine.execute("SELECT count(*) FROM kafka").fetchall()[0][0])
        faults = filled("reference/other_bytes", **bounds)
        count = engine.execute(f"SELECT count(*) FROM ({faults})").fetchall()[0][0]  # noqa: S608
        if count:
            examples = examples_of(engine, faults, self._request.examples, topic)
            self.found.findings.append(Finding("streams", "different", count, "value", examples))

    def find_strangers(self) -> None:
        """Rows at positions that raw never had, where the range has no end: no hour would ever have them."""
        if self._request.since or self._request.until:
            return
        beyond = f"_tf_sequence > {self._last_raw()}"
        later = [batch.column("_tf_sequence").to_numpy() for batch in table_batches(self._sink, ("_tf_sequence",), beyond)]
        # Asked again: frames that came meanwhile may have rows.
        last = self._last_raw()
        count = count_rows(self._sink, "_tf_sequence = 0") + sum(int((sequences > last).sum()) for sequences in later)
        if count:
            example = {"expected": "no row", "found": "rows whose _tf_sequence the raw stream never had"}
            self.found.findings.append(Finding("rows", "extra", count, None, [example]))

    def _last_raw(self) -> int:
        state = self._log.state(self._names.stream("raw"))
        return state.last_sequence if state else 0

    def _tell_gone(self, engine: duckdb.DuckDBPyConnection, subject: Subject, span: Span) -> None:
        """Note, by column, the rows whose values the table has no more."""
        for said, versions in subject.gone.items():
            parts = [(low, high) for low, high, version in subject.history.segments(span.first, span.last) if version in versions]
            inside = " OR ".join(f"position >> {ORDINAL_BITS} BETWEEN {low} AND {high}" for low, high in parts) or "false"
            self.found.cannot_prove(said, engine.execute(f"SELECT count(*) FROM expected WHERE {inside}").fetchall()[0][0])  # noqa: S608

    def _tell_purged(self, history: History) -> None:
        since = self._request.since
        if not history.is_whole and history.sequences:
            oldest = instant(history.arrivals_us[0])
            if since is None or since < oldest:
                self.found.leaves_out(f"records that arrived before {oldest:%Y-%m-%d %H:%M:%S.%f} UTC: their raw frames are purged")

    def _note_unconfirmed(self, confirmed_to: int, last_raw: int) -> None:
        """Note the raw frames of the range behind those that the sink has confirmed, and the rows that wait where the range has no end."""
        since, until = self._request.since, self._request.until
        first = self._first_since(since or datetime.fromtimestamp(0, UTC))
        behind = self._first_since(until) if until is not None else 0
        frames = (behind - 1 if behind else last_raw) - max(confirmed_to, first - 1)
        if first == 0 or frames <= 0:
            return
        self.found.cannot_prove(UNCONFIRMED, frames)
        if until is None:
            waiting = {leg.leg: max(0, leg.waiting) for leg in tally(self._log, self._names).legs}
            self.found.cannot_prove(WAITING_RECORDS, waiting["process"])
            self.found.cannot_prove(WAITING_ROWS, waiting["sink"])

    def _first_since(self, instant: datetime) -> int:
        """The sequence of the first raw frame that came then or later; 0 if none did."""
        found = self._log.first_since(self._names.stream("raw"), self._names.subjects("raw"), instant)
        return found.sequence if found else 0

    # -- a table without positions ------------------------------------------------------------------------------------------------------

    def _verify_all(self, engine: duckdb.DuckDBPyConnection, subject: Subject) -> Span | None:
        """As multisets: everything that was ever written, or nothing can be said."""
        history, config, columns = subject.history, subject.config, subject.columns
        if self._request.since or self._request.until or not history.is_whole:
            raise HaltError(
                f"verifying table {self._table}: it has no position columns, so only all of its rows can be compared, and only while no "
                "raw frame is purged; give the table the position columns (docs/concepts.md)"
            )
        for column in columns:
            if column.has_default:
                self.found.leaves_out(f"the values of column {column.name}: which rows its DEFAULT was applied to cannot be told")
        renamed = [column for column in columns if column.former]
        columns = [column for column in columns if not column.has_default and not column.former]
        if not columns:
            raise HaltError(f"verifying table {self._table}: it has neither position columns nor a column whose values can be compared")
        rows = RowSide(engine, self._sink, columns)
        is_quiet = self._is_quiet(history)
        found = rows.read()
        is_quiet = is_quiet and self._is_quiet(history)
        reference = Reference(engine, columns, self._request.with_kafka)
        span = Span(1, history.last, 1, 1)
        self._read(reference, subject, span)
        reference.judge(config, span.bounds)
        confirmed = (history.confirmed_to + 1 << 20) - 1
        self.found.counts = _counts(engine, span) | {"found": found}
        self.found.leaves_out("which of several equal rows is meant: the table has no position columns")
        for column in renamed:
            made = engine.execute("SELECT count(*) FROM expected WHERE position < ?", [column.since]).fetchall()[0][0]
            self.found.cannot_prove(_RENAMED.format(column.name, ", ".join(column.former)), made)
        self._tell_gone(engine, subject, span)
        for fault in rows.faults(confirmed, self._request.examples, config.topic):
            if fault.kind != "missing" and not is_quiet:
                self.found.cannot_prove("rows that no confirmed record explains: the pipeline is writing", fault.count)
            else:
                self.found.findings.append(fault)
        self._find_letters(engine, span, config.topic)
        self._find_other_bytes(engine, span, config.topic)
        return span

    def _is_quiet(self, history: History) -> bool:
        """Whether all that is on raw is confirmed."""
        return history.confirmed_to >= self._last_raw()


def _frame(sequence: int) -> dict[str, object]:
    return {"position": f"{sequence}", "expected": "a raw frame as the ledger tells of it"}


def _counts(engine: duckdb.DuckDBPyConnection, span: Span) -> dict[str, int]:
    """What must become of the records of the range."""
    bounds = span.bounds
    inside = f"position BETWEEN {bounds.first} AND {bounds.last}"
    asked = {
        "records": f"SELECT count(*) FROM parsed WHERE {inside}",  # noqa: S608
        "rows": "SELECT count(*) FROM expected",
        "copies": f"SELECT count(*) FROM dropped WHERE why = 'copy' AND {inside}",  # noqa: S608
        "rejected": f"SELECT count(*) FROM parsed WHERE stage IS NOT NULL AND {inside}",  # noqa: S608
        "refused": f"SELECT count(*) FROM letters WHERE stage = 'sink' AND code != 'abandoned' AND {inside}",  # noqa: S608
        "abandoned": f"SELECT count(*) FROM letters WHERE stage = 'sink' AND code = 'abandoned' AND {inside}",  # noqa: S608
    }
    counts = {name: int(engine.execute(sql).fetchall()[0][0]) for name, sql in asked.items()}
    if not counts["abandoned"]:
        del counts["abandoned"]
    return counts
