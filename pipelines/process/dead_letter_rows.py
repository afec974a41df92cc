"""Dead letters: every rejected record with its original bytes, its coordinates and the reason for the rejection.

In: the stage input of a range (raw records with positions) and the `rejected` rows of its stages. Out: DEAD_LETTER_SCHEMA, sorted by raw
position, one row per rejected record. A dead letter's identity is the raw position at which the record was rejected, and all its values are
functions of the log, so a replay writes the same dead letter or nothing. Nothing is kept here; dead letters are stored in the dlq stream.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.protocol.positions import CAUSE_COLUMNS, position_keys
from pipelines.protocol.records import EMIT_FIELD, HEADERS_TYPE, HISTORY_SCHEMA, INSTANT, OVERSIZE_TYPE, POSITION_FIELDS
from pipelines.types.vectors import one_chunk
from pipelines.without_pandas import empty_table

DEAD_LETTER_SCHEMA = pa.schema(
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
        ("past_dedup", pa.bool_()),
        ("origin", pa.string()),
        ("sink", pa.string()),
        ("source", pa.string()),
        ("refused_row", pa.uint32()),
    ]
)
"""Columns of a dead letter. Times are arrivals, never a clock.

`value` is the whole record, or its first 1024 bytes if `oversize` holds its size and SHA-256. `attempts` counts rejections, including this
one. `past_dedup`: dedup, if there is one, has accepted the record. `origin`: the position of the dead letter that this record was before it
was redriven; null for a record that comes from Kafka. `sink`: the sink leg that refused it, now or before; null if none did. `source`: the
id of its source in the pipeline file. `refused_row`: of a record that a function makes several rows of, the number of the one that a sink
refused, now or before; null if the whole record is rejected.
"""

_NONE = empty_table(DEAD_LETTER_SCHEMA)


def dead_letters(
    records: pa.Table,
    rejected: pa.Table,
    config_version: str,
    source: str | None,
    refused_by: str | None = None,
    is_past_dedup: bool = False,
) -> pa.Table:
    """Return the dead letters for `rejected`; each of its rows names a record of `records`, in any order.

    Every position is there at most once, but for rows of one record that have their number in the column `_tf_emit`.

    `source`: the id of the records' source; None if their column `source` has it. `refused_by`: the sink leg that
    rejected the records, which is after dedup; so is what `is_past_dedup` says it of.
    Raise KeyError if a rejected position is not among the records: a stage invented it.
    """
    if rejected.num_rows == 0:
        return _NONE
    keys = position_keys(rejected)
    order = np.argsort(keys, kind="stable")
    rejected = rejected.take(pa.array(order))
    keys = keys[order]
    present = position_keys(records)
    rows = np.searchsorted(present, keys)
    if rows[-1] >= len(present) or not np.array_equal(present[rows], keys):
        raise KeyError("a stage rejected a position that is not among its input")
    originals = records.take(pa.array(rows))
    columns = {name: originals.column(name) for name in originals.column_names if name in DEAD_LETTER_SCHEMA.names}
    columns |= {name: rejected.column(name) for name in ("stage", "code", "field", "message")}
    columns["config_version"] = pa.repeat(pa.scalar(config_version), rejected.num_rows)
    if source is not None:
        columns["source"] = pa.repeat(pa.scalar(source), rejected.num_rows)
    columns |= _history(originals, refused_by, is_past_dedup or refused_by is not None)
    if EMIT_FIELD.name in rejected.column_names:
        columns["refused_row"] = rejected.column(EMIT_FIELD.name)
    return pa.table([columns[name] for name in DEAD_LETTER_SCHEMA.names], schema=DEAD_LETTER_SCHEMA)


def with_causes(letters: pa.Table, rows: pa.Table, *beside: str) -> pa.Table:
    """Return the dead letters of rows of a join in the order of `rows`, with their CAUSE_COLUMNS, and those named `beside`."""
    keys = position_keys(rows)
    place = np.argsort(keys, kind="stable")
    order = place[np.searchsorted(keys[place], position_keys(letters))]
    for name in (*CAUSE_COLUMNS, *beside):
        letters = letters.append_column(name, one_chunk(rows.column(name)).take(pa.array(order)))
    return letters.take(pa.array(np.argsort(order, kind="stable")))


def _history(records: pa.Table, refused_by: str | None, is_past_dedup: bool) -> dict[str, pa.ChunkedArray]:
    """Return HISTORY_SCHEMA and `last_time` for the dead letters of `records`."""
    history = {
        field.name: records.column(field.name) if field.name in records.column_names else pa.nulls(records.num_rows, field.type)
        for field in HISTORY_SCHEMA
    }
    arrival = records.column("_tf_arrival")
    return {
        "attempts": pc.add(pc.fill_null(history["attempts"], 0), pa.scalar(1, pa.int32())),
        "first_time": pc.coalesce(history["first_time"], arrival),
        "last_time": arrival,
        "past_dedup": pc.or_(pc.fill_null(history["past_dedup"], False), is_past_dedup),
        "origin": history["origin"],
        "refused_row": history["refused_row"],
        "sink": history["sink"] if refused_by is None else pa.repeat(pa.scalar(refused_by), records.num_rows),
    }
