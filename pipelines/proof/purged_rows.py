"""The rows of purged frames: no stream shows them any more, so they are compared by their number with the ledger's.

Rows that nobody has confirmed, or the loss of ones that were, would else hide behind a purge.
"""

from contextlib import closing

from pipelines.config import ClickHouseSink
from pipelines.connectors.clickhouse.client import ClickHouse
from pipelines.connectors.clickhouse.removal import removes_rows
from pipelines.proof.report import Report
from pipelines.protocol.outcomes import ABANDONED, CONFIRMED
from pipelines.protocol.tally import Tally
from pipelines.protocol.topology import DEAD_LETTERS, LegId

_TOO_MANY = "rows of the table beyond those that the ledger counts: the {} that could show whose they are are purged"
_TOO_FEW = "rows that the ledger counts and the table does not hold: their {} are purged"


def note_rows_by_number(report: Report, sink: ClickHouseSink, leg: LegId, found: int, before: Tally, after: Tally) -> None:
    """Note how many of the table's rows at positions, all of them being `found`, the ledger does not explain.

    `before` was read before the table, `after` behind it: a pipeline that writes meanwhile is between them. Nothing is noted where the
    table's definition removes rows, or beside findings, which change the number, too.
    """
    if report.findings or _removes(sink):
        return
    least, most = _bounds(leg, before, after)
    purged = "dead letters" if leg.kind == DEAD_LETTERS else "raw frames"
    report.cannot_prove(_TOO_MANY.format(purged), max(0, found - most))
    report.cannot_prove(_TOO_FEW.format(purged), max(0, least - found))


def _bounds(leg: LegId, before: Tally, after: Tally) -> tuple[int, int]:
    """Return the least and the most rows that a table has: the confirmed ones; all that were written for it and not given up since."""
    (first,) = (one for one in before.legs if one.leg == leg)
    (last,) = (one for one in after.legs if one.leg == leg)
    confirmed = first.outcomes[CONFIRMED.label]
    # Rows of an abandoned plan may have been stored.
    never_stored = first.rows_in - confirmed - first.outcomes.get(ABANDONED.label, 0)
    return confirmed, last.rows_in + last.waiting - never_stored


def _removes(sink: ClickHouseSink) -> bool:
    """Return whether the table's definition removes rows in the background."""
    with closing(ClickHouse(sink)) as server:
        table = server.inspect(sink.connection_params.database, sink.table)
    return table is not None and bool(removes_rows(table))


def is_there(sink: ClickHouseSink) -> bool:
    """Return whether the table exists, so that its rows can be counted."""
    with closing(ClickHouse(sink)) as server:
        return server.inspect(sink.connection_params.database, sink.table) is not None
