"""How many copies were dropped in favour of a dead letter, against a dictionary."""

from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import first_of, program

from pipelines.dead_letters.dropped_copies import CopiesByDeadLetter, DroppedCopies, _accepted
from pipelines.dead_letters.triage import Selection, groups
from pipelines.maintenance.replay import Replayed
from pipelines.process.dead_letter_rows import DEAD_LETTER_SCHEMA
from pipelines.process.drop_marks import MARK_COLUMN
from pipelines.protocol.bodies import NEVER
from pipelines.protocol.positions import packed
from pipelines.testing import FIRST_INSTANT
from pipelines.types.duckdb import open_engine

WINDOW_US = 10
Record = tuple[int, int, bool]
"""(key, time, whether it becomes a dead letter behind dedup, if dedup accepts it), a frame each."""


def counted(
    records: list[Record], accepted: list[int], watermarks: list[int], portion: int = 3, marked: frozenset[int] = frozenset()
) -> dict[int, int]:
    """Copies by the number of the accepted record, from 1. `marked`: numbers of those that a step behind dedup would drop."""
    dead_letters = [number for number in accepted if records[number - 1][2]]
    keys = [records[number - 1][0] for number in dead_letters]
    accepted_rows = {
        "dead_letter": pa.array(packed(np.array(dead_letters, dtype=np.int64), np.zeros(len(dead_letters), dtype=np.int64)), pa.uint64()),
        "hi": pa.array([0] * len(dead_letters), pa.uint64()),
        "lo": pa.array(keys, pa.uint64()),
        "at_us": pa.array([records[number - 1][1] for number in dead_letters], pa.int64()),
    }
    with open_engine() as engine:
        copies = CopiesByDeadLetter(engine.connection, pa.table(accepted_rows), WINDOW_US)
        for start in range(0, len(records), portion):
            part = records[start : start + portion]
            rows = {
                "_tf_sequence": pa.array(range(start + 1, start + len(part) + 1), pa.uint64()),
                "_tf_ordinal": pa.array([0] * len(part), pa.uint32()),
                "_tf_key_hi": pa.array([0] * len(part), pa.uint64()),
                "_tf_key_lo": pa.array([key for key, _, _ in part], pa.uint64()),
            }
            if marked:
                numbers = range(start + 1, start + len(part) + 1)
                rows[MARK_COLUMN] = pa.array(["dropped.filter" if number in marked else None for number in numbers], pa.string())
            times = np.array([time for _, time, _ in part], dtype=np.int64)
            marks = np.array(watermarks[start : start + len(part)], dtype=np.int64)
            copies.add(Replayed(pa.table(rows), times, marks, len(part)))
        return {code >> 20: number for code, number in copies.counts().items()}


def judged_one_by_one(records: list[Record], watermarks: list[int]) -> tuple[list[int], dict[int, int]]:
    """(numbers of the records that dedup accepts, copies of those that became dead letters), by the rule's own words."""
    last: dict[int, int] = {}
    accepted, copies = [], dict[int, int]()
    for number, (key, time, _) in enumerate(records, 1):
        before = last.get(key)
        at = records[before - 1][1] if before else 0
        if before and abs(time - at) < WINDOW_US and at + WINDOW_US > watermarks[number - 1]:
            copies[before] = copies.get(before, 0) + 1
        else:
            last[key] = number
            accepted.append(number)
    return accepted, {number: count for number, count in copies.items() if records[number - 1][2]}


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.booleans()), max_size=25))
def test_copies_of_a_letter_end_where_its_key_passes_again(records: list[Record]) -> None:
    in_order = [
        (key, time, is_dead_letter) for (key, _, is_dead_letter), time in zip(records, sorted(time for _, time, _ in records), strict=True)
    ]
    never = [int(NEVER)] * len(records)
    accepted, copies = judged_one_by_one(in_order, never)
    assert counted(in_order, accepted, never) == copies


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.booleans()), max_size=25), st.integers(0, 20))
def test_by_event_time_the_watermark_ends_copies_too(records: list[Record], lateness: int) -> None:
    marks = [max((time for _, time, _ in records[:at]), default=-1000) - lateness for at in range(len(records))]
    on_time = [(record, mark) for record, mark in zip(records, marks, strict=True) if record[1] >= mark]
    kept, watermarks = [record for record, _ in on_time], [mark for _, mark in on_time]
    accepted, copies = judged_one_by_one(kept, watermarks)
    assert counted(kept, accepted, watermarks) == copies


def test_a_copy_that_a_later_step_drops_is_no_lost_row() -> None:
    """The first copy would be dropped; the fourth record is accepted again, and dropped: it ends the copies all the same."""
    records = [(1, 0, True), (1, 3, False), (1, 4, False), (1, 10, False), (1, 12, False)]
    assert counted(records, [1], [int(NEVER)] * 5) == {1: 2}
    assert counted(records, [1], [int(NEVER)] * 5, marked=frozenset({2, 4})) == {1: 1}


CONFIG = program([("id", "int")], [("id", "id", "Int64", False)], first_of("id", WINDOW_US))


def dead_letter(sequence: int, value: bytes, past_dedup: bool = True, origin: str | None = None) -> dict[str, Any]:
    arrival = FIRST_INSTANT + timedelta(seconds=sequence)
    place = {
        "_tf_sequence": sequence,
        "_tf_ordinal": 2,
        "_tf_topic": "t",
        "_tf_partition": 0,
        "_tf_offset": sequence,
        "_tf_arrival": arrival,
    }
    reported = {"stage": "sink", "code": "refused", "message": "words", "config_version": "v", "attempts": 1, "timestamp": arrival}
    times = {"first_time": arrival, "last_time": arrival}
    return {**place, **reported, **times, "value": value, "past_dedup": past_dedup, "origin": origin, "source": "orders"}


def frame(*dead_letters: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(dead_letters), schema=DEAD_LETTER_SCHEMA)


def code(sequence: int) -> int:
    return sequence << 20 | 2


def test_a_record_entered_again_stands_for_its_accepted_letter() -> None:
    frames = [
        frame(dead_letter(3, b'{"id": 7}'), dead_letter(4, b"{", past_dedup=False)),
        frame(dead_letter(8, b'{"id": 9}', origin="3.2"), dead_letter(9, b'{"id": 8}', origin="4.2")),
        frame(dead_letter(12, b'{"id": 1}', origin="8.2")),
    ]
    with open_engine() as engine:
        roots, accepted = _accepted(engine, CONFIG, frames, Selection(since=FIRST_INSTANT + timedelta(seconds=5)))
    assert roots == {code(8): code(3), code(9): code(9), code(12): code(3)}
    assert accepted.column("dead_letter").to_pylist() == [code(3), code(9)]
    assert accepted.column("at_us").to_pylist() == [int((FIRST_INSTANT + timedelta(seconds=at)).timestamp() * 1e6) for at in (3, 9)]


def test_letters_tell_their_copies_and_groups_the_sum() -> None:
    known = DroppedCopies(np.array([code(3), code(8)], dtype=np.uint64), np.array([5, 2]), np.array([True, False]), FIRST_INSTANT)
    dead_letters = known.of(
        frame(dead_letter(3, b"a"), dead_letter(8, b"b"), dead_letter(9, b"c"), dead_letter(10, b"{", past_dedup=False))
    )
    assert dead_letters.column("copies_dropped").to_pylist() == [5, 2, None, 0]
    assert dead_letters.column("copies_counted_from").to_pylist() == [FIRST_INSTANT, None, None, None]
    (group,) = groups([dead_letters.slice(1), dead_letters.slice(0, 1)], Selection())
    assert (group.letters, group.copies_dropped, group.copies_counted_from) == (4, 7, FIRST_INSTANT)
