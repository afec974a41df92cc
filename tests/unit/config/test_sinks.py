"""The sinks of a file: which sets of them load, and in which words the others are refused."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from pipelines.config import PipelineConfig, notes, parse, shape_of, version_of
from pipelines.config.analysis import document_of
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


DEAD_LETTERS = {"id": "d", "from": "dead_letters"}


def of_dead_letters(name: str, kind: str) -> dict[str, Any]:
    return {**DEAD_LETTERS, "mapping": [{"name": name, "column_name": "c", "column_type": kind}]}


@pytest.mark.parametrize(
    ("sinks", "path", "message"),
    [
        ([DEAD_LETTERS, {"id": "a"}], "sinks[0].from", "must stand behind a sink of records"),
        ([{"id": "a"}, {**DEAD_LETTERS, "when": "id > 1"}], "sinks[1].when", "takes every dead letter"),
        ([{"id": "a", "when": "id > 1"}, {**DEAD_LETTERS, "default": True}], "sinks[1].default", "is for records"),
        ([{"id": "a"}, {**DEAD_LETTERS, "on_refused": {"sink": "b"}}, {"id": "b"}], "sinks[1].on_refused", "halts this sink"),
        ([{"id": "a", "on_refused": {"sink": "d"}}, DEAD_LETTERS], "sinks[0].on_refused.sink", "takes dead letters and nothing else"),
        ([{"id": "a"}, of_dead_letters("id", "Int64")], "sinks[1].mapping[0].name", "there is no field 'id' here"),
        ([{"id": "a"}, of_dead_letters("code", "UUID")], "sinks[1].mapping[0].column_type", "is String and cannot become UUID"),
        ([{"id": "a"}, of_dead_letters("value", "String")], "sinks[1].mapping[0].column_type", "the column must be Nullable"),
        ([{"id": "a"}, {"id": "b", "mapping": []}], "sinks[1].mapping", "must not be empty"),
    ],
)
def test_a_sink_of_dead_letters_that_cannot_be_one_is_refused(sinks: list[dict[str, Any]], path: str, message: str) -> None:
    found = faults_of(*[{"mapping": SINK["mapping"], **one} if "from" not in one else without_mapping(one) for one in sinks])
    assert [*found] == [path], found
    assert message in found[path]


def without_mapping(sink: dict[str, Any]) -> dict[str, Any]:
    """The sink with the default mapping, unless it has one of its own: `parsed` gives every other one that of records."""
    return {"mapping": None, **sink}


def test_a_mapping_is_required_of_records_only() -> None:
    assert faults_of({"id": "a"}, {"id": "b", "mapping": None}) == {"sinks[1].mapping": "is required"}
    (_, letters) = parsed({"id": "a"}, without_mapping(DEAD_LETTERS)).by_table
    assert [(column.name, column.column_type) for column in letters.sink.mapping][:4] == [
        ("position", "String"),
        ("stage", "String"),
        ("code", "String"),
        ("field", "Nullable(String)"),
    ]
    assert {column.name for column in letters.sink.mapping} == {column.column_name for column in letters.sink.mapping}


def test_the_only_sink_takes_no_dead_letters() -> None:
    source = {"type": "kafka", "topic": "t", "connection_params": {"brokers": ["k:9092"]}, "schema_fields": [{"name": "id", "type": "int"}]}
    document = {"version": "v3", "pipeline_id": "orders-1", "sources": [source], "sink": {**SINK, "table": "t", "from": "dead_letters"}}
    with pytest.raises(ConfigurationError, match=r"sink\.from: is for `sinks`"):
        parse(json.dumps(document), name="test", environment={})


def test_records_are_mapped_and_counted_without_the_dead_letters() -> None:
    config = parsed({"id": "a"}, without_mapping(DEAD_LETTERS), {"id": "b", "when": "id > 1"})
    assert [sink.id for sink in config.record_sinks] == ["a", "b"]
    assert [str(seen.sink_leg) for seen in config.by_table] == ["sink", "sink:b", "dead_letters:d"]
    assert [seen.sink_at for seen in config.by_table] == [("sinks", 0), ("sinks", 2), ("sinks", 1)]
    assert [seen.sink.id for seen in config.by_table] == ["a", "b", "d"]
    assert shape_of(config)["sinks"] == ["a", "b"]
    assert shape_of(config)["sinks of dead letters"] == ["d"]


def test_a_file_without_dead_letters_keeps_its_version() -> None:
    alone = parsed({"id": "a"}, {"id": "b"})
    assert "from" not in json.dumps(document_of(alone))
    assert version_of(alone) != version_of(parsed({"id": "a"}, {"id": "b"}, without_mapping(DEAD_LETTERS)))
