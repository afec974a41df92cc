"""Columns of a Kafka record beside the fields of its JSON: key, headers, offset, partition, timestamp, topic, arrival, or the value whole.

In: raw records with their positions. Out: a column per RecordColumn, in the Arrow type of its source type; null for a null key, timestamp
or header, and for a header that the record does not have. Of several headers of one name the last one counts. All headers together are a
JSON object, its keys in the order of those last ones; `{}` without headers.

Rejected: `wrong_type`, for bytes that are not UTF-8 in a column of type string or map.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.process.rejections import Rejections
from pipelines.types.engine import Engine
from pipelines.types.record_columns import RecordColumn
from pipelines.types.vectors import Mask, one_chunk, to_mask

_POSITIONS = {"offset": "_tf_offset", "partition": "_tf_partition", "topic": "_tf_topic", "arrival": "_tf_arrival"}
_ENTRIES = pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())]))


def read_columns(engine: Engine, records: pa.Table, columns: Sequence[RecordColumn], rejections: Rejections) -> list[pa.Array]:
    """Return the columns, of the length of `records`. Rejected rows hold any value."""
    return [_read(engine, records, column, rejections) for column in columns]


def as_texts(engine: Engine, values: pa.Array) -> tuple[pa.Array, Mask]:
    """Return binary values as strings, and the rows that are not UTF-8; these are null."""
    try:
        return values.cast(pa.string()), np.zeros(len(values), dtype=bool)
    except pa.ArrowInvalid:
        (texts,) = engine.ask("SELECT try(decode(v)) FROM _tf_values", values)
        return texts, to_mask(pc.is_null(texts)) & to_mask(pc.is_valid(values))


def _read(engine: Engine, records: pa.Table, column: RecordColumn, rejections: Rejections) -> pa.Array:
    part = one_chunk(records[_POSITIONS.get(column.origin, column.origin)])
    if column.header:
        part = pc.map_lookup(part, pa.scalar(column.header.encode(), pa.binary()), "last")
    if column.type == "map":
        texts, bad = _as_json(engine, part)
    elif column.type == "string" and pa.types.is_binary(part.type):
        texts, bad = as_texts(engine, part)
    else:
        return part.cast(pa.string()) if column.type == "string" else part
    rejections.note(bad, "wrong_type", column.name, f"expected {column.type}, found bytes that are not UTF-8")
    return texts


def _as_json(engine: Engine, headers: pa.Array) -> tuple[pa.Array, Mask]:
    """Return the headers of each record as the text of a JSON object, and the rows in which a name or a value is not UTF-8."""
    names, values, row_of = _last_headers(headers)
    texts, bad = zip(as_texts(engine, names), as_texts(engine, values), strict=True)
    quoted = [engine.ask("SELECT to_json(v)::VARCHAR FROM _tf_values", one)[0] for one in texts]
    members = pc.binary_join_element_wise(*(pc.fill_null(one, "null") for one in quoted), ":")
    lengths = np.bincount(row_of, minlength=len(headers))
    lists = pa.ListArray.from_arrays(pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32()), members)
    rows: Mask = np.zeros(len(headers), dtype=bool)
    rows[row_of[bad[0] | bad[1]]] = True
    return pc.binary_join_element_wise("{", pc.binary_join(lists, ","), "}", ""), rows


def _last_headers(headers: pa.Array) -> tuple[pa.Array, pa.Array, npt.NDArray[np.int64]]:
    """Return the last header of each name in each record: names, values, and the row of each."""
    names, values, row_of = _entries(headers)
    codes = names.dictionary_encode().indices.to_numpy().astype(np.int64)
    pairs = row_of * (len(names) + 1) + codes
    _, from_the_end = np.unique(pairs[::-1], return_index=True)
    last = np.sort(len(pairs) - 1 - from_the_end)
    return names.take(pa.array(last)), values.take(pa.array(last)), row_of[last]


def _entries(headers: pa.Array) -> tuple[pa.Array, pa.Array, npt.NDArray[np.int64]]:
    entries = headers.cast(_ENTRIES)
    lengths = pc.fill_null(pc.list_value_length(entries), 0).to_numpy(zero_copy_only=False)
    flat = pc.list_flatten(entries)
    return pc.struct_field(flat, 0), pc.struct_field(flat, 1), np.repeat(np.arange(len(headers), dtype=np.int64), lengths)
