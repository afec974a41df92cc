"""The test of the step that does nothing; it runs in a tree that has the step's four files, this one among them, and nothing else new."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from pipelines.config import parse, unsupported
from pipelines.config.docs import EXAMPLE, render
from pipelines.connectors.sinks import Table, TableColumn
from pipelines.dead_letters.triage import STAGES
from pipelines.errors import ConfigurationError
from pipelines.process.arrivals import Arrived
from pipelines.process.compile import compile_program
from pipelines.process.program import Program
from pipelines.process.run import run
from pipelines.process.stage_config import load, store
from pipelines.proof.verification.reference import FRAME_SCHEMA, Bounds, Reference, compared_columns
from pipelines.proof.verification.steps import Wanted, statement_of
from pipelines.protocol import outcomes
from pipelines.protocol.naming import Names
from pipelines.protocol.records import HEADER_PARTITION, HEADER_TOPIC, POSITION_COLUMN_TYPES, Message, encode_frame
from pipelines.testing import MemoryLog, records
from pipelines.types.duckdb import open_database, open_engine

NOTHING = "transforms:\n  - {type: nothing, config: {field: city}}\n"
DEDUP = "  - {type: dedup, config: {key: order_id, time_window: 1h}}\n"
COLUMNS = (("order_id", "String"), ("city", "String"), ("price", "Nullable(Float64)"), *POSITION_COLUMN_TYPES)
TABLE = Table("default", "orders", "MergeTree", "", tuple(TableColumn(name, kind, "") for name, kind in COLUMNS), 0)
VALUES = [b'{"order_id": "1", "customer": {"city": "Lyon"}, "city": "Lyon", "price": 1}', b"no JSON", b'{"order_id": null}']


def file(transforms: str) -> Any:
    last = "      - {name: price, type: float}\n"
    text = EXAMPLE.replace(last, last + "      - {name: city, type: string}\n")
    return parse(text.replace("sink:\n", transforms + "sink:\n", 1), name="file", environment={})


def program(transforms: str = "") -> Program:
    return compile_program(file(transforms), [TABLE])


def test_a_file_validates_with_it() -> None:
    assert unsupported(file(NOTHING + DEDUP)) == []
    with pytest.raises(ConfigurationError, match=r"transforms\[0\].config.field: there is no field 'town'"):
        file(NOTHING.replace("city", "town"))


def test_the_documentation_has_it() -> None:
    assert "## `transforms[].config of nothing`" in render()


@pytest.mark.parametrize("more", ["", DEDUP])
def test_rows_pass_through_it(more: str) -> None:
    headers = {HEADER_TOPIC: "orders", HEADER_PARTITION: "0"}
    frame = Arrived(Message("tf.p.raw.orders.0", 1, datetime(2026, 1, 1, tzinfo=UTC), encode_frame(records(0, VALUES)), headers), 0)
    with open_engine() as engine:
        found, plain = (run(program(one), engine, [frame]) for one in (NOTHING + more, "transforms:\n" + more if more else ""))
    assert found.rows.num_rows == 1
    assert found.rows.equals(plain.rows)
    assert found.dead_letters.drop_columns("config_version").equals(plain.dead_letters.drop_columns("config_version"))
    assert {name: count for name, count in found.counts.items() if count} == {name: count for name, count in plain.counts.items() if count}


def test_a_plan_finds_it_again_on_the_ledger() -> None:
    log, names = MemoryLog(), Names("p")
    stored = program(NOTHING)
    assert load(log, names, store(log, names, stored)) == stored
    assert stored.version not in (program().version, program(NOTHING.replace("city", "price")).version)


def test_a_verification_applies_its_statement_between_those_of_the_others() -> None:
    with_it = program(NOTHING)
    assert "t3 AS looked_at" in statement_of(with_it, Wanted([], {}))
    record = {"partition": 0, "arrival_us": 0, "is_oversize": False, "is_past": False}
    rows = [{**record, "position": index, "offset": index, "value": value} for index, value in enumerate(VALUES)]
    batch = pa.RecordBatch.from_pylist(rows, schema=FRAME_SCHEMA)
    with open_database(":memory:", {}) as engine:
        reference = Reference(engine, compared_columns(with_it))
        reference.load(iter([batch]), with_it)
        reference.evaluate(with_it, Bounds(0, 2**63))
        stages = engine.execute("SELECT stage FROM parsed ORDER BY position").fetchall()
        assert [stage for (stage,) in stages] == [None, "parse", "transform"]
        assert engine.execute("SELECT position FROM expected").fetchall() == [(0,)]


def test_accounts_know_what_becomes_of_records_in_it() -> None:
    totals = {"rows_in": 5, "rows_out": 3, "dropped.nothing": 2}
    assert outcomes.counted("process", totals)["forgotten by the step that does nothing"] == 2
    assert outcomes.residue("process", 5, totals) == 0


def test_dead_letters_may_be_of_its_stage() -> None:
    assert STAGES == ("parse", "compute", "dedup", "filter", "join", "lookup", "nothing", "pyspark", "python", "transform", "sink")
