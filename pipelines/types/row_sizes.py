"""The size of rows in a frame before it is compressed, without what each column costs once.

It is counted by the values, so that it does not depend on a library's version.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.types.vectors import Numbers, one_chunk

_MARK_BYTES = 1
"""The cost of every value: whether it is null. Arrow takes a bit."""
_PLACE_BYTES = 4
"""The cost of a text, a list, and a value of a union or a dictionary: where it lies."""

_TEXTS = {kind.id for kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())}
_OF_ONE_SIZE = (pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary, pa.types.is_null)


def row_bytes(rows: pa.Table) -> Numbers:
    """Return the size of each row."""
    return sum((_value_bytes(one_chunk(column)) for column in rows.columns), np.zeros(rows.num_rows, dtype=np.int64))


def widest_row_bytes(rows: pa.Table) -> int:
    """Return a bound of the size of every row, for less CPU: the largest value of each column."""
    return sum(_largest_value_bytes(one_chunk(column)) for column in rows.columns)


def _largest_value_bytes(values: pa.Array) -> int:
    if _is_text(values.type):
        return _MARK_BYTES + _PLACE_BYTES + (pc.max(pc.binary_length(values)).as_py() or 0)
    if _has_one_size(values.type):
        return _fixed_bytes(values.type)
    return int(_value_bytes(values).max(initial=0))


def _value_bytes(values: pa.Array) -> Numbers:
    kind = values.type
    if _has_one_size(kind):
        return np.full(len(values), _fixed_bytes(kind), dtype=np.int64)
    if _is_text(kind):
        return _MARK_BYTES + _PLACE_BYTES + _numbers(pc.binary_length(values))
    if pa.types.is_struct(kind):
        # Not `flatten`: it gives each part the nulls of the whole, which ends the process if one is a union.
        parts = (values.field(index) for index in range(kind.num_fields))
        return sum(map(_value_bytes, parts), np.full(len(values), _MARK_BYTES, dtype=np.int64))
    if pa.types.is_union(kind):
        return _bytes_in_union(values)
    if pa.types.is_dictionary(kind):
        return _MARK_BYTES + _PLACE_BYTES + _bytes_in_dictionary(values)
    return _MARK_BYTES + _PLACE_BYTES + _bytes_in_lists(values)


def _bytes_in_lists(values: pa.Array) -> Numbers:
    if pa.types.is_fixed_size_list(values.type):
        ends = values.type.list_size * np.arange(values.offset, values.offset + len(values) + 1)
    else:
        ends = _numbers(values.offsets)
    elements = values.values.slice(ends[0], ends[-1] - ends[0])
    before = np.concatenate([[0], np.cumsum(_value_bytes(elements))])[ends - ends[0]]
    sizes: Numbers = np.where(values.is_valid().to_numpy(zero_copy_only=False), np.diff(before), 0)
    return sizes


def _bytes_in_union(values: pa.UnionArray) -> Numbers:
    if values.offset:
        # pyarrow gives the codes and places of a slice as those of the first values.
        values = values.take(pa.array(np.arange(len(values))))
    members = _numbers(values.type_codes)
    # In a sparse union each value lies in its own row of its member.
    places = _numbers(values.offsets) if values.type.mode == "dense" else np.arange(len(values))
    sizes = np.full(len(values), _MARK_BYTES + _PLACE_BYTES, dtype=np.int64)
    for number, code in enumerate(values.type.type_codes):
        is_mine = members == code
        if is_mine.any():
            sizes[is_mine] += _value_bytes(values.field(number))[places[is_mine]]
    return sizes


def _bytes_in_dictionary(values: pa.DictionaryArray) -> Numbers:
    sizes = _value_bytes(values.dictionary)
    return np.where(values.is_valid().to_numpy(zero_copy_only=False), sizes[_numbers(values.indices)] if len(sizes) else 0, 0)


def _numbers(values: pa.Array) -> Numbers:
    """Return the numbers, null as 0."""
    numbers: Numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _is_text(kind: pa.DataType) -> bool:
    return kind.id in _TEXTS


def _has_one_size(kind: pa.DataType) -> bool:
    return any(is_it(kind) for is_it in _OF_ONE_SIZE)


def _fixed_bytes(kind: pa.DataType) -> int:
    return _MARK_BYTES + (0 if pa.types.is_null(kind) else (kind.bit_width + 7) // 8)
