"""Positions as tuples, as text, and packed: each form says the same, and sorts alike."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.protocol.positions import (
    ORDINAL_BITS,
    Position,
    SourcePartition,
    beyond,
    differences,
    first_and_last,
    from_differences,
    in_position_order,
    ordinals_of,
    packed,
    packed_record,
    position_keys,
    record_position,
    sequences_of,
)

RECORDS = st.tuples(st.integers(0, 2 ** (64 - ORDINAL_BITS) - 1), st.integers(0, 2**ORDINAL_BITS - 1))
POSITIONS = st.builds(Position, st.integers(0, 2**44 - 1), st.integers(0, 2**20 - 1), st.integers(0, 5))


def table(positions: list[Position]) -> pa.Table:
    sequences, ordinals, emits = zip(*positions, strict=True) if positions else ((), (), ())
    kinds = (pa.uint64(), pa.uint32(), pa.uint32())
    columns = [pa.array(column, kind) for column, kind in zip((sequences, ordinals, emits), kinds, strict=True)]
    return pa.table(columns, names=["_tf_sequence", "_tf_ordinal", "_tf_emit"])


def rows(found: pa.Table) -> list[Position]:
    return [Position(*row.values()) for row in found.to_pylist()]


@given(st.lists(RECORDS, min_size=1))
def test_what_is_packed_comes_back_and_sorts_as_it_did(records: list[tuple[int, int]]) -> None:
    keys = packed(np.array([sequence for sequence, _ in records], dtype=np.uint64), [ordinal for _, ordinal in records])
    assert list(zip(sequences_of(keys).tolist(), ordinals_of(keys).tolist(), strict=True)) == records
    assert np.argsort(keys, kind="stable").tolist() == sorted(range(len(records)), key=lambda row: records[row])


@given(POSITIONS)
def test_text_says_what_the_position_is(position: Position) -> None:
    assert Position.parse(str(position)) == position


@given(st.integers(0, 2**44 - 1), st.integers(0, 2**20 - 1))
def test_what_people_write_has_the_key_of_its_row(sequence: int, ordinal: int) -> None:
    (key,) = position_keys(table([Position(sequence, ordinal)])).tolist()
    assert packed_record(f"{sequence}.{ordinal}") == packed_record(f"{sequence}.{ordinal}.0") == key
    assert record_position(f"{sequence}.{ordinal}") == Position(sequence, ordinal)
    assert record_position(f"{sequence}.{ordinal}.2") == Position(sequence, ordinal, 2)


@pytest.mark.parametrize("text", ["", "1", "1.", "1.2.3.4", "-1.2", "1.2.", "a.b", "1.2\n", "1" * 16 + ".0"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a sequence and an ordinal"):
        record_position(text)


@given(st.lists(POSITIONS, min_size=1, max_size=20), POSITIONS)
def test_what_lies_beyond_a_position_is_what_compares_greater(positions: list[Position], last: Position) -> None:
    ordered = sorted(positions)
    assert rows(beyond(table(ordered), last)) == [position for position in ordered if position > last]
    assert beyond(table(ordered), None).num_rows == len(ordered)
    assert first_and_last(table(ordered)) == (ordered[0], ordered[-1])
    assert [row[:2] for row in rows(in_position_order(table(positions)))] == [position[:2] for position in ordered]


@given(st.integers(0, 2**44 - 1), POSITIONS)
def test_a_sequence_ends_behind_its_rows_and_before_the_next(sequence: int, position: Position) -> None:
    end = Position.end_of(sequence)
    assert (position > end) is (position.sequence > sequence)


@given(st.lists(st.integers(-(2**62), 2**62)))
def test_arrivals_come_back_from_their_differences(arrivals: list[int]) -> None:
    assert from_differences(differences(arrivals)) == arrivals


def test_a_partition_names_its_source_only_beside_another() -> None:
    keys = [SourcePartition("orders", 3), SourcePartition("clicks", 10), SourcePartition("orders", 0)]
    assert [str(key) for key in sorted(keys)] == ["clicks/10", "orders/0", "orders/3"]
    assert keys[0].among(["orders"]) == "3"
    assert keys[0].among(["orders", "clicks"]) == "orders/3"
