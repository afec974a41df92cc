"""Columns of a table, as a system gives them, in the types that a look-up reads. A value that does not fit refuses the whole snapshot."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.types.vectors import one_chunk

Numbers = npt.NDArray[Any]
"""An array of int64, or of uint64."""
_LARGEST_TEXT_BYTES = 2**31 - 1


def read_as(column: pa.ChunkedArray, name: str, kind: pa.DataType) -> pa.Array:
    """Return a column as one array of a source type. Raise ValueError with the column's name if a value does not fit."""
    try:
        array = one_chunk(column)
        if pa.types.is_dictionary(array.type):
            # LowCardinality, Enum, and Parquet's dictionaries.
            array = array.dictionary_decode()
        found = _cast(array, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ValueError(f"column {name!r} is {column.type} and cannot be read as {kind}: {error}") from error
    if pa.types.is_floating(found.type) and pc.all(pc.is_finite(found)).as_py() is False:
        raise ValueError(f"column {name!r} holds a number that is infinite or NaN")
    return found


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
        if pa.types.is_string(kind):
            # ClickHouse fills a FixedString up with zero bytes.
            array = pc.replace_substring_regex(array, pattern="\\x00+$", replacement="")
    if pa.types.is_timestamp(kind):
        return _instants(array, kind)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _texts(array, kind)
    is_flag = pa.types.is_boolean(kind) and pa.types.is_integer(array.type)
    if is_flag and not pc.all(pc.is_in(array, pa.array([0, 1, None], array.type))).as_py():
        raise pa.ArrowInvalid("a number is neither 0 nor 1")
    return array.cast(kind)


def _texts(array: pa.Array, kind: pa.DataType) -> pa.Array:
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    if is_large and (pc.sum(pc.binary_length(array)).as_py() or 0) > _LARGEST_TEXT_BYTES:
        raise pa.ArrowInvalid("its texts take more than 2 GiB")
    return array.cast(kind)


def _instants(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_integer(array.type):
        raise pa.ArrowInvalid("it is a number: give an instant, in ClickHouse for example toDateTime64(created_at, 6)")
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        has_zone = pc.match_substring_regex(array, r"(Z|[+-]\d\d(:?\d\d)?)$")
        zoned, naive = (pc.if_else(mask, array, pa.scalar(None, array.type)) for mask in (has_zone, pc.invert(has_zone)))
        return pc.coalesce(zoned.cast(kind), pc.assume_timezone(naive.cast(pa.timestamp("us")), "UTC"))
    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("us"))
    if pa.types.is_timestamp(array.type) and array.type.tz is None:
        array = pc.assume_timezone(array.cast(pa.timestamp("us")), "UTC")
    return array.cast(kind)


def order_numbers(ends: pa.Array, when_null: int | None = None) -> Numbers:
    """Return integers, or the microseconds of instants, in their order; nulls as `when_null`, or as 0."""
    numbers = ends.cast(pa.int64()) if pa.types.is_timestamp(ends.type) else ends
    limits = np.iinfo(numbers.type.to_pandas_dtype())
    filled = pc.fill_null(numbers, pa.scalar(0 if when_null is None else max(limits.min, min(limits.max, when_null)), numbers.type))
    found: Numbers = filled.to_numpy(zero_copy_only=False)
    return found
