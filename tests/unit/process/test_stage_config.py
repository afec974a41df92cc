"""Configurations on the ledger: what is read back is what was stored, or nothing is done."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from pipelines.config import parse
from pipelines.config.docs import EXAMPLE
from pipelines.connectors.clickhouse.client import Table, TableColumn
from pipelines.errors import HaltError
from pipelines.process.stage_config import RELEASE, StageConfig, load, stage_config, store
from pipelines.protocol.naming import Names
from pipelines.protocol.records import POSITION_COLUMNS
from pipelines.testing import MemoryLog

NAMES = Names("p")
CONFIG = StageConfig(
    RELEASE, "orders", "orders", 4, (("v", "string"),), (("v", "value", "Nullable(String)", False),), "db", "t", POSITION_COLUMNS
)


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
    log.publish(NAMES.config(CONFIG.version), replace(CONFIG, table="other").encode(), {}, 0)
    with pytest.raises(HaltError, match="its content in tf-p-ledger has another version"):
        load(log, NAMES, CONFIG.version)


@pytest.mark.parametrize(
    "change",
    [
        {"database": "FUNCTION file('/tmp/x', 'CSV'); --"},
        {"table": "t` (x) SELECT 1"},
        {"mapping": [["v", "value) SELECT 1 --", "String", False]]},
        {"mapping": [["v", "value", "String) ENGINE = File", False]]},
        {"position_columns": ["_tf_offset", "x; DROP TABLE t"]},
        {"mapping": 7},
        {"unknown": 1},
    ],
    ids=str,
)
def test_names_that_would_be_more_than_names_in_a_statement_are_refused(change: dict[str, Any]) -> None:
    log = MemoryLog()
    version = publish(log, {**json.loads(CONFIG.encode()), **change})
    with pytest.raises(HaltError, match="only Tallyflow may write to its streams"):
        load(log, NAMES, version)


@pytest.mark.parametrize("declared", ["String", "FixedString(3)", "DateTime('UTC')", "UUID"])
@pytest.mark.parametrize("form", ["{}", "Nullable({})", "LowCardinality({})", "LowCardinality(Nullable({}))"])
def test_a_column_that_is_declared_by_its_base_type_takes_nulls_where_the_table_does(declared: str, form: str) -> None:
    file = EXAMPLE.replace("column_type: LowCardinality(String)", f'column_type: "{declared}"')
    columns = (("order_id", "String"), ("city", form.format(declared)), ("price", "Nullable(Float64)"))
    table = Table("db", "t", "MergeTree", "", tuple(TableColumn(name, kind, "") for name, kind in columns), 0)
    (city,) = [target for target in stage_config(parse(file, name="file", environment={}), table).targets if target.name == "city"]
    assert (city.takes_null, str(city.type).count(declared)) == ("Nullable" in form, 1)
