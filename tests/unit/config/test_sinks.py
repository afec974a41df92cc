"""The sinks of a file: which sets of them load, and in which words the others are refused."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from pipelines.config import PipelineConfig, notes, parse
from pipelines.errors import ConfigurationError

SINK = {
    "type": "clickhouse",
    "connection_params": {"host": "ch", "port": 8123},
    "mapping": [{"name": "id", "column_name": "id", "column_type": "Int64"}],
}


def parsed(*sinks: dict[str, Any], transforms: Sequence[dict[str, Any]] = ()) -> PipelineConfig:
    """The config with these sinks, each with the table of its id."""
    source = {"type": "kafka", "topic": "t", "connection_params": {"brokers": ["k:9092"]}, "schema_fields": [{"name": "id", "type": "int"}]}
    several = [{**SINK, "table": one["id"], **one} for one in sinks]
    document = {"version": "v3", "pipeline_id": "orders-1", "sources": [source], "transforms": transforms, "sinks": several}
    return parse(json.dumps(document), name="test", environment={})


def faults_of(*sinks: dict[str, Any], transforms: Sequence[dict[str, Any]] = ()) -> dict[str, str]:
    with pytest.raises(ConfigurationError) as caught:
        parsed(*sinks, transforms=transforms)
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


FALLBACK = {"on_refused": {"sink": "b"}}


@pytest.mark.parametrize(
    ("sinks", "path", "message"),
    [
        ([{"id": "a", **FALLBACK}], "sinks[0].on_refused.sink", "there is no sink 'b'"),
        ([{"id": "b"}, {"id": "a", **FALLBACK}], "sinks[1].on_refused.sink", "must stand behind this one"),
        (
            [{"id": "a", **FALLBACK}, {"id": "b", "on_refused": {"sink": "c"}}, {"id": "c"}],
            "sinks[0].on_refused.sink",
            "has a fallback itself",
        ),
        ([{"id": "a", **FALLBACK}, {"id": "b", "when": "id > 1"}], "sinks[0].on_refused.sink", "could be in its table twice"),
        ([{"id": "a", **FALLBACK}, {"id": "b", "default": True}], "sinks[0].on_refused.sink", "could be in its table twice"),
        ([{"id": "a", **FALLBACK}, {"id": "c", **FALLBACK}, {"id": "b"}], "sinks[1].on_refused.sink", "is the fallback of sinks[0]"),
    ],
)
def test_a_fallback_that_cannot_be_one_is_refused(sinks: list[dict[str, Any]], path: str, message: str) -> None:
    assert message in faults_of(*sinks)[path]


def test_only_a_fallback_maps_the_reason() -> None:
    reason = {"mapping": [*SINK["mapping"], {"name": "_tf_error", "column_name": "why", "column_type": "String"}]}
    assert parsed({"id": "a", **FALLBACK}, {"id": "b", **reason}).fallbacks == {"a": "b"}
    assert "no field '_tf_error'" in faults_of({"id": "a", **FALLBACK, **reason}, {"id": "b"})["sinks[0].mapping[1].name"]


def test_a_function_does_not_go_with_a_fallback() -> None:
    function = {"type": "python", "config": {"function": "f:g", "output": [{"name": "x", "type": "int"}]}}
    found = faults_of({"id": "a", **FALLBACK}, {"id": "b"}, transforms=[function])
    assert "might answer otherwise" in found["transforms[0]"]


def test_with_a_default_no_record_can_be_left() -> None:
    left = [{"id": "a", "when": "id > 1"}, {"id": "b", "when": "id > 2"}]
    assert any("taken by no sink" in note for note in notes(parsed(*left)))
    assert not any("taken by no sink" in note for note in notes(parsed(*left, {"id": "c", "default": True})))
