"""Configurations on the ledger: what is read back is what was stored, or nothing is done."""

import hashlib
import json
from dataclasses import fields, replace
from typing import Any

import pytest
from support.programs import program

from pipelines.config import parse
from pipelines.config.docs import EXAMPLE
from pipelines.connectors.sinks import Table, TableColumn
from pipelines.errors import HaltError
from pipelines.process.compile import compile_program
from pipelines.process.program import RELEASE
from pipelines.process.stage_config import load, store
from pipelines.process.steps.dedup import Dedup
from pipelines.protocol.naming import Names
from pipelines.testing import MemoryLog

NAMES = Names("p")
DEDUP = Dedup(("v",), 10, time_field="at", time_unit="ms", lateness_us=3)
CONFIG = program(
    [("v", "string"), ("at", "int")], [("v", "value", "Nullable(String)", False), ("at", "at", "DateTime64(3)", True, "ms")], DEDUP
)


OTHERWISE: dict[str, Any] = {
    "key": ("at",),
    "window_us": 11,
    "keeps": True,
    "time_field": "v",
    "time_unit": "s",
    "lateness_us": 4,
    "max_ahead_us": 1,
}


def publish(log: MemoryLog, record: dict[str, Any]) -> str:
    """Under the name of its own content, as somebody who knows how would."""
    payload = json.dumps(record).encode()
    version = hashlib.sha256(payload).hexdigest()[:16]
    log.publish(NAMES.config(version), payload, {}, 0)
    return version


def test_a_stored_configuration_is_read_back() -> None:
    log = MemoryLog()
    assert load(log, NAMES, store(log, NAMES, CONFIG)) == CONFIG


def test_content_of_another_version_is_refused() -> None:
    log = MemoryLog()
    log.publish(NAMES.config(CONFIG.version), replace(CONFIG, buckets=9).encode(), {}, 0)
    with pytest.raises(HaltError, match="its content in tf-p-ledger has another version"):
        load(log, NAMES, CONFIG.version)


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (2, {"database": "FUNCTION file('/tmp/x', 'CSV'); --"}),
        (2, {"table": "t` (x) SELECT 1"}),
        (2, {"columns": [["v", "value) SELECT 1 --", "String", False, ""]]}),
        (2, {"columns": [["v", "value", "String) ENGINE = File", False, ""]]}),
        (2, {"columns": [["v", "value", "String", "yes", ""]]}),
        (2, {"position_columns": ["_tf_offset", "x; DROP TABLE t"]}),
        (2, {"columns": 7}),
        (1, {"window_us": "1 day"}),
        (1, {"key": "v"}),
        (1, {"unknown": 1}),
        (1, {"step": "unknown"}),
        (1, {"step": "parse"}),
        (0, {"fields": [["v"]]}),
    ],
    ids=str,
)
def test_a_step_that_nobody_of_ours_has_written_is_refused(place: int, change: dict[str, Any]) -> None:
    log = MemoryLog()
    record = json.loads(CONFIG.encode())
    of_source = record["lanes"][0]["steps"]
    (of_source[0] if place == 0 else record["steps"][place - 1]).update(change)
    with pytest.raises(HaltError, match="only Tallyflow may write to its streams"):
        load(log, NAMES, publish(log, record))


@pytest.mark.parametrize(
    "change", [{"steps": []}, {"steps": 7}, {"lanes": []}, {"lanes": [{"steps": []}]}, {"unknown": 1}, {"buckets": "many"}], ids=str
)
def test_a_list_that_nobody_of_ours_has_written_is_refused(change: dict[str, Any]) -> None:
    log = MemoryLog()
    with pytest.raises(HaltError, match="only Tallyflow may write to its streams"):
        load(log, NAMES, publish(log, json.loads(CONFIG.encode()) | change))


def test_a_configuration_of_another_format_is_refused() -> None:
    """The flat record of format 2, as a release before this one has written it."""
    log = MemoryLog()
    version = publish(log, {"release": 2, "source": "orders", "topic": "orders", "buckets": 4, "fields": [["v", "string"]], "mapping": []})
    with pytest.raises(HaltError, match=f"written by release 2 of the stages, this is {RELEASE}: start the older version once"):
        load(log, NAMES, version)


def test_each_setting_of_a_step_counts_for_the_version() -> None:
    versions = {program([("v", "string"), ("at", "int")], [], replace(DEDUP, **{name: value})).version for name, value in OTHERWISE.items()}
    assert len({*versions, program([("v", "string"), ("at", "int")], [], DEDUP).version}) == len(OTHERWISE) + 1
    assert OTHERWISE.keys() == {one.name for one in fields(Dedup)}


@pytest.mark.parametrize("declared", ["String", "FixedString(3)", "DateTime('UTC')", "UUID"])
@pytest.mark.parametrize("form", ["{}", "Nullable({})", "LowCardinality({})", "LowCardinality(Nullable({}))"])
def test_a_base_type_takes_nulls_where_the_table_does(declared: str, form: str) -> None:
    file = EXAMPLE.replace("column_type: LowCardinality(String)", f'column_type: "{declared}"')
    columns = (("order_id", "String"), ("city", form.format(declared)), ("price", "Nullable(Float64)"))
    table = Table("db", "t", "MergeTree", "", tuple(TableColumn(name, kind, "") for name, kind in columns), 0)
    (city,) = [target for target in compile_program(parse(file, name="file", environment={}), [table]).targets if target.name == "city"]
    assert (city.takes_null, str(city.type).count(declared)) == ("Nullable" in form, 1)
