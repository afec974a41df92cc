"""The verification of a table of dead letters: every frame of the dead-letter stream in DuckDB, compared with the table. Reads only.

A row is known by its place in that stream. What is compared reaches from the purged part of the stream to where the table's leg has
confirmed it. The fields are computed by SQL of their own (`sql/reference/dead_letter_rows.sql`), not by the code that fills the table.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa

from pipelines.config import PipelineConfig
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.clickhouse.removal import removes_rows
from pipelines.connectors.nats.client import JetStream
from pipelines.connectors.sinks import TableColumn
from pipelines.connectors.sql import filled, statement
from pipelines.errors import HaltError
from pipelines.progress import Progress
from pipelines.proof.purged_rows import note_rows_by_number
from pipelines.proof.readers.streams import last_sequence, read_frames
from pipelines.proof.readers.table import count_rows, table_batches
from pipelines.proof.verification.columns import ColumnChoice
from pipelines.proof.verification.dead_letter_mappings import read_mappings
from pipelines.proof.verification.findings import note_lost_values, note_unproven_rows, note_unsure_values
from pipelines.proof.verification.loading import reference_engine
from pipelines.proof.verification.reference import BUCKET_BITS, run_over
from pipelines.proof.verification.result import WAITING_DEAD_LETTERS, Verification
from pipelines.proof.verification.table import TableSide
from pipelines.protocol.existence import check_started
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.positions import ORDINAL_BITS, first_position
from pipelines.protocol.purge import read_purged
from pipelines.protocol.records import HEADERS_TYPE, Message, decode_frame, describe_frame
from pipelines.protocol.tally import Tally, tally

PLACE = "rows of dead letters"
_PAIRS = pa.list_(pa.struct([("key", HEADERS_TYPE.key_type), ("value", HEADERS_TYPE.item_type)]))
STREAM = "the dead-letter stream"


class DeadLetterVerifier:
    """One verification of the table of the config's sink; use it once. Of each kind of fault, `examples` are named."""

    def __init__(self, config: PipelineConfig, log: JetStream, directory: Path, examples: int, progress: Progress) -> None:
        self._config, self._log, self._directory, self._examples, self._progress = config, log, directory, examples, progress
        self._names, self._sink, self._leg = Names(config.pipeline_id), config.sink, config.sink_leg
        self._stream = self._names.stream("dlq")
        self.report = Verification(config.pipeline_id, table=f"{config.sink.connection_params.database}.{config.sink.table}")

    def run(self, since: datetime | None, until: datetime | None) -> Verification:
        """Compare the dead letters that were written from `since` (inclusive) to `until` (exclusive); None means without a limit.

        Raise HaltError for a pipeline that was never started and for a table that does not exist, RetryableError while a system is away.
        """
        check_started(self._log, self._names)
        self._progress("reading dead letters")
        tally_before = tally(self._log, self._names, self._config.topology)
        confirmed, end = read_chain(self._log, self._names, self._leg.chain).to or 0, last_sequence(self._log, self._stream)
        first, last = self._first_since(since, 1, end), self._first_since(until, end + 1, end) - 1
        self.report.cannot_prove(WAITING_DEAD_LETTERS, self._rows_of(max(first, confirmed + 1), last))
        with reference_engine(self._directory) as engine:
            engine.execute(statement("reference/create_dead_letters"))
            last = min(last, confirmed)
            self._load(engine, first, last)
            # What is purged meanwhile may be missing among the frames that were read.
            first = max(first, read_purged(self._log, self._names, "dlq").below)
            engine.execute("DELETE FROM dead_letter_fields WHERE position < ?", [first_position(first)])
            self._compare(engine, first, last)
        if since is None and until is None:
            self._find_strangers(first)
            self._count_behind_purge(first, tally_before)
        return self.report

    def _first_since(self, instant: datetime | None, otherwise: int, end: int) -> int:
        """Return the first sequence that was written at an instant or later; the one behind the end if none was."""
        if instant is None:
            return otherwise
        found = self._log.first_since(self._stream, self._names.subjects("dlq"), instant.astimezone(UTC)) if end else None
        return found.sequence if found else end + 1

    def _frames(self, first: int, last: int) -> Iterator[Message]:
        frames = read_frames(self._log, self._names, "dlq", to=last) if last >= first else iter(())
        return (frame for frame in frames if frame.sequence >= first)

    def _rows_of(self, first: int, last: int) -> int:
        return sum(frame.rows for frame in self._frames(first, last))

    def _load(self, engine: duckdb.DuckDBPyConnection, first: int, last: int) -> None:
        for message in self._frames(first, last):
            letters = decode_frame(message.payload, describe_frame(message))
            # DuckDB's maps have no key twice, and a record may have a header twice.
            headers = letters.column("headers").cast(_PAIRS)
            frame = letters.set_column(letters.schema.get_field_index("headers"), "headers", headers)
            frame = frame.append_column("place", pa.array(range(frame.num_rows), pa.uint64()))
            constants = {"sequence": message.sequence, "ordinal_bits": ORDINAL_BITS, "bucket_bits": BUCKET_BITS}
            run_over(engine, "frame", frame, filled("reference/dead_letter_rows", **constants))

    def _compare(self, engine: duckdb.DuckDBPyConnection, first: int, last: int) -> None:
        mappings, actual = read_mappings(self._log, self._names, self._leg), self._table_columns()
        choice, unplanned = mappings.choose(self._config, actual) if mappings else (ColumnChoice(), [])
        listed = "".join(f', {mappings.value_of(column)} AS "{column.label}"' for column in choice.columns) if mappings else ""
        engine.execute(
            f'CREATE VIEW expected AS SELECT position, 0::UINTEGER AS emit, bucket{listed}, topic, "partition", "offset", arrival_us '  # noqa: S608
            "FROM dead_letter_fields"
        )
        # The table's side leaves out rows that a join has not decided: there is none among dead letters.
        engine.execute("CREATE VIEW open_lefts AS SELECT NULL::UBIGINT AS position WHERE false")
        # Examples name the record that the dead letter is of.
        engine.execute(
            'CREATE VIEW parsed AS SELECT position, true AS is_first, decode(topic) AS topic, "partition", "offset" FROM dead_letter_fields'
        )
        positions = ("_tf_topic", "_tf_partition", "_tf_offset", "_tf_arrival")
        table = TableSide(engine, self._sink, choice.columns, positions, "reference/extra_dead_letter")
        self._progress("reading the table")
        self.report.checksums = table.sum_up(first, last)
        counts = table.counts()
        self.report.counts = {"dead letters": counts["expected"], "found": counts["found"]}
        for reason in choice.left_out.values():
            self.report.leave_out(reason)
        self.report.findings += choice.faults.values()
        self.report.findings += [replace(finding, place=PLACE) for finding in table.faults(self._examples)]
        note_unsure_values(self.report, table)
        if mappings:
            note_lost_values(engine, self.report, mappings.history, (first, last), choice.lost, STREAM)
            purged = [(max(low, first), min(high, last)) for low, high in mappings.unplanned if low <= last and high >= first]
            for reason in unplanned:
                note_unproven_rows(engine, self.report, reason, purged, STREAM)

    def _table_columns(self) -> Sequence[TableColumn]:
        with closing(ClickHouse(self._sink)) as clickhouse:
            table = clickhouse.inspect(self._sink.connection_params.database, self._sink.table)
        if table is None:
            raise HaltError(
                f"verifying table {self.report.table}: the table does not exist; start the pipeline to create it, or correct the sink in "
                "the pipeline file"
            )
        if removes := removes_rows(table):
            self.report.leave_out(f"rows that {removes} has removed: they are reported as missing")
        return table.columns

    def _find_strangers(self, first: int) -> None:
        """Note rows of purged dead letters, which are not compared, and rows at places that the stream never had."""
        self.report.leave_out(
            "rows of dead letters that are purged from their stream", count_rows(self._sink, f"_tf_sequence > 0 AND _tf_sequence < {first}")
        )
        beyond = f"_tf_sequence > {last_sequence(self._log, self._stream)}"
        later = [batch.column("_tf_sequence").to_numpy() for batch in table_batches(self._sink, ("_tf_sequence",), beyond)]
        # Read again: dead letters that were written meanwhile may have rows.
        last = last_sequence(self._log, self._stream)
        count = count_rows(self._sink, "_tf_sequence = 0") + sum(int((sequences > last).sum()) for sequences in later)
        self.report.find(PLACE, "extra", count, [{"expected": "no row", "found": "rows at no place of the dead-letter stream"}])

    def _count_behind_purge(self, first: int, before: Tally) -> None:
        """Compare the number of all rows with the ledger's, if the dead letters of some are purged."""
        if first > 1:
            found = count_rows(self._sink, "_tf_sequence > 0")
            note_rows_by_number(self.report, self._sink, self._leg, found, before, tally(self._log, self._names, self._config.topology))
