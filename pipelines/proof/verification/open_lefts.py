"""Records of a join about which something decides that was not read: purged, not confirmed by the sink, or not done by process.

Left ones, and late ones of both sides. Their rows are neither missing nor extra, so they are in neither side of a comparison, and are
counted here. A left record that waits by all that is on raw has no row: one that has is a finding.
"""

import duckdb
import numpy as np
import pyarrow as pa

from pipelines.config import ClickHouseSink
from pipelines.proof.readers.table import position_batches
from pipelines.proof.verification.join import PENDING, PURGED, WAITS
from pipelines.proof.verification.reference import run_over
from pipelines.proof.verification.result import EARLY_LEFTS, UNCONFIRMED_LEFTS, WAITING_LEFTS, Verification
from pipelines.proof.verification.table import examples_of
from pipelines.protocol.positions import NO_POSITIONS, RawPositions, sequences_of

PURGED_DECIDES = "records of the join about which one may decide that is purged"
_WITH_ROW = (
    "SELECT count(*) FROM parsed SEMI JOIN (FROM open_lefts WHERE why = ?) USING (position) "
    "WHERE stage IS NULL AND then_dropped IS NULL AND is_here"
)


def note_open_lefts(engine: duckdb.DuckDBPyConnection, report: Verification, has_end: bool) -> None:
    """Note the left records of the range that are not proven.

    `has_end`: of the range. A left record that waits has no row, which explains it; but the row that it may still get is compared only if
    the same range is verified again.
    """
    counts = dict(engine.execute("SELECT why, count(*) FROM open_lefts GROUP BY why").fetchall())
    report.cannot_prove(PURGED_DECIDES, counts.get(PURGED, 0))
    report.cannot_prove(UNCONFIRMED_LEFTS, engine.execute(_WITH_ROW, [PENDING]).fetchall()[0][0])
    if has_end:
        report.cannot_prove(WAITING_LEFTS, counts.get(WAITS, 0))


def waiting_lefts(engine: duckdb.DuckDBPyConnection) -> RawPositions:
    """Return the positions of the left records of the range that wait, ascending."""
    found = engine.execute("SELECT position FROM open_lefts WHERE why = ? ORDER BY position", [WAITS]).fetchnumpy()["position"]
    return np.asarray(found, dtype=np.uint64)


def rows_among(sink: ClickHouseSink, positions: RawPositions) -> RawPositions:
    """Return which of these positions, ascending, the table has rows of."""
    first, last = sequences_of(positions[[0, -1]]).tolist()
    batches = position_batches(sink, f"_tf_sequence BETWEEN {first} AND {last}")
    return np.unique(np.concatenate([NO_POSITIONS, *(np.intersect1d(batch, positions) for batch in batches)]))


def find_early_ends(engine: duckdb.DuckDBPyConnection, report: Verification, rows: RawPositions, is_still: bool, examples: int) -> None:
    """Note waiting left records that have `rows`, or dead letters.

    They are findings if nothing has arrived since the ledger was read (`is_still`).
    """
    early = pa.table({"position": pa.array(rows, pa.uint64())})
    run_over(engine, "_tf_early", early, "CREATE TABLE early AS FROM _tf_early")
    row_faults = "SELECT position, 'no row: waits in the join' AS wanted, 'a row' AS found FROM early"
    letter_faults = (
        "SELECT position, 'no dead letter' AS wanted, 'one of ' || stage AS found "  # noqa: S608
        f"FROM dead_letters SEMI JOIN (FROM open_lefts WHERE why = '{WAITS}') USING (position)"
    )
    letters = engine.execute(f"SELECT count(*) FROM ({letter_faults})").fetchall()[0][0]  # noqa: S608
    if not is_still:
        report.cannot_prove(EARLY_LEFTS, len(rows) + letters)
        return
    for place, faults, count in (("rows", row_faults, len(rows)), ("dead letters", letter_faults, letters)):
        report.find(place, "extra", count, examples_of(engine, faults, examples) if count else ())
