"""The findings of the loaded reference besides the table's rows: dead letters, Kafka's bytes, the counts, and lost values."""

from collections.abc import Mapping, Sequence

import duckdb

from pipelines.config import KafkaSource
from pipelines.connectors.kafka.settings import client_settings
from pipelines.connectors.sql import filled
from pipelines.proof.readers.kafka import open_topic
from pipelines.proof.verification.compared import within
from pipelines.proof.verification.join import label_of_stage
from pipelines.proof.verification.reference import run_over
from pipelines.proof.verification.result import Verification
from pipelines.proof.verification.span import History, Span
from pipelines.proof.verification.steps import trusted_codes
from pipelines.proof.verification.table import TableSide, examples_of
from pipelines.proof.verification.values import literal
from pipelines.protocol.outcomes import DROPPED
from pipelines.protocol.positions import ORDINAL_BITS, first_position, last_position

_UNSURE = "values of column {}, formerly {}, that differ in rows from before the change: it was renamed, or dropped and recreated"
_FILLED = "values of column {} that differ in rows made under a mapping without it: something else has filled it"


def find_dead_letters(engine: duckdb.DuckDBPyConnection, report: Verification, span: Span, examples: int, is_purged: bool) -> None:
    """Compare the dead letters with the records that the reference rejects. `is_purged`: dead letters were discarded."""
    faults = filled("reference/dead_letter_faults", first=span.bounds.first, last=span.bounds.last)
    for kind, count in engine.execute(f"SELECT kind, count(*) FROM ({faults}) GROUP BY kind ORDER BY kind").fetchall():  # noqa: S608
        if kind == "missing" and is_purged:
            report.cannot_prove("records that must be dead letters: the oldest dead letters were discarded and purged", count)
            continue
        named = (
            "SELECT position, coalesce('a dead letter of ' || wanted, 'no dead letter') AS wanted, "  # noqa: S608
            f"coalesce('one of ' || found, 'none') AS found FROM ({faults}) WHERE kind = '{kind}'"
        )
        report.find("dead letters", kind, count, examples_of(engine, named, examples))
    bounds = {"first": span.bounds.first, "last": span.bounds.last}
    wide = _number(engine, "SELECT count(*) FROM dead_letters WHERE code = 'row_too_large' AND position BETWEEN $first AND $last", **bounds)
    report.leave_out("dead letters of rows that are too large for a frame: their size is not recomputed", wide)
    ended = f"SELECT count(*) FROM dead_letters WHERE code IN ({trusted_codes()}) AND position BETWEEN $first AND $last"  # noqa: S608
    believed = _number(engine, ended, **bounds)
    report.leave_out("dead letters of records that made a stage fail: only the stage shows which", believed)


def find_other_bytes(
    engine: duckdb.DuckDBPyConnection,
    report: Verification,
    span: Span,
    sources: Sequence[KafkaSource],
    redriven: Sequence[int],
    examples: int,
) -> None:
    """Compare the bytes of the raw records with Kafka's. `redriven`: raw frames of redriven dead letters."""
    bounds = {"first": span.bounds.first, "last": span.bounds.last}
    engine.execute("CREATE TABLE redriven AS SELECT unnest($sequences::UBIGINT[]) AS sequence", {"sequences": redriven})
    engine.execute('CREATE TABLE kafka (source VARCHAR, "partition" INTEGER, "offset" BIGINT, bytes UBIGINT)')
    first_and_last = (
        'SELECT "partition", min("offset"), max("offset") FROM parsed WHERE position BETWEEN $first AND $last AND source = $source '  # noqa: S608
        f'AND position >> {ORDINAL_BITS} NOT IN (SELECT sequence FROM redriven) GROUP BY "partition"'
    )
    for source in sources:
        of_source = engine.execute(first_and_last, {**bounds, "source": source.source_id}).fetchall()
        within = {partition: (first, last) for partition, first, last in of_source}
        insert = f'INSERT INTO kafka SELECT {literal(source.source_id)}, "partition", "offset", hash(value) FROM batch'  # noqa: S608
        if within:
            with open_topic(client_settings(source), source.topic) as reader:
                for batch in reader.batches(with_values=True, within=within):
                    run_over(engine, "batch", batch, insert)
    report.counts["in Kafka"] = _number(engine, "SELECT count(*) FROM kafka")
    faults = filled("reference/other_bytes", **bounds)
    count = _number(engine, f"SELECT count(*) FROM ({faults})")  # noqa: S608
    report.find("streams", "different", count, examples_of(engine, faults, examples) if count else (), "value")


def note_lost_values(
    engine: duckdb.DuckDBPyConnection,
    report: Verification,
    history: History,
    within_frames: tuple[int, int],
    lost: Mapping[str, Sequence[str]],
    stream: str = "raw",
) -> None:
    """Note, by the reason in `lost`, the rows whose values nothing proves, and their sequences; they were made under these versions.

    `within_frames`: the first and the last sequence of the stream that are compared, both inclusive.
    """
    for reason, versions in lost.items():
        parts = [(low, high) for low, high, version in history.rows_made(*within_frames) if version in versions]
        note_unproven_rows(engine, report, reason, parts, stream)


def note_unproven_rows(
    engine: duckdb.DuckDBPyConnection, report: Verification, reason: str, parts: Sequence[tuple[int, int]], stream: str
) -> None:
    """Note the rows of some sequences of a stream, first and last, both inclusive; none without any."""
    if parts:
        inside = within([(first_position(low), last_position(high)) for low, high in parts])
        rows = f"{reason}; rows of {stream} {', '.join(f'{low}..{high}' for low, high in parts)}"
        report.cannot_prove(rows, _number(engine, f"SELECT count(*) FROM expected WHERE {inside}"))  # noqa: S608


def note_unsure_values(report: Verification, table: TableSide) -> None:
    """Note the values that differ in rows that were made when the mapping did not have their column under its name."""
    for column, count in table.unsure.items():
        report.cannot_prove((_UNSURE if column.former else _FILLED).format(column.name, ", ".join(column.former)), count)


def counts_of(engine: duckdb.DuckDBPyConnection, span: Span) -> dict[str, int]:
    """Count the expected outcomes of the records of the range."""
    inside = f"position BETWEEN {span.bounds.first} AND {span.bounds.last}"
    statements = {
        "records": f"SELECT count(*) FROM parsed WHERE is_first AND {inside}",  # noqa: S608
        "rows": "SELECT count(*) FROM expected",
        "copies": f"SELECT count(*) FROM dropped WHERE why = 'copy' AND {inside}",  # noqa: S608
        "rejected": f"SELECT count(*) FROM parsed WHERE NOT starts_with(stage, '{DROPPED}') AND is_first AND {inside}",  # noqa: S608
        "refused": f"SELECT count(*) FROM dead_letters WHERE stage = 'sink' AND code != 'abandoned' AND {inside}",  # noqa: S608
        "abandoned": f"SELECT count(*) FROM dead_letters WHERE stage = 'sink' AND code = 'abandoned' AND {inside}",  # noqa: S608
    }
    counts = {name: _number(engine, sql) for name, sql in statements.items()}
    # A copy is a copy, whatever a step behind dedup would have made of it.
    outcome = "CASE WHEN position NOT IN (SELECT position FROM dropped) THEN coalesce(stage, then_dropped) END"
    ends = f"SELECT {outcome} AS outcome FROM parsed WHERE is_first AND {inside}"  # noqa: S608
    dropped = f"SELECT outcome, count(*) FROM ({ends}) WHERE starts_with(outcome, '{DROPPED}') GROUP BY outcome ORDER BY outcome"  # noqa: S608
    counts |= {label_of_stage(stage): count for stage, count in engine.execute(dropped).fetchall()}
    if not counts["abandoned"]:
        del counts["abandoned"]
    return counts


def _number(engine: duckdb.DuckDBPyConnection, sql: str, **bounds: int) -> int:
    return int(engine.execute(sql, bounds or None).fetchall()[0][0])
