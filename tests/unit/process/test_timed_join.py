"""The join by event time: each left record meets what the model says, however the log is cut, merged and attempted."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import fresh_database
from support.join_case import Row
from support.timed_join_case import LEFT, RIGHT, Answer, Frame, History, TimedJoinCase, model, play

import pipelines.process.join.rows
from pipelines.errors import StateDamagedError
from pipelines.process.join import matches, progress, timed_outcomes
from pipelines.process.join.progress import NO_PARTITION, Progress, TimedFrames
from pipelines.process.join.sides import Windows
from pipelines.process.join.stores import Candidates
from pipelines.process.join.timed_stores import TimedJoinStores
from pipelines.protocol.bodies import NEVER
from pipelines.protocol.positions import first_position, last_position

HISTORIES = int(os.environ.get("TALLYFLOW_JOIN_HISTORIES", "150"))
REFERENCE = Path(__file__).parents[3] / "sql" / "reference" / "joined_by_time.sql"
WINDOWS = Windows(10, 20)
ON = (Frame(LEFT, ((99, 1_000),)), Frame(RIGHT, ((98, 1_000),)))
"""Frames after which nothing waits."""


@pytest.fixture(autouse=True)
def early_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.key_store.store.SMALL_FAN", 3)


def played(history: History, memory: Path, seed: int = 0) -> Answer:
    with TemporaryDirectory(dir=memory) as directory:
        return play(history, Path(directory), Random(seed))


def at(sequence: int, ordinal: int = 0) -> int:
    return first_position(sequence) + ordinal


def both_ways(memory: Path, *frames: Frame, windows: Windows = WINDOWS) -> Answer:
    """The answer, the same in one range and in a range per frame."""
    histories = (History(windows, frames), History(windows, frames, tuple(range(len(frames)))))
    whole, cut = (played(history, memory) for history in histories)
    assert whole == cut
    return whole


def met(memory: Path, *frames: Frame, windows: Windows = WINDOWS) -> dict[int, int | None]:
    """The right record of each decided left one."""
    return {row.left: row.right for row in both_ways(memory, *frames, windows=windows).rows}


# -- meaning ----------------------------------------------------------------------------------------------------------------------


def test_the_newest_right_record_up_to_its_time_is_met(memory: Path) -> None:
    frames = (Frame(LEFT, ((1, 50),)), Frame(RIGHT, ((1, 40), (1, 49), (1, 51))))
    assert met(memory, *frames, *ON)[at(1)] == at(2, 1)


def test_of_two_at_one_time_the_nearest_position_is_met(memory: Path) -> None:
    frames = (Frame(LEFT, ((1, 50), (2, 50))), Frame(RIGHT, ((1, 50), (1, 50), (2, 55), (2, 55))))
    assert met(memory, *frames, *ON) == {at(1): at(2, 1), at(1, 1): at(2, 2)}


@pytest.mark.parametrize(("behind", "is_met"), [(19, True), (20, False), (21, False)])
def test_an_earlier_right_record_has_the_right_window(memory: Path, behind: int, is_met: bool) -> None:
    frames = (Frame(RIGHT, ((1, 50),)), Frame(LEFT, ((1, 50 + behind),)))
    assert met(memory, *frames, *ON)[at(2)] == (at(1) if is_met else None)


@pytest.mark.parametrize(("ahead", "is_met"), [(9, True), (10, False), (11, False)])
def test_a_later_right_record_has_the_left_window(memory: Path, ahead: int, is_met: bool) -> None:
    frames = (Frame(LEFT, ((1, 50),)), Frame(RIGHT, ((1, 50 + ahead),)))
    assert met(memory, *frames, *ON)[at(1)] == (at(2) if is_met else None)


def test_an_earlier_right_record_goes_before_a_nearer_later_one(memory: Path) -> None:
    frames = (Frame(LEFT, ((1, 50),)), Frame(RIGHT, ((1, 31), (1, 51))))
    assert met(memory, *frames, *ON)[at(1)] == at(2)


def test_a_left_record_waits_until_its_time_is_passed(memory: Path) -> None:
    frames = (Frame(RIGHT, ((1, 45),)), Frame(LEFT, ((1, 50), (2, 60))), Frame(RIGHT, ((2, 50),)), Frame(RIGHT, ((3, 51),)))
    assert both_ways(memory, *frames[:3]).rows == []
    assert both_ways(memory, *frames).rows == [Row(at(2), at(1), last_position(4), 0)]


def test_a_better_right_record_may_arrive_behind_another(memory: Path) -> None:
    frames = (Frame(RIGHT, ((1, 40),)), Frame(LEFT, ((1, 50), (2, 45))), Frame(RIGHT, ((1, 48),)), Frame(RIGHT, ((1, 60),)))
    assert both_ways(memory, *frames[:3]).rows == []
    assert met(memory, *frames, *ON)[at(2)] == at(3)


def test_an_unmatched_record_ends_with_its_window(memory: Path) -> None:
    frames = (Frame(LEFT, ((1, 50), (2, 60))), Frame(RIGHT, ((3, 59),)), Frame(RIGHT, ((3, 60),)))
    assert both_ways(memory, *frames[:2]).rows == []
    assert both_ways(memory, *frames).rows == [Row(at(1), None, last_position(3), 0)]


def test_rows_of_one_cause_are_in_the_order_of_left_records(memory: Path) -> None:
    frames = (Frame(RIGHT, ((1, 31),)), Frame(LEFT, ((1, 50), (2, 40), (1, 45), (1, 99))), Frame(RIGHT, ((1, 80),)))
    assert both_ways(memory, *frames).rows == [
        Row(at(2), at(1), last_position(3), 0),
        Row(at(2, 1), None, last_position(3), 1),
        Row(at(2, 2), at(1), last_position(3), 2),
    ]


# -- progress ---------------------------------------------------------------------------------------------------------------------


def watermarks(*frames: Frame, lateness: int = 0, before: Progress | None = None) -> list[int]:
    """The watermark behind each frame."""
    case = TimedJoinCase.__new__(TimedJoinCase)
    case.progress, case.lateness = before or Progress(), lateness
    return [case.timed(frames[: number + 1], 1).end_us for number in range(len(frames))]


def test_the_last_partition_makes_the_watermark() -> None:
    frames = (Frame(LEFT, ((1, 50),)), Frame(RIGHT, ((1, 40),)), Frame(RIGHT, ((1, 70), (1, 60))), Frame(LEFT, ((1, 20),)))
    assert watermarks(*frames, lateness=5) == [NEVER, 35, 45, 45]


def test_an_empty_partition_holds_it_until_marked_as_idle() -> None:
    frames = (Frame(LEFT, ((1, 50),)), Frame(RIGHT), Frame(NO_PARTITION, idle=frozenset({RIGHT})), Frame(LEFT, ((1, 60),)))
    assert watermarks(*frames) == [NEVER, NEVER, 50, 60]


def test_a_record_ends_idleness_and_no_watermark_steps_back() -> None:
    idle = Progress({LEFT: 60, RIGHT: 10}, frozenset({RIGHT}), 60)
    assert watermarks(Frame(RIGHT, ((1, 65),)), Frame(LEFT, ((1, 90),)), before=idle) == [60, 65]
    assert watermarks(Frame(RIGHT, ((1, 20),)), Frame(LEFT, ((1, 90),)), before=idle) == [60, 60]


def test_late_is_older_than_the_watermark_of_the_frame_before(memory: Path) -> None:
    frames = (Frame(LEFT, ((1, 50),)), Frame(RIGHT, ((1, 40),)), Frame(RIGHT, ((1, 39), (1, 90), (1, 40))))
    answer = both_ways(memory, *frames)
    assert (answer.late, answer.kept) == (1, 3)


# -- laws -------------------------------------------------------------------------------------------------------------------------

PARTITIONS = (LEFT, LEFT + 1, RIGHT, RIGHT + 1)
records = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=6).map(tuple)
with_records = st.builds(Frame, st.sampled_from(PARTITIONS), records)
ticks = st.builds(Frame, st.just(NO_PARTITION), idle=st.frozensets(st.sampled_from(PARTITIONS)))
all_frames = st.lists(st.one_of(with_records, with_records, with_records, ticks), min_size=1, max_size=25).map(tuple)


@settings(deadline=None, max_examples=HISTORIES)
@given(
    all_frames, st.integers(1, 12), st.integers(1, 12), st.integers(0, 30), st.lists(st.integers(1, 25), max_size=8), st.integers(0, 2**32)
)
def test_the_join_agrees_with_the_model_however_it_is_cut(
    frames: tuple[Frame, ...], left_us: int, right_us: int, lateness: int, cuts: list[int], seed: int
) -> None:
    history = History(Windows(left_us, right_us), frames, tuple(cuts), lateness)
    with TemporaryDirectory() as directory:
        assert play(history, Path(directory), Random(seed)) == model(history)


def reference(history: History) -> list[tuple[int, int | None, int]]:
    """(left, right, cause) of each row by `joined_by_time.sql` over the whole history, by cause."""
    both: tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]] = ([], [])
    behind = model(history).watermarks
    for sequence, (frame, watermark) in enumerate(zip(history.frames, [NEVER, *behind], strict=False), 1):
        for ordinal, (key, time) in enumerate(frame.records):
            if time >= watermark:
                both[frame.is_right].append((key, at(sequence, ordinal), time))
    with fresh_database() as engine:
        for name, rows in zip(("lefts", "rights"), both, strict=True):
            engine.execute(f"CREATE TABLE {name} (key BIGINT, position BIGINT, time_us BIGINT)")
            if rows:
                engine.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)
        engine.execute("CREATE TABLE raw_watermarks (sequence BIGINT, watermark_us BIGINT)")
        marks = [(sequence, None if mark == NEVER else mark) for sequence, mark in enumerate(behind, 1)]
        engine.executemany("INSERT INTO raw_watermarks VALUES (?, ?)", marks)
        windows = {"left_window_us": history.windows.left_us, "right_window_us": history.windows.right_us}
        found = engine.execute(REFERENCE.read_text(), windows).fetchall()
    return sorted((row for row in found if row[2] is not None), key=lambda row: (row[2], row[0]))


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_the_reference_in_sql_says_the_same(memory: Path, first: int) -> None:
    history = History.together([History.random(seed) for seed in range(first, first + 10)])
    answer = played(history, memory, first)
    assert reference(history) == [(row.left, row.right, row.cause) for row in answer.rows]


# -- mistakes ---------------------------------------------------------------------------------------------------------------------


def _right_edge_inclusive(patch: pytest.MonkeyPatch) -> None:
    found = matches.in_right_window
    patch.setattr(matches, "in_right_window", lambda *args: found(*args[:3], Windows(args[3].left_us, args[3].right_us + 1)))


def _left_edge_inclusive(patch: pytest.MonkeyPatch) -> None:
    found = matches.in_left_window
    patch.setattr(matches, "in_left_window", lambda *args: found(*args[:3], Windows(args[3].left_us + 1, args[3].right_us)))


def _decided_at_its_time(patch: pytest.MonkeyPatch) -> None:
    found = matches.Matches.of

    def early(*args: Any) -> Any:
        known = found(*args)
        return replace(known, final_us=known.final_us - 1)

    patch.setattr(matches.Matches, "of", early)


def _no_stored_right(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TimedJoinStores, "rights_of", lambda stores, hi, lo, start_us: Candidates.none())


def _released_by_no_stored_right(patch: pytest.MonkeyPatch) -> None:
    found = TimedJoinStores.passed
    patch.setattr(TimedJoinStores, "passed", lambda *args: (found(*args)[0], Candidates.none()))


def _kept_for_the_longer_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Windows, "kept_by_time_us", property(lambda windows: max(windows.left_us, windows.right_us)))


def _kept_for_the_left_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Windows, "kept_by_time_us", property(lambda windows: windows.left_us))


def _lateness_left_out(patch: pytest.MonkeyPatch) -> None:
    found = progress._reached
    patch.setattr(progress, "_reached", lambda newest, idle, lateness_us: found(newest, idle, 0))


def _idle_partitions_hold(patch: pytest.MonkeyPatch) -> None:
    found = progress._reached
    patch.setattr(progress, "_reached", lambda newest, idle, lateness_us: found(newest, set(), lateness_us))


def _late_by_its_own_frame(patch: pytest.MonkeyPatch) -> None:
    found = TimedFrames.is_late
    patch.setattr(TimedFrames, "is_late", lambda frames, sequences, times_us: found(frames, sequences + 1, times_us))


def _left_out_while_it_waits(patch: pytest.MonkeyPatch) -> None:
    found = TimedJoinStores._is_decided
    patch.setattr(TimedJoinStores, "_is_decided", lambda stores, lefts, ended_us: found(stores, lefts, ended_us + 4))


MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], int] = {
    _right_edge_inclusive: 16,
    _left_edge_inclusive: 7,
    _decided_at_its_time: 0,
    _no_stored_right: 0,
    _released_by_no_stored_right: 0,
    _kept_for_the_longer_window: 36,
    _kept_for_the_left_window: 7,
    _lateness_left_out: 0,
    _idle_partitions_hold: 0,
    _late_by_its_own_frame: 3,
    _left_out_while_it_waits: 0,
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


def test_a_second_attempt_gives_the_same_bytes(tmp_path: Path) -> None:
    history = History.random(3)
    case = TimedJoinCase(tmp_path, history.windows)
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


def test_merges_leave_out_what_is_decided_and_what_has_ended(tmp_path: Path) -> None:
    case = TimedJoinCase(tmp_path, Windows(100, 5))
    case.run([Frame(RIGHT, ((1, 10), (2, 49)))], 1)
    case.run([Frame(LEFT, ((1, 11), (2, 50), (3, 50), (4, 200)))], 2)
    case.run([Frame(RIGHT, ((9, 60),))], 3)
    case.run([Frame(LEFT, ((5, 201),))], 4)
    assert [facts.rows for facts in case.listings[1]] == [3, 1]
    case.run([Frame(LEFT, ((6, 202),))], 5)
    # Of the first range 3, which waits, and 4: 1 had met its right record at once, 2 has done so since.
    assert [facts.rows for facts in case.listings[1]] == [4]
    case.run([Frame(RIGHT, ((9, 150),))], 6)
    case.run([Frame(LEFT, ((7, 203),))], 7)
    case.run([Frame(LEFT, ((8, 204),))], 8)
    assert [facts.rows for facts in case.listings[1]] == [5]


def test_right_records_stay_for_both_windows(tmp_path: Path) -> None:
    case = TimedJoinCase(tmp_path, Windows(10, 20))
    case.run([Frame(RIGHT, ((1, 50),))], 1)
    case.run([Frame(LEFT, ((2, 79),)), Frame(RIGHT, ((2, 79),))], 2)
    case.run([Frame(RIGHT, ((2, 80),))], 3)
    assert [facts.rows for facts in case.listings[0]] == [3]
    case.run([Frame(LEFT, ((2, 80),))], 4)
    case.run([Frame(RIGHT, ((2, 81),))], 5)
    case.run([Frame(RIGHT, ((2, 81),))], 6)
    # At the watermark 80 no left record is left that may have met the one of 50.
    assert [facts.rows for facts in case.listings[0]] == [4]


def test_a_row_has_the_arrival_of_its_left_record_not_its_time(tmp_path: Path) -> None:
    case = TimedJoinCase(tmp_path, WINDOWS)
    lefts, rights, frames, _ = case.sides([Frame(LEFT, ((1, 50), (2, 99))), Frame(RIGHT, ((1, 80),))], 1)
    arrival = pa.array([123, 124], pa.timestamp("us", "UTC"))
    lefts = replace(lefts, payload=lefts.payload.set_column(lefts.payload.schema.get_field_index("_tf_arrival"), "_tf_arrival", arrival))
    joined = timed_outcomes.join_by_time(lefts, rights, frames, case.stores)
    (part,) = joined.slices(with_unmatched=True)
    assert part.rows.column("_tf_arrival").cast(pa.int64()).to_pylist() == [123]


def test_one_frame_decides_very_many_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines.process.join.rows, "SLICE_BYTES", 100_000)
    case = TimedJoinCase(tmp_path, Windows(100, 100))
    for sequence in range(1, 5):
        case.run([Frame(LEFT, tuple((1, 50) for _ in range(10_000)))], sequence)
    case.run([Frame(LEFT, ((2, 200),))], 5)
    lefts, rights, frames, _ = case.sides([Frame(RIGHT, ((1, 50), (1, 60)))], 6)
    case.stores.open(*case.listings)
    joined = timed_outcomes.join_by_time(lefts, rights, frames, case.stores)
    assert vars(joined.counts) == {"joined": 40_000, "unmatched": 0, "waiting": -40_000, "kept": 2, "replaced": 0}
    slices = [part.rows for part in joined.slices(with_unmatched=False)]
    assert len(slices) > 10
    assert max(part.nbytes for part in slices) < 500_000
    assert [emit for part in slices for emit in part.column("_tf_cause_emit").to_pylist()] == [*range(40_000)]


@pytest.mark.parametrize("side", ["join-left", "join-right"])
def test_a_damaged_segment_is_refused_before_a_row_is_made(tmp_path: Path, side: str) -> None:
    case = TimedJoinCase(tmp_path, WINDOWS)
    case.run([Frame(RIGHT, ((1, 45),))], 1)
    case.run([Frame(LEFT, ((1, 50), (2, 60)))], 2)
    (path,) = (tmp_path / side).iterdir()
    content = bytearray(path.read_bytes())
    wanted = {"join-left": b"2097152", "join-right": b"1048576"}[side]
    content[content.index(wanted) + 3] ^= 1
    path.write_bytes(content)
    case.restart()
    case.stores.open(*case.listings)
    lefts, rights, frames, _ = case.sides([Frame(RIGHT, ((1, 55),))], 3)
    joined = timed_outcomes.join_by_time(lefts, rights, frames, case.stores)
    with pytest.raises(StateDamagedError, match=r"rows 0 to 65536 are damaged; nothing was written; .*rebuild-state"):
        list(joined.slices(with_unmatched=True))
