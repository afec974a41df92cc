"""Filters and computed fields in a program: literal records, and the reference's SQL over random ones."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import fresh_database, stage_engine
from support.programs import first_of, program

from pipelines.config import notes, parse, shape_of, unsupported
from pipelines.config.docs import EXAMPLE
from pipelines.config.order import in_order
from pipelines.errors import ConfigurationError
from pipelines.key_store.storage import Storage
from pipelines.key_store.store import KeyedStore
from pipelines.process.arrivals import Arrived
from pipelines.process.computed import Stored, stored
from pipelines.process.drop_marks import MARK_COLUMN, parted
from pipelines.process.program import Program
from pipelines.process.run import Made, run
from pipelines.process.steps import Step
from pipelines.process.steps.compute import Compute, Output
from pipelines.process.steps.filter import Filter
from pipelines.proof.readers.frames import batch_of
from pipelines.proof.verification.record_columns import parts_read
from pipelines.proof.verification.reference import Bounds, Reference, compared_columns
from pipelines.protocol.records import HEADER_PARTITION, HEADER_TOPIC, Message, encode_frame
from pipelines.testing import records

FIELDS = {"id": "int", "city": "string", "price": "float", "ok": "bool"}
KEPT = ("id", "id", "Nullable(Int64)", False)
HOUR_US = 3_600_000_000


def kept(text: str, fields: dict[str, str] = FIELDS, language: Any = "sql") -> Filter:
    return Filter(stored(text, fields, language, "bool"))


def with_fields(keeps: bool = True, fields: dict[str, str] = FIELDS, **texts: str) -> Compute:
    return Compute(tuple(Output(name, stored(text, fields, "sql", None)) for name, text in texts.items()), keeps)


def made_by(made: Program, *values: dict[str, Any] | bytes) -> Made:
    return run(made, stage_engine(), [frame_of(values)])


def frame_of(values: Sequence[dict[str, Any] | bytes]) -> Arrived:
    encoded = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    headers = {HEADER_TOPIC: "orders", HEADER_PARTITION: "0"}
    return Arrived(Message("tf.p.raw.orders.0", 1, datetime(2026, 1, 1, tzinfo=UTC), encode_frame(records(0, encoded)), headers), 0)


def of(*steps: Step, columns: Sequence[Sequence[Any]] = (KEPT,)) -> Program:
    return program(tuple(FIELDS.items()), columns, *steps)


def ids(made: Made) -> list[int | None]:
    found: list[int | None] = made.rows.column("id").to_pylist()
    return found


def test_a_null_condition_drops_a_record_in_sql() -> None:
    made = made_by(of(kept("price > 1")), {"id": 1, "price": 2}, {"id": 2, "price": 1}, {"id": 3}, {"id": 4, "price": None}, b"{")
    assert ids(made) == [1]
    assert made.counts["dropped.filter"] == 3
    assert (made.counts["rows_in"], made.counts["rows_out"], made.counts["rows_rejected"]) == (5, 1, 1)


def test_a_failed_condition_is_a_dead_letter_and_no_drop() -> None:
    made = made_by(of(kept("CAST(city AS INTEGER) > 1")), {"id": 1, "city": "2"}, {"id": 2, "city": "x"}, {"id": 3, "city": "0"})
    assert (ids(made), made.counts["dropped.filter"]) == ([1], 1)
    (letter,) = made.dead_letters.to_pylist()
    assert (letter["stage"], letter["code"], letter["field"], letter["_tf_ordinal"]) == ("filter", "expression_error", None, 1)
    assert made.counts["rejected.filter.expression_error"] == 1


def test_computed_fields_stand_beside_the_others_or_replace_one() -> None:
    columns = (KEPT, ("price", "price", "Nullable(Float64)", False), ("label", "label", "Nullable(String)", False))
    made = made_by(of(with_fields(price="price * 2", label="upper(city)"), columns=columns), {"id": 1, "price": 2, "city": "a"}, {"id": 2})
    assert made.rows.select(["id", "price", "label"]).to_pylist() == [
        {"id": 1, "price": 4.0, "label": "A"},
        {"id": 2, "price": None, "label": None},
    ]


def test_a_value_too_large_for_a_frame_is_a_dead_letter() -> None:
    columns = (KEPT, ("label", "label", "Nullable(String)", False))
    made = made_by(of(with_fields(label="repeat(city, 10000)"), columns=columns), {"id": 1, "city": "a" * 99}, {"id": 2, "city": "b" * 101})
    assert ids(made) == [1]
    (letter,) = made.dead_letters.to_pylist()
    assert (letter["stage"], letter["code"], letter["_tf_ordinal"]) == ("transform", "row_too_large", 1)


def test_outputs_read_the_record_before_them() -> None:
    columns = (("a", "a", "Nullable(Float64)", False), ("b", "b", "Nullable(Float64)", False))
    both = with_fields(price="price + 1", a="price", b="price + 10")
    assert made_by(of(both, columns=columns), {"id": 1, "price": 2}).rows.select(["a", "b"]).to_pylist() == [{"a": 2.0, "b": 12.0}]


def test_a_number_that_is_not_finite_is_a_dead_letter() -> None:
    columns = (KEPT, ("ratio", "ratio", "Nullable(Float64)", False))
    made = made_by(of(with_fields(ratio="1 / price"), columns=columns), {"id": 1, "price": 2}, {"id": 2, "price": 0})
    assert ids(made) == [1]
    assert [(letter["stage"], letter["code"], letter["field"]) for letter in made.dead_letters.to_pylist()] == [
        ("compute", "not_finite", "ratio")
    ]


def test_a_stateless_record_has_its_own_fields_only() -> None:
    made = of(with_fields(keeps=False, total="price * 2"), columns=(("total", "total", "Nullable(Float64)", False),))
    assert [sorted(done) for _, done in (*made.lane_paths[0], *made.shared_path)] == [["city", "id", "ok"], [], []]
    assert made_by(made, {"id": 1, "price": 2}).rows.column_names[0] == "total"
    with pytest.raises(ValueError, match="reads 'city' as string, which is no field"):
        kept("city = 'a'").columns_out({"total": "float"})


def test_keys_are_taken_before_a_stateless_step_behind_dedup() -> None:
    made = of(first_of("id", HOUR_US), with_fields(keeps=False, total="price"), columns=(("total", "total", "Nullable(Float64)", False),))
    rows = made_by(made, {"id": 1, "price": 2}, {"id": 1, "price": 3}).rows
    assert rows.column_names[0] == "total"
    assert rows.column("_tf_key_hi").to_pylist()[0] == rows.column("_tf_key_hi").to_pylist()[1]


def ends(made: Program, *values: dict[str, Any] | bytes) -> list[str]:
    """The end of each record: the stage that rejects it, its outcome, or a row; all keys are in one store."""
    return ends_of(made, made_by(made, *values), len(values))


def ends_of(made: Program, passed: Made, records: int) -> list[str]:
    found = {letter["_tf_ordinal"]: letter["stage"] for letter in passed.dead_letters.to_pylist()}
    rows, dropped, duplicates = passed.rows, passed.rows.slice(0, 0), passed.rows.slice(0, 0)
    if made.dedup.key:
        with TemporaryDirectory() as directory:
            judged, _ = made.dedup.first_of_keys(rows, KeyedStore(Storage.local(directory)), None)
        (rows, dropped), duplicates = parted(judged.accepted), judged.duplicates
    if dropped.num_rows:
        found |= dict(zip(dropped.column("_tf_ordinal").to_pylist(), dropped.column(MARK_COLUMN).to_pylist(), strict=True))
    found |= dict.fromkeys(duplicates.column("_tf_ordinal").to_pylist(), "copy")
    found |= dict.fromkeys(rows.column("_tf_ordinal").to_pylist(), "row")
    return [found.get(number, "dropped.filter") for number in range(records)]


def test_a_copy_of_a_filtered_record_is_a_copy_behind_dedup() -> None:
    values = [{"id": 1, "ok": False}, {"id": 1, "ok": True}, {"id": 2, "ok": True}, {"id": 2, "ok": False}]
    assert ends(of(first_of("id", HOUR_US), kept("ok")), *values) == ["dropped.filter", "copy", "row", "copy"]
    assert ends(of(kept("ok"), first_of("id", HOUR_US)), *values) == ["dropped.filter", "row", "row", "dropped.filter"]


def test_no_later_step_sees_what_a_filter_behind_dedup_drops() -> None:
    number = with_fields(number="CAST(city AS INTEGER)")
    made = of(first_of("id", HOUR_US), kept("ok"), number, kept("number > 1", {**FIELDS, "number": "int32"}))
    values = [{"id": 1, "ok": False, "city": "x"}, {"id": 2, "ok": True, "city": "1"}, {"id": 3, "ok": True, "city": "2"}]
    assert ends(made, *values) == ["dropped.filter", "dropped.filter", "row"]


def test_a_record_that_is_rejected_behind_dedup_is_no_first() -> None:
    made = of(first_of("id", HOUR_US), with_fields(number="CAST(city AS INTEGER)"), kept("ok"))
    values = [{"id": 1, "ok": True, "city": "x"}, {"id": 1, "ok": True, "city": "1"}, {"id": 1, "ok": True, "city": "2"}]
    assert ends(made, *values) == ["compute", "row", "copy"]


def test_a_filter_on_either_side_of_dedup_drops_by_its_side() -> None:
    made = of(kept("price > 1"), first_of("id", HOUR_US), kept("ok"))
    values = [{"id": 1, "price": 1, "ok": True}, {"id": 1, "price": 2, "ok": False}, {"id": 1, "price": 2, "ok": True}]
    assert ends(made, *values) == ["dropped.filter", "dropped.filter", "copy"]
    assert made_by(made, *values).counts["dropped.filter"] == 1


def test_a_step_is_checked_again_when_it_is_read_back() -> None:
    sound = of(kept("ok"))
    for text in ("(SELECT true)", "getenv('HOME') = ''", "nonsense"):
        forged = json.loads(sound.encode())
        forged["steps"][0]["condition"][0] = text
        with pytest.raises(ValueError, match=r".+"):
            Program.decode(forged)
    assert Program.decode(json.loads(sound.encode())) == sound


# -- the file -----------------------------------------------------------------------------------------------------------------


def file(transforms: str, more: str = "") -> Any:
    return parse(more + EXAMPLE.replace("sink:\n", f"transforms:\n{transforms}sink:\n", 1), name="file", environment={})


DEDUP = "  - {type: dedup, config: {key: order_id, time_window: 1h}}\n"
FILTER = "  - {type: filter, config: {expression: price > 1}}\n"


def test_the_files_of_glassflow_run_in_its_order_and_say_so() -> None:
    both = file(DEDUP + FILTER)
    assert unsupported(both) == []
    note = "transforms: run as GlassFlow runs them: filter ([1]), dedup ([0]); `transforms_order: file` keeps the order of the file"
    assert note in notes(both)
    assert notes(file(FILTER + DEDUP)) == [note for note in notes(both) if not note.startswith("transforms: run")]


def test_a_file_beyond_glassflow_runs_in_its_own_order() -> None:
    beyond, kept_order = file(DEDUP + FILTER + FILTER), file(DEDUP + FILTER, more="transforms_order: file\n")
    for one in (beyond, kept_order):
        assert [index for index, _ in in_order(one)] == list(range(len(one.transforms)))
        assert unsupported(one) == []
    with pytest.raises(ConfigurationError, match="GlassFlow has no compute"):
        file("  - {type: compute, config: {fields: [{name: a, expression: price}]}}\n", more="transforms_order: glassflow\n")


def test_every_faulty_expression_is_named_with_its_path() -> None:
    compute = "  - {type: compute, config: {fields: [{name: a, expression: prize * 2}, {name: b, expression: price}]}}\n"
    with pytest.raises(ConfigurationError) as raised:
        file(compute + "  - {type: filter, config: {expression: order_id}}\n  - {type: filter, config: {expression: a > b}}\n" + DEDUP)
    assert [fault.path for fault in raised.value.faults] == [
        "transforms[0].config.fields[0].expression",
        "transforms[1].config.expression",
    ]
    assert "price" in raised.value.faults[0].message


def test_types_of_computed_fields_are_told() -> None:
    fields = "[{name: a, expression: price * 2}, {name: b, expression: order_id || 'x'}]"
    told = notes(file(f"  - {{type: compute, config: {{fields: {fields}}}}}\n"))
    assert told[-2:] == [
        "transforms[0].config.fields[0].expression: a is float64",
        "transforms[0].config.fields[1].expression: b is string",
    ]


def test_the_definition_of_a_computed_key_is_part_of_the_shape() -> None:
    def shape(expression: str, first: str = "price * 2") -> Any:
        fields = f"[{{name: a, expression: '{first}'}}]}}}}\n  - {{type: compute, config: {{fields: [{{name: k, expression: {expression}}}]"
        return shape_of(file(f"  - {{type: compute, config: {{fields: {fields}}}}}\n" + DEDUP.replace("order_id", "k")))

    assert shape("order_id") == shape("order_id", "price * 3")
    assert len({json.dumps(one) for one in (shape("order_id"), shape("a + 1"), shape("a + 1", "price * 3"))}) == 3


# -- against the reference ----------------------------------------------------------------------------------------------------

CONDITIONS = (
    "ok",
    "price > 1",
    "city = 'a' OR price < 0",
    "CAST(city AS INTEGER) + CAST(city AS INTEGER) > 6",
    "id % 3 = 1",
    "id IS NULL OR id + 1 > 3",
)
VALUES = {
    "double": "price * 2",
    "label": "city || '-' || id",
    "number": "CAST(city AS BIGINT) * CAST(city AS BIGINT)",
    "ratio": "1 / price",
    "is_large": "id > 2",
    "sum": "id + CAST(city AS INTEGER)",
    "date": "CAST(city AS DATE)",
    "big": "id * 4611686018427387904",
    "list": "[id, 1]",
    "ratios": "[1 / price, 2]",
}
PLAIN = {"double": "Float64", "label": "String", "number": "Int64", "ratio": "Float64", "is_large": "Bool", "sum": "Int64", "big": "Int64"}
TYPES = {name: f"Nullable({kind})" for name, kind in {**PLAIN, "date": "Date"}.items()} | {"list": "String", "ratios": "String"}
EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.one_of(st.none(), st.integers(-3, 5), st.just("text")),
        "city": st.sampled_from([None, "a", "b", "4", "-1", "2026-01-31", " 5", "", "é", "9223372036854775808"]),
        "price": st.sampled_from([None, 0, -0.0, 1.5, 2, 1e308, -3]),
        "ok": st.sampled_from([None, True, False]),
    },
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    known, steps = dict(FIELDS), list[Step]()
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            steps.append(kept(draw(st.sampled_from(CONDITIONS)), known))
        else:
            names = draw(st.sets(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
            steps.append(with_fields(True, known, **{name: VALUES[name] for name in sorted(names)}))
            known = dict(steps[-1].columns_out(known))
    if draw(st.booleans()):
        steps.insert(draw(st.integers(0, len(steps))), first_of("id", HOUR_US))
    columns = [(name, name, TYPES[name], False) for name in known if name in TYPES]
    return of(*steps, columns=[KEPT, *columns])


@settings(deadline=None, max_examples=40)
@given(programs(), st.lists(EVENTS, min_size=1, max_size=12))
def test_steps_end_records_where_the_reference_does(made: Program, events: list[dict[str, Any]]) -> None:
    passed = made_by(made, *events)
    found = dict(enumerate(ends_of(made, passed, len(events))))
    rows = zip(passed.rows.column("_tf_ordinal").to_pylist(), passed.rows.to_pylist(), strict=True)
    accepted = {number: row for number, row in rows if found[number] == "row"}
    with fresh_database() as engine:
        reference = Reference(engine, compared_columns(made))
        reference.load(iter([batch_of(frame_of(events), parts_read(()))]), made)
        reference.add_frames({1: 0})
        reference.evaluate(made, Bounds(0, 2**63))
        end = "coalesce(stage, CASE WHEN why = 'copy' THEN why END, then_dropped, 'row')"
        wanted = dict(engine.execute(f'SELECT "offset", {end} FROM parsed LEFT JOIN dropped USING (position)').fetchall())
        numbers = {column.name: column.label for column in compared_columns(made) if column.name in ("double", "number", "ratio", "sum")}
        labels = "".join(f", {label}" for label in numbers.values())
        expected = {n: row for n, *row in engine.execute(f'SELECT "offset"{labels} FROM expected').fetchall()}
    assert found == wanted
    assert {n: [row[name] for name in numbers] for n, row in accepted.items()} == expected


def test_a_stored_expression_keeps_the_types_that_it_reads() -> None:
    one = stored("price + id", FIELDS, None, None)
    assert one == Stored("price + id", "sql", (("id", "int"), ("price", "float")), "float64")
    with pytest.raises(ValueError, match="reads 'id' as int, which is string"):
        one.check_inputs({"id": "string", "price": "float"})


def test_a_field_of_a_faulty_type_hides_no_other_fault() -> None:
    with pytest.raises(ConfigurationError) as raised:
        text = EXAMPLE.replace("{name: price, type: float}", "{name: price, type: number}").replace(
            "{name: order_id, column", "{name: id, column"
        )
        transforms = "  - {type: filter, config: {expression: prize > 1}}\n  - {type: filter, config: {expression: price > 1}}\n"
        parse(text.replace("sink:\n", f"transforms:\n{transforms}sink:\n", 1), name="file", environment={})
    assert [fault.path for fault in raised.value.faults] == [
        "sources[0].schema_fields[2].type",
        "transforms[0].config.expression",
        "sink.mapping[0].name",
    ]
