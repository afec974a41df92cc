"""Frames and positions."""

import hashlib
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.connectors.kafka.records import shorten_oversize
from pipelines.errors import HaltError
from pipelines.protocol.positions import Position, beyond, first_and_last, position_keys
from pipelines.protocol.records import (
    MAX_FRAME_BYTES,
    MAX_RECORD_BYTES,
    OVERSIZE_HEAD_BYTES,
    RAW_SCHEMA,
    cut_frames,
    decode_frame,
    digest,
    encode_frame,
    with_positions,
)
from pipelines.testing import FIRST_INSTANT, records

KEYED = records(2, [b'{"a":1}', None], first=40, keys=[b"k", None], headers=[[(b"h", b"1"), (b"h", None)], None])


def test_a_frame_of_some_rows_holds_no_values_of_others() -> None:
    """Arrow writes all values of a union for a slice from its first row."""
    longs = ["".join(hashlib.sha512(f"{number}.{part}".encode()).hexdigest() for part in range(64)) for number in range(2)]
    texts = pa.array([*longs, None])
    union = pa.UnionArray.from_dense(pa.array([0, 0, 0], pa.int8()), pa.array([0, 1, 2], pa.int32()), [texts, pa.array([], pa.int64())])
    for column in (union, pa.ListArray.from_arrays([0, 1, 2, 3], union), pa.StructArray.from_arrays([union], names=["a"])):
        rows = pa.table({"c": column})
        for first in range(3):
            payload = encode_frame(rows.slice(first, 1))
            assert decode_frame(payload).to_pylist() == rows.slice(first, 1).to_pylist()
            assert len(payload) < len(longs[0]) + 2048, first
    nothing = rows.filter(pa.array([False] * 3))
    assert decode_frame(encode_frame(nothing)).schema == rows.schema


MANY = [f"{number:x}" * 4 for number in range(20_000)]
LISTS = {
    "a list": (pa.list_(pa.string()), MANY, []),
    "a list that is null": (pa.large_list(pa.string()), MANY, None),
    "a map": (pa.map_(pa.binary(), pa.binary()), [(b"h%d" % number, b"") for number in range(20_000)], None),
    "a list of lists": (pa.list_(pa.list_(pa.string())), [MANY], [[], []]),
    "a list of a fixed size": (pa.list_(pa.list_(pa.string()), 2), [MANY, MANY], [[], []]),
    "a list in an object": (pa.struct([("a", pa.list_(pa.string()))]), {"a": MANY}, {"a": []}),
}


@pytest.mark.parametrize("case", LISTS)
def test_a_frame_of_rows_without_elements_holds_none_of_others(case: str) -> None:
    """Arrow writes where each text of a list lies, also of those in other rows, if the rows of a slice have no element."""
    kind, many, none = LISTS[case]
    rows = pa.table({"c": pa.array([none, many, none, many, none], kind)})
    for first in (0, 2, 4):
        payload = encode_frame(rows.slice(first, 1))
        assert decode_frame(payload).to_pylist() == rows.slice(first, 1).to_pylist()
        assert len(payload) < 4096, first
    for first in range(5):
        part = rows.slice(first, 2)
        assert decode_frame(encode_frame(part)).to_pylist() == part.to_pylist()


def test_a_large_record_fits_beside_one_of_many_headers() -> None:
    """A frame of the large one alone took the places of all headers, too, was too large, and stopped its leg for good."""
    large = np.random.default_rng(1).bytes(MAX_RECORD_BYTES - 100)
    table = records(0, [large, b"{}", large], headers=[None, [(b"h", b"")] * 50_000, None])
    frames = list(cut_frames(table))
    assert pa.concat_tables([part for part, _ in frames]).to_pylist() == table.to_pylist()
    assert [decode_frame(payload).num_rows for _, payload in frames] == [part.num_rows for part, _ in frames]
    assert max(len(payload) for _, payload in frames) <= MAX_FRAME_BYTES


def positions(*rows: tuple[int, int, int]) -> pa.Table:
    sequence, ordinal, emit = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"_tf_sequence": pa.array(sequence, pa.uint64()), "_tf_ordinal": pa.array(ordinal, pa.uint32())}
    return pa.table({**columns, "_tf_emit": pa.array(emit, pa.uint32())})


def rows_of(table: pa.Table) -> list[tuple[int, int, int]]:
    return list(zip(*(table[name].to_pylist() for name in ("_tf_sequence", "_tf_ordinal", "_tf_emit")), strict=True))


def noise(rows: int, size: int, seed: int = 1) -> pa.Table:
    """Records that do not compress."""
    generator = np.random.default_rng(seed)
    return records(0, [generator.bytes(size) for _ in range(rows)])


def test_positions_compare_in_stream_order() -> None:
    assert Position(1, 9, 9) < Position(2, 0, 0) < Position(2, 0, 1) < Position(2, 1, 0) < Position(10, 0, 0)


def test_a_position_survives_its_text() -> None:
    assert str(Position(12, 3, 1)) == "12.3.1"
    assert Position.parse("12.3.1") == Position(12, 3, 1)


@settings(deadline=None)
@given(st.integers(0, 2**63), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_every_position_survives_its_text(sequence: int, ordinal: int, emit: int) -> None:
    assert Position.parse(str(Position(sequence, ordinal, emit))) == Position(sequence, ordinal, emit)


def test_a_frame_decodes_to_what_was_encoded() -> None:
    decoded = decode_frame(encode_frame(KEYED))
    assert decoded.schema == RAW_SCHEMA
    assert decoded.to_pylist() == KEYED.to_pylist()
    assert decoded["headers"].to_pylist()[0] == [(b"h", b"1"), (b"h", None)]


def test_an_empty_frame_keeps_its_schema() -> None:
    decoded = decode_frame(encode_frame(RAW_SCHEMA.empty_table()))
    assert decoded.schema == RAW_SCHEMA
    assert decoded.num_rows == 0


def test_a_slice_is_encoded_alone() -> None:
    table = noise(100, 1000)
    assert len(encode_frame(table.slice(10, 1))) < 5_000
    assert decode_frame(encode_frame(table.slice(10, 2)))["offset"].to_pylist() == [10, 11]


def test_bytes_that_are_no_frame_are_refused() -> None:
    with pytest.raises(HaltError, match="only Tallyflow may write to its streams"):
        decode_frame(b"not a frame")


def test_the_digest_is_that_of_the_bytes() -> None:
    assert digest(b"frame") == hashlib.blake2b(b"frame", digest_size=16).hexdigest()
    assert digest(b"frame") != digest(b"other")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 400), st.integers(0, 60_000), st.integers(0, 2**31))
def test_frames_hold_the_table_in_order_and_stay_under_the_limit(rows: int, size: int, seed: int) -> None:
    rows = min(rows, 4_000_000 // max(size, 1))
    table = noise(rows, size, seed)
    frames = list(cut_frames(table))
    assert all(len(payload) <= MAX_FRAME_BYTES for _, payload in frames)
    assert all(part.num_rows == decode_frame(payload).num_rows > 0 for part, payload in frames)
    joined = pa.concat_tables([RAW_SCHEMA.empty_table(), *(decode_frame(payload) for _, payload in frames)])
    assert joined.equals(table.cast(RAW_SCHEMA))


def test_rows_of_very_different_size_are_cut_under_the_limit() -> None:
    generator = np.random.default_rng(3)
    table = records(0, [b"x"] * 3000 + [generator.bytes(440_000)] * 3 + [b"y"] * 3000)
    frames = list(cut_frames(table))
    assert max(len(payload) for _, payload in frames) <= MAX_FRAME_BYTES
    assert [o for part, _ in frames for o in part["offset"].to_pylist()] == list(range(6003))


def test_an_empty_table_gives_no_frame() -> None:
    assert list(cut_frames(RAW_SCHEMA.empty_table())) == []


def test_the_largest_record_that_is_let_through_fits_a_frame() -> None:
    ((part, payload),) = cut_frames(noise(1, MAX_RECORD_BYTES))
    assert part.num_rows == 1
    assert len(payload) <= MAX_FRAME_BYTES


def test_a_row_that_no_frame_can_hold_is_an_error() -> None:
    with pytest.raises(ValueError, match="one row takes"):
        list(cut_frames(noise(1, MAX_FRAME_BYTES + 1)))


def test_positions_are_sequence_ordinal_coordinates_and_arrival() -> None:
    arrival = FIRST_INSTANT + timedelta(microseconds=5)
    table = with_positions(KEYED, 17, "orders", int(arrival.timestamp()) * 1_000_000 + 5)
    assert table.select(["_tf_sequence", "_tf_ordinal", "_tf_topic", "_tf_partition", "_tf_offset", "_tf_arrival"]).to_pylist() == [
        {
            "_tf_sequence": 17,
            "_tf_ordinal": ordinal,
            "_tf_topic": "orders",
            "_tf_partition": 2,
            "_tf_offset": 40 + ordinal,
            "_tf_arrival": arrival,
        }
        for ordinal in (0, 1)
    ]
    assert table["value"].to_pylist() == [b'{"a":1}', None]


def test_an_empty_frame_gets_empty_positions() -> None:
    assert with_positions(RAW_SCHEMA.empty_table(), 1, "orders", 0).num_rows == 0


def test_beyond_compares_sequence_ordinal_and_emit() -> None:
    table = positions((4, 9, 0), (5, 0, 0), (5, 1, 0), (5, 1, 1), (5, 2, 0), (6, 0, 0))
    assert rows_of(beyond(table, Position(5, 1, 0))) == [(5, 1, 1), (5, 2, 0), (6, 0, 0)]
    assert rows_of(beyond(table, Position(5, 1, 1))) == [(5, 2, 0), (6, 0, 0)]
    assert rows_of(beyond(table, None)) == rows_of(table)
    assert beyond(table, Position(6, 0, 0)).num_rows == 0


def test_beyond_takes_a_row_without_emit_as_its_records_first() -> None:
    table = positions((5, 0, 0), (5, 1, 0)).drop_columns(["_tf_emit"])
    assert beyond(table, Position(5, 0, 0))["_tf_ordinal"].to_pylist() == [1]


triples = st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2))


@settings(deadline=None)
@given(st.sets(triples, max_size=20), triples)
def test_beyond_is_the_rest_after_a_position(rows: set[tuple[int, int, int]], last: tuple[int, int, int]) -> None:
    ordered = sorted(rows)
    assert rows_of(beyond(positions(*ordered), Position(*last))) == [row for row in ordered if row > last]


def test_first_and_last_are_the_end_rows() -> None:
    assert first_and_last(positions((1, 2, 0), (3, 0, 1))) == (Position(1, 2, 0), Position(3, 0, 1))
    assert first_and_last(positions((1, 2, 0)).drop_columns(["_tf_emit"])) == (Position(1, 2, 0), Position(1, 2, 0))


@settings(deadline=None)
@given(st.sets(st.tuples(st.integers(0, 2**43), st.integers(0, 2**20 - 1)), min_size=1, max_size=20))
def test_position_keys_sort_as_positions_do(rows: set[tuple[int, int]]) -> None:
    ordered = sorted(rows)
    keys = position_keys(positions(*((s, o, 0) for s, o in ordered)))
    assert (np.diff(keys) > 0).all()


def test_an_oversize_record_keeps_position_head_and_digest() -> None:
    value = b"v" * (MAX_RECORD_BYTES + 1)
    table = shorten_oversize(records(1, [b"small", value], first=7, keys=[b"k" * 2000, b"k" * 2000], headers=[None, [(b"h", b"1")]]))
    small, large = table.to_pylist()
    assert (small["value"], len(small["key"]), small["oversize"]) == (b"small", 2000, None)
    assert (large["partition"], large["offset"], large["headers"]) == (1, 8, None)
    assert large["value"] == b"v" * OVERSIZE_HEAD_BYTES
    assert large["key"] == b"k" * OVERSIZE_HEAD_BYTES
    assert large["oversize"] == {"bytes": MAX_RECORD_BYTES + 1 + 2000 + 2 + 11, "sha256": hashlib.sha256(value).digest()}


def test_a_record_at_the_limit_travels_whole() -> None:
    table = records(0, [b"v" * (MAX_RECORD_BYTES - 15)], keys=[b"key"], headers=[[(b"h", None)]])
    assert shorten_oversize(table) is table


def test_key_and_headers_count_for_the_size() -> None:
    by_key = records(0, [b""], keys=[b"k" * (MAX_RECORD_BYTES + 1)])
    by_headers = records(0, [None], headers=[[(b"h", b"x" * MAX_RECORD_BYTES)]])
    assert shorten_oversize(by_key)["oversize"].null_count == 0
    assert shorten_oversize(by_headers)["oversize"].null_count == 0


@pytest.mark.parametrize(("name_bytes", "value_bytes"), [(0, None), (0, 0), (1, 1), (9, 30)])
def test_a_record_of_headers_fits_a_frame_or_is_shortened(name_bytes: int, value_bytes: int | None) -> None:
    fit = MAX_RECORD_BYTES // (11 + name_bytes + (value_bytes or 0))
    of_one = name_bytes + (value_bytes or 0)
    drawn = np.random.default_rng(1).bytes((fit + 1) * of_one)
    for count, is_shortened in ((fit, False), (fit + 1, True)):
        headers = [
            (drawn[at : at + name_bytes], None if value_bytes is None else drawn[at + name_bytes : at + of_one])
            for at in (number * of_one for number in range(count))
        ]
        table = shorten_oversize(records(0, [None], headers=[headers]))
        assert (table["oversize"].null_count == 0) == is_shortened
        assert len(list(cut_frames(table))) == 1


def test_shortened_records_fit_a_frame() -> None:
    table = shorten_oversize(records(0, [b"v" * 2_000_000] * 5))
    assert len(list(cut_frames(table))) == 1
