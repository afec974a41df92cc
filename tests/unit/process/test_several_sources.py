"""Programs of several sources: steps of their own, then those of all records in the order of raw, and the reference beside them."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import fresh_database, stage_engine
from support.programs import first_of, union

from pipelines.errors import HaltError
from pipelines.preview.run import preview
from pipelines.preview.trial import Trial, note_nothing
from pipelines.process.arrivals import Arrived, microseconds
from pipelines.process.computed import stored
from pipelines.process.program import Program
from pipelines.process.run import run
from pipelines.process.steps import Step
from pipelines.process.steps.compute import Compute, Output
from pipelines.process.steps.filter import Filter
from pipelines.process.steps.mapping import MappedColumn, MapToTable, MapToTables
from pipelines.process.steps.parse import Parse
from pipelines.process.watermarks import PARTITIONS_OF_A_SOURCE
from pipelines.proof.readers.frames import batch_of
from pipelines.proof.verification.loading import FramesSeen
from pipelines.proof.verification.reference import Bounds, Reference, compared_columns
from pipelines.protocol.naming import Names
from pipelines.protocol.positions import position_keys
from pipelines.protocol.records import HEADER_PARTITION, HEADER_TOPIC, POSITION_COLUMNS, Message, encode_frame
from pipelines.testing import records
from pipelines.types.record_columns import RecordColumn

NAMES = Names("union")
START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND_US = 1_000_000
CRM = [Parse((("customer.id", "int"), ("at", "int"), ("note", "string")), (RecordColumn("from", "topic", "", "string"),))]
SHOP = [Parse((("user", "string"), ("at", "int"), ("note", "int")), (RecordColumn("from", "topic", "", "string"),))]
TABLE = MapToTable(
    (MappedColumn("who", "who", "Int64", False), MappedColumn("from", "source", "String", False)), "db", "t", POSITION_COLUMNS
)


def computed(text: str, fields: Step) -> Compute:
    return Compute((Output("who", stored(text, fields.columns_out({}), "sql", "int64")),))


CRM_WHO, SHOP_WHO = computed('"customer.id"', CRM[0]), computed('CAST("user" AS BIGINT)', SHOP[0])


def program(*shared: Step, crm: Sequence[Step] = (), shop: Sequence[Step] = ()) -> Program:
    return union(("crm", [*CRM, CRM_WHO, *crm]), ("shop", [*SHOP, SHOP_WHO, *shop]), shared=(*shared, MapToTables((TABLE,))))


def frame(sequence: int, source: str, *values: dict[str, Any], seconds: int = 0, partition: int = 0) -> Arrived:
    held = records(partition, [json.dumps(value).encode() for value in values], first=10 * sequence)
    at = START + timedelta(seconds=seconds)
    headers = {HEADER_TOPIC: source, HEADER_PARTITION: str(partition), "Tf-Rows": str(held.num_rows), "Tf-Last": "0"}
    return Arrived(Message(NAMES.raw(source, partition), sequence, at, encode_frame(held), headers), microseconds(at))


def crm(who: Any, at: Any = 0) -> dict[str, Any]:
    return {"customer": {"id": who}, "at": at, "note": "x"}


def shop(who: Any, at: Any = 0) -> dict[str, Any]:
    return {"user": who if who is None else str(who), "at": at, "note": 1}


def rows_of(made: Program, frames: Sequence[Arrived], tmp_path: Path) -> list[tuple[int, str]]:
    trial = Trial(made, stage_engine(), tmp_path)
    rows = trial.take(frames, trial.read(frames), note_nothing)
    return list(zip(rows.column("who").to_pylist(), rows.column("source").to_pylist(), strict=True))


def test_records_of_all_sources_become_rows_in_raw_order() -> None:
    made = run(program(), stage_engine(), [frame(1, "shop", shop(1), shop(2)), frame(2, "crm", crm(3)), frame(3, "shop", shop(4))])
    assert made.rows.column("who").to_pylist() == [1, 2, 3, 4]
    assert made.rows.column("source").to_pylist() == ["shop", "shop", "crm", "shop"]
    assert made.rows.column("_tf_topic").to_pylist() == ["shop", "shop", "crm", "shop"]
    assert made.counts["rows_in"] == made.counts["rows_out"] == 4


def test_a_source_without_a_record_in_the_batch_is_no_fault() -> None:
    made = [run(program(), stage_engine(), [frame(1, source, value)]).rows for source, value in (("shop", shop(1)), ("crm", crm(2)))]
    assert [rows.column("who").to_pylist() for rows in made] == [[1], [2]]


def test_a_step_of_one_source_leaves_the_others_alone() -> None:
    only_even = Filter(stored("who % 2 = 0", {"who": "int64"}, "sql", "bool"))
    made = run(program(shop=[only_even]), stage_engine(), [frame(1, "shop", shop(1), shop(2)), frame(2, "crm", crm(3))])
    assert made.rows.column("who").to_pylist() == [2, 3]
    assert made.counts["dropped.filter"] == 1


def test_a_copy_in_another_source_is_dropped(tmp_path: Path) -> None:
    made = program(first_of("who", 60 * SECOND_US))
    frames = [
        frame(1, "shop", shop(1), shop(2)),
        frame(2, "crm", crm(2), crm(3), seconds=1),
        frame(3, "shop", shop(3), shop(1), seconds=2),
        frame(4, "crm", crm(1), seconds=61),
    ]
    assert rows_of(made, frames, tmp_path) == [(1, "shop"), (2, "shop"), (3, "crm"), (1, "crm")]


def test_a_dead_letter_names_the_source_of_its_record() -> None:
    made = run(program(), stage_engine(), [frame(1, "shop", shop("x"), shop(None)), frame(2, "crm", crm("4"))])
    letters = [(row["source"], row["_tf_topic"], row["stage"]) for row in made.dead_letters.to_pylist()]
    assert letters == [("shop", "shop", "compute"), ("shop", "shop", "transform"), ("crm", "crm", "parse")]


def test_a_partition_of_each_source_has_its_own_watermark(tmp_path: Path) -> None:
    """Partition 0 of the shop lies far ahead; a record of the CRM's partition 0 is late only by its own, or by the window."""
    timed = program(first_of("who", 1000 * SECOND_US, time_field="at", time_unit="s", max_ahead_us=10**18))
    frames = [frame(1, "shop", shop(1, 900)), frame(2, "crm", crm(2, 10), crm(3, 5)), frame(3, "crm", crm(4, 20))]
    assert rows_of(timed, frames, tmp_path) == [(1, "shop"), (2, "crm"), (4, "crm")]


def test_a_preview_shows_the_steps_of_each_source() -> None:
    found = preview(program(first_of("who", SECOND_US)), [frame(1, "shop", shop(1)), frame(2, "crm", crm(1), crm("no"))])
    counts = {name: dict(outcomes) for name, outcomes in found.counts()}
    assert counts == {
        "crm: parse": {"passed": 1, "rejected": 1},
        "crm: compute": {"passed": 1},
        "shop: parse": {"passed": 1},
        "shop: compute": {"passed": 1},
        "dedup": {"passed": 2},
        "mapping": {"passed": 2},
        "first of key": {"row": 1, "duplicate": 1},
    }


def test_a_program_of_several_sources_is_read_back() -> None:
    made = program(first_of("who", 1))
    assert Program.decode(json.loads(made.encode())) == made
    assert made.sources == ["crm", "shop"]


def test_a_frame_of_an_unknown_source_halts() -> None:
    with pytest.raises(HaltError, match="has no source 'web'"):
        run(program(), stage_engine(), [frame(1, "web", shop(1))])


WHO = st.one_of(st.integers(1, 4), st.none(), st.just("x"))
FRAMES = st.lists(
    st.tuples(
        st.sampled_from(["crm", "shop"]), st.integers(0, 1), st.lists(st.tuples(WHO, st.integers(0, 40)), max_size=4), st.integers(0, 9)
    ),
    min_size=4,
    max_size=16,
)
DEDUPS = st.sampled_from(
    [
        (),
        (first_of("who", 10 * SECOND_US),),
        (first_of("who", 10 * SECOND_US, time_field="at", time_unit="s", lateness_us=5 * SECOND_US, max_ahead_us=10**18),),
    ]
)


@settings(deadline=None, max_examples=30)
@given(FRAMES, DEDUPS, st.booleans(), st.booleans())
def test_the_reference_unites_as_the_program_does(
    memory: Path, drawn: list[Any], dedups: tuple[Step, ...], filtered: bool, behind: bool
) -> None:
    own = [Filter(stored('"at" < 30', {"at": "int64"}, "sql", "bool"))] if filtered else []
    later = [Filter(stored("who <> 2", {"who": "int64"}, "sql", "bool"))] if behind else []
    made = program(*dedups, *later, crm=own)
    frames, clock = [], 0
    for sequence, (source, partition, values, step) in enumerate(drawn, start=1):
        clock += step
        make = crm if source == "crm" else shop
        frames.append(frame(sequence, source, *(make(who, at) for who, at in values), seconds=clock, partition=partition))
    trial = Trial(made, stage_engine(), Path(mkdtemp(dir=memory)))
    rows = trial.take(frames, trial.read(frames), note_nothing)
    seen = FramesSeen(made.sources)
    with fresh_database() as engine:
        reference = Reference(engine, compared_columns(made))
        batches = [batch_of(one, ()) for one in frames if one.message.rows]
        for one in frames:
            seen.add(one)
        reference.load(iter(batches), made)
        reference.add_frames(seen.partitions)
        reference.evaluate(made, Bounds(0, 2**63))
        wanted = engine.execute("SELECT position, v0, decode(topic) FROM expected ORDER BY position").fetchall()
    found = zip(position_keys(rows).tolist(), rows.column("who").to_pylist(), rows.column("source").to_pylist(), strict=True)
    assert list(found) == wanted
    assert all(partition is None or partition % PARTITIONS_OF_A_SOURCE < 2 for partition in seen.partitions.values())
