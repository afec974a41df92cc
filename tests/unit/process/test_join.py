"""The join: each left record is joined, unmatched or waits as the model says, however the log is cut, merged and attempted."""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import fresh_database
from support.join_case import LEFT_FIELDS, RIGHT_FIELDS, Answer, Frame, History, JoinCase, Row, model, play, rows_of, side_rows

import pipelines.process.join.outcomes
import pipelines.process.join.rows
import pipelines.process.join.sides
from pipelines.connectors.sql import statement
from pipelines.errors import InvariantError, StateDamagedError
from pipelines.key_store.storage import Storage
from pipelines.key_store.store import Found, KeyedStore
from pipelines.maintenance.kept_entries import check_kept
from pipelines.process.dedup import KEY_COLUMNS
from pipelines.process.join.sides import Side, Windows
from pipelines.process.join.stores import JoinStores
from pipelines.protocol.bodies import NEVER
from pipelines.protocol.positions import CAUSE_COLUMNS, first_position, last_position

HISTORIES = int(os.environ.get("TALLYFLOW_JOIN_HISTORIES", "150"))
LEFT, RIGHT = False, True
WINDOWS = Windows(10, 20)


@pytest.fixture(autouse=True)
def early_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.key_store.store.SMALL_FAN", 3)


def played(history: History, memory: Path, seed: int = 0) -> Answer:
    with TemporaryDirectory(dir=memory) as directory:
        return play(history, Path(directory), Random(seed))


def one_by_one(*frames: Frame, windows: Windows = WINDOWS) -> History:
    """Each frame in a range of its own."""
    return History(windows, frames, tuple(range(len(frames))))


def at(sequence: int, ordinal: int = 0) -> int:
    return first_position(sequence) + ordinal


def outcomes(history: History, memory: Path) -> list[tuple[int, int | None]]:
    """(left, right) of each row, the same in one range and in a range per frame."""
    answers = [played(each, memory) for each in (replace(history, cuts=()), one_by_one(*history.frames, windows=history.windows))]
    assert answers[0] == answers[1]
    return [(row.left, row.right) for row in answers[0].rows]


# -- meaning ----------------------------------------------------------------------------------------------------------------------


def test_a_left_record_meets_the_right_one_that_was_there(memory: Path) -> None:
    history = History(WINDOWS, (Frame(0, ((RIGHT, 1),)), Frame(1, ((RIGHT, 1), (LEFT, 1), (LEFT, 2)))))
    assert outcomes(history, memory) == [(at(2, 1), at(2))]


def test_a_right_record_releases_all_that_wait_for_its_key(memory: Path) -> None:
    frames = (Frame(0, ((LEFT, 1), (LEFT, 2), (LEFT, 1))), Frame(1, ((LEFT, 1), (RIGHT, 1), (RIGHT, 1))))
    answer = played(History(WINDOWS, frames), memory)
    assert answer.rows == [
        Row(at(1), at(2, 1), at(2, 1), 0),
        Row(at(1, 2), at(2, 1), at(2, 1), 1),
        Row(at(2), at(2, 1), at(2, 1), 2),
    ]
    assert answer.counts() == Counter(joined=3, unmatched=0, waiting=1, kept=2, replaced=1)


@pytest.mark.parametrize(("later", "right"), [(9, 3), (10, None), (11, None)])
def test_a_left_record_waits_up_to_its_window_exclusive(memory: Path, later: int, right: int | None) -> None:
    history = History(WINDOWS, (Frame(0, ((LEFT, 1),)), Frame(1), Frame(later, ((RIGHT, 1),))))
    assert outcomes(history, memory) == [(at(1), None if right is None else at(right))]


@pytest.mark.parametrize(("later", "is_joined"), [(19, True), (20, False), (21, False)])
def test_a_right_record_is_joined_up_to_its_window_exclusive(memory: Path, later: int, is_joined: bool) -> None:
    history = History(WINDOWS, (Frame(0, ((RIGHT, 1),)), Frame(later, ((LEFT, 1),))))
    assert outcomes(history, memory) == ([(at(2), at(1))] if is_joined else [])


@pytest.mark.parametrize(("tick", "is_over"), [(9, False), (10, True)])
def test_a_frame_without_records_ends_windows(memory: Path, tick: int, is_over: bool) -> None:
    answer = played(one_by_one(Frame(0, ((LEFT, 1),)), Frame(tick)), memory)
    assert answer.rows == ([Row(at(1), None, last_position(1), 0)] if is_over else [])
    assert answer.waiting == (not is_over)


def test_unmatched_rows_stand_before_the_frame_that_ends_them(memory: Path) -> None:
    frames = (Frame(0, ((LEFT, 1), (LEFT, 2))), Frame(1, ((LEFT, 1),)), Frame(10, ((LEFT, 3),)), Frame(15, ((RIGHT, 3),)))
    expected = [Row(at(1), None, last_position(2), 0), Row(at(1, 1), None, last_position(2), 1), Row(at(2), None, last_position(3), 0)]
    assert played(History(WINDOWS, frames), memory).rows == [*expected, Row(at(3), at(4), at(4), 0)]


def test_the_same_records_once_more_are_further_left_records(memory: Path) -> None:
    frames = (Frame(0, ((RIGHT, 1), (LEFT, 1))), *(Frame(n, ((LEFT, 1),)) for n in range(5)))
    assert outcomes(History(WINDOWS, frames), memory) == [(at(1, 1), at(1)), *((at(n), at(1)) for n in range(2, 7))]


def test_a_null_key_is_no_record_of_a_join() -> None:
    rows = side_rows([(at(1), 1, 0), (at(1, 1), 2, 0)], is_right=False)
    nulled = rows.set_column(0, KEY_COLUMNS[0], pa.array([1, None], pa.uint64()))
    with pytest.raises(AssertionError, match="a null in its key"):
        Side.of(nulled, LEFT_FIELDS)


# -- laws -------------------------------------------------------------------------------------------------------------------------

records = st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=6).map(tuple)
frame_steps = st.lists(st.tuples(st.integers(0, 9), records), min_size=1, max_size=25)


@settings(deadline=None, max_examples=HISTORIES)
@given(frame_steps, st.integers(1, 12), st.integers(1, 12), st.lists(st.integers(1, 25), max_size=8), st.integers(0, 2**32))
def test_the_join_agrees_with_the_model_however_it_is_cut(
    steps: list[tuple[int, tuple[tuple[bool, int], ...]]], left_us: int, right_us: int, cuts: list[int], seed: int
) -> None:
    arrivals = np.cumsum([step for step, _ in steps]).tolist()
    frames = tuple(Frame(arrival, found) for arrival, (_, found) in zip(arrivals, steps, strict=True))
    history = History(Windows(left_us, right_us), frames, tuple(cuts))
    with TemporaryDirectory() as directory:
        assert play(history, Path(directory), Random(seed)) == model(history)


def reference(history: History) -> list[tuple[int, int | None, int]]:
    """(left, right, cause) of each row by `joined.sql` over the whole history, by cause."""
    both: tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]] = ([], [])
    for sequence, frame in enumerate(history.frames, 1):
        for ordinal, (is_right, key) in enumerate(frame.records):
            both[is_right].append((key, at(sequence, ordinal), frame.arrival))
    with fresh_database() as engine:
        for name, rows in zip(("lefts", "rights"), both, strict=True):
            engine.execute(f"CREATE TABLE {name} (key BIGINT, position BIGINT, arrival_us BIGINT)")
            if rows:
                engine.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)
        engine.execute("CREATE TABLE raw_arrivals (sequence BIGINT, arrival_us BIGINT)")
        engine.executemany("INSERT INTO raw_arrivals VALUES (?, ?)", [(n, frame.arrival) for n, frame in enumerate(history.frames, 1)])
        windows = {"left_window_us": history.windows.left_us, "right_window_us": history.windows.right_us}
        found = engine.execute(statement("reference/joined"), windows).fetchall()
    return sorted((row for row in found if row[2] is not None), key=lambda row: (row[2], row[0]))


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_the_reference_in_sql_says_the_same(memory: Path, first: int) -> None:
    history = History.together([History.random(seed) for seed in range(first, first + 10)])
    answer = played(history, memory, first)
    assert reference(history) == [(row.left, row.right, row.cause) for row in answer.rows]


# -- mistakes ---------------------------------------------------------------------------------------------------------------------


def _no_stored_right(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KeyedStore, "find", lambda self, hi, lo: Found.nothing(len(hi)))


def _consumed_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pipelines.process.join.outcomes, "is_consumed", lambda lefts, newest: np.zeros(len(lefts), dtype=bool))


def _ended_with_the_range(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pipelines.process.join.outcomes, "released_in_time", lambda lefts, rights, window: np.ones(len(lefts), dtype=bool))


def _left_edge_inclusive(patch: pytest.MonkeyPatch) -> None:
    found = pipelines.process.join.outcomes.released_in_time
    patch.setattr(pipelines.process.join.outcomes, "released_in_time", lambda lefts, rights, window: found(lefts, rights, window + 1))


def _right_edge_inclusive(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JoinCase, "restart", _with_windows(lambda windows: Windows(windows.left_us, windows.right_us + 1)))


def _kept_for_its_own_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Windows, "kept_us", property(lambda windows: windows.right_us))


def _with_windows(change: Callable[[Windows], Windows]) -> Callable[[JoinCase], None]:
    restart = JoinCase.restart

    def restarted(case: JoinCase) -> None:
        restart(case)
        case.stores.windows = change(case.windows)

    return restarted


def _ordered_by_left(patch: pytest.MonkeyPatch) -> None:
    def in_order(decision: Any, at: Any, cause: Any, is_decided: Any) -> Any:
        (decided,) = is_decided.nonzero()
        return decided[np.argsort(decision.every.positions[at[decided]], kind="stable")]

    patch.setattr("pipelines.process.join.outcomes._Decision._in_order", in_order)


MUTANTS = {
    _left_edge_inclusive: 6,
    _right_edge_inclusive: 3,
    _ended_with_the_range: 6,
    _no_stored_right: 3,
    _kept_for_its_own_window: 20,
    _consumed_twice: 8,
    _ordered_by_left: 3,
}
"""Each mistake with a seed that finds it: the first one, when it was written."""
SEEDS = 2_000


@pytest.mark.parametrize(("mistake", "known"), MUTANTS.items(), ids=[mistake.__name__.strip("_") for mistake in MUTANTS])
def test_a_mistake_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], known: int, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    assert any(_differs(seed, memory) for seed in (known, *range(SEEDS)))


def test_without_a_mistake_nothing_is_found(memory: Path) -> None:
    assert not any(_differs(seed, memory) for seed in MUTANTS.values())


def _differs(seed: int, memory: Path) -> bool:
    history = History.random(seed)
    try:
        return played(history, memory, seed) != model(history)
    except AssertionError:
        return True


# -- state ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, HISTORIES, 50))
def test_compactions_at_any_time_change_no_row(first: int, memory: Path) -> None:
    """Of both stores, or of one alone, as a leg lists them. Five histories at a time: what a range costs are its segments."""
    for seed in range(first, first + 50, 5):
        history = History.together([History.random(one) for one in range(seed, seed + 5)])
        with TemporaryDirectory(dir=memory) as directory:
            assert play(history, Path(directory), Random(seed), Random(-seed)) == model(history), seed


def test_a_compaction_leaves_what_waits_and_newest_rights(tmp_path: Path) -> None:
    case = JoinCase(tmp_path, Windows(100, 5))
    case.run([Frame(0, ((LEFT, 1), (RIGHT, 9)))], 1, has_turn=False)
    case.run([Frame(50, ((RIGHT, 1), (LEFT, 2), (LEFT, 3), (RIGHT, 2), (LEFT, 5)))], 2, has_turn=False)
    case.run([Frame(100, ((LEFT, 4), (RIGHT, 2), (RIGHT, 5)))], 3, has_turn=False)
    assert [[facts.rows for facts in listing] for listing in case.listings] == [[1, 2, 2], [1, 2, 1]]
    case.compact(Random(3))
    # Right 9 and left 1 have expired; left 5 has met a right record; of right 2 the newer one stays.
    assert [[facts.rows for facts in listing] for listing in case.listings] == [[3], [2]]
    _, rows = case.run([Frame(149, ((RIGHT, 3),))], 4, has_turn=False)
    assert [(row.left, row.right) for row in rows] == [(at(2, 2), at(4))]


@pytest.mark.parametrize("store", ["rights", "lefts"])
def test_an_entry_that_a_compaction_loses_or_changes_is_noticed(tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = JoinCase(tmp_path, Windows(100, 100))
    for sequence in (1, 2):
        case.run([Frame(sequence, ((LEFT, sequence), (RIGHT, sequence + 2), (LEFT, sequence)))], sequence)
    case.stores.open(*case.listings)
    found = getattr(case.stores, store)
    whole = found.merged

    def lost(*given: Any, **named: Any) -> Any:
        return whole(*given, **named).take(slice(1, None))

    def changed(*given: Any, **named: Any) -> Any:
        entries = whole(*given, **named)
        assert entries.payload is not None
        return replace(entries, payload=entries.payload.take(pa.array([*range(1, len(entries)), 0])))

    for mistake in (lost, changed):
        monkeypatch.setattr(found, "merged", mistake)
        with pytest.raises(InvariantError, match=r"a live entry of .* is not in the new segment"):
            check_kept(found, found.compact(NEVER, 0), NEVER)
    monkeypatch.setattr(found, "merged", whole)
    assert check_kept(found, found.compact(NEVER, 0), NEVER) == sum(facts.rows for facts in found.live)


def many(case: JoinCase, count: int) -> None:
    """Left records of one key that wait, over several segments."""
    for sequence in range(1, 5):
        case.run([Frame(sequence, tuple((LEFT, 1) for _ in range(count // 4)))], sequence)


def test_one_right_record_releases_very_many_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines.process.join.rows, "SLICE_BYTES", 100_000)
    case = JoinCase(tmp_path, Windows(100, 100))
    many(case, 40_000)
    lefts, rights, frames = case.sides([Frame(9, ((RIGHT, 1), (LEFT, 1)))], 5)
    case.stores.open(*case.listings)
    joined = pipelines.process.join.rows.join(lefts, rights, frames, case.stores)
    assert vars(joined.counts) == {"joined": 40_001, "unmatched": 0, "waiting": -40_000, "kept": 1, "replaced": 0}
    slices = [part.rows for part in joined.slices(with_unmatched=False)]
    assert len(slices) > 10
    assert max(part.nbytes for part in slices) < 500_000
    rows = [row for part in slices for row in rows_of(part)]
    assert [row.left for row in rows] == sorted(row.left for row in rows)
    assert [row.emit for row in rows] == [*range(40_000), 0]
    assert {row.right for row in rows} == {at(5)}


def test_a_second_attempt_gives_the_same_bytes(tmp_path: Path) -> None:
    case = JoinCase(tmp_path, WINDOWS)
    history = History.random(3)
    case.run(history.frames[:5], 1)
    found = []
    for _ in range(2):
        case.restart()
        joined, _, (rights, lefts) = case.attempt(history.frames[5:], 6)
        tables = [part.rows for part in joined.slices(with_unmatched=True)]
        content = [(facts.rows, facts.newest, facts.digest) for facts in (*rights, *lefts)]
        found.append((pa.concat_tables(tables), content, joined.counts, joined.oldest_waiting))
    assert found[0] == found[1]
    assert found[0][0].num_rows


def test_unmatched_rows_are_made_only_if_asked_for(tmp_path: Path) -> None:
    case = JoinCase(tmp_path, WINDOWS)
    case.run([Frame(0, ((LEFT, 1), (LEFT, 2)))], 1)
    joined, _ = case.run([Frame(1, ((RIGHT, 1),)), Frame(10)], 2)
    (with_unmatched,), (without,) = (list(joined.slices(asked)) for asked in (True, False))
    assert with_unmatched.is_joined.to_pylist() == [True, False]
    assert with_unmatched.rows.column("right_text").to_pylist()[1] is None
    assert without.rows.column(CAUSE_COLUMNS[0]).to_pylist() == [2]
    assert (joined.counts.joined, joined.counts.unmatched) == (1, 1)


def test_the_oldest_waiting_record_is_named(tmp_path: Path) -> None:
    case = JoinCase(tmp_path, WINDOWS)
    found = [
        case.run([frame], n)[0].oldest_waiting for n, frame in enumerate((Frame(0, ((LEFT, 1),)), Frame(5, ((LEFT, 2),)), Frame(10)), 1)
    ]
    assert found == [(at(1), 0), (at(1), 0), (at(2), 5)]
    assert case.run([Frame(15)], 4)[0].oldest_waiting is None


def test_merges_leave_out_what_has_ended_and_what_is_consumed(tmp_path: Path) -> None:
    case = JoinCase(tmp_path, Windows(100, 5))
    case.run([Frame(0, ((LEFT, 1), (LEFT, 2), (LEFT, 3)))], 1)
    case.run([Frame(50, ((RIGHT, 1), (LEFT, 1), (LEFT, 4)))], 2)
    assert [facts.rows for facts in case.listings[1]] == [3, 1]
    case.run([Frame(60, ((LEFT, 5),))], 3)
    # Of the first range, 2 and 3; of the second, 4; not the left record that met a right one.
    assert [facts.rows for facts in case.listings[1]] == [4]
    case.run([Frame(100, ((LEFT, 6),))], 4)
    case.run([Frame(101, ((LEFT, 7),))], 5)
    assert [facts.rows for facts in case.listings[1]] == [4]


def test_a_right_record_is_kept_while_a_left_one_before_it_is(tmp_path: Path) -> None:
    """Its own window is over long before: without it, the consumed left record would wait again."""
    case = JoinCase(tmp_path, Windows(100, 5))
    case.run([Frame(0, ((LEFT, 1),))], 1)
    for sequence, arrival in enumerate((10, 20, 30, 40, 50, 60), 2):
        case.run([Frame(arrival, ((RIGHT, 1 if arrival == 10 else 2),))], sequence)
    joined, rows = case.run([Frame(100)], 8)
    assert rows == []
    assert joined.counts.unmatched == 0


@pytest.mark.parametrize("side", ["join-left", "join-right"])
def test_a_damaged_segment_is_refused_before_a_row_is_made(tmp_path: Path, side: str) -> None:
    case = JoinCase(tmp_path, WINDOWS)
    case.run([Frame(0, ((LEFT, 1), (RIGHT, 2)))], 1)
    (path,) = (tmp_path / side).iterdir()
    content = bytearray(path.read_bytes())
    wanted = {"join-left": b"1048576", "join-right": b"1048577"}[side]
    content[content.index(wanted) + 3] ^= 1
    path.write_bytes(content)
    case.restart()
    case.stores.open(*case.listings)
    lefts, rights, frames = case.sides([Frame(1, ((RIGHT, 1), (LEFT, 2)))], 2)
    joined = pipelines.process.join.rows.join(lefts, rights, frames, case.stores)
    with pytest.raises(StateDamagedError, match=r"rows 0 to 65536 are damaged; nothing was written; .*rebuild-state"):
        list(joined.slices(with_unmatched=True))


def test_segments_of_other_fields_are_refused(tmp_path: Path) -> None:
    case = JoinCase(tmp_path, WINDOWS)
    case.run([Frame(0, ((LEFT, 1), (RIGHT, 2)))], 1)
    others = pa.schema([*list(RIGHT_FIELDS)[:-1], ("right_bytes", pa.string())])
    stores = JoinStores(Storage.local(tmp_path / "join-right"), Storage.local(tmp_path / "join-left"), (others, LEFT_FIELDS), WINDOWS)
    with pytest.raises(StateDamagedError, match=r"its rows have other fields than the pipeline stores; .*rebuild-state"):
        stores.open(*case.listings)
