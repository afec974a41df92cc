"""Columns beside the JSON in the reference: literal raw frames, and the stages themselves over the same frames."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import fresh_database, stage_engine
from support.programs import program

from pipelines.process.arrivals import Arrived
from pipelines.process.computed import stored
from pipelines.process.program import Program
from pipelines.process.run import run
from pipelines.process.steps import Step
from pipelines.process.steps.compute import Compute, Output
from pipelines.process.steps.dedup import Dedup
from pipelines.process.steps.filter import Filter
from pipelines.process.steps.parse import Parse
from pipelines.proof.readers.frames import batch_of
from pipelines.proof.verification.record_columns import parts_read
from pipelines.proof.verification.reference import Bounds, Reference, compared_columns
from pipelines.protocol.records import HEADER_PARTITION, HEADER_TOPIC, Message, encode_frame
from pipelines.testing import FIRST_INSTANT, records
from pipelines.types.record_columns import RecordColumn
from tests.support.programs import of_steps

ARRIVAL_US = 1_780_000_000_123_456
Pairs = Sequence[tuple[bytes, bytes | None]] | None
KEY = RecordColumn("it", "key", "", "string")
TRACE = RecordColumn("it", "headers", "it's", "string")
ALL = RecordColumn("it", "headers", "", "map")
SENT = RecordColumn("it", "timestamp", "", "timestamp")
KEYS = (b"a", b"a", None, b"\xff", "é".encode(), b"\0")
HEADERS: tuple[Pairs, ...] = (
    [(b"it's", b"1"), (b"x", None), (b"it's", b"a")],
    [(b"it's", b"a")],
    None,
    [(b"it's", b"\xff")],
    [(b"it's", b"a"), (b"it's", None)],
    [(b'q"', "\x01é".encode()), (b"x", b"\xff"), (b"x", b"y")],
)


@pytest.fixture
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with fresh_database() as one:
        yield one


def of(column: RecordColumn, kind: str, *between: Step) -> Program:
    plain = program([], [("it", "c", kind, False)], *between)
    return of_steps((Parse((), (column,)), *plain.shared))


def arrived(headers: Sequence[Pairs], keys: Sequence[bytes | None], timestamps: Sequence[datetime] = ()) -> Arrived:
    table = records(5, [b'{"a": 1}'] * len(headers), first=70, headers=headers, keys=keys)
    if timestamps:
        table = table.set_column(5, "timestamp", pa.array(timestamps, table.schema.field("timestamp").type))
    subject = {HEADER_TOPIC: "orders", HEADER_PARTITION: "5"}
    return Arrived(Message("tf.p.raw.orders.5", 1, datetime(2026, 1, 1, tzinfo=UTC), encode_frame(table), subject), ARRIVAL_US)


def computed(engine: duckdb.DuckDBPyConnection, made: Program, frame: Arrived) -> list[tuple[Any, ...]]:
    """The stage of each record, and the value that the table must have."""
    reference = Reference(engine, compared_columns(made))
    reference.load(iter([batch_of(frame, parts_read(made.lanes[0].parse.columns))]), made)
    reference.add_frames({1: 5})
    reference.evaluate(made, Bounds(0, 2**63))
    return engine.execute("SELECT stage, v0 FROM parsed ORDER BY position").fetchall()


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        (KEY, "Nullable(String)", [b"a", b"a", None, "parse", "é".encode(), b"\0"]),
        (KEY, "String", [b"a", b"a", "transform", "parse", "é".encode(), b"\0"]),
        (KEY._replace(type="bytes"), "Nullable(String)", [b"a", b"a", None, b"\xff", "é".encode(), b"\0"]),
        (KEY._replace(type="bytes"), "Nullable(FixedString(1))", [b"a", b"a", None, b"\xff", "transform", b""]),
        (TRACE, "Nullable(String)", [b"a", b"a", None, "parse", None, None]),
        (TRACE._replace(type="bytes"), "Nullable(String)", [b"a", b"a", None, b"\xff", None, None]),
        (
            ALL,
            "String",
            [b'{"x":null,"it\'s":"a"}', b'{"it\'s":"a"}', b"{}", "parse", b'{"it\'s":null}', '{"q\\"":"\\u0001é","x":"y"}'.encode()],
        ),
        (RecordColumn("it", "offset", "", "int64"), "Int64", list(range(70, 76))),
        (RecordColumn("it", "partition", "", "int32"), "UInt8", [5] * 6),
        (RecordColumn("it", "topic", "", "string"), "LowCardinality(String)", [b"orders"] * 6),
        (RecordColumn("it", "arrival", "", "timestamp"), "DateTime64(3)", [1_780_000_000_123] * 6),
        (SENT, "DateTime", [int(FIRST_INSTANT.timestamp())] * 6),
        (RecordColumn("it", "value", "", "string"), "String", [b'{"a": 1}'] * 6),
        (RecordColumn("it", "value", "", "bytes"), "String", [b'{"a": 1}'] * 6),
    ],
)
def test_a_column_is_what_the_raw_record_says(
    engine: duckdb.DuckDBPyConnection, column: RecordColumn, kind: str, expected: list[Any]
) -> None:
    made, frame = of(column, kind), arrived(HEADERS, KEYS)
    found = computed(engine, made, frame)
    assert [stage or value for stage, value in found] == expected
    rejected = {row["_tf_ordinal"]: row["stage"] for row in run(made, stage_engine(), [frame]).dead_letters.to_pylist()}
    assert [rejected.get(ordinal) for ordinal in range(len(HEADERS))] == [stage for stage, _ in found]


def test_an_instant_beyond_its_column_is_rejected(engine: duckdb.DuckDBPyConnection) -> None:
    times = [FIRST_INSTANT, datetime(1899, 12, 31, tzinfo=UTC), datetime(2299, 12, 31, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)]
    frame = arrived([None] * 4, [None] * 4, times)
    assert [stage for stage, _ in computed(engine, of(SENT, "DateTime64(6)"), frame)] == [None, "transform", None, "transform"]


@pytest.mark.parametrize("column", [KEY, KEY._replace(type="bytes"), TRACE, ALL, RecordColumn("it", "topic", "", "string")])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_copies_by_a_column_are_those_of_the_stages(column: RecordColumn, data: st.DataObject) -> None:
    text = st.sampled_from([b"a", b"b", b"\xff", "é".encode(), b""])
    pairs = st.lists(st.tuples(st.sampled_from([b"it's", b"x"]), st.none() | text), max_size=3)
    keys = data.draw(st.lists(st.none() | text, min_size=8, max_size=24))
    headers = data.draw(st.lists(st.none() | pairs, min_size=len(keys), max_size=len(keys)))
    made, frame = of(column, "Nullable(String)", Dedup(("it",), 10)), arrived(headers, keys)
    with fresh_database() as engine:
        stages = [stage for stage, _ in computed(engine, made, frame)]
        expected = [position & 0xFFFFF for (position,) in engine.execute("SELECT position FROM expected ORDER BY 1").fetchall()]
    passed = run(made, stage_engine(), [frame])
    assert [row["stage"] for row in passed.dead_letters.to_pylist()] == [stage for stage in stages if stage]
    first = {}
    for row in passed.rows.to_pylist():
        first.setdefault((row["_tf_key_hi"], row["_tf_key_lo"]), row["_tf_ordinal"])
    assert sorted(first.values()) == expected


def test_windows_by_kafkas_time_are_those_of_the_record(engine: duckdb.DuckDBPyConnection) -> None:
    made = of(SENT, "DateTime64(6)", Dedup(("it",), 10_000_000, time_field="it", lateness_us=3_000_000, max_ahead_us=3_600_000_000))
    arrival = datetime.fromtimestamp(ARRIVAL_US / 1e6, UTC)
    times = [arrival + timedelta(seconds=seconds) for seconds in (0, 3_599, 3_602)]
    assert [stage for stage, _ in computed(engine, made, arrived([None] * 3, [None] * 3, times))] == [None, None, "dedup"]


@pytest.mark.parametrize(
    ("column", "expression", "wanted"),
    [
        (KEY, "it || '!'", [b"a!", b"a!", None, "parse", "é!".encode(), b"\0!"]),
        (KEY._replace(type="bytes"), "it", [b"a", b"a", None, b"\xff", "é".encode(), b"\0"]),
        (KEY._replace(type="bytes"), "hex(it)", [b"61", b"61", None, b"FF", b"C3A9", b"00"]),
        (ALL, "it ->> 'x'", [None, None, None, "parse", None, b"y"]),
        (SENT, "CAST(it AS VARCHAR)", [b"2026-01-01 00:00:00+00"] * 6),
        (RecordColumn("it", "offset", "", "int64"), "CAST(it + 1 AS VARCHAR)", [b"%d" % n for n in range(71, 77)]),
    ],
)
def test_expressions_read_columns_as_those_of_the_stages_do(
    engine: duckdb.DuckDBPyConnection, column: RecordColumn, expression: str, wanted: list[Any]
) -> None:
    made = of(column, "Nullable(String)", Compute((Output("it", stored(expression, {"it": column.type}, "sql", None)),)))
    frame = arrived(HEADERS, KEYS)
    assert [stage or value for stage, value in computed(engine, made, frame)] == wanted
    rows = {row["_tf_ordinal"]: row["c"] for row in run(made, stage_engine(), [frame]).rows.to_pylist()}
    texts = {ordinal: value.encode() if isinstance(value, str) else value for ordinal, value in rows.items()}
    assert texts == {ordinal: value for ordinal, value in enumerate(wanted) if value != "parse"}


def test_a_filter_reads_the_time_of_the_record(engine: duckdb.DuckDBPyConnection) -> None:
    condition = stored("it >= TIMESTAMPTZ '2026-01-01 00:00:00.5+00'", {"it": "timestamp"}, "sql", "bool")
    made, times = of(SENT, "DateTime64(6)", Filter(condition)), [FIRST_INSTANT + timedelta(milliseconds=ms) for ms in (499, 500)]
    frame = arrived([None] * 2, [None] * 2, times)
    assert [stage for stage, _ in computed(engine, made, frame)] == ["dropped.filter", None]
    assert run(made, stage_engine(), [frame]).counts["dropped.filter"] == 1
