"""One program for several tables: which sink takes which record, what is rejected whole, and that the reference says the same."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support.engines import fresh_database, stage_engine
from support.programs import first_of

from pipelines.process.arrivals import Arrived
from pipelines.process.computed import stored
from pipelines.process.program import Program
from pipelines.process.run import Made, run
from pipelines.process.steps.mapping import MappedColumn, MapToTable, MapToTables
from pipelines.process.steps.parse import Parse
from pipelines.proof.readers.frames import batch_of
from pipelines.proof.verification.reference import Bounds, Reference, compared_columns
from pipelines.protocol.positions import position_keys
from pipelines.protocol.records import HEADER_PARTITION, HEADER_TOPIC, POSITION_COLUMNS, Message, encode_frame
from pipelines.protocol.redrive import records_of_dead_letters
from pipelines.testing import records
from pipelines.types.engine import Engine
from tests.support.programs import of_steps

FIELDS = (("id", "int"), ("kind", "string"), ("price", "float"))
ALL, CHEAP, DEAR = "sink", "sink:cheap", "sink:dear"
ALL_COLUMNS = ("price", "price", "Nullable(Float64)", False), ("id", "id", "Int64", False)


OTHERS = "(others)"
"""In place of a condition: the default sink."""


def table(leg: str, when: str | None, *columns: tuple[str, str, str, bool], language: Any = "sql") -> MapToTable:
    is_default = when == OTHERS
    condition = stored(when, dict(FIELDS), language, "bool") if when and not is_default else None
    name = leg.partition(":")[2] or "all"
    return MapToTable(tuple(MappedColumn(*column) for column in columns), "db", name, POSITION_COLUMNS, leg, condition, is_default)


def program(*tables: MapToTable, between: Sequence[Any] = ()) -> Program:
    return of_steps((Parse(FIELDS), *between, MapToTables(tables)), buckets=4)


ROUTED = program(
    table(CHEAP, "price < 10", ("id", "id", "Int64", False), ("kind", "what", "String", False)),
    table(DEAR, "price >= 5 AND kind <> 'x'", ("id", "id", "UInt8", False)),
)


def frame(sequence: int, *values: Any, table: pa.Table | None = None) -> Arrived:
    held = table if table is not None else records(0, [json.dumps(value).encode() for value in values])
    headers = {HEADER_TOPIC: "orders", HEADER_PARTITION: "0", "Tf-Rows": str(held.num_rows)}
    subject = "tf.p.raw.orders.0" if table is None else "tf.p.raw.orders.redrive.0"
    return Arrived(Message(subject, sequence, datetime(2026, 1, 1, tzinfo=UTC), encode_frame(held), headers), 0)


def order(number: Any, kind: str | None, price: float | None) -> dict[str, Any]:
    return {"id": number, "kind": kind, "price": price}


@pytest.fixture
def engine() -> Engine:
    return stage_engine()


def taken(program: Program, made: Made, leg: str) -> list[dict[str, Any]]:
    rows = program.tables.rows_for(made.rows, leg)
    names = [column.name for column in program.seen_from(leg).mapping.columns]
    assert rows.column_names == [*names, *POSITION_COLUMNS]
    return rows.select(names).to_pylist()


def test_each_sink_takes_the_records_of_its_condition(engine: Engine) -> None:
    made = run(ROUTED, engine, [frame(1, order(1, "a", 1), order(2, "b", 7), order(3, "c", 70), order(4, "x", 70), order(5, "d", None))])
    assert taken(ROUTED, made, CHEAP) == [{"id": 1, "what": "a"}, {"id": 2, "what": "b"}]
    assert taken(ROUTED, made, DEAR) == [{"id": 2}, {"id": 3}]
    wanted = {"rows_in": 5, "rows_out": 3, "dropped.unrouted": 2, "rows_rejected": 0, f"routed.{CHEAP}": 2, f"routed.{DEAR}": 2}
    assert {name: made.counts[name] for name in wanted} == wanted


def test_the_default_takes_the_records_that_no_condition_takes(engine: Engine) -> None:
    rest = program(table(DEAR, OTHERS, *ALL_COLUMNS), table(CHEAP, "price < 10", *ALL_COLUMNS))
    made = run(rest, engine, [frame(1, order(1, "a", 1), order(2, "b", 70), order(3, "c", None))])
    assert [row["id"] for row in taken(rest, made, DEAR)] == [2, 3]
    assert [row["id"] for row in taken(rest, made, CHEAP)] == [1]
    assert (made.counts.get("dropped.unrouted", 0), made.counts["rows_rejected"]) == (0, 0)


def test_the_default_takes_no_record_that_another_table_rejects(engine: Engine) -> None:
    rest = program(table(DEAR, OTHERS, *ALL_COLUMNS), table(CHEAP, "price < 10", ("id", "id", "UInt8", False)))
    made = run(rest, engine, [frame(1, order(300, "a", 1), order(None, "b", 70), order(3, "c", 70))])
    assert [row["id"] for row in taken(rest, made, DEAR)] == [3]
    assert taken(rest, made, CHEAP) == []
    assert made.counts["rows_rejected"] == made.dead_letters.num_rows == 2


def test_a_record_that_one_table_cannot_take_is_rejected_whole(engine: Engine) -> None:
    """A redrive would double what the other table has already."""
    made = run(ROUTED, engine, [frame(1, order(300, "a", 7), order(2, "b", 7))])
    assert (taken(ROUTED, made, CHEAP), taken(ROUTED, made, DEAR)) == ([{"id": 2, "what": "b"}], [{"id": 2}])
    (letter,) = made.dead_letters.to_pylist()
    assert (letter["stage"], letter["code"], letter["field"], letter["sink"]) == ("transform", "out_of_range", "id", None)


def test_a_table_does_not_reject_what_its_sink_does_not_take(engine: Engine) -> None:
    made = run(ROUTED, engine, [frame(1, order(300, "a", 1), order(9, None, 70))])
    assert taken(ROUTED, made, CHEAP) == [{"id": 300, "what": "a"}]
    assert made.dead_letters.num_rows == 0


def test_a_condition_that_fails_makes_a_dead_letter(engine: Engine) -> None:
    failing = program(table(ALL, None, *ALL_COLUMNS), table(CHEAP, "CAST(kind AS INTEGER) = 1", *ALL_COLUMNS))
    made = run(failing, engine, [frame(1, order(1, "1", 1), order(2, "two", 1), order(3, "3", 1))])
    assert [row["id"] for row in taken(failing, made, ALL)] == [1, 3]
    assert [row["id"] for row in taken(failing, made, CHEAP)] == [1]
    (letter,) = made.dead_letters.to_pylist()
    assert letter["code"] == "expression_error"
    assert "CAST(kind AS INTEGER) = 1" in letter["message"]


def test_a_redriven_record_goes_only_where_it_was_refused(engine: Engine) -> None:
    both = program(table(ALL, None, *ALL_COLUMNS), table(CHEAP, None, *ALL_COLUMNS))
    made = run(both, engine, [frame(1, order(None, "a", 1), order(None, "b", 2), order(None, "c", 3))])
    refused = made.dead_letters.set_column(made.dead_letters.schema.get_field_index("sink"), "sink", pa.array([ALL, CHEAP, None]))
    entered = records_of_dead_letters(refused)
    values = [json.dumps(order(number, "a", 1)).encode() for number in (1, 2, 3)]
    entered = entered.set_column(entered.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))
    again = run(both, engine, [frame(2, order(9, "z", 1)), frame(3, table=entered)])
    assert [row["id"] for row in taken(both, again, ALL)] == [9, 1, 3]
    assert [row["id"] for row in taken(both, again, CHEAP)] == [9, 2, 3]


def test_the_first_of_a_key_is_one_that_a_sink_takes(engine: Engine) -> None:
    keyed = program(table(DEAR, "price >= 5", *ALL_COLUMNS), between=[first_of("id", 1_000_000)])
    made = run(keyed, engine, [frame(1, order(1, "a", 1), order(1, "b", 9))])
    assert made.counts["dropped.unrouted"] == 1
    assert made.rows.column("0.price").to_pylist() == [9]


def test_a_program_is_read_back_as_it_was_written() -> None:
    assert Program.decode(json.loads(ROUTED.encode())) == ROUTED
    assert ROUTED.seen_from(DEAR).version == ROUTED.version
    assert (ROUTED.seen_from(DEAR).table, ROUTED.seen_from(CHEAP).table) == ("dear", "cheap")


ORDERS = st.builds(
    order,
    st.one_of(st.integers(-5, 300), st.none(), st.just("7")),
    st.one_of(st.sampled_from(["a", "x", "1"]), st.none()),
    st.one_of(st.sampled_from([1.0, 5.0, 7.5, 10.0, 99.0]), st.none()),
)
CONDITIONS = st.sampled_from([None, OTHERS, "price < 10", "price >= 5 AND kind <> 'x'", "id > 100", "CAST(kind AS INTEGER) = 1", "false"])
KINDS = st.sampled_from(["Int64", "UInt8", "Nullable(Int16)"])


@settings(deadline=None, max_examples=30)
@given(st.lists(ORDERS, min_size=12, max_size=24), st.tuples(CONDITIONS, CONDITIONS), st.tuples(KINDS, KINDS))
@example([order(1, "a", 1.0), order(300, "x", 7.5), order(2, None, None)], (OTHERS, "price < 10"), ("Int64", "UInt8"))
@example([order(1, "1", 1.0), order(300, "x", 7.5), order(2, None, None)], ("CAST(kind AS INTEGER) = 1", OTHERS), ("Int64", "UInt8"))
def test_the_reference_routes_as_the_program_does(
    orders: list[dict[str, Any]], conditions: tuple[str | None, str | None], kinds: tuple[str, str]
) -> None:
    assume(conditions != (OTHERS, OTHERS))
    asked = zip((ALL, CHEAP), conditions, kinds, strict=True)
    routed = program(*(table(leg, when, ("id", "id", kind, False)) for leg, when, kind in asked))
    arrived = frame(1, *orders)
    made = run(routed, stage_engine(), [arrived])
    for leg in (ALL, CHEAP):
        seen = routed.seen_from(leg)
        rows = routed.tables.rows_for(made.rows, leg)
        with fresh_database() as engine:
            reference = Reference(engine, compared_columns(seen))
            reference.load(iter([batch_of(arrived, ())]), seen)
            reference.evaluate(seen, Bounds(0, 2**63))
            wanted = engine.execute("SELECT position, v0 FROM expected ORDER BY position").fetchall()
            stages = dict(engine.execute("SELECT position, stage FROM parsed WHERE stage IS NOT NULL").fetchall())
        assert list(zip(position_keys(rows).tolist(), rows.column("id").to_pylist(), strict=True)) == wanted
        rejected = zip(position_keys(made.dead_letters).tolist(), made.dead_letters.column("stage").to_pylist(), strict=True)
        assert {position: stage for position, stage in stages.items() if stage != "dropped.unrouted"} == dict(rejected)
        assert sum(stage == "dropped.unrouted" for stage in stages.values()) == made.counts.get("dropped.unrouted", 0)
