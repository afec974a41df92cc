"""The test of the sink in memory; it runs in a tree that has the sink's three files, this one among them, and nothing else new."""

from pathlib import Path

import pytest
from pipelines.connectors.sinks.memory import MemoryTable
from support.leg_case import LegCase, event

from pipelines.config import PipelineConfig, parse, unsupported, version_of
from pipelines.config.docs import EXAMPLE
from pipelines.connectors.sinks import open_sink
from pipelines.errors import ConfigurationError

MAPPING = "mapping: [{name: id, column_name: id, column_type: Int64}, {name: v, column_name: v, column_type: String}]"


def configured(sink: str) -> PipelineConfig:
    before = EXAMPLE[: EXAMPLE.index("    schema_fields:\n")]
    fields = "    schema_fields: [{name: id, type: int}, {name: v, type: string}]\n"
    return parse(f"{before}{fields}sink: {{type: memory, table: t, {sink}}}\n", name="file", environment={})


def test_each_row_is_in_the_sink_of_the_file_once(tmp_path: Path) -> None:
    config = configured(MAPPING)
    assert unsupported(config) == []
    table = open_sink(config)
    assert isinstance(table, MemoryTable)
    case = LegCase(tmp_path, 2, table=table)
    case.config.sink = config.sink
    for numbers in ((1, 2), (2, 3)):
        case.send([event(number) for number in numbers])
        case.go_on()
        case.deliver()
    assert sorted(table.ids) == [1, 2, 3]


def test_another_table_is_another_version() -> None:
    assert len({version_of(configured(f"{place}{MAPPING}")) for place in ("", "connection_params: {database: other}, ")}) == 2


def test_a_fault_is_reported_at_its_path() -> None:
    with pytest.raises(ConfigurationError, match=r"sink\.max_rows: unknown field"):
        configured(f"{MAPPING}, max_rows: 7")
