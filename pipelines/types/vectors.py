"""Small steps over whole columns that the stages share: masks, and numbers of rows."""

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
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
