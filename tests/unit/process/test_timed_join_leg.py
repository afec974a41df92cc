"""A join by the records' own times in the legs: rows, late records and progress are those of the model, on one process or on several."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.leg_case import NAMES, LegCase
from support.shared_case import Shared, outcome
from support.timed_join_case import LEFT, RIGHT, Frame, History, model

from pipelines.process.join.progress import NO_PARTITION
from pipelines.process.join.sides import Windows
from pipelines.process.program import RELEASE, Lane, Program
from pipelines.process.steps import Context
from pipelines.process.steps.join import Join, JoinedField, JoinSide
from pipelines.process.steps.mapping import MappedColumn, MapToTable, MapToTables
from pipelines.process.steps.parse import Parse
from pipelines.protocol.bodies import NEVER
from pipelines.protocol.outcomes import WAITING
from pipelines.protocol.positions import first_position
from pipelines.protocol.records import POSITION_COLUMNS, StageOutput, decode_frame
from pipelines.protocol.ticks import Idle, append_tick

START_US = 1_700_000_000_000_000
BUCKETS = 12
CENTURY_US = 100 * 365 * 86_400_000_000
SEEDS = range(16)


def program(history: History) -> Program:
    """Left records (key, at, id) and right ones (key, at, name), joined by `key`; both ids are positions in raw."""
    windows = history.windows
    left = JoinSide("s", ("key",), (JoinedField("id", "id", "int"),), windows.left_us, "at", "us")
    right = JoinSide("r", ("key",), (JoinedField("name", "name", "int"),), windows.right_us, "at", "us")
    lanes = [Lane(source, source, (Parse((("key", "int"), ("at", "int"), (own, "int"))),)) for source, own in (("s", "id"), ("r", "name"))]
    columns = (("id", "id", "Int64", False), ("name", "name", "Nullable(Int64)", False))
    mapping = MapToTable(tuple(MappedColumn(*column) for column in columns), "db", "t", tuple(POSITION_COLUMNS))
    return Program(RELEASE, BUCKETS, tuple(lanes), (Join(left, right, "emit", history.lateness, CENTURY_US), MapToTables((mapping,))))


def drawn(seed: int) -> History:
    """A history of one partition on each side, which begins with the frames that ingest writes at its first start."""
    history = History.random(seed)
    borders = {start for start, _ in history.ranges()}
    frames, cuts = list[Frame](), list[int]()
    for number, frame in enumerate(history.frames):
        if number in borders and number > 1:
            cuts.append(len(frames))
        if number < 2 or frame.records or frame.partition == NO_PARTITION:
            side = RIGHT if frame.is_right else LEFT
            idle = frozenset(RIGHT if one >= RIGHT else LEFT for one in frame.idle)
            frames.append(replace(frame, partition=NO_PARTITION if frame.partition == NO_PARTITION else side, idle=idle))
    return replace(history, frames=tuple(frames), cuts=tuple(cuts))


def play(case: LegCase, history: History) -> None:
    """Send the frames, each as a batch of its own, and go on with process at every cut."""
    for sequence, frame in enumerate(history.frames[2:], 3):
        if frame.partition == NO_PARTITION:
            mark(case, frame)
        else:
            case.send(values(frame, sequence), "r" if frame.is_right else "s")
        if sequence in history.cuts:
            case.go_on()
    case.go_on()


def values(frame: Frame, sequence: int) -> list[bytes]:
    own = "name" if frame.is_right else "id"
    records = enumerate(frame.records, first_position(sequence))
    return [json.dumps({"key": key, "at": START_US + time, own: position}).encode() for position, (key, time) in records]


def mark(case: LegCase, frame: Frame) -> None:
    """A tick with the marks of a frame; of each source one tick, so at most one source is marked in a frame."""
    sources = {RIGHT: "r", LEFT: "s"}
    assert len(frame.idle) < 2
    idle = [Idle(sources[one], {"0": len(case.topics[sources[one]].values)}) for one in frame.idle]
    assert append_tick(case.log, NAMES, idle[0] if idle else None)


def of_one_source(history: History) -> History:
    """The history with ticks that mark partitions of one source."""
    frames = [replace(frame, idle=frozenset(sorted(frame.idle)[:1])) for frame in history.frames]
    return replace(history, frames=tuple(frames))


def rows_of(case: LegCase) -> dict[int, int | None]:
    """The right record that each row has met, by the left one."""
    frames = [decode_frame(message.payload).to_pylist() for message in case.log.messages(NAMES.stream("out"))]
    found = {row["id"]: row["name"] for frame in frames for row in frame}
    assert len(found) == sum(map(len, frames))
    return found


def late_of(case: LegCase) -> list[tuple[str, str, str]]:
    frames = [decode_frame(message.payload).to_pylist() for message in case.log.messages(NAMES.stream("dlq"))]
    return [(row["stage"], row["code"], row["field"]) for frame in frames for row in frame]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_legs_do_what_the_model_says(seed: int, tmp_path: Path) -> None:
    history = of_one_source(drawn(seed))
    case = LegCase(tmp_path, BUCKETS, stages=program(history))
    play(case, history)
    answer = model(history)
    assert rows_of(case) == {row.left: row.right for row in answer.rows}
    totals = outcome(case)["totals"]
    assert (totals.get("dropped.kept", 0), totals.get("rejected.join.late", 0)) == (answer.kept, answer.late)
    assert WAITING.count(totals) == answer.waiting
    assert late_of(case) == [("join", "late", "at")] * answer.late
    done = case.process.chain.state.done
    assert done is not None
    wanted = answer.watermarks[-1]
    assert done.body.watermarks.combined_us == (NEVER if wanted == NEVER else START_US + wanted)


def test_the_histories_have_late_records_and_waiting_ones() -> None:
    answers = [model(of_one_source(drawn(seed))) for seed in SEEDS]
    assert sum(answer.late for answer in answers) > 2
    assert min(sum(answer.waiting for answer in answers), sum(len(answer.rows) for answer in answers)) > 20


@pytest.mark.parametrize("seed", [1, 4, 7])
def test_several_processes_do_the_same(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = of_one_source(drawn(seed))
    alone = LegCase(tmp_path / "alone", BUCKETS, stages=program(history))
    shared = Shared(tmp_path / "shared", (), monkeypatch, stages=program(history))
    play(alone, history)
    play(shared, history)
    assert outcome(shared) == outcome(alone)
    assert rows_of(shared) == rows_of(alone)
    assert shared.process.status.lane_parts > 0
    assert shared.files() == shared.listed()


@pytest.mark.parametrize("seed", [2, 5])
def test_a_plan_that_is_done_again_writes_nothing_else(seed: int, tmp_path: Path) -> None:
    history = of_one_source(drawn(seed))
    once, again = (LegCase(tmp_path / name, BUCKETS, stages=program(history)) for name in ("once", "again"))
    play(once, history)
    execute = again.process.execute

    def twice(plan: Any) -> Any:
        execute(plan)
        again._kept.clear()
        return execute(plan)

    again.process.execute = twice  # type: ignore[method-assign]
    play(again, history)
    assert outcome(again) == outcome(once)
    assert again.files() == again.listed()


PAIR = History(Windows(10, 10), (Frame(LEFT), Frame(RIGHT)))


def test_a_mark_that_knows_less_than_raw_means_nothing(tmp_path: Path) -> None:
    case = LegCase(tmp_path, BUCKETS, stages=program(PAIR))
    case.send(values(Frame(RIGHT, ((1, 5), (2, 6))), 3), "r")
    case.send(values(Frame(LEFT, ((1, 5), (9, 90))), 4), "s")
    # A fenced leg has read one of two records.
    assert append_tick(case.log, NAMES, Idle("r", {"0": 1}))
    case.go_on()
    assert rows_of(case) == {first_position(4): first_position(3)}
    assert append_tick(case.log, NAMES, Idle("r", {"0": 2}))
    case.go_on()
    # No left record but the last is before the watermark of 90, so nothing more is decided; the next one is late.
    case.send(values(Frame(RIGHT, ((9, 89),)), 7), "r")
    case.go_on()
    assert late_of(case) == [("join", "late", "at")]


@pytest.mark.parametrize("at", [None, "never", START_US + 2 * CENTURY_US])
def test_a_record_without_a_sound_time_is_rejected(at: Any, tmp_path: Path) -> None:
    case = LegCase(tmp_path, BUCKETS, stages=program(PAIR))
    case.send([json.dumps({"key": 1, "at": at, "id": 1}).encode()], "s")
    case.go_on()
    (letter,) = late_of(case)
    assert letter in {("join", "null_time", "at"), ("parse", "wrong_type", "at"), ("join", "invalid_time", "at"), ("join", "ahead", "at")}


def test_a_record_that_ends_the_mapping_keeps_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not tried again, so its time is in the plan: rows that were written by it are not made to wait."""
    apply = MapToTables.apply

    def ending(self: MapToTables, context: Context, rows: pa.Table) -> StageOutput:
        if first_position(4) + 1 in rows.column("id").to_pylist():
            raise RuntimeError("the mapping ends")
        return apply(self, context, rows)

    monkeypatch.setattr(MapToTables, "apply", ending)
    case = LegCase(tmp_path, BUCKETS, stages=program(PAIR))
    case.send(values(Frame(RIGHT, ((1, 5), (1, 25), (2, 60))), 3), "r")
    case.send(values(Frame(LEFT, ((1, 6), (1, 30))), 4), "s")
    case.send(values(Frame(LEFT, ((1, 7), (1, 55))), 5), "s")
    case.go_on()
    plans = [message for message in case.log.messages(NAMES.stream("ledger")) if b"poison" in message.payload]
    assert plans
    assert all(b"times" in message.payload for message in plans)
    done = case.process.chain.state.done
    assert done is not None
    assert done.body.watermarks.combined_us == START_US + 55
    assert sorted(code for _, code, _ in late_of(case)) == ["internal_error", "late"]
    assert rows_of(case) == {first_position(4): first_position(3)}
