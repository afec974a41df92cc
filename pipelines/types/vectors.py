"""Small steps over whole columns that the stages share: masks, and queries to the engine about one column."""

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]
"""One boolean per row."""


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
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def ask(engine: duckdb.DuckDBPyConnection, sql: str, values: pa.Array) -> list[pa.Array]:
    """Run `sql`, which selects from `_tf_values` (its only column `v` is `values`), and return its columns, rows in order."""
    engine.register("_tf_values", pa.table({"v": values}))
    try:
        answer = engine.sql(sql).to_arrow_table()
    finally:
        engine.unregister("_tf_values")
    return [one_chunk(column) for column in answer.columns]
