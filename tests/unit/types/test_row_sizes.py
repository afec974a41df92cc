"""Sizes of rows: each row counts alone as it does in its table, and what Arrow writes of it is never larger."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.protocol.records import encode_frame, most_row_bytes
from pipelines.protocol.stream_limits import MAX_FRAME_BYTES
from pipelines.types.row_sizes import row_bytes, widest_row_bytes

TEXTS = pa.array(["abc", "", None, "dé"])
UNION = pa.UnionArray.from_dense(
    pa.array([0, 1, 0, 1], pa.int8()), pa.array([0, 0, 1, 1], pa.int32()), [pa.array(["abc", "d"]), pa.array([5, 6], pa.int8())]
)
COLUMNS: dict[str, tuple[pa.Array, list[int]]] = {
    "texts": (TEXTS, [8, 5, 5, 8]),
    "large bytes": (TEXTS.cast(pa.large_binary()), [8, 5, 5, 8]),
    "whole numbers": (pa.array([1, 2, None, 4], pa.int16()), [3, 3, 3, 3]),
    "booleans": (pa.array([True, False, None, True]), [2, 2, 2, 2]),
    "decimals": (pa.array([None] * 4, pa.decimal128(10, 2)), [17, 17, 17, 17]),
    "bytes of one size": (pa.array([b"abcd"] * 4, pa.binary(4)), [5, 5, 5, 5]),
    "nulls": (pa.nulls(4), [1, 1, 1, 1]),
    "lists": (pa.array([["a", None], [], None, ["bc"]]), [16, 5, 5, 12]),
    "lists of one size": (pa.array([[1, 2], None, [3, 4], [5, 6]], pa.list_(pa.int32(), 2)), [15, 5, 15, 15]),
    "maps": (pa.array([[("k", b"vv")], [], None, [("", b"")]], pa.map_(pa.string(), pa.binary())), [19, 5, 5, 16]),
    "objects": (pa.array([{"a": "x", "b": [1]}, None, {"a": None, "b": []}, {"a": "yy", "b": None}]), [21, 11, 11, 13]),
    "a dictionary": (pa.array(["x", "x", None, "yyy"]).dictionary_encode(), [11, 11, 5, 13]),
    "a dense union": (UNION, [13, 7, 11, 7]),
    "a sparse union": (
        pa.UnionArray.from_sparse(pa.array([0, 1, 0, 1], pa.int8()), [TEXTS, pa.array([5, 6, 7, 8], pa.int8())]),
        [13, 7, 10, 7],
    ),
    "unions in objects": (
        pa.StructArray.from_arrays([UNION, pa.array([1, 2, None, 4])], ["u", "n"], mask=pa.array([False, True, False, False])),
        [23, 17, 21, 17],
    ),
    "unions in lists": (pa.ListArray.from_arrays(pa.array([0, 2, None, 3, 4], pa.int32()), UNION), [25, 16, 5, 12]),
    "unions in maps": (pa.MapArray.from_arrays([0, 1, 1, 3, 4], ["k", "l", "m", "n"], UNION), [25, 5, 37, 19]),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_each_value_counts_its_bytes_place_and_mark(kind: str) -> None:
    column, expected = COLUMNS[kind]
    table = pa.table({"c": column})
    assert row_bytes(table).tolist() == expected
    assert [row_bytes(table.slice(row, 1)).tolist() for row in range(4)] == [[size] for size in expected]
    assert widest_row_bytes(table) == max(expected)
    assert row_bytes(table.slice(0, 0)).tolist() == []
    assert row_bytes(pa.table({"c": pa.chunked_array([column, column])})).tolist() == expected * 2


def test_columns_are_added_up() -> None:
    table = pa.table({kind: column for kind, (column, _) in COLUMNS.items()})
    assert row_bytes(table).tolist() == [sum(sizes) for sizes in zip(*(sizes for _, sizes in COLUMNS.values()), strict=True)]
    assert widest_row_bytes(table) >= row_bytes(table).max()
    assert (row_bytes(pa.table({})).tolist(), widest_row_bytes(pa.table({}))) == ([], 0)


PAIRS = st.lists(st.tuples(st.binary(max_size=9), st.integers(0, 255)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=30), st.lists(PAIRS)), min_size=1, max_size=30))
def test_no_row_takes_more_in_a_frame_than_is_said(columns: list[tuple[str, Any]]) -> None:
    """Of one row: its values, and what its columns cost once."""
    kind = pa.list_(pa.struct([("a", pa.binary()), ("b", pa.uint8())]))
    arrays = [pa.array([[[{"a": a, "b": b} for a, b in pairs] for pairs in value]], pa.list_(kind)) for _, value in columns]
    table = pa.Table.from_arrays(arrays, names=[f"{number}{name}" for number, (name, _) in enumerate(columns)])
    once = MAX_FRAME_BYTES - most_row_bytes(table.schema)
    assert len(encode_frame(table)) <= row_bytes(table)[0] + once
