"""Columns beside the JSON: what parse makes of keys, headers, positions and times, and what the steps behind it do with them."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines import stage_engine
from support.programs import first_of, program

from pipelines.process.computed import stored
from pipelines.process.dedup import KEY_COLUMNS
from pipelines.process.program import Program
from pipelines.process.run import run_records
from pipelines.process.steps.dedup import Dedup
from pipelines.process.steps.parse import Parse
from pipelines.protocol.records import POSITION_COLUMNS, StageOutput, with_positions
from pipelines.protocol.stream_limits import MAX_FRAME_BYTES
from pipelines.testing import FIRST_INSTANT, records
from pipelines.types.record_columns import RecordColumn
from tests.support.programs import of_steps

ARRIVAL = datetime(2026, 1, 31, 12, tzinfo=UTC)
_ENGINE = stage_engine()
Pairs = Sequence[tuple[bytes, bytes | None]] | None
SENT = RecordColumn("sent", "timestamp", "", "timestamp")
KEY = RecordColumn("key", "key", "", "string")
TRACE = RecordColumn("trace", "headers", "trace", "string")
ALL = RecordColumn("all", "headers", "", "map")


def raw(headers: Sequence[Pairs], keys: Sequence[bytes | None] | None = None, value: bytes = b"{}") -> pa.Table:
    frame = records(3, [value] * len(headers), first=70, headers=headers, keys=keys)
    return with_positions(frame, 9, "orders", int(ARRIVAL.timestamp()) * 1_000_000)


def read(column: RecordColumn, headers: Sequence[Pairs], keys: Sequence[bytes | None] | None = None, value: bytes = b"{}") -> StageOutput:
    return run_records(of([column]), _ENGINE, raw(headers, keys, value))


def of(columns: Sequence[RecordColumn], *between: Dedup, mapped: str = "Nullable(String)", fields: Any = ()) -> Program:
    """A program that maps the first of `columns`."""
    kinds = {"timestamp": "Nullable(DateTime64(6))", "int64": "Int64", "int32": "Int32", "bytes": mapped, "string": mapped, "map": "String"}
    plain = program(fields, [(columns[0].name, "c", kinds[columns[0].type], False)], *between)
    return of_steps((Parse(tuple(fields), tuple(columns)), *plain.shared))


def values(output: StageOutput) -> list[Any]:
    return output.accepted["c"].to_pylist()


def rejected(output: StageOutput) -> list[tuple[Any, ...]]:
    names = ("_tf_ordinal", "stage", "code", "field", "message")
    return [tuple(row[name] for name in names) for row in output.rejected.to_pylist()]


@pytest.mark.parametrize(
    ("origin", "kind", "expected"),
    [
        ("offset", "int64", 70),
        ("partition", "int32", 3),
        ("topic", "string", "orders"),
        ("timestamp", "timestamp", FIRST_INSTANT),
        ("arrival", "timestamp", ARRIVAL),
        ("value", "string", '{"a": "é"}'),
        ("value", "bytes", '{"a": "é"}'.encode()),
    ],
)
def test_a_part_of_the_record_becomes_a_column(origin: Any, kind: Any, expected: Any) -> None:
    found = read(RecordColumn("it", origin, "", kind), [None], value='{"a": "é"}'.encode())
    assert values(found) == [expected]


def test_a_key_is_text_or_bytes_and_a_null_key_is_null() -> None:
    keys = [b"k", None, "é".encode(), b""]
    assert values(read(KEY, [None] * 4, keys)) == ["k", None, "é", ""]
    assert values(read(KEY._replace(type="bytes"), [None] * 2, [b"\xff\0", None])) == [b"\xff\0", None]


def test_a_key_that_is_not_utf8_rejects_its_record_only() -> None:
    found = read(KEY, [None] * 3, [b"a", b"\xff", b"b"])
    assert values(found) == ["a", "b"]
    assert rejected(found) == [(1, "parse", "wrong_type", "key", "expected string, found bytes that are not UTF-8")]


def test_the_last_header_of_a_name_wins_a_missing_one_is_null() -> None:
    headers: list[Pairs] = [
        [(b"trace", b"1"), (b"other", b"x"), (b"trace", b"2")],
        None,
        [],
        [(b"trace", b"1"), (b"trace", None)],
        [(b"Trace", b"1")],
    ]
    assert values(read(TRACE, headers)) == ["2", None, None, None, None]


def test_a_header_that_is_not_utf8_rejects_only_if_it_is_read() -> None:
    headers: list[Pairs] = [[(b"trace", b"\xff")], [(b"other", b"\xff")], [(b"trace", b"\xff"), (b"trace", b"ok")]]
    assert [row[0] for row in rejected(read(TRACE, headers))] == [0]
    assert rejected(read(ALL, headers)) == [
        (0, "parse", "wrong_type", "all", "expected map, found bytes that are not UTF-8"),
        (1, "parse", "wrong_type", "all", "expected map, found bytes that are not UTF-8"),
    ]
    assert values(read(TRACE._replace(type="bytes"), headers)) == [b"\xff", None, b"ok"]


def test_all_headers_are_a_json_object_of_the_last_ones() -> None:
    headers: list[Pairs] = [[(b"a", b"1"), (b"b", None), (b"a", b"2")], None, [], [(b'q"', 'x\n"é'.encode())]]
    assert values(read(ALL, headers)) == ['{"b":null,"a":"2"}', "{}", "{}", '{"q\\"":"x\\n\\"é"}']


@given(st.lists(st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=3), st.none() | st.text(max_size=3)), max_size=5)), max_size=6))
def test_headers_are_those_that_a_dictionary_keeps(headers: list[Any]) -> None:
    pairs = [one and [(name.encode(), text if text is None else text.encode()) for name, text in one] for one in headers]
    found = [json.loads(text) for text in values(read(ALL, pairs))]
    assert found == [dict(one or []) for one in headers]
    for name in {name for one in headers for name, _ in one or []}:
        if name:
            column = TRACE._replace(header=name)
            assert values(read(column, pairs)) == [dict(one or []).get(name) for one in headers]


def test_columns_are_read_in_parts_of_a_batch_too() -> None:
    whole = raw([[(b"trace", b"%d" % n), (b"x", b"y")] for n in range(6)], [b"k%d" % n for n in range(6)])
    for column in (TRACE, ALL, KEY):
        made = of([column])
        assert values(run_records(made, _ENGINE, whole.slice(2, 3))) == values(run_records(made, _ENGINE, whole))[2:5]


def test_a_tombstone_is_rejected_as_one_whatever_its_key() -> None:
    frame = records(0, [None, b"["], keys=[b"\xff", b"\xff"])
    found = run_records(of([KEY]), _ENGINE, with_positions(frame, 9, "orders", 0))
    assert [row[2] for row in rejected(found)] == ["tombstone", "invalid_json"]


def test_no_records_have_no_columns_to_read() -> None:
    for column in (KEY, TRACE, ALL, SENT):
        assert values(read(column, [])) == []


# -- steps behind parse ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "is_null"),
    [
        (KEY, [False, True, False]),
        (KEY._replace(type="bytes"), [False, True, False]),
        (TRACE, [False, True, False]),
        (ALL, [False, False, False]),
        (SENT, [False, False, False]),
        (RecordColumn("o", "offset", "", "int64"), [False, False, False]),
    ],
)
def test_a_column_is_a_key_of_dedup(column: RecordColumn, is_null: list[bool]) -> None:
    headers: list[Pairs] = [[(b"trace", b"1")], None, [(b"trace", b"1")]]
    found = run_records(of([column], first_of(column.name, 1)), _ENGINE, raw(headers, [b"k", None, b"k"]))
    assert [row[2] for row in rejected(found)] == ["null_key"] * sum(is_null)
    keys = found.accepted.select(list(KEY_COLUMNS)).to_pylist()
    assert (keys[0] == keys[-1]) is (column.origin != "offset")


def test_the_windows_of_dedup_go_by_kafkas_time_of_the_record() -> None:
    timed = Dedup(("o",), 1, time_field="sent", max_ahead_us=0)
    made = of([SENT, RecordColumn("o", "offset", "", "int64")], timed)
    frame = pa.concat_tables(
        [records(0, [b"{}"], timestamp=at) for at in (FIRST_INSTANT, ARRIVAL.replace(hour=13), ARRIVAL.replace(year=2300))]
    )
    untimed = frame.slice(0, 1).set_column(5, "timestamp", pa.nulls(1, frame.schema.field("timestamp").type))
    records_in = with_positions(pa.concat_tables([frame, untimed]), 9, "orders", int(ARRIVAL.timestamp()) * 1_000_000)
    found = run_records(made, _ENGINE, records_in)
    assert values(found) == [FIRST_INSTANT]
    assert [row[2] for row in rejected(found)] == ["ahead", "invalid_time", "null_time"]


def test_columns_that_no_later_step_reads_end_at_parse() -> None:
    made = of([KEY, TRACE, SENT], first_of("trace", 1))
    path = [*made.lane_paths[0], *made.shared_path]
    assert [(step.name, sorted(done_with)) for step, done_with in path] == [("parse", ["sent"]), ("dedup", ["trace"]), ("mapping", [])]
    found = run_records(made, _ENGINE, raw([[(b"trace", b"1")]], [b"k"]))
    assert found.accepted.column_names == ["c", *POSITION_COLUMNS, *KEY_COLUMNS]


def test_a_program_without_columns_is_stored_as_before() -> None:
    with_one, without = of([KEY]), program([("a", "int")], [("a", "c", "Int64", False)])
    assert "columns" not in json.loads(without.encode())["lanes"][0]["steps"][0]
    assert [Program.decode(json.loads(made.encode())) for made in (with_one, without)] == [with_one, without]


def test_a_foreign_column_of_a_stored_program_is_refused() -> None:
    stored = json.loads(of([KEY]).encode())
    stored["lanes"][0]["steps"][0]["columns"][0][1] = "kye"
    with pytest.raises(ValueError, match="literal_error"):
        Program.decode(stored)


def test_an_expression_over_an_instant_is_asked_for_in_sql() -> None:
    with pytest.raises(ValueError, match="'sent' is an instant, which expr-lang does not read; write the expression in SQL"):
        stored('sent == "x"', {"sent": "timestamp"}, "expr", "bool")


# -- sizes ----------------------------------------------------------------------------------------------------------------------------


def test_a_row_of_many_headers_is_too_large_for_a_frame() -> None:
    columns = [RecordColumn(f"c{n}", "headers", "", "map") for n in range(3)]
    plain = program([], [(f"c{n}", f"c{n}", "String", False) for n in range(3)])
    made = of_steps((Parse((), tuple(columns)), *plain.shared))
    found = run_records(made, _ENGINE, raw([[(b"h", b"x" * (MAX_FRAME_BYTES // 3))], [(b"h", b"x")]]))
    assert [row[:3] for row in rejected(found)] == [(0, "transform", "row_too_large")]
    assert made.widening == 4
