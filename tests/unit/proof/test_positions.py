"""Positions in Kafka, the table and the dead letters, compared as multisets."""

from typing import Any

import pyarrow as pa
import pytest

from pipelines.proof.positions import POSITION_SCHEMA, PositionReport, compare_positions, duplicates_by_key
from pipelines.proof.report import Verdict


def at(*positions: tuple[str, int, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(POSITION_SCHEMA.names, position, strict=True)) for position in positions], schema=POSITION_SCHEMA)


def named(report: PositionReport) -> dict[str, list[tuple[Any, ...]]]:
    """Positions of the examples, by kind."""
    return {one.kind: [(e.get("topic"), e.get("partition"), e.get("offset")) for e in one.examples] for one in report.findings}


A0, A1, A2 = ("a", 0, 0), ("a", 0, 1), ("a", 3, 1)
B0 = ("b", 0, 0)


def test_every_record_in_exactly_one_place_is_clean() -> None:
    report = compare_positions(at(A0, A1, A2, B0), at(B0, A2, A0), at(A1), expected_dead_letters=1)
    assert report.is_clean
    assert list(report.lines()) == [
        "4 records in Kafka = 3 rows + 1 dead letters",
        "clean: every record in Kafka is a row or a dead letter, once",
    ]


def test_nothing_at_all_is_clean() -> None:
    assert compare_positions(at(), at(), at(), expected_dead_letters=0).is_clean


def test_a_record_in_neither_place_is_missing() -> None:
    report = compare_positions(at(A0, A1, B0), at(A0), at())
    assert report.verdict is Verdict.DIFFERS
    assert named(report) == {"missing": [A1, B0]}
    assert "MISSING table and dead letters: 2" in report.lines()


def test_a_row_that_is_there_twice_is_doubled() -> None:
    report = compare_positions(at(A0, A1), at(A0, A1, A1), at())
    assert named(report) == {"doubled": [A1]}
    assert report.findings[0].examples[0]["found"] == "2 in the table, 0 dead letters"


def test_a_record_in_both_places_is_doubled() -> None:
    report = compare_positions(at(A0, A1), at(A0, A1), at(A1))
    assert named(report) == {"doubled": [A1]}
    assert report.findings[0].examples[0]["found"] == "1 in the table, 1 dead letters"


def test_one_missing_and_one_doubled_record_do_not_cancel_out() -> None:
    report = compare_positions(at(A0, A1), at(A0, A0), at())
    assert (report.counts["records in Kafka"], report.counts["rows"]) == (2, 2)
    assert named(report) == {"missing": [A1], "doubled": [A0]}


@pytest.mark.parametrize("unknown", [("a", 0, 7), ("a", 1, 0), ("c", 0, 0)])
def test_a_row_whose_position_kafka_does_not_have_is_extra(unknown: tuple[str, int, int]) -> None:
    assert named(compare_positions(at(A0), at(A0, unknown), at())) == {"extra": [unknown]}


def test_another_number_of_dead_letters_than_produced_differs() -> None:
    report = compare_positions(at(A0, A1), at(A0), at(A1), expected_dead_letters=2)
    assert [(one.place, one.kind) for one in report.findings] == [("dead letters", "different")]


def test_duplicates_must_be_in_neither_place() -> None:
    report = compare_positions(at(A0, A1, A2), at(A0), at(A2), expected_dead_letters=1, duplicates=at(A1))
    assert report.is_clean
    assert next(iter(report.lines())) == "3 records in Kafka = 1 rows + 1 dead letters + 1 duplicates"
    assert named(compare_positions(at(A0, A1), at(A0, A1), at(), duplicates=at(A1))) == {"extra": [A1]}
    assert named(compare_positions(at(A0, A1), at(), at(), duplicates=at(A1))) == {"missing": [A0]}


def test_a_duplicate_has_an_earlier_key_of_its_partition() -> None:
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
    assert sorted(tuple(row.values()) for row in duplicates_by_key(records).to_pylist()) == [("a", 0, 5), ("a", 0, 9)]
    assert duplicates_by_key(records.slice(0, 0)).num_rows == duplicates_by_key(records.slice(0, 1)).num_rows == 0


def test_a_report_names_a_few_examples_and_counts_all() -> None:
    report = compare_positions(at(*[("a", 0, offset) for offset in range(9)]), at(), at(), examples=2)
    assert [(one.count, len(one.examples)) for one in report.findings] == [(9, 2)]


def test_the_topic_may_be_a_dictionary_and_positions_large() -> None:
    large = ("a", 65_535, 2**62)
    rows = at(large)
    rows = rows.set_column(0, "_tf_topic", rows["_tf_topic"].dictionary_encode())
    assert compare_positions(at(large), rows, at()).is_clean
    assert named(compare_positions(at(large), at(), at())) == {"missing": [large]}


@pytest.mark.parametrize("position", [(None, 0, 0), ("a", None, 0), ("a", 0, None)])
def test_a_position_with_a_null_is_an_error(position: Any) -> None:
    with pytest.raises(ValueError, match="position"):
        compare_positions(at(position), at(), at())
