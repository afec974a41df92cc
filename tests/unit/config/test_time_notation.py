"""`unit` and `format` of fields that are times: what a file may say, and which fault each mistake has."""

from copy import deepcopy
from typing import Any

import pytest
import yaml

from pipelines.config import PipelineConfig, parse
from pipelines.errors import ConfigurationError
from pipelines.preview.declared import declared_program

DOCUMENT: dict[str, Any] = {
    "version": "v3",
    "pipeline_id": "clicks",
    "sources": [
        {
            "type": "kafka",
            "topic": "clicks",
            "connection_params": {"brokers": ["kafka:9092"]},
            "schema_fields": [{"name": "at", "type": "string", "format": "%d/%m/%Y %H:%M"}],
            "columns": [{"name": "sent", "from": "headers", "header": "sent", "format": "%Y%m%d"}],
        }
    ],
    "transforms": [{"type": "dedup", "config": {"key": "sent", "time_window": "1h", "time": "event", "time_field": "at"}}],
    "sink": {
        "type": "clickhouse",
        "connection_params": {"host": "ch", "port": 8123},
        "table": "clicks",
        "mapping": [
            {"name": "at", "column_name": "at", "column_type": "DateTime"},
            {"name": "sent", "column_name": "sent", "column_type": "Nullable(Date)"},
        ],
    },
}


def read(**field: Any) -> PipelineConfig:
    document = deepcopy(DOCUMENT)
    document["sources"][0]["schema_fields"][0] |= field
    return parse(yaml.safe_dump(document), name="clicks", environment={"NATS_URL": "nats://n:4222"})


def faults(**field: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as refused:
        read(**field)
    return [f"{fault.path}: {fault.message}" for fault in refused.value.faults]


def test_formats_reach_the_dedup_step_and_the_columns() -> None:
    program = declared_program(read())
    columns = program.tables.tables[0].columns
    assert [(column.name, column.unit) for column in columns] == [("at", "%d/%m/%Y %H:%M"), ("sent", "%Y%m%d")]
    assert program.dedup is not None
    assert program.dedup.time_unit == "%d/%m/%Y %H:%M"


def test_another_format_is_another_definition_of_the_program() -> None:
    assert declared_program(read()).version != declared_program(read(format="%m/%d/%Y %H:%M")).version


def test_a_format_is_only_for_strings() -> None:
    assert faults(type="int") == ["sources[0].schema_fields[0].format: is only for strings, and for those in arrays and objects, not int"]


def test_a_field_has_a_unit_or_a_format() -> None:
    assert faults(unit="ms") == ["sources[0].schema_fields[0].format: does not go with `unit`: a text has one of them"]


def test_a_format_that_leaves_something_open_is_refused() -> None:
    assert faults(format="%H:%M") == ["sources[0].schema_fields[0].format: has no year (%Y or %y), got '%H:%M'"]


def test_a_date_of_a_field_with_a_time_of_day_is_refused() -> None:
    document = deepcopy(DOCUMENT)
    document["sink"]["mapping"][0]["column_type"] = "Nullable(Date32)"
    with pytest.raises(ConfigurationError) as refused:
        parse(yaml.safe_dump(document), name="clicks", environment={"NATS_URL": "nats://n:4222"})
    (fault,) = refused.value.faults
    assert fault.path == "sink.mapping[0].column_type"
    assert fault.message.startswith("the format %d/%m/%Y %H:%M has a time of day, which a date does not hold")


def test_a_column_beside_the_json_has_a_format_if_it_is_text() -> None:
    document = deepcopy(DOCUMENT)
    document["sources"][0]["columns"] = [{"name": "sent", "from": "offset", "format": "%F"}]
    with pytest.raises(ConfigurationError) as refused:
        parse(yaml.safe_dump(document), name="clicks", environment={"NATS_URL": "nats://n:4222"})
    assert [fault.message for fault in refused.value.faults] == ["is only for a key or one header of type string"]
