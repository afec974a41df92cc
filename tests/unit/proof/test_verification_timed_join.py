"""The reference of a join by the records' own times, computed in DuckDB alone: it says what the model says."""

import json
from collections.abc import Iterator, Sequence

import duckdb
import pyarrow as pa
import pytest
from support.engines import fresh_database
from support.programs import union
from support.timed_join_case import LEFT, RIGHT, Frame, History, model

from pipelines.process.join.progress import NO_PARTITION, TimedFrames
from pipelines.process.join.sides import Windows
from pipelines.process.program import Program
from pipelines.process.steps.join import Join, JoinedField, JoinSide
from pipelines.process.steps.mapping import MappedColumn, MapToTable, MapToTables
from pipelines.process.steps.parse import Parse
from pipelines.process.watermarks import PARTITIONS_OF_A_SOURCE
from pipelines.proof.verification.reference import FRAME_SCHEMA, Arrivals, Reference, compared_columns
from pipelines.proof.verification.span import History as Ledger
from pipelines.proof.verification.span import Plan, Span, span_between
from pipelines.protocol.bodies import NOTHING, Watermarks
from pipelines.protocol.positions import first_position

TOGETHER = [*(range(first, first + 5) for first in range(0, 40, 5)), [3], [6]]
"""Seeds of histories that are computed together, as it costs the same for few records; alone, one in which a partition stays empty, and
one without a record."""
START_US = 1_000_000_000_000_000
"""The models' times count from here: the earliest time of a record is 1900."""


@pytest.fixture(params=TOGETHER, ids=lambda seeds: f"from {seeds[0]}, {len(seeds)}")
def history(request: pytest.FixtureRequest) -> History:
    return History.together([History.random(seed) for seed in request.param])


@pytest.fixture
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with fresh_database() as opened:
        yield opened


def program(history: History) -> Program:
    """Keep the right record's position, so that a row shows what it has met."""
    windows = history.windows
    left = JoinSide("events", ("id",), (JoinedField("id", "id", "int"),), windows.left_us, "at", "us")
    right = JoinSide("names", ("who",), (JoinedField("right", "position", "int"),), windows.right_us, "at", "us")
    columns = (("id", "id", "Int64", False), ("right", "right", "Nullable(Int64)", False))
    mapping = MapToTable(tuple(MappedColumn(*column) for column in columns), "db", "t", ("_tf_sequence", "_tf_ordinal"))
    join = Join(left, right, "emit", history.lateness, 3_600_000_000)
    return union(
        ("events", [Parse((("id", "int"), ("at", "int")))]),
        ("names", [Parse((("who", "int"), ("position", "int"), ("at", "int")))]),
        shared=(join, MapToTables((mapping,))),
    )


def batch(sequence: int, frame: Frame) -> pa.RecordBatch:
    values, count = [], len(frame.records)
    for ordinal, (key, time_us) in enumerate(frame.records):
        own = {"who": key, "position": first_position(sequence) + ordinal} if frame.is_right else {"id": key}
        values.append(json.dumps({**own, "at": START_US + time_us}).encode())
    columns = [
        pa.array([first_position(sequence) + ordinal for ordinal in range(count)], pa.uint64()),
        pa.array([frame.partition % PARTITIONS_OF_A_SOURCE] * count, pa.int32()),
        pa.array(range(count), pa.int64()),
        pa.array([START_US + sequence] * count, pa.int64()),
        pa.array(values, pa.binary()),
        *(pa.nulls(count, FRAME_SCHEMA.field(name).type) for name in ("key", "headers", "timestamp_us")),
        pa.array([False] * count),
        pa.array([False] * count),
        pa.nulls(count, pa.string()),
        pa.nulls(count, pa.uint32()),
        pa.array(["names" if frame.is_right else "events"] * count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA)


def joined(
    engine: duckdb.DuckDBPyConnection, history: History, span: Span | None = None, confirmed_to: int = 2**40, purged_below: int = 1
) -> None:
    """Join the frames of `span`, all if it is None, that are not purged."""
    last, config = len(history.frames), program(history)
    span = span or Span(1, last, 1, 1)
    reference = Reference(engine, compared_columns(config))
    numbered = [
        (sequence, frame)
        for sequence, frame in enumerate(history.frames, 1)
        if max(purged_below, span.read_from) <= sequence <= span.read_to
    ]
    reference.load((batch(sequence, frame) for sequence, frame in numbered if frame.records), config)
    of_partitions = [(sequence, frame) for sequence, frame in numbered if frame.partition != NO_PARTITION]
    marks = [(sequence, partition, 0) for sequence, frame in numbered for partition in frame.idle]
    reference.add_frames({sequence: frame.partition for sequence, frame in of_partitions}, dict.fromkeys(dict(of_partitions), 0), marks)
    sequences = [sequence for sequence, _ in numbered]
    arrivals = Arrivals(sequences, [START_US + sequence for sequence in sequences], None, confirmed_to, span.unread_us)
    reference.join(arrivals, [(span.read_from, span.read_to, config)], span.bounds)
    reference.evaluate(config, span.bounds)


def rows(engine: duckdb.DuckDBPyConnection) -> dict[int, int | None]:
    """The position of the right record of each row that must be there, by that of the left one."""
    return dict(engine.execute("SELECT position, v1 FROM expected").fetchall())


def opened(engine: duckdb.DuckDBPyConnection) -> dict[int, str]:
    return dict(engine.execute("SELECT position, why FROM open_lefts").fetchall())


def decided_in(cause: int) -> int:
    return cause >> 20


def plans(history: History) -> list[Plan]:
    """A plan for each range, with the watermarks that the process leg's `done` holds."""
    found, before = [], NOTHING
    for start, end in history.ranges():
        facts = []
        for sequence, frame in enumerate(history.frames[start:end], start + 1):
            newest_us = frame.newest + START_US if frame.records else frame.newest
            facts += [(sequence, frame.partition, newest_us, 0)]
            facts += [(sequence, partition, frame.newest, 1) for partition in frame.idle]
        before = TimedFrames.of_facts(facts, before, history.lateness).last.stored
        found.append(Plan(start + 1, end, "v", before))
    return found


def ledger(history: History, first: int = 1) -> Ledger:
    """The ledger with all of its plans: a purge of the frames below `first` may end within a range, before or behind that of the plans."""
    last = len(history.frames)
    arrivals = [START_US + sequence for sequence in range(first, last + 1)]
    return Ledger(plans(history), range(first, last + 1), arrivals, last, first == 1)


def test_the_rows_are_those_of_the_model(engine: duckdb.DuckDBPyConnection, history: History) -> None:
    joined(engine, history)
    answer = model(history)
    assert rows(engine) == {row.left: row.right for row in answer.rows}
    late = engine.execute("SELECT count(*) FROM parsed WHERE stage = 'join'").fetchall()[0][0]
    waiting = engine.execute("SELECT count(*) FROM parsed WHERE stage = 'dropped.waiting'").fetchall()[0][0]
    assert (late, waiting) == (answer.late, answer.waiting)


def test_a_range_needs_no_more_than_its_span(engine: duckdb.DuckDBPyConnection, history: History) -> None:
    last = len(history.frames)
    first, end = last // 3 + 1, max(last // 3 + 1, 2 * last // 3)
    span = span_between(ledger(history), first, end, program(history), 1)
    joined(engine, history, span)
    bounds, answer = span.bounds, model(history)
    in_range = [row for row in answer.rows if bounds.first <= row.left <= bounds.last]
    assert rows(engine) == {row.left: row.right for row in in_range if decided_in(row.cause) <= span.read_to}
    assert {row.left for row in in_range if decided_in(row.cause) > span.read_to} <= opened(engine).keys()


def test_behind_a_purge_nothing_wrong_is_claimed(engine: duckdb.DuckDBPyConnection, history: History) -> None:
    last = len(history.frames)
    of_ledger = ledger(history, last // 3 + 1)
    span = span_between(of_ledger, of_ledger.sequences[0], last, program(history), 1)
    joined(engine, history, span, purged_below=of_ledger.sequences[0])
    whole = {row.left: row.right for row in model(history).rows if row.left >= span.bounds.first}
    purged = {position for position, why in opened(engine).items() if why == "purged"}
    assert rows(engine) == {left: right for left, right in whole.items() if left not in purged}
    assert {left for left, right in whole.items() if right is not None and right < first_position(span.read_from)} <= purged


@pytest.mark.parametrize(
    "frames",
    [
        # The right partition is idle: it no longer holds back the watermark of the left one, which stands at 100.
        (Frame(LEFT, ((1, 50),)), Frame(RIGHT, ((1, 40),)), Frame(NO_PARTITION, idle=frozenset({RIGHT})), Frame(LEFT, ((2, 100),))),
        # It has stood at 100, and steps back for no record of a partition that was idle.
        (
            *(Frame(LEFT, ((1, 10),)), Frame(RIGHT, ((1, 10),)), Frame(NO_PARTITION, idle=frozenset({RIGHT}))),
            *(Frame(LEFT, ((2, 100),)), Frame(RIGHT, ((2, 50),))),
        ),
    ],
    ids=["idle before", "further before"],
)
def test_the_watermark_before_a_purge_still_holds(engine: duckdb.DuckDBPyConnection, frames: tuple[Frame, ...]) -> None:
    behind = len(frames)
    history = History(Windows(10, 10), (*frames, Frame(LEFT, ((3, 70),)), Frame(LEFT, ((4, 100),))), (behind - 1, behind + 1))
    assert model(history).late == (1 if behind == 4 else 2)
    of_ledger = ledger(history, behind)
    joined(engine, history, span_between(of_ledger, behind, behind + 2, program(history), 1))
    late = engine.execute("SELECT position >> 20 FROM parsed WHERE stage = 'join' ORDER BY 1").fetchall()
    assert late == ([(behind + 1,)] if behind == 4 else [(behind,), (behind + 1,)])


def test_what_is_decided_behind_the_confirmed_is_open(engine: duckdb.DuckDBPyConnection, history: History) -> None:
    confirmed_to = max(1, len(history.frames) * 2 // 3)
    joined(engine, history, confirmed_to=confirmed_to)
    answer = model(history)
    assert rows(engine) == {row.left: row.right for row in answer.rows if decided_in(row.cause) <= confirmed_to}
    assert sum(why == "waits" for why in opened(engine).values()) == answer.waiting


def test_the_ledger_holds_the_progress_between_plans() -> None:
    history = History(Windows(10, 10), (Frame(LEFT, ((1, 50),)), Frame(RIGHT), Frame(NO_PARTITION, idle=frozenset({RIGHT}))), (1, 2))
    behind: Sequence[Watermarks] = [plan.watermarks for plan in plans(history)]
    assert [one.partitions for one in behind[1:]] == [
        {LEFT: (START_US + 50, 0), RIGHT: (-(2**63), 0)},
        {LEFT: (START_US + 50, 0), RIGHT: (-(2**63), 1)},
    ]
    assert behind[-1].combined_us == START_US + 50
