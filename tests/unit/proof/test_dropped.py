"""Which records are copies of one on out, against a dictionary."""

from dataclasses import replace

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import fresh_database
from support.verification_case import CONFIG, KEYED, of

from pipelines.connectors.sql import filled
from pipelines.proof.verification.dropped import stretches
from pipelines.proof.verification.span import History, Plan

WINDOW_US = 10
Seen = list[tuple[int, int, bool]]
"""(key, time, whether the record stands on out)."""


def copies(seen: Seen, stage: str | None = None, first: int = 0, last: int = 99) -> list[int]:
    """Numbers of the records that are copies; `stage` rejects the last one."""
    with fresh_database() as engine:
        engine.execute(
            "CREATE TABLE parsed (position UBIGINT, key UHUGEINT, at_us BIGINT, stage VARCHAR, is_past BOOLEAN, is_first BOOLEAN, "
            "then_dropped VARCHAR)"
        )
        rows = [(number, key, time, stage if number == len(seen) - 1 else None, False) for number, (key, time, _) in enumerate(seen)]
        if rows:
            engine.executemany("INSERT INTO parsed VALUES (?, ?, ?, ?, ?, true, NULL)", rows)
        on_out = pa.table({"position": pa.array([number for number, record in enumerate(seen) if record[2]], pa.uint64())})
        engine.register("on_out", on_out)
        engine.execute("CREATE TABLE accepted_before AS FROM on_out")
        sql = filled("reference/covered", window_us=WINDOW_US, first=first, last=last, absent="true")
        return sorted(position for (position,) in engine.execute(sql).fetchall())


def expected(seen: Seen) -> list[int]:
    last: dict[int, int] = {}
    found = []
    for number, (key, time, is_on_out) in enumerate(seen):
        if is_on_out:
            last[key] = time
        elif key in last and abs(time - last[key]) < WINDOW_US:
            found.append(number)
    return found


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.booleans()), max_size=20))
def test_a_copy_lies_in_the_window_of_its_last_record_on_out(seen: Seen) -> None:
    assert copies(seen) == expected(seen)


def test_at_exactly_the_window_a_record_is_no_copy() -> None:
    assert copies([(1, 0, True), (1, 9, False), (1, 10, False)]) == [1]


def test_a_rejected_record_is_no_copy_whatever_its_key() -> None:
    seen = [(1, 0, True), (1, 1, False)]
    assert (copies(seen), copies(seen, stage="parse")) == ([1], [])


def test_only_records_within_the_bounds_are_named() -> None:
    assert copies([(1, 0, True), (1, 1, False), (1, 2, False), (1, 3, False)], first=2, last=2) == [2]


CONFIGS = {
    "none": CONFIG,
    "keyed": KEYED,
    "kept": of(replace(KEYED.dedup, keeps=True)),
    "wider": of(replace(KEYED.dedup, window_us=2 * KEYED.dedup.window_us)),
}


def history(*versions: str) -> History:
    """Three frames a plan, a plan a version."""
    plans = [Plan(3 * number + 1, 3 * number + 3, version) for number, version in enumerate(versions)]
    frames = range(1, 3 * len(versions) + 1)
    return History(plans, frames, [10 * frame for frame in frames], 0, is_whole=True)


def parts(of: History) -> list[tuple[int, int]]:
    return [(first, last) for first, last, _ in stretches(of, CONFIGS)]


def test_ranges_with_one_way_of_dedup_are_read_together() -> None:
    assert parts(history("keyed", "kept", "keyed")) == [(1, 9)]
    assert parts(history("keyed", "wider", "wider")) == [(1, 3), (4, 9)]


def test_ranges_that_drop_nothing_unkept_are_passed_over() -> None:
    assert parts(history("none", "kept")) == []
    assert parts(history("none", "keyed")) == [(4, 6)]


def test_frames_up_to_a_purge_count_as_gone() -> None:
    whole = history("keyed", "wider")
    left = whole.after(4)
    assert (parts(left), left.is_whole, [*left.sequences], left.arrival_us(1)) == ([(5, 6)], False, [5, 6], 50)
    assert whole.after(0) is whole
