"""Settles an insert that was refused or not answered: the table is asked which of its rows it holds.

A block is written partition by partition. An expression that a table computes while it writes a part (sorting key, skip index, projection,
TTL) may raise after other parts are stored (measured, 26.9). An insert whose answer was lost may be stored, too, and be refused when it is
sent again. So nothing is decided about a piece before its rows were looked up, and not while an earlier insert of it may be running.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors.sinks import Sink, Table
from pipelines.errors import HaltError, RetryableError
from pipelines.protocol.lease import INSERT_MAX_EXECUTION_SECONDS
from pipelines.sink.chunks import Rows

NEEDED_COLUMNS = ("_tf_sequence", "_tf_ordinal", "_tf_emit", "_tf_arrival")
"""The position columns that identify a row, also among rows of a pipeline that was deleted and recreated."""


@dataclass(frozen=True)
class Sent:
    """Rows of a piece that were sent, and the sink's answer.

    `work` names the chunk's inserts; `age_seconds`: how long ago an insert of unknown outcome was last running, None if there was none.
    """

    table: str
    rows: pa.Table
    work: str
    age_seconds: float | None
    outcome: str


def stored_rows(sink: Sink, sent: Sent, max_insert_time: timedelta, is_certain: bool) -> Rows:
    """Return the sent rows that are in the table, by their indices in `sent.rows`; none if it stored nothing.

    `is_certain`: the refusal came before anything was written. Raise RetryableError while an earlier insert may be running, and HaltError
    if the table cannot tell.
    """
    if sent.age_seconds is None and is_certain:
        # No insert of the piece may have stored anything.
        return np.zeros(0, np.int64)
    database, _, name = sent.table.partition(".")
    table = sink.inspect(database, name)
    if table is None:
        raise HaltError(f"inserting a chunk into {sent.table}: the table does not exist; create it and start again")
    _wait_until_quiet(sink, sent, table, max_insert_time)
    why = why_unknown(sent.rows.column_names, table)
    if not why:
        return _found(sink, sent, table)
    if sent.age_seconds is None and not table.is_partitioned:
        # One block that is one part.
        return np.zeros(0, np.int64)
    raise HaltError(
        f"inserting a chunk into {sent.table}: {sent.outcome}. An insert may have stored some of its rows. Which ones is unknown: {why}. "
        "Correct what refuses the rows (a constraint, an expression) and start again: the same chunk is sent with its token, and no row "
        "is doubled. A MergeTree table with the position columns (docs/clickhouse.md) needs no such step"
    )


def _wait_until_quiet(sink: Sink, sent: Sent, table: Table, max_insert_time: timedelta) -> None:
    """Raise RetryableError while an earlier insert of the piece may be running, or on its way."""
    at_work = sink.inserts_at_work(sent.work)
    if at_work:
        raise RetryableError(
            f"inserting a chunk into {sent.table}: waiting for an earlier insert of it that {sink.system} still runs "
            f"(system.processes, log_comment '{sent.work}')"
        )
    # If running inserts are visible, wait only for an insert that has not arrived yet.
    is_seen = at_work is not None and not table.is_replicated
    seconds = INSERT_MAX_EXECUTION_SECONDS if is_seen else max_insert_time.total_seconds()
    if sent.age_seconds is not None and sent.age_seconds < seconds:
        raise RetryableError(f"inserting a chunk into {sent.table}: waiting until no earlier insert of it can be running")


def why_unknown(columns: Collection[str], table: Table) -> str:
    """Return why the table cannot tell which rows of these columns it has stored; empty if it can."""
    if any(name not in columns for name in NEEDED_COLUMNS):
        return f"the table lacks one of the columns {', '.join(NEEDED_COLUMNS)}"
    if not table.keeps_rows:
        return f"the table's engine {table.engine}, or its TTL, merges several rows into one"
    return ""


def _found(sink: Sink, sent: Sent, table: Table) -> Rows:
    rows = pa.table(
        {
            "sequence": sent.rows["_tf_sequence"].cast(pa.uint64()),
            "ordinal": sent.rows["_tf_ordinal"].cast(pa.uint32()),
            "emit": sent.rows["_tf_emit"].cast(pa.uint32()),
            "arrival_us": sent.rows["_tf_arrival"].cast(pa.int64()),
            "row": pa.array(range(sent.rows.num_rows), pa.int64()),
        }
    )
    sequences, arrivals = pc.min_max(rows["sequence"]).as_py(), pc.min_max(rows["arrival_us"]).as_py()
    stored = sink.stored_positions(table, (sequences["min"], sequences["max"]), (arrivals["min"], arrivals["max"]))
    keys = ["sequence", "ordinal", "emit", "arrival_us"]
    found = rows.join(stored.select(keys).cast(rows.select(keys).schema), keys, join_type="left semi")
    indices: Rows = np.sort(found["row"].to_numpy())
    return indices
