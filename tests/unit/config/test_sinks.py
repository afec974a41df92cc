"""The sinks of a file: which sets of them load, and in which words the others are refused."""

import json
from typing import Any

import pytest

from pipelines.config import PipelineConfig, notes, parse
from pipelines.errors import ConfigurationError

SINK = {
    "type": "clickhouse",
    "connection_params": {"host": "ch", "port": 8123},
    "mapping": [{"name": "id", "column_name": "id", "column_type": "Int64"}],
}


def parsed(*sinks: dict[str, Any]) -> PipelineConfig:
    """The config with these sinks, each with the table of its id."""
    source = {"type": "kafka", "topic": "t", "connection_params": {"brokers": ["k:9092"]}, "schema_fields": [{"name": "id", "type": "int"}]}
    several = [{**SINK, "table": one["id"], **one} for one in sinks]
    document = {"version": "v3", "pipeline_id": "orders-1", "sources": [source], "sinks": several}
    return parse(json.dumps(document), name="test", environment={})


def faults_of(*sinks: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ConfigurationError) as caught:
        parsed(*sinks)
    return {fault.path: fault.message for fault in caught.value.faults}


@pytest.mark.parametrize(
    ("sinks", "path", "message"),
    [
        ([{"id": "a", "when": "id > 1", "default": True}], "sinks[0].default", "this sink has a `when`"),
        ([{"id": "a", "default": True}, {"id": "b", "default": True}], "sinks[1].default", "sinks[0] is the default already"),
        ([{"id": "a"}, {"id": "b", "default": True}], "sinks[1].default", "would take nothing: sinks[0] has no `when`"),
    ],
)
def test_a_default_that_cannot_be_one_is_refused(sinks: list[dict[str, Any]], path: str, message: str) -> None:
    found = faults_of(*sinks)
    assert [*found] == [path]
    assert message in found[path]


def test_with_a_default_no_record_can_be_left() -> None:
    left = [{"id": "a", "when": "id > 1"}, {"id": "b", "when": "id > 2"}]
    assert any("taken by no sink" in note for note in notes(parsed(*left)))
    assert not any("taken by no sink" in note for note in notes(parsed(*left, {"id": "c", "default": True})))
