import pyarrow as pa
import pytest

from pipelines.proof.positions import POSITION_SCHEMA, duplicates_by_key, verify_positions


def at(*positions: tuple[str, int, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(POSITION_SCHEMA.names, position, strict=True)) for position in positions], schema=POSITION_SCHEMA)


def told(table: pa.Table) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


A0, A1, A2 = ("a", 0, 0), ("a", 0, 1), ("a", 3, 1)
B0 = ("b", 0, 0)


def test_every_record_in_exactly_one_place_is_exact() -> None:
    verdict = verify_positions(at(A0, A1, A2, B0), at(B0, A2, A0), at(A1), expected_dead_letters=1)
    assert verdict.is_exact
    assert (verdict.records, verdict.rows, verdict.dead_letters) == (4, 3, 1)


def test_nothing_at_all_is_exact() -> None:
    assert verify_positions(at(), at(), at(), expected_dead_letters=0).is_exact


def test_a_record_in_neither_place_is_missing() -> None:
    verdict = verify_positions(at(A0, A1, B0), at(A0), at())
    assert not verdict.is_exact
    assert told(verdict.missing) == [A1, B0]
    assert "missing: 2 (a/0/1, b/0/0)" in verdict.lines()


def test_a_row_that_is_there_twice_is_doubled() -> None:
    verdict = verify_positions(at(A0, A1), at(A0, A1, A1), at())
    assert not verdict.is_exact
    assert told(verdict.doubled) == [(*A1, 2, 0)]


def test_a_record_in_both_places_is_doubled() -> None:
    verdict = verify_positions(at(A0, A1), at(A0, A1), at(A1))
    assert told(verdict.doubled) == [(*A1, 1, 1)]
    assert "doubled: 1 (a/0/1: 1 in the table, 1 dead letters)" in verdict.lines()


def test_one_missing_and_one_doubled_record_do_not_cancel_out() -> None:
    verdict = verify_positions(at(A0, A1), at(A0, A0), at())
    assert (verdict.records, verdict.rows) == (2, 2)
    assert not verdict.is_exact


def test_a_row_whose_position_kafka_does_not_have_is_unexpected() -> None:
    for unknown in [("a", 0, 7), ("a", 1, 0), ("c", 0, 0)]:
        verdict = verify_positions(at(A0), at(A0, unknown), at())
        assert not verdict.is_exact
        assert told(verdict.unexpected) == [unknown]


def test_another_number_of_dead_letters_than_produced_is_not_exact() -> None:
    verdict = verify_positions(at(A0, A1), at(A0), at(A1), expected_dead_letters=2)
    assert verdict.missing.num_rows == verdict.doubled.num_rows == verdict.unexpected.num_rows == 0
    assert not verdict.is_exact


def test_duplicates_must_be_in_neither_place() -> None:
    verdict = verify_positions(at(A0, A1, A2), at(A0), at(A2), expected_dead_letters=1, duplicates=at(A1))
    assert verdict.is_exact
    assert verdict.lines()[0] == "3 records in Kafka = 1 rows + 1 dead letters + 1 duplicates"
    slipped = verify_positions(at(A0, A1), at(A0, A1), at(), duplicates=at(A1))
    assert not slipped.is_exact
    assert told(slipped.unexpected) == [A1]
    swallowed = verify_positions(at(A0, A1), at(), at(), duplicates=at(A1))
    assert told(swallowed.missing) == [A0]


def test_a_duplicate_has_the_key_of_an_earlier_record_of_its_partition() -> None:
    keys = [(0, 5, b"x"), (0, 3, b"x"), (0, 4, b"y"), (1, 0, b"x"), (0, 9, b"x"), (0, 6, None), (0, 7, None)]
    records = pa.table(
        [
            pa.array(["a"] * len(keys)),
            pa.array([partition for partition, _, _ in keys], pa.int32()),
            pa.array([offset for _, offset, _ in keys]),
            pa.array([key for _, _, key in keys], pa.binary()),
        ],
        names=[*POSITION_SCHEMA.names, "key"],
    )
    assert sorted(told(duplicates_by_key(records))) == [("a", 0, 5), ("a", 0, 9)]
    assert duplicates_by_key(records.slice(0, 0)).num_rows == duplicates_by_key(records.slice(0, 1)).num_rows == 0


def test_the_lines_show_a_few_examples_only() -> None:
    verdict = verify_positions(at(*[("a", 0, offset) for offset in range(9)]), at(), at())
    assert "missing: 9 (a/0/0, a/0/1, ...)" in verdict.lines(examples=2)


def test_the_topic_may_be_a_dictionary_and_positions_large() -> None:
    large = ("a", 65_535, 2**40 - 1)
    rows = at(large)
    rows = rows.set_column(0, "_tf_topic", rows["_tf_topic"].dictionary_encode())
    assert verify_positions(at(large), rows, at()).is_exact
    assert told(verify_positions(at(large), at(), at()).missing) == [large]


@pytest.mark.parametrize("position", [("a", 65_536, 0), ("a", 0, 2**40), ("a", 0, -1), (None, 0, 0)])
def test_a_position_that_cannot_be_compared_is_an_error(position: tuple[str, int, int]) -> None:
    with pytest.raises(ValueError, match="position"):
        verify_positions(at(position), at(), at())
