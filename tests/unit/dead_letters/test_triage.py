"""Triage: letters of one cause are one group, whatever frames they lie in, and every letter is in exactly one."""

from datetime import timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.dead_letters.triage import REMEDIES, ExactSelection, Selection, dead_letters_at, groups, listed, position_as_text
from pipelines.process.dead_letter_rows import DEAD_LETTER_SCHEMA
from pipelines.process.fingerprints import fingerprint, with_fingerprints
from pipelines.protocol.positions import Position
from pipelines.protocol.records import INSTANT
from pipelines.testing import FIRST_INSTANT


def dead_letter(sequence: int, ordinal: int = 0, second: int = 0, **values: Any) -> dict[str, Any]:
    arrival = FIRST_INSTANT + timedelta(seconds=second)
    return {
        "key": b"k",
        "value": b"{",
        "_tf_sequence": sequence,
        "_tf_ordinal": ordinal,
        "_tf_topic": "orders",
        "_tf_partition": 0,
        "_tf_offset": 100 + sequence,
        "_tf_arrival": arrival,
        "stage": "parse",
        "code": "wrong_type",
        "field": "amount",
        "message": "expected float, found a string",
        "config_version": "v1",
        "attempts": 1,
        "first_time": arrival,
        "last_time": arrival,
        **values,
    }


def frame(*dead_letters: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(dead_letters), schema=DEAD_LETTER_SCHEMA)


ALL = Selection()


def test_a_fingerprint_omits_only_numbers_and_quoted_words() -> None:
    one = fingerprint("sink", "refused", "city", "value 12,5 of 'Rome' at row 7")
    assert one == "41b4546ed816", "the same on every machine"
    assert one == fingerprint("sink", "refused", "city", "value 3 of 'Oslo' at row 1234.5")
    for other in (("parse", "refused", "city"), ("sink", "late", "city"), ("sink", "refused", "city2")):
        assert fingerprint(*other, "value 12,5 of 'Rome' at row 7") != one
    assert fingerprint("sink", "refused", "city", "value 12,5 of 'Rome' in row 7") != one


def test_letters_of_one_cause_are_one_group() -> None:
    found = groups(
        [
            frame(dead_letter(9, 2, second=9), dead_letter(9, 3, second=9, code="tombstone", field=None, message="the value is null")),
            frame(),
            frame(dead_letter(4, 1, second=30), dead_letter(5, 0, second=3)),
        ],
        ALL,
    )
    assert [(group.code, group.field, group.letters) for group in found] == [("wrong_type", "amount", 3), ("tombstone", None, 1)]
    first = found[0]
    assert (first.position, first.topic, first.partition, first.offset) == (Position(4, 1), "orders", 0, 104)
    assert (first.first, first.last) == (FIRST_INSTANT + timedelta(seconds=3), FIRST_INSTANT + timedelta(seconds=30))
    assert first.remedy == REMEDIES["wrong_type"]


def test_no_letters_are_no_groups() -> None:
    assert groups([], ALL) == groups([frame()], ALL) == []
    assert listed([], ALL, 10) == (pa.table({}), 0)
    assert dead_letters_at([frame()], Position(1, 0)).num_rows == 0


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (ALL, [1, 2, 3, 4]),
        (Selection(stage="dedup"), [2]),
        (Selection(key=b"k"), [1, 2, 4]),
        (Selection(since=FIRST_INSTANT + timedelta(seconds=2)), [2, 3, 4]),
        (Selection(until=FIRST_INSTANT + timedelta(seconds=2)), [1]),
        (Selection(fingerprint=fingerprint("dedup", "null_key", "id", "the key (id) is null")), [2]),
        (Selection(stage="parse", since=FIRST_INSTANT + timedelta(seconds=2), until=FIRST_INSTANT + timedelta(seconds=4)), [3]),
    ],
)
def test_a_selection_takes_the_letters_that_fit_all_its_parts(selection: Selection, expected: list[int]) -> None:
    dead_letters = frame(
        dead_letter(1, second=1),
        dead_letter(2, second=2, stage="dedup", code="null_key", field="id", message="the key (id) is null"),
        dead_letter(3, second=3, key=None),
        dead_letter(4, second=4),
    )
    found, count = listed([dead_letters.slice(2), dead_letters.slice(0, 2)], selection, 10)
    assert found.column("_tf_sequence").to_pylist() == expected
    assert count == len(expected) == sum(group.letters for group in groups([dead_letters], selection))
    assert listed([dead_letters], selection, 1)[0].num_rows == 1


def test_a_letter_is_found_by_its_position() -> None:
    dead_letters = [frame(dead_letter(7, 0), dead_letter(7, 1, value=b"x")), frame(dead_letter(8, 1))]
    (found,) = dead_letters_at(dead_letters, Position(7, 1)).to_pylist()
    assert (found["value"], len(found["fingerprint"])) == (b"x", 12)
    assert dead_letters_at(dead_letters, Position(7, 2)).num_rows == 0


Fields = st.sampled_from([None, "f", "g"])
Causes = st.tuples(st.sampled_from(["parse", "transform"]), st.sampled_from(["a", "b"]), Fields, st.text("x1'\x1f", max_size=6))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(Causes, max_size=6), max_size=5))
def test_groups_are_what_sql_makes_of_the_same_letters(frames: list[list[tuple[str, str, str | None, str]]]) -> None:
    tables = []
    for number, causes in enumerate(frames):
        rows = [dict(zip(("stage", "code", "field", "message"), cause, strict=True)) for cause in causes]
        tables.append(frame(*(dead_letter(number + 1, place, second=place, **row) for place, row in enumerate(rows))))
    together = pa.concat_tables([with_fingerprints(table) for table in tables] or [with_fingerprints(frame())])
    engine = duckdb.connect()
    engine.register("letters", together)
    sql = "SELECT fingerprint, count(*), min(_tf_arrival), max(_tf_arrival) FROM letters GROUP BY fingerprint"
    expected = {row[0]: row[1:] for row in engine.sql(sql).fetchall()}
    found = groups(tables, ALL)
    assert {group.fingerprint: (group.letters, group.first, group.last) for group in found} == expected
    assert sum(group.letters for group in found) == sum(map(len, frames))


def test_dead_letters_of_rows_are_chosen_by_their_numbers() -> None:
    letters = frame(dead_letter(5), dead_letter(7, refused_row=0), dead_letter(7, refused_row=2), dead_letter(8, refused_row=1))
    found = with_fingerprints(letters)

    def chosen(kind: type[Selection], *positions: Position) -> list[str]:
        return [position_as_text(one) for one in kind(positions=frozenset(positions)).of(found).to_pylist()]

    assert chosen(Selection, Position(5, 0), Position(7, 0)) == ["5.0", "7.0.0", "7.0.2"]
    assert chosen(Selection, Position(7, 0, 2), Position(8, 0, 0)) == ["7.0.2", "8.0.1"]
    assert chosen(ExactSelection, Position(5, 0), Position(7, 0), Position(8, 0)) == ["5.0", "7.0.0"]
    assert dead_letters_at([letters], Position(7, 0)).num_rows == 2
    assert dead_letters_at([letters], Position(7, 0, 2)).column("refused_row").to_pylist() == [2]


def test_copies_of_a_record_with_several_refused_rows_count_once() -> None:
    letters = frame(dead_letter(7, refused_row=0), dead_letter(7, refused_row=2), dead_letter(8, refused_row=1))
    counted = letters.append_column("copies_dropped", pa.array([4, 4, 1])).append_column("copies_counted_from", pa.nulls(3, INSTANT))
    (group,) = groups([counted], ALL)
    assert (group.letters, group.copies_dropped) == (3, 5)
