"""Frames of the dead-letter stream to the columns of a table of dead letters.

In: a frame of dead letters (DEAD_LETTER_SCHEMA). Out: the mapped columns, and the position columns. A dead letter's position here is its
place on the dead-letter stream, (sequence, row in the frame): a record that two sinks refuse, or that is rejected again after it was
redriven, has several dead letters. Every dead letter fits: the mapping allows each field the type that keeps all of its values.
"""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.process.fingerprints import with_fingerprints
from pipelines.process.steps.mapping import MapToTable
from pipelines.protocol.records import INSTANT, POSITION_COLUMNS, Message
from pipelines.sink.inserts import rows_of_frame
from pipelines.types.vectors import one_chunk

_FIRST_INSTANT = datetime(1900, 1, 1, tzinfo=UTC)
_LAST_INSTANT = datetime(2299, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
"""The ends of DateTime64(6)."""
_STORED_AS_THEY_ARE = (
    *("stage", "code", "field", "sink", "source", "key", "value", "attempts", "first_time", "config_version", "past_dedup", "origin"),
)


def dead_letter_rows(message: Message, table: MapToTable) -> pa.Table:
    """Return the rows of a frame of dead letters, in its order: the columns of `table`, then all position columns."""
    found = rows_of_frame(message)
    fields, positions = _fields(found), _positions(found, message.sequence)
    return pa.table({**{target.name: fields[target.source] for target in table.targets}, **positions})


def _positions(found: pa.Table, sequence: int) -> dict[str, pa.Array]:
    rows = found.num_rows
    own = {
        "_tf_sequence": pa.array(np.full(rows, sequence, dtype=np.uint64)),
        "_tf_ordinal": pa.array(np.arange(rows, dtype=np.uint32)),
        "_tf_emit": pa.array(np.zeros(rows, dtype=np.uint32)),
    }
    return {name: own[name] if name in own else found.column(name) for name in POSITION_COLUMNS}


def _fields(found: pa.Table) -> dict[str, pa.Array]:
    """Return every field of `types.dead_letter_fields` by its name."""
    size, sha256 = one_chunk(found.column("oversize")).flatten()
    place = [found.column(name).cast(pa.string()) for name in ("_tf_sequence", "_tf_ordinal")]
    computed = {
        "position": pc.binary_join_element_wise(*place, "."),
        "message": pc.fill_null(found.column("message"), ""),
        "fingerprint": with_fingerprints(found).column("fingerprint"),
        "topic": found.column("_tf_topic").cast(pa.string()),
        "partition": found.column("_tf_partition"),
        "offset": found.column("_tf_offset"),
        "timestamp": _within_reach(found.column("timestamp")),
        "headers": _pairs(one_chunk(found.column("headers"))),
        "value_bytes": size,
        "value_sha256": pa.array([digest.hex() if digest is not None else None for digest in sha256.to_pylist()], pa.string()),
        "last_time": found.column("_tf_arrival"),
    }
    columns = {**{name: found.column(name) for name in _STORED_AS_THEY_ARE}, **computed}
    return {name: one_chunk(column) if isinstance(column, pa.ChunkedArray) else column for name, column in columns.items()}


def _within_reach(instants: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return instants, those outside of the years of the column's type as the nearer end of them."""
    first, last = pa.scalar(_FIRST_INSTANT, INSTANT), pa.scalar(_LAST_INSTANT, INSTANT)
    not_before = pc.if_else(pc.less(instants, first), first, instants)
    return pc.if_else(pc.greater(not_before, last), last, not_before)


def _pairs(headers: pa.Array) -> pa.Array:
    """Return headers as lists of (name, value); a record without headers has an empty list."""
    pairs = pa.StructArray.from_arrays([headers.keys, headers.items], names=["1", "2"])
    return pa.ListArray.from_arrays(headers.offsets, pairs)
