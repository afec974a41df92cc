"""Functions that make several rows of a record: their numbers, what a filter or a fault leaves of them, and two oracles beside them."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from support.programs import first_of, program

from pipelines.functions.code import pack
from pipelines.functions.spec import versions
from pipelines.key_store.storage import Storage
from pipelines.key_store.store import KeyedStore
from pipelines.process.arrivals import Arrived
from pipelines.process.computed import stored
from pipelines.process.program import Program
from pipelines.process.run import Made, run
from pipelines.process.steps.compute import Compute, Output
from pipelines.process.steps.filter import Filter
from pipelines.process.steps.python import Python
from pipelines.proof.readers.frames import batch_of
from pipelines.proof.verification.reference import Bounds, Reference, compared_columns
from pipelines.protocol.naming import Names
from pipelines.protocol.records import HEADER_PARTITION, HEADER_TOPIC, Message, encode_frame
from pipelines.testing import records
from pipelines.types.duckdb import open_database, open_engine

FIELDS = (("id", "int"), ("items", "array"))
COLUMNS = (("id", "id", "Nullable(Int64)", False), ("name", "name", "String", False), ("size", "size", "Nullable(Int64)", False))
ROWS = """
import json
def f(record):
    made = json.loads(record["items"])
    return None if made == ["none"] else [{"name": item.get("name"), "size": item.get("size")} for item in made]
"""
BATCH = """
import json
import pyarrow as pa
def f(batch):
    made = [(number, item) for number, items in enumerate(batch["items"].to_pylist()) for item in json.loads(items) if item != "none"]
    return pa.table({
        "_row": pa.array([number for number, _ in made], pa.uint32()),
        "name": pa.array([item.get("name") for _, item in made], pa.string()),
        "size": pa.array([item.get("size") for _, item in made], pa.int64()),
    })
"""
MODES = pytest.mark.parametrize(("source", "mode"), [(ROWS, "row"), (BATCH, "batch")])
Step = Callable[..., Python]


@pytest.fixture
def step(tmp_path: Path) -> Step:
    def step(source: str, mode: Any = "row", rows: Any = "many") -> Python:
        (tmp_path / "own.py").write_text(source)
        outputs = (("name", "string"), ("size", "int64"))
        return Python("own:f", pack(tmp_path, "own", ()), mode, FIELDS, outputs, 20_000, *versions(), rows=rows)

    return step


def frame_of(*values: dict[str, Any], refused_row: int | None = None) -> Arrived:
    table = records(0, [json.dumps(value).encode() for value in values])
    subject = Names("p").raw("orders", 0)
    if refused_row is not None:
        history = {"attempts": 1, "first_time": datetime(2026, 1, 1, tzinfo=UTC), "past_dedup": True, "origin": "1.0", "sink": "sink"}
        for name, value in history.items():
            kind = {"attempts": pa.int32(), "first_time": pa.timestamp("us", "UTC"), "past_dedup": pa.bool_()}.get(name, pa.string())
            table = table.append_column(name, pa.array([value] * table.num_rows, kind))
        table = table.append_column("refused_row", pa.array([refused_row] * table.num_rows, pa.uint32()))
        subject = Names("p").redriven("orders", 0)
    headers = {HEADER_TOPIC: "orders", HEADER_PARTITION: "0"}
    return Arrived(Message(subject, 1, datetime(2026, 1, 1, tzinfo=UTC), encode_frame(table), headers), 0)


def made_by(whole: Program, frame: Arrived) -> Made:
    with open_engine() as engine:
        return run(whole, engine, [frame])


def rows_of(made: Made) -> list[tuple[int, int, str, int | None]]:
    columns = (made.rows.column(name).to_pylist() for name in ("_tf_ordinal", "_tf_emit", "name", "size"))
    return list(zip(*columns, strict=True))


def letters_of(made: Made) -> list[tuple[int, str, str]]:
    return [(letter["_tf_ordinal"], letter["stage"], letter["code"]) for letter in made.dead_letters.to_pylist()]


def larger_than(size: int) -> Filter:
    return Filter(stored(f"size > {size}", {"name": "string", "size": "int64"}, "sql", None))


def per_name() -> Compute:
    return Compute((Output("size", stored("size * 1000 // CAST(name AS BIGINT)", {"name": "string", "size": "int64"}, "sql", None)),))


@MODES
def test_rows_have_numbers_within_their_record(step: Step, source: str, mode: str) -> None:
    frame = frame_of(
        {"id": 1, "items": [{"name": "a", "size": 1}, {"name": "b", "size": 2}]},
        {"id": 2, "items": []},
        {"id": 3, "items": [{"name": "c"}]},
        {"id": 4, "items": ["none"]},
    )
    made = made_by(program(FIELDS, COLUMNS, step(source, mode)), frame)
    assert rows_of(made) == [(0, 0, "a", 1), (0, 1, "b", 2), (2, 0, "c", None)]
    assert made.rows.column("id").to_pylist() == [1, 1, 3]
    counts = {name: made.counts.get(name, 0) for name in ("rows_in", "rows_out", "rows_made", "dropped.function", "rows_rejected")}
    assert counts == {"rows_in": 4, "rows_out": 3, "rows_made": 1, "dropped.function": 2, "rows_rejected": 0}


def test_a_filter_behind_leaves_the_numbers_as_they_are(step: Step) -> None:
    frame = frame_of(
        {"id": 1, "items": [{"name": "a", "size": 1}, {"name": "b", "size": 7}, {"name": "c", "size": 2}, {"name": "d", "size": 9}]},
        {"id": 2, "items": [{"name": "e", "size": 1}, {"name": "f", "size": 2}]},
    )
    made = made_by(program(FIELDS, COLUMNS, step(ROWS), larger_than(5)), frame)
    assert rows_of(made) == [(0, 1, "b", 7), (0, 3, "d", 9)]
    assert (made.counts["dropped.filter"], made.counts["rows_made"], made.counts["rows_out"]) == (1, 1, 2)


def test_a_record_of_which_a_row_fails_is_rejected_whole(step: Step) -> None:
    frame = frame_of(
        {"id": 1, "items": [{"name": "a", "size": 1}, {"name": None, "size": 2}]},
        {"id": 2, "items": [{"name": "b", "size": 2}]},
        {"id": 3, "items": [{"name": None}, {"name": None}]},
    )
    made = made_by(program(FIELDS, COLUMNS, step(ROWS)), frame)
    assert rows_of(made) == [(1, 0, "b", 2)]
    assert letters_of(made) == [(0, "transform", "null_in_non_nullable"), (2, "transform", "null_in_non_nullable")]
    assert made.dead_letters.column("refused_row").to_pylist() == [None, None]
    assert (made.counts["rows_rejected"], made.counts["rows_out"], made.counts.get("rows_made", 0)) == (2, 1, 0)


@pytest.mark.parametrize(
    ("source", "mode", "code", "words"),
    [
        ("def f(record):\n    return [{'name': 'a', 'size': 1}, 5]", "row", "python_rows", "returns int, no dict and no None"),
        ("def f(record):\n    return [{'name': 'a', 'size': 1}, {'name': 'b'}]", "row", "python_rows", "a dict without 'size'"),
        ("def f(record):\n    return [{'name': 'a', 'size': 1}] * 10_001", "row", "python_rows", "makes 10,001 rows of a record"),
    ],
)
def test_rows_of_another_form_reject_their_record(step: Step, source: str, mode: str, code: str, words: str) -> None:
    made = made_by(program(FIELDS, COLUMNS, step(source, mode)), frame_of({"id": 1, "items": []}))
    (letter,) = made.dead_letters.to_pylist()
    assert (letter["code"], made.rows.num_rows) == (code, 0)
    assert words in letter["message"]


def test_a_wrong_row_of_a_batch_rejects_its_record_alone(step: Step) -> None:
    source = BATCH.replace(
        "    return pa.table", "    if any(item.get('size') == 13 for _, item in made): raise ValueError('13')\n    return pa.table"
    )
    frame = frame_of(
        {"id": 1, "items": [{"name": "a", "size": 1}, {"name": "b", "size": 2}]},
        {"id": 2, "items": [{"name": "c", "size": 3}, {"name": "d", "size": 13}]},
        {"id": 3, "items": [{"name": "e"}, {"name": "f"}]},
    )
    made = made_by(program(FIELDS, COLUMNS, step(source, "batch")), frame)
    assert rows_of(made) == [(0, 0, "a", 1), (0, 1, "b", 2), (2, 0, "e", None), (2, 1, "f", None)]
    assert letters_of(made) == [(1, "python", "python_error")]


def test_without_rows_many_a_list_rejects_its_record(step: Step) -> None:
    made = made_by(program(FIELDS, COLUMNS, step(ROWS, rows="one")), frame_of({"id": 1, "items": [{"name": "a"}]}))
    (letter,) = made.dead_letters.to_pylist()
    assert "one record cannot become several without `rows: many`" in letter["message"]


def test_dedup_before_takes_a_record_once_whatever_its_rows(step: Step, tmp_path: Path) -> None:
    whole = program(FIELDS, COLUMNS, first_of("id", 1_000_000), step(ROWS), larger_than(0))
    two, none = [{"name": "a", "size": 1}, {"name": "b", "size": 2}], [{"name": "x", "size": 0}]
    frame = frame_of({"id": 1, "items": two}, {"id": 2, "items": none}, {"id": 1, "items": two}, {"id": 2, "items": two})
    made = made_by(whole, frame)
    store = KeyedStore(Storage.local(tmp_path / "store"))
    store.open([])
    found, _ = whole.dedup.first_of_keys(made.rows, store, None)
    marks = found.accepted.column("_tf_then_dropped").to_pylist()
    assert list(
        zip(found.accepted.column("_tf_ordinal").to_pylist(), found.accepted.column("_tf_emit").to_pylist(), marks, strict=True)
    ) == [
        (0, 0, None),
        (0, 1, None),
        (1, None, "dropped.filter"),
    ]
    assert (found.counts, found.duplicates.column("_tf_ordinal").to_pylist()) == ((2, 2), [2, 2, 3, 3])


def test_of_a_redriven_record_the_refused_row_alone_is_made(step: Step) -> None:
    items = [{"name": "a", "size": 1}, {"name": "b", "size": 2}]
    frame = frame_of(
        {"id": 1, "items": items}, {"id": 2, "items": items[:1]}, {"id": 3, "items": [{"name": None}, items[1]]}, refused_row=1
    )
    made = made_by(program(FIELDS, COLUMNS, step(ROWS)), frame)
    assert rows_of(made) == [(0, 1, "b", 2), (2, 1, "b", 2)]
    assert letters_of(made) == [(1, "python", "python_rows")]
    (letter,) = made.dead_letters.to_pylist()
    assert (letter["refused_row"], letter["message"]) == (1, "own:f gives no row 1 of the record, which was refused before")


def test_a_refused_row_of_a_function_that_is_gone_stays_one(step: Step) -> None:
    whole = program(FIELDS, (("id", "id", "Nullable(Int64)", False),))
    made = made_by(whole, frame_of({"id": 1, "items": []}, refused_row=2))
    assert (made.rows.num_rows, letters_of(made)) == (0, [(0, "python", "python_rows")])
    assert made_by(whole, frame_of({"id": 1, "items": []}, refused_row=0)).rows.column("id").to_pylist() == [1]


FRAMES = [
    {"id": 1, "items": [{"name": "1", "size": 1}, {"name": "4", "size": 9}]},
    {"id": 2, "items": []},
    {"id": 3, "items": [{"name": "2", "size": 8}, {"name": "x", "size": 3}]},
    {"id": 4, "items": [5]},
    {"id": 5, "items": ["none"]},
    {"id": 6, "items": [{"name": "3", "size": -1}, {"name": "3", "size": 0}]},
    {"id": "x", "items": []},
    {"id": 8, "items": [{"name": None, "size": None}, {"name": "2", "size": 4}]},
    {"id": 9, "items": [{"name": "7", "size": 70}] * 3},
]


@MODES
@pytest.mark.parametrize("refused_row", [None, 0, 1, 2])
def test_the_reference_finds_the_same_rows_and_ends(step: Step, source: str, mode: str, refused_row: int | None) -> None:
    whole = program(FIELDS, COLUMNS, step(source, mode), larger_than(0), per_name())
    frame = frame_of(*FRAMES, refused_row=refused_row)
    made = made_by(whole, frame)
    stages = {ordinal: stage for ordinal, stage, _ in letters_of(made)}
    with open_database(":memory:", {}) as engine:
        reference = Reference(engine, compared_columns(whole))
        reference.load(iter([batch_of(frame, ())]), whole)
        reference.add_frames({1: 0})
        reference.evaluate(whole, Bounds(0, 2**63))
        ends = dict(engine.execute('SELECT "offset", any_value(stage) FROM parsed GROUP BY 1').fetchall())
        labels = ", ".join(column.label for column in compared_columns(whole)[1:])
        found = engine.execute(f'SELECT "offset", emit, {labels} FROM expected ORDER BY position, emit').fetchall()
        assert engine.execute("SELECT count(*), count(*) FILTER (is_first), count(DISTINCT position) FROM parsed").fetchone()[1:] == (9, 9)
    assert [(offset, emit, name.decode(), size) for offset, emit, name, size in found] == rows_of(made)
    with_rows = {ordinal for ordinal, *_ in rows_of(made)}
    assert {n: "dropped" if (end or "").startswith("dropped") else end for n, end in ends.items()} == {
        n: stages.get(n, None if n in with_rows else "dropped") for n in range(9)
    }


def test_rows_are_those_of_an_unnest_in_duckdb(step: Step) -> None:
    values = [{"id": n, "items": [{"name": f"{n}.{m}", "size": n * m} for m in range(n % 4)]} for n in range(50)]
    made = made_by(program(FIELDS, COLUMNS, step(ROWS), larger_than(20)), frame_of(*values))
    given = pa.table({"n": list(range(50)), "document": [json.dumps(value) for value in values]})
    oracle = duckdb.sql(
        "SELECT n, emit, name, size FROM (SELECT n, unnest(range(len(items)))::BIGINT AS emit, unnest(items, recursive := true) "
        'FROM (SELECT n, from_json(document->\'items\', \'[{"name":"VARCHAR","size":"BIGINT"}]\') AS items FROM given)) '
        "WHERE size > 20 ORDER BY n, emit"
    ).fetchall()
    assert given.num_rows == 50
    assert rows_of(made) == oracle
    assert len(oracle) > 20


def test_a_program_has_one_such_step_behind_what_has_state(step: Step) -> None:
    for between in ([step(ROWS), first_of("id", 1_000_000)], [step(ROWS), step(ROWS)]):
        with pytest.raises(ValueError, match="several rows of a record"):
            program(FIELDS, COLUMNS, *between)
    whole = program(FIELDS, COLUMNS, step(ROWS))
    assert Program.decode(json.loads(whole.encode())) == whole
    assert "rows" not in json.loads(program(FIELDS, COLUMNS, step(ROWS, rows="one")).encode())["steps"][0]
