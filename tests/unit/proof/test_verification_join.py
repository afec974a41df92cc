"""What a table behind a join must hold, by the statements of sql/reference, against the model that goes record by record."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta

import duckdb
import pyarrow as pa
import pytest
from support.engines import fresh_database
from support.join_case import KEYS_APART, Frame, History, Row, model
from support.programs import first_of, union

from pipelines.process.join.sides import Windows
from pipelines.process.program import Program
from pipelines.process.steps import Step
from pipelines.process.steps.join import Join, JoinedField, JoinSide
from pipelines.process.steps.mapping import MappedColumn, MapToTable, MapToTables
from pipelines.process.steps.parse import Parse
from pipelines.proof.verification.reference import FRAME_SCHEMA, Arrivals, Bounds, Reference, compared_columns
from pipelines.proof.verification.span import History as Ledger
from pipelines.proof.verification.span import Plan, Span, span_of
from pipelines.protocol.positions import first_position, last_position
from pipelines.protocol.records import instant

LEFT, RIGHT = False, True
WINDOWS = Windows(10, 20)
TOGETHER: list[tuple[Windows, Sequence[int]]] = [
    (Windows(2, 12), range(5)),
    (Windows(5, 2), range(5, 10)),
    (Windows(7, 7), range(10, 15)),
    (Windows(11, 4), range(15, 20)),
    (Windows(16, 9), range(20, 25)),
    (Windows(36, 3), range(25, 30)),
    (Windows(9, 12), [1]),
    (Windows(6, 4), [22]),
]
"""Windows, and seeds of histories that are computed together, as it costs the same for few records; of two short ones each alone."""


@pytest.fixture(params=TOGETHER, ids=lambda one: f"{one[0].left_us}, {one[0].right_us}")
def history(request: pytest.FixtureRequest) -> History:
    windows, seeds = request.param
    return History.together([History.random(seed) for seed in seeds], windows)


@pytest.fixture
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with fresh_database() as one:
        yield one


def program(windows: Windows, unmatched: str = "emit", *behind: Step, copies: tuple[int, int] | None = None) -> Program:
    """`copies`: the windows of a dedup of each side, by the number of a record."""
    left = JoinSide("events", ("id",), (JoinedField("id", "id", "int"), JoinedField("n", "n", "int")), windows.left_us)
    right = JoinSide("names", ("who",), (JoinedField("right", "position", "int"),), windows.right_us)
    columns = (("id", "id", "Int64", False), ("n", "n", "Int64", False), ("right", "right", "Nullable(Int64)", False))
    mapping = MapToTable(tuple(MappedColumn(*column) for column in columns), "db", "t", ("_tf_sequence", "_tf_ordinal"))
    dedups = [[first_of("n", window_us)] for window_us in copies] if copies else [[], []]
    return union(
        ("events", [Parse((("id", "int"), ("n", "int"))), *dedups[0]]),
        ("names", [Parse((("who", "int"), ("position", "int"), ("n", "int"))), *dedups[1]]),
        shared=(Join(left, right, unmatched), *behind, MapToTables((mapping,))),  # type: ignore[arg-type]
    )


def at(sequence: int, ordinal: int = 0) -> int:
    return first_position(sequence) + ordinal


def number_of(ordinal: int, key: int) -> int:
    """By which copies are found: no two histories that are computed together have one in common."""
    return ordinal + 100 * (key // KEYS_APART)


def batch(sequence: int, frame: Frame) -> pa.RecordBatch:
    """The records of a frame; those of both sources may be in one, which the reference does not mind. A right one holds its position."""
    values, count = [], len(frame.records)
    for ordinal, (is_right, key) in enumerate(frame.records):
        number = number_of(ordinal, key)
        of_right, of_left = {"who": key, "position": at(sequence, ordinal), "n": number}, {"id": key, "n": number}
        # A key below zero stands for a null.
        values.append(json.dumps({name: None if one < 0 else one for name, one in (of_right if is_right else of_left).items()}).encode())
    columns = [
        pa.array([at(sequence, ordinal) for ordinal in range(count)], pa.uint64()),
        pa.array([0] * count, pa.int32()),
        pa.array(range(count), pa.int64()),
        pa.array([frame.arrival] * count, pa.int64()),
        pa.array(values, pa.binary()),
        *(pa.nulls(count, FRAME_SCHEMA.field(name).type) for name in ("key", "headers", "timestamp_us")),
        pa.array([False] * count),
        pa.array([False] * count),
        pa.nulls(count, pa.string()),
        pa.nulls(count, pa.uint32()),
        pa.array(["names" if is_right else "events" for is_right, _ in frame.records], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=FRAME_SCHEMA)


def joined(
    engine: duckdb.DuckDBPyConnection,
    history: History,
    parts: Sequence[tuple[int, int, Program]],
    span: Span | None = None,
    purged_us: int | None = None,
    confirmed_to: int = 2**40,
) -> None:
    """Join the frames of `span`, all if it is None, under the configurations of `parts`."""
    last = len(history.frames)
    span = span or Span(1, last, 1, 1)
    reference = Reference(engine, compared_columns(parts[-1][2]))
    numbered = [(sequence, frame) for sequence, frame in enumerate(history.frames, 1) if span.read_from <= sequence <= span.read_to]
    for low, high, config in parts:
        reference.load((batch(sequence, frame) for sequence, frame in numbered if low <= sequence <= high), config)
    arrivals = Arrivals([sequence for sequence, _ in numbered], [frame.arrival for _, frame in numbered], purged_us, confirmed_to)
    reference.join(arrivals, parts, span.bounds)
    reference.evaluate(parts[-1][2], span.bounds)


def rows(engine: duckdb.DuckDBPyConnection) -> dict[int, int | None]:
    """The position of the right record of each row that must be there, by that of the left one."""
    found = engine.execute("SELECT position, v2 FROM expected").fetchall()
    assert len({position for position, _ in found}) == len(found)
    return dict(found)


def stages(engine: duckdb.DuckDBPyConnection) -> dict[int, str | None]:
    return dict(engine.execute("SELECT position, stage FROM parsed").fetchall())


def opened(engine: duckdb.DuckDBPyConnection) -> dict[int, str]:
    return dict(engine.execute("SELECT position, why FROM open_lefts").fetchall())


def lefts(history: History) -> set[int]:
    numbered = enumerate(history.frames, 1)
    return {at(n, o) for n, frame in numbered for o, (is_right, _) in enumerate(frame.records) if not is_right}


def decided_in(row: Row) -> int:
    """The raw sequence of the frame with which the row appears."""
    return row.cause + 1 >> 20


# -- against the model ------------------------------------------------------------------------------------------------------------


def test_the_rows_are_those_of_the_model(engine: duckdb.DuckDBPyConnection, history: History) -> None:
    joined(engine, history, [(1, len(history.frames), program(history.windows))])
    expected = {row.left: row.right for row in model(history).rows}
    assert rows(engine) == expected
    found = stages(engine)
    assert {position for position, stage in found.items() if stage == "dropped.waiting"} == lefts(history) - expected.keys()
    assert {position for position, stage in found.items() if stage == "dropped.kept"} == found.keys() - lefts(history)


def test_a_range_needs_no_more_than_its_span(engine: duckdb.DuckDBPyConnection, history: History) -> None:
    last = len(history.frames)
    config = program(history.windows)
    ledger = Ledger([Plan(1, last, "v")], range(1, last + 1), [frame.arrival for frame in history.frames], last, is_whole=True)
    middle = history.frames[last // 2].arrival
    span = span_of(ledger, instant(middle), instant(middle + 6), config, 1)
    assert span is not None
    joined(engine, history, [(1, last, config)], span)
    bounds = span.bounds
    assert rows(engine) == {row.left: row.right for row in model(history).rows if bounds.first <= row.left <= bounds.last}


def test_what_is_decided_behind_the_confirmed_is_open(engine: duckdb.DuckDBPyConnection, history: History) -> None:
    confirmed_to = max(1, len(history.frames) * 2 // 3)
    joined(engine, history, [(1, len(history.frames), program(history.windows))], confirmed_to=confirmed_to)
    answer = model(history)
    assert rows(engine) == {row.left: row.right for row in answer.rows if decided_in(row) <= confirmed_to}
    pending = {row.left: "pending" for row in answer.rows if decided_in(row) > confirmed_to}
    assert opened(engine) == pending | dict.fromkeys(lefts(history) - {row.left for row in answer.rows}, "waits")


def test_behind_a_purge_nothing_wrong_is_claimed(engine: duckdb.DuckDBPyConnection, history: History) -> None:
    last = len(history.frames)
    first = last // 3 + 1
    span = Span(first, last, first, first)
    joined(engine, history, [(first, last, program(history.windows))], span, purged_us=history.frames[first - 1].arrival)
    whole = {row.left: row.right for row in model(history).rows if row.left >= at(first)}
    purged = {position for position, why in opened(engine).items() if why == "purged"}
    assert rows(engine) == {left: right for left, right in whole.items() if left not in purged}
    of_purged = {left for left, right in whole.items() if right is not None and right < at(first)}
    assert of_purged <= purged


# -- copies on each side ----------------------------------------------------------------------------------------------------------

COPIES = (4, 6)


def copies_of(history: History) -> set[int]:
    """The positions of the copies on each side, record by record; a record with a null key is rejected before."""
    firsts: dict[tuple[bool, int], int] = {}
    found = set()
    for sequence, frame in enumerate(history.frames, 1):
        for ordinal, (is_right, key) in enumerate(frame.records):
            if key < 0:
                continue
            side = is_right, number_of(ordinal, key)
            if side in firsts and frame.arrival - firsts[side] < COPIES[is_right]:
                found.add(at(sequence, ordinal))
            else:
                firsts[side] = frame.arrival
    return found


def without(history: History, copies: set[int]) -> History:
    """The history in which each copy has a join key of its own."""
    frames = []
    for sequence, frame in enumerate(history.frames, 1):
        own = [(is_right, 1000 + at(sequence, o) if at(sequence, o) in copies else key) for o, (is_right, key) in enumerate(frame.records)]
        frames.append(replace(frame, records=tuple(own)))
    return replace(history, frames=tuple(frames))


def test_copies_of_either_side_are_not_joined(engine: duckdb.DuckDBPyConnection, history: History) -> None:
    copies = copies_of(history)
    joined(engine, history, [(1, len(history.frames), program(history.windows, copies=COPIES))])
    assert rows(engine) == {row.left: row.right for row in model(without(history, copies)).rows if row.left not in copies}
    assert {position for position, stage in stages(engine).items() if stage == "dropped.copies"} == copies
    assert engine.execute("SELECT count(*) FROM dropped WHERE why = 'copy'").fetchall() == [(len(copies),)]


def test_with_copies_a_range_is_read_from_the_start(engine: duckdb.DuckDBPyConnection, history: History) -> None:
    last, copies = len(history.frames), copies_of(history)
    config = program(history.windows, copies=COPIES)
    ledger = Ledger([Plan(1, last, "v")], range(1, last + 1), [frame.arrival for frame in history.frames], last, is_whole=True)
    middle = history.frames[last // 2].arrival
    span = span_of(ledger, instant(middle), instant(middle + 6), config, 1)
    assert span is not None
    joined(engine, history, [(1, last, config)], span)
    bounds, whole = span.bounds, model(without(history, copies))
    assert rows(engine) == {row.left: row.right for row in whole.rows if bounds.first <= row.left <= bounds.last and row.left not in copies}


def test_behind_a_purge_no_copy_is_claimed_wrongly(engine: duckdb.DuckDBPyConnection, history: History) -> None:
    last, copies = len(history.frames), copies_of(history)
    first = last // 3 + 1
    span = Span(first, last, first, first)
    parts = [(first, last, program(history.windows, copies=COPIES))]
    joined(engine, history, parts, span, purged_us=history.frames[max(0, first - 2)].arrival)
    whole = {row.left: row.right for row in model(without(history, copies)).rows if row.left >= at(first) and row.left not in copies}
    purged = {position for position, why in opened(engine).items() if why == "purged"}
    assert rows(engine) == {left: right for left, right in whole.items() if left not in purged}


def test_a_left_record_rejected_behind_the_join_was_accepted(engine: duckdb.DuckDBPyConnection) -> None:
    """Its copy stays one; a record that a stage has ended on before the join is no first of its key."""
    history = History(WINDOWS, (Frame(0, ((RIGHT, 1), (LEFT, 1))), Frame(1, ((RIGHT, 1), (LEFT, 1))), Frame(2, ((RIGHT, 1), (LEFT, 1)))))
    config = program(WINDOWS, "drop", copies=(100, 100))
    for past, kept in ((True, []), (False, [at(2, 1)])):
        with fresh_database() as own:
            reference = Reference(own, compared_columns(config))
            letters = {"position": pa.array([at(1, 1)], pa.uint64()), "stage": ["map"], "code": ["internal_error"], "past_dedup": [past]}
            reference.add_dead_letters(pa.table(letters))
            reference.load((batch(sequence, frame) for sequence, frame in enumerate(history.frames, 1)), config)
            bounds = Bounds(0, last_position(3))
            reference.join(Arrivals(range(1, 4), [0, 1, 2], None, 3), [(1, 3, config)], bounds)
            reference.evaluate(config, bounds)
            assert sorted(rows(own)) == kept


# -- outcomes ---------------------------------------------------------------------------------------------------------------------

HISTORY = History(
    WINDOWS,
    (
        Frame(0, ((RIGHT, 1), (LEFT, 1), (LEFT, 2), (LEFT, 3), (LEFT, -1), (RIGHT, -1))),
        Frame(5, ((RIGHT, 2),)),
        Frame(10),
        Frame(19, ((LEFT, 1), (LEFT, 4))),
        Frame(20, ((LEFT, 1),)),
    ),
)
"""Joined with one that was there, and with one that came; unmatched by a tick; null keys; at the edge of the right window."""


@pytest.mark.parametrize(
    ("unmatched", "stage"), [("drop", "dropped.unmatched"), ("dead_letter", "join"), ("emit", None)], ids=["drop", "dead letter", "emit"]
)
def test_each_left_record_has_one_outcome(engine: duckdb.DuckDBPyConnection, unmatched: str, stage: str | None) -> None:
    joined(engine, HISTORY, [(1, 5, program(WINDOWS, unmatched))])
    assert stages(engine) == {
        at(1, 0): "dropped.kept",
        at(1, 1): None,
        at(1, 2): None,
        at(1, 3): stage,
        at(1, 4): "join",
        at(1, 5): "join",
        at(2, 0): "dropped.kept",
        at(4, 0): None,
        at(4, 1): "dropped.waiting",
        at(5, 0): "dropped.waiting",
    }
    alone = {at(1, 3): None} if unmatched == "emit" else {}
    assert rows(engine) == {at(1, 1): at(1, 0), at(1, 2): at(2, 0), at(4, 0): at(1, 0), **alone}


def test_a_record_on_which_a_stage_has_ended_takes_no_part(engine: duckdb.DuckDBPyConnection) -> None:
    """The right record of key 2 is a dead letter: its left one waits, until the frame at 10 ends its window."""
    config = program(WINDOWS, "drop")
    reference = Reference(engine, compared_columns(config))
    letters = {"position": pa.array([at(2)], pa.uint64()), "emit": [0], "stage": ["parse"], "code": ["internal_error"]}
    reference.add_dead_letters(pa.table(letters))
    reference.load((batch(sequence, frame) for sequence, frame in enumerate(HISTORY.frames, 1)), config)
    bounds = Bounds(0, last_position(5))
    reference.join(Arrivals(range(1, 6), [frame.arrival for frame in HISTORY.frames], None, 5), [(1, 5, config)], bounds)
    reference.evaluate(config, bounds)
    assert (stages(engine)[at(2)], stages(engine)[at(1, 2)]) == ("parse", "dropped.unmatched")


def test_a_row_is_made_under_the_configuration_of_its_cause(engine: duckdb.DuckDBPyConnection) -> None:
    """Of two left records of frame 1 one is unmatched before frame 3, which is processed under another configuration."""
    parts = [(1, 2, program(WINDOWS, "drop")), (3, 5, program(WINDOWS, "emit"))]
    joined(engine, HISTORY, parts)
    assert rows(engine)[at(1, 3)] is None
    assert stages(engine)[at(1, 3)] is None


def test_a_span_reaches_one_window_to_either_side() -> None:
    """A frame every 4 us; of the range at 28 us a right record may have come since 9 us, and what its lefts meet is known at 38 us."""
    ledger = Ledger([Plan(1, 20, "v")], range(1, 21), [4 * one for one in range(1, 21)], 20, is_whole=True)
    found = span_of(ledger, instant(28), instant(29), program(WINDOWS), 1)
    assert found is not None
    assert (found.first, found.last, found.read_from, found.read_to, found.is_seeded) == (7, 7, 3, 10, False)
    cut = replace(ledger, sequences=range(1, 9), arrivals_us=[4 * one for one in range(1, 9)], confirmed_to=8)
    short = span_of(cut, instant(28), instant(28) + timedelta(microseconds=1), program(WINDOWS), 1)
    assert short is not None
    assert short.read_to == 8, "what process has not done decides nothing"
