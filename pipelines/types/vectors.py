"""Small steps over whole columns that the stages share: masks, and numbers of rows."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]
"""One boolean per row."""
Numbers = npt.NDArray[np.int64]
"""Numbers of rows."""


def to_mask(answer: pa.Array | pa.ChunkedArray) -> Mask:
    """Convert a boolean column to numpy, null as False; the caller may write into it."""
    filled = pc.fill_null(answer, False)
    mask: Mask = np.array(filled.to_numpy(zero_copy_only=False) if isinstance(filled, pa.Array) else filled.to_numpy(), dtype=bool)
    return mask


def without(column: pa.Array, rows: Mask) -> pa.Array:
    """Replace `column` by null in `rows`; return the column itself if there are none."""
    return pc.if_else(pa.array(rows), pa.scalar(None, column.type), column) if rows.any() else column


def mismatch(texts: pa.Array, pattern: str) -> Mask:
    """Return True where a text (not null) does not match the RE2 `pattern`."""
    return to_mask(pc.invert(pc.match_substring_regex(texts, pattern)))


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return the column as one array; not copied if it is one already."""
    if not column.num_chunks:
        return pa.nulls(0, column.type)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def of_these_rows(table: pa.Table) -> pa.Table:
    """Return the table without values of other rows, of which Arrow writes some with a slice of them (pyarrow 26.0).

    These are all values of a union, in a slice from the first row, and the places of all texts in lists, where the slice has no element.
    """
    for index, field in enumerate(table.schema):
        column = table.column(index)
        if _holds_union(field.type) or any(map(_has_only_others, column.chunks)):
            table = table.set_column(index, field, column.take(pa.array(np.arange(len(column)))))
    return table


def _has_only_others(values: pa.Array) -> bool:
    """Return whether a list, or one within, has no element in these rows, but some in others."""
    kind = values.type
    if pa.types.is_struct(kind):
        return any(_has_only_others(values.field(index)) for index in range(kind.num_fields))
    if pa.types.is_fixed_size_list(kind):
        return _has_only_others(values.values.slice(values.offset * kind.list_size, len(values) * kind.list_size))
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)):
        return False
    first, last = (values.offsets[0].as_py(), values.offsets[len(values)].as_py()) if len(values) else (0, 0)
    return _has_only_others(values.values.slice(first, last - first)) if last > first else len(values.values) > 0


@lru_cache(maxsize=1024)
def _holds_union(kind: pa.DataType) -> bool:
    return pa.types.is_union(kind) or any(_holds_union(kind.field(index).type) for index in range(kind.num_fields))


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows; pyarrow's own ways to one do not know unions."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
