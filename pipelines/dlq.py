"""Dead letters: every rejected record with its original bytes, its coordinates, and why it was refused.

In: the stage input of a range (raw records with positions) and the `rejected` rows of its stages. Out: LETTER_SCHEMA, sorted by raw
position, one row per rejected record. A letter's identity is the raw position at which the record was rejected, and all its values are
functions of the log, so a replay writes the same letter or nothing. Nothing is kept here; letters live in the dlq stream.
"""

import numpy as np
import pyarrow as pa

from pipelines.records import HEADERS_TYPE, INSTANT, OVERSIZE_TYPE, POSITION_FIELDS, position_keys

LETTER_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("timestamp", INSTANT),
        ("oversize", OVERSIZE_TYPE),
        *POSITION_FIELDS,
        ("stage", pa.string()),
        ("code", pa.string()),
        ("field", pa.string()),
        ("message", pa.string()),
        ("config_version", pa.string()),
        ("attempts", pa.int32()),
        ("first_time", INSTANT),
        ("last_time", INSTANT),
    ]
)
"""`value` is the whole record, or the first 1024 bytes where `oversize` tells its size and SHA-256. Times are arrivals, never a clock."""


def letters(records: pa.Table, rejected: pa.Table, config_version: str) -> pa.Table:
    """The dead letters for `rejected`; each of its rows names a record of `records` (both sorted or not; every position at most once).

    Raises KeyError when a rejected position is not among the records: a stage invented it.
    """
    if rejected.num_rows == 0:
        return LETTER_SCHEMA.empty_table()
    wanted = position_keys(rejected)
    order = np.argsort(wanted, kind="stable")
    rejected = rejected.take(pa.array(order))
    wanted = wanted[order]
    present = position_keys(records)
    rows = np.searchsorted(present, wanted)
    if rows[-1] >= len(present) or not np.array_equal(present[rows], wanted):
        raise KeyError("a stage rejected a position that is not among its input")
    originals = records.take(pa.array(rows))
    columns = {name: originals.column(name) for name in originals.column_names if name in LETTER_SCHEMA.names}
    columns |= {name: rejected.column(name) for name in ("stage", "code", "field", "message")}
    count = rejected.num_rows
    columns["config_version"] = pa.repeat(pa.scalar(config_version), count)
    columns["attempts"] = pa.repeat(pa.scalar(1, pa.int32()), count)
    columns["first_time"] = columns["last_time"] = originals.column("_tf_arrival")
    return pa.table([columns[name] for name in LETTER_SCHEMA.names], schema=LETTER_SCHEMA)
