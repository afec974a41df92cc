"""Drop marks: what a step behind dedup drops crosses the exchange as a row with a mark, because dedup decides about the record first.

Before the exchange `marked` makes such rows: positions, keys and times, without the table's columns. After dedup `parted` takes them out
again: a marked record that is the first of its key is dropped by its step, a marked copy is a copy. A program without such a step, and a
plan without such a record, has no column of marks.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.protocol.outcomes import THEN_DROPPED
from pipelines.protocol.positions import is_first_row, position_keys
from pipelines.protocol.records import EMIT_FIELD, REFUSED_ROW_COLUMN, TOPIC_TYPE

MARK_COLUMN = "_tf_then_dropped"
"""The total of the outcome with which a step behind dedup drops the record; null for a record that stays."""


def marked(before: pa.Table, accepted: pa.Table, rejected: pa.Table, total: str) -> pa.Table:
    """Return the records of `before` of which a step neither accepted nor rejected a row, one row each, with its outcome as their mark.

    `before` and `accepted` are in position order. The fields are left out: no later step sees the record.
    """
    keys = position_keys(before)
    is_dropped = is_first_row(before)
    for others in (accepted, rejected):
        is_dropped[np.searchsorted(keys, position_keys(others))] = False
    kept = [name for name in before.column_names if name.startswith("_tf_") and name not in (EMIT_FIELD.name, REFUSED_ROW_COLUMN)]
    rows = before.select(kept).filter(pa.array(is_dropped))
    mark = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows.num_rows, dtype=np.int32)), pa.array([total]))
    return rows.append_column(MARK_COLUMN, mark.cast(TOPIC_TYPE))


def parted(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows without a mark, and those with one; the former without the column of marks."""
    if MARK_COLUMN not in rows.column_names:
        return rows, rows.slice(0, 0)
    stays = pc.is_null(rows.column(MARK_COLUMN))
    return rows.filter(stays).drop_columns([MARK_COLUMN]), rows.filter(pc.invert(stays))


def counts_of(dropped: pa.Table) -> Mapping[str, int]:
    """Return the counts of marked records that dedup has accepted, by outcome and together; empty without one."""
    if not dropped.num_rows:
        return {}
    by_outcome = pc.value_counts(dropped.column(MARK_COLUMN).cast(pa.string())).to_pylist()
    return {THEN_DROPPED: dropped.num_rows, **{one["values"]: one["counts"] for one in by_outcome}}
