"""The pipeline file: what loads, what is refused and in which words, what never shows."""

import json
import os
import sys
from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from pipelines import config as pipeline_file
from pipelines.config import (
    PipelineConfig,
    format_duration,
    load,
    notes,
    parse,
    parse_duration,
    parse_size,
    shape_of,
    unsupported,
    version_of,
)
from pipelines.config.fields import at_sink
from pipelines.config.source_ids import chosen_source, only_source, source_by_id
from pipelines.config.text import read_tree
from pipelines.errors import ConfigurationError, HaltError

CANARY = "canary-7d1f"
ORDERS = Path(__file__).parents[3] / "examples" / "orders" / "pipeline.yaml"
ORDERS_ENVIRONMENT = {"KAFKA_BOOTSTRAP": "k1:9092,k2:9092", "CLICKHOUSE_HOST": "ch", "CLICKHOUSE_PORT": "8123"}

MINIMAL: dict[str, Any] = {
    "version": "v3",
    "pipeline_id": "orders-1",
    "sources": [
        {
            "type": "kafka",
            "topic": "orders",
            "connection_params": {"brokers": ["kafka:9092"]},
            "schema_fields": [{"name": "order_id", "type": "string"}, {"name": "customer.city", "type": "string"}],
        }
    ],
    "sink": {
        "type": "clickhouse",
        "connection_params": {"host": "ch", "port": 8123},
        "table": "orders",
        "mapping": [
            {"name": "order_id", "column_name": "order_id", "column_type": "String"},
            {"name": "customer.city", "column_name": "city", "column_type": "String"},
        ],
    },
}

GLASSFLOW = """{
\t"version": "v3",
\t"pipeline_id": "clicks-to-ch",
\t"name": "Clicks",
\t"sources": [{
\t\t"type": "kafka", "source_id": "clicks", "topic": "clicks", "consumer_group_initial_offset": "earliest",
\t\t"connection_params": {
\t\t\t"brokers": ["kafka-1:9093", "kafka-2:9093"], "protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-256",
\t\t\t"username": "user", "password": "pass", "root_ca": "-----BEGIN CERTIFICATE-----\\nx\\n-----END CERTIFICATE-----\\n",
\t\t\t"skip_tls_verification": false
\t\t},
\t\t"schema_fields": [{"name": "id", "type": "string"}, {"name": "data.page", "type": "string"}, {"name": "ms", "type": "int64"}]
\t}],
\t"transforms": [
\t\t{"type": "dedup", "source_id": "clicks", "config": {"key": "id", "time_window": "12h"}},
\t\t{"type": "filter", "source_id": "clicks", "config": {"expression": "ms > 0"}},
\t\t{"type": "stateless", "source_id": "clicks", "config": {"transforms": [
\t\t\t{"expression": "id", "output_name": "id", "output_type": "string"},
\t\t\t{"expression": "split(data.page, '/')", "output_name": "path", "output_type": "[]string"}]}}
\t],
\t"join": {"enabled": false},
\t"sink": {
\t\t"type": "clickhouse",
\t\t"connection_params": {
\t\t\t"host": "clickhouse.example.com", "port": "9440", "http_port": "8443", "database": "default", "username": "default",
\t\t\t"password": "mysecret", "secure": true, "skip_certificate_verification": false
\t\t},
\t\t"table": "clicks", "max_batch_size": 1000, "max_delay_time": "1s",
\t\t"mapping": [
\t\t\t{"name": "id", "column_name": "id", "column_type": "UUID"},
\t\t\t{"name": "path", "column_name": "path", "column_type": "Array(String)"}
\t\t]
\t},
\t"metadata": {"tags": ["demo"]},
\t"resources": {
\t\t"nats": {"stream": {"max_age": "24h", "max_bytes": "25GB", "maxMsgs": 8000}},
\t\t"sources": [{"source_id": "clicks", "replicas": 2, "requests": {"cpu": "1000m", "memory": "1Gi"}}],
\t\t"transform": [{"source_id": "clicks", "replicas": 1, "storage": {"size": "10Gi"}}],
\t\t"sink": {"replicas": 1, "limits": {"cpu": "500m", "memory": "512Mi"}}
\t}
}"""


def parsed(document: dict[str, Any], **environment: str) -> pipeline_file.PipelineConfig:
    return parse(json.dumps(document), name="test", environment=environment)


def faults_of(document: dict[str, Any] | str, **environment: str) -> dict[str, str]:
    text = document if isinstance(document, str) else json.dumps(document)
    with pytest.raises(ConfigurationError) as caught:
        parse(text, name="test", environment=environment)
    found = {fault.path: fault.message for fault in caught.value.faults}
    assert len(found) == len(caught.value.faults), "a path is named twice"
    return found


def changed(path: str, value: Any, document: dict[str, Any] = MINIMAL) -> dict[str, Any]:
    """`document` with the value at `path` ("sources.0.topic") set, or removed if it is `...`."""
    result = deepcopy(document)
    *parents, last = path.split(".")
    place: Any = result
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place.setdefault(key, {})
    if value is ...:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return result


def with_transforms(*transforms: dict[str, Any]) -> dict[str, Any]:
    return changed("transforms", list(transforms))


def joined() -> dict[str, Any]:
    document = deepcopy(MINIMAL)
    right = changed("topic", "users", document["sources"][0])
    right["schema_fields"] = [{"name": "user_id", "type": "string"}, {"name": "email", "type": "string"}]
    document["sources"].append(right)
    document["join"] = {
        "enabled": True,
        "type": "temporal",
        "left_source": {"source_id": "orders", "key": "order_id", "time_window": "30s"},
        "right_source": {"source_id": "users", "key": "user_id", "time_window": "1h"},
        "output_fields": [
            {"source_id": "orders", "name": "order_id"},
            {"source_id": "users", "name": "email", "output_name": "customer.city"},
        ],
    }
    return document


DEDUP = {"type": "dedup", "config": {"key": "order_id", "time_window": "1h"}}


# What loads


def test_orders_example_loads_and_can_run() -> None:
    config = load(ORDERS, ORDERS_ENVIRONMENT)
    assert config.pipeline_id == "orders-demo"
    assert config.sources[0].connection_params.brokers == ("k1:9092", "k2:9092")
    assert config.sink.connection_params.http_port_effective == 8123
    assert config.sink.connection_params.password.get_secret_value() == ""
    assert config.sink.max_delay_time == timedelta(seconds=1)
    assert (unsupported(config), notes(config)) == ([], [])


def test_orders_example_takes_its_names_from_the_environment() -> None:
    config = load(ORDERS, {**ORDERS_ENVIRONMENT, "ORDERS_TOPIC": "o2", "ORDERS_TABLE": "t2", "ORDERS_PIPELINE": "orders-2"})
    assert (config.sources[0].topic, config.sink.table, config.pipeline_id) == ("o2", "t2", "orders-2")


def test_glassflow_file_loads_unchanged() -> None:
    config = parse(GLASSFLOW, name="clicks.json", environment={})
    assert (config.sink.connection_params.port, config.sink.connection_params.http_port_effective) == (9440, 8443)
    assert config.resources.nats.stream.max_bytes == 25_000_000_000
    assert config.sources[0].connection_params.logs_in
    assert [transform.type for transform in config.transforms] == ["dedup", "filter", "stateless"]
    assert unsupported(config) == []
    assert [note.partition(":")[0] for note in notes(config)] == [
        "sources[0].connection_params.password",
        "sink.connection_params.password",
        "resources.sources",
        "resources.transform",
        "resources.sink",
        "resources.nats.stream.maxMsgs",
        "transforms",
    ]


def test_unversioned_camel_case_files_with_a_registry_load() -> None:
    document = {name: value for name, value in MINIMAL.items() if name != "version"}
    registry = {"url": "https://user:secret@registry", "api_key": "key", "api_secret": CANARY}
    document = changed("resources.nats.stream", {"maxAge": "12h", "maxBytes": "1GiB", "maxMsgs": 5}, document)
    document = changed("sources.0.schema_registry", registry, changed("sources.0.schema_version", "3", document))
    config = parse(json.dumps(document), name="file", environment={})
    stream = config.resources.nats.stream
    assert (config.version, stream.max_age, stream.max_bytes) == ("v3", timedelta(hours=12), 2**30)
    reported = notes(config)
    assert any(note.startswith("sources[0].schema_registry: is ignored") for note in reported)
    assert any(note.startswith("sources[0].schema_version: is ignored") for note in reported)
    assert CANARY not in str(reported) + repr(config) + json.dumps(pipeline_file.document_of(config))
    assert "registry" not in json.dumps(pipeline_file.document_of(config))


def test_defaults_are_glassflows() -> None:
    config = parsed(MINIMAL)
    assert (config.sink.max_batch_size, config.sink.max_delay_time) == (1000, timedelta(seconds=60))
    assert config.sources[0].consumer_group_initial_offset == "latest"
    assert config.resources.nats.stream.max_age == timedelta(hours=24)
    assert config.sources[0].source_id == "orders"
    assert config.consumer_group(config.sources[0]) == "tallyflow-orders-1"
    assert (config.buckets, config.on_error.rejected, config.sink.delivery) == (2, "dead_letter", "exactly_once")


def test_a_first_start_begins_at_one_place() -> None:
    both = changed("sources.0.start_group", "old", changed("sources.0.start_offsets", {"0": 7}))
    assert "does not go with start_offsets" in faults_of(both)["sources[0].start_group"]


def test_null_is_absent() -> None:
    document = MINIMAL | {"join": None, "transforms": None, "nats": None}
    assert parsed(document) == parsed(MINIMAL)


def test_sources_are_found_by_id_and_by_their_leg() -> None:
    config = parsed(joined())
    assert source_by_id(config, "users").topic == "users"
    assert config.topology.sources == {"ingest": "orders", "ingest:users": "users"}
    with pytest.raises(HaltError, match="its file has no source 'clicks', from which it holds records; restore this source_id"):
        source_by_id(config, "clicks")


def test_what_needs_one_source_asks_for_its_id() -> None:
    with pytest.raises(ConfigurationError, match="sources: it has several sources, so one must be named: orders, users"):
        only_source(parsed(joined()))
    assert chosen_source(parsed(joined()), "users").topic == "users"
    with pytest.raises(ConfigurationError, match="sources: it has no source 'user': orders, users"):
        chosen_source(parsed(joined()), "user")
    assert only_source(parsed(MINIMAL)).source_id == "orders"


def test_the_shape_says_what_the_stores_of_a_join_hold() -> None:
    config = parsed(joined())
    assert unsupported(config) == []
    assert shape_of(config)["sources"]["users"] == {
        "topic": "users",
        "dedup_key": None,
        "join_key": ["user_id"],
        "join_key_fields": [{"type": "string"}],
        "join_window": "1h",
        "join_fields": {"customer.city": {"field": "email", "type": "string"}},
    }


def test_keys_of_a_join_that_are_never_equal_are_a_fault() -> None:
    document = joined()
    document["sources"][1]["schema_fields"][0]["type"] = "int"
    assert faults_of(document) == {
        "join.right_source.key": "'order_id' of the left source is string and 'user_id' is int: such keys are never equal"
    }
    document["sources"][0]["schema_fields"][0]["type"] = "uint8"
    # Both are integers.
    assert unsupported(parsed(document)) == []


def test_columns_that_an_unmatched_record_cannot_fill_are_told() -> None:
    document = joined()
    told = "sink.mapping[1].column_type: is not Nullable: unless the table gives it a DEFAULT"
    assert not any(note.startswith(told) for note in notes(parsed(document)))
    document["join"]["unmatched"] = "emit"
    assert any(note.startswith(told) for note in notes(parsed(document)))
    document["sink"]["mapping"][1]["column_type"] = "Nullable(String)"
    assert not any(note.startswith(told) for note in notes(parsed(document)))


def test_what_a_join_does_not_take_yet_is_refused_with_its_path() -> None:
    document = joined() | {"transforms": [{**DEDUP, "source_id": "orders"}]}
    assert unsupported(parsed(document)) == []
    kept = {**DEDUP, "source_id": "orders", "config": {**DEDUP["config"], "keep_duplicates": True}}
    assert unsupported(parsed(document | {"transforms": [kept]})) == ["transforms[0]: keep_duplicates before a join is not supported yet"]
    timed = {**kept, "config": {**DEDUP["config"], "time": "event", "time_field": "order_id"}}
    assert unsupported(parsed(document | {"transforms": [timed]})) == [
        "transforms[0]: a dedup by event time before a join is not supported yet; without time_field it compares arrivals"
    ]


def test_a_join_by_event_time_needs_a_time_field_on_both_sides() -> None:
    document = joined()
    document["join"] |= {"time": "event", "allowed_lateness": "5m", "max_ahead": "1h", "idle_after": "1m"}
    needed = {f"join.{side}.time_field": "is required with 'time: event'" for side in ("left_source", "right_source")}
    assert faults_of(document) == needed
    for side in ("left_source", "right_source"):
        document["join"][side]["time_field"] = "at"
    assert {path.rpartition(".")[2] for path in faults_of(document)} == {"time_field"}
    document["join"]["time"] = "arrival"
    told = "is only for 'time: event'"
    paths = ("left_source.time_field", "right_source.time_field", "allowed_lateness", "max_ahead", "idle_after")
    assert faults_of(document) == {f"join.{path}": told for path in paths}


def test_the_window_of_a_dedup_before_a_join_is_fixed() -> None:
    document = joined() | {"transforms": [{**DEDUP, "source_id": "orders"}]}
    longer = {**DEDUP, "source_id": "orders", "config": {**DEDUP["config"], "time_window": "999h"}}
    assert shape_of(parsed(document)) != shape_of(parsed(document | {"transforms": [longer]}))
    assert shape_of(parsed(with_transforms(DEDUP))) == shape_of(parsed(with_transforms({**DEDUP, "config": longer["config"]})))


def test_filter_and_stateless_after_a_join_see_its_fields() -> None:
    stateless = {
        "type": "stateless",
        "config": {"transforms": [{"expression": "order_id", "output_name": "total", "output_type": "string"}]},
    }
    document = joined() | {"transforms": [{"type": "filter", "config": {"expression": "order_id = '1'"}}, stateless]}
    assert faults_of(document).keys() == {"sink.mapping[0].name", "sink.mapping[1].name"}
    document["sink"]["mapping"] = [{"name": "total", "column_name": "total", "column_type": "String"}]
    assert at_sink(parsed(document)) == {"total": "string"}


def test_columns_of_the_kafka_record_are_fields() -> None:
    columns = [{"name": "key", "from": "key"}, {"name": "at", "from": "timestamp"}, {"name": "trace", "from": "headers", "header": "t"}]
    document = changed("sources.0.columns", [*columns, {"name": "all", "from": "headers"}, {"name": "raw", "from": "key", "type": "bytes"}])
    config = parsed(changed("sink.mapping.1.name", "at", document))
    assert [column.type for column in config.sources[0].columns] == ["string", "timestamp", "string", "map", "bytes"]
    assert unsupported(config) == []


def keyed_by_header(**changes: Any) -> PipelineConfig:
    document = with_transforms(changed("config.key", "trace", DEDUP))
    column = {"name": "trace", "from": "headers", "header": "t"} | changes
    return parsed(changed("sources.0.columns", [{name: value for name, value in column.items() if value}], document))


def test_the_shape_says_from_what_a_key_of_dedup_is_read() -> None:
    found = shape_of(keyed_by_header())["sources"]["orders"]
    assert found["dedup_key_fields"] == [{"from": "headers", "header": "t", "type": "string"}]
    others: list[dict[str, Any]] = [{"header": "u"}, {"type": "bytes"}, {"from": "key", "header": None}, {"header": None}]
    shapes = [found, *(shape_of(keyed_by_header(**other))["sources"]["orders"] for other in others)]
    assert all(one != other for number, one in enumerate(shapes) for other in shapes[:number])


def test_key_of_several_fields() -> None:
    config = parsed(with_transforms(changed("config.key", ["order_id", "customer.city"], DEDUP)))
    assert shape_of(config) == {
        "buckets": 2,
        "sources": {
            "orders": {
                "topic": "orders",
                "dedup_key": ["order_id", "customer.city"],
                "join_key": None,
                "dedup_key_fields": [{"type": "string"}, {"type": "string"}],
                "dedup_time": "arrival",
            }
        },
    }


def by_event(field_type: str = "int", **options: Any) -> PipelineConfig:
    timed = changed("config", DEDUP["config"] | {"time": "event", "time_field": "at"} | options, DEDUP)
    document = with_transforms(timed)
    document["sources"][0]["schema_fields"].append({"name": "at", "type": field_type})
    return parsed(document)


def test_the_shape_of_dedup_is_what_its_remembered_keys_mean() -> None:
    """A store of keys of other hashes, or of times of another clock, would forget what it has accepted."""
    plain = parsed(with_transforms(DEDUP))
    retyped = with_transforms(DEDUP)
    next(field for field in retyped["sources"][0]["schema_fields"] if field["name"] == "order_id")["type"] = "int64"
    shapes = [
        shape_of(config)
        for config in (
            plain,
            parsed(retyped),
            by_event(),
            by_event("string"),
            by_event(allowed_lateness="5s"),
            by_event(time_field="order_id"),
        )
    ]
    assert all(one != other for number, one in enumerate(shapes) for other in shapes[:number])
    for same in ({"time_window": "2h"}, {"keep_duplicates": True}, {"allowed_lateness": "0s"}):
        assert shape_of(by_event(**same)) == shapes[2]


def test_config_is_frozen() -> None:
    config = parsed(MINIMAL)
    with pytest.raises(ValueError, match="frozen"):
        config.sink.table = "other"  # type: ignore[misc]


# References to the environment and files


def test_numbers_and_flags_from_the_environment() -> None:
    document = changed("sink.connection_params", {"host": "${H}", "port": "${P}", "secure": "${S:-true}"})
    connection = parsed(changed("sink.max_batch_size", "${N}", document), H="ch", P="8443", N="50").sink.connection_params
    assert (connection.host, connection.port, connection.secure) == ("ch", 8443, True)


@pytest.mark.parametrize(
    ("text", "environment", "name"),
    [
        ("${X}", {"X": "a"}, "a"),
        ("pre-${X}-${Y}", {"X": "a", "Y": "b"}, "pre-a-b"),
        ("${X:-b}", {}, "b"),
        ("${X:-b}", {"X": ""}, "b"),
        ("${X:-}", {}, ""),
        ("${X}", {"X": ""}, ""),
        ("$${X}", {"X": "a"}, "${X}"),
        ("$X", {"X": "a"}, "$X"),
        ("${X}", {"X": "${Y}", "Y": "b"}, "${Y}"),
        ("${X}", {"X": "a\nbuckets: 4\n"}, "a\nbuckets: 4\n"),
    ],
)
def test_interpolation(text: str, environment: dict[str, str], name: str) -> None:
    config = parsed(changed("name", text), **environment)
    assert (config.name, config.buckets) == (name, 2)


def test_missing_variable_is_one_fault_at_its_path() -> None:
    document = changed("sink.connection_params.port", "${NO_PORT}", changed("sources.0.source_id", "${NO_ID}", with_transforms(DEDUP)))
    assert faults_of(document) == {
        "sources[0].source_id": "the environment variable NO_ID is not set",
        "sink.connection_params.port": "the environment variable NO_PORT is not set",
    }


def test_malformed_reference_is_a_fault() -> None:
    assert "${NAME:-default}" in faults_of(changed("name", "${not a name}"))["name"]


def test_secret_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{CANARY}\n")
    config = parsed(changed("sink.connection_params.password", {"file": "${DIR}/secret"}), DIR=str(tmp_path))
    assert config.sink.connection_params.password.get_secret_value() == CANARY
    assert not any("written into the file" in note for note in notes(config))


def test_unreadable_secret_file_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    document = changed("sink.connection_params.password", {"file": str(tmp_path / "gone")})
    document = changed("sources.0.connection_params.password", {"file": str(tmp_path / "binary")}, document)
    found = faults_of(document)
    assert "No such file" in found["sink.connection_params.password"]
    assert "is not UTF-8 text" in found["sources[0].connection_params.password"]


@pytest.mark.parametrize(
    "uri", ["", "file:///var/lib/keys", "s3://bucket/keys?region=eu-west-1", "abfss://container@account.dfs.core.windows.net/keys"]
)
def test_key_stores_may_lie_in_any_of_pyarrows_file_systems(uri: str) -> None:
    assert parsed(changed("state_uri", uri)).state_uri == uri


def test_a_secret_file_that_is_no_file_is_a_fault_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * 1_000_001)
    for path, message in (
        ("/dev/zero", "is not a regular file"),
        (tmp_path / "pipe", "is not a regular file"),
        (tmp_path / "large", "more than"),
    ):
        found = faults_of(changed("sink.connection_params.password", {"file": str(path)}))
        assert message in found["sink.connection_params.password"]


def test_a_variable_that_is_no_text_is_a_fault() -> None:
    assert faults_of(changed("name", "${A}"), A="a\udc80") == {"name": "the environment variable A is not UTF-8 text"}


def test_nats_url_of_the_file_wins_over_the_environment() -> None:
    assert parsed(MINIMAL).nats.servers == ("nats://127.0.0.1:4222",)
    assert parsed(MINIMAL, NATS_URL="nats://n:4222").nats.servers == ("nats://n:4222",)
    assert parsed(changed("nats.url", "nats://f:4222"), NATS_URL="nats://n:4222").nats.servers == ("nats://f:4222",)


def test_login_in_a_nats_url_becomes_a_secret() -> None:
    nats = parsed(MINIMAL, NATS_URL=f"nats://u:{CANARY}@a:4222,nats://u:{CANARY}@b:4222").nats
    assert (nats.servers, nats.username) == (("nats://a:4222", "nats://b:4222"), "u")
    assert nats.password == SecretStr(CANARY)


# Syntax


def test_repeated_keys_are_faults_with_their_lines() -> None:
    text = ORDERS.read_text().replace("  table: ", "  max_delay_time: 5s\n  table: ")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "max_delay_time" in line]
    found = faults_of(text, **ORDERS_ENVIRONMENT)
    assert found == {"sink.max_delay_time": f"is given twice, in line {lines[0]} and line {lines[1]}"}


def test_repeated_key_in_json_is_a_fault() -> None:
    assert faults_of(GLASSFLOW.replace('"name": "Clicks"', '"name": "Clicks",\n"name": "Again"'))["name"].startswith("is given twice")


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just text", "[1, 2]"])
def test_a_file_without_fields_is_a_fault(text: str) -> None:
    assert "must be an object" in faults_of(text)[""]


def test_syntax_fault_names_the_line_and_not_the_text() -> None:
    message = faults_of(f"version: v3\npassword: '{CANARY}\nname: x")[""]
    assert message.startswith("line ")
    assert CANARY not in message
    for text in (f"password: *{CANARY}", f"password: !{CANARY} x", f"password: !!{CANARY}", f"password: '{CANARY}", f"password: %{CANARY}"):
        assert CANARY not in str(faults_of(text))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("!!python/object/apply:os.getcwd []", "line 1, column 7: has a tag"),
        ("!!timestamp x", "line 1, column 7: has a tag"),
        ("!!binary x", "line 1, column 7: has a tag"),
        ("!!set {a}", "line 1, column 7: has a tag"),
        ("!mine {a: 1}", "line 1, column 7: has a tag"),
        ("!!bool x", "line 1, column 7: is not a valid bool"),
        ("!!int x", "line 1, column 7: is not a valid int"),
        ("!!float x", "line 1, column 7: is not a valid float"),
        ("!!int ''", "line 1, column 7: is not a valid int"),
        (f"!!int {'9' * 5000}", "line 1, column 7: is not a valid int"),
        ("{<<: x}", None),
        ("*a", "line 1, column 7: starts with *"),
    ],
)
def test_an_odd_value_of_yaml_is_a_fault_at_its_path(value: str, message: str | None) -> None:
    found = faults_of(f"name: {value}")
    if message is None:
        assert "a merge key takes an object" in found["name.<<"]
    else:
        assert message in found["name"]


def test_half_of_a_surrogate_pair_is_no_text_and_a_pair_is() -> None:
    assert "half of a surrogate pair" in faults_of('{"name": "\\ud800"}')["name"]
    assert parse(json.dumps({**MINIMAL, "name": "\U0001f600"}), name="f", environment={}).name == "\U0001f600"


def test_what_looks_like_a_date_is_text() -> None:
    assert parse(json.dumps(MINIMAL)[:-1] + ', "name": "x"}', name="f", environment={}).name == "x"
    assert read_tree("a: 2026-01-31\nb: 2026-13-45\nc: =\n", "f") == ({"a": "2026-01-31", "b": "2026-13-45", "c": "="}, [])


def test_merge_keys_and_aliases_stand_for_what_they_name() -> None:
    text = "base: &b {x: 1, y: 2}\nmore: &m {y: 3, z: 4}\none: {<<: [*b, *m], x: 0}\ntwo: {<<: *m}\nthree: *b\n"
    assert read_tree(text, "f") == (yaml.safe_load(text), [])


def test_endless_and_huge_trees_are_refused() -> None:
    assert "is an alias of what holds it" in faults_of("name: &a [*a]")["name[0]"]
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdef", "bcdefg", strict=True)
    )
    assert any("more than 50,000 values" in message for message in faults_of(bomb).values())


def test_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load(tmp_path / "gone.yaml", {})
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xff")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        load(tmp_path / "binary.yaml", {})


# Faults of single values


@pytest.mark.parametrize(
    ("path", "value", "at", "message"),
    [
        ("version", "v2", "version", "must be v3"),
        ("pipeline_id", "abc", "pipeline_id", "must be 5 to 40"),
        ("pipeline_id", "-orders", "pipeline_id", "must be 5 to 40"),
        ("pipeline_id", "Orders-1", "pipeline_id", "must be 5 to 40"),
        ("pipeline_id", "orders-1\n", "pipeline_id", "must be 5 to 40"),
        ("pipeline_id", "o" * 41, "pipeline_id", "must be 5 to 40"),
        ("pipeline_id", 12345, "pipeline_id", "must be text: put it in quotes, got 12345"),
        ("sources", [], "sources", "must not be empty"),
        ("sources", {}, "sources", "must be a list"),
        ("sources.0", "kafka", "sources[0]", "must be an object"),
        ("sources.0.type", "kafak", "sources[0].type", "must be kafka (did you mean kafka?), got 'kafak'"),
        ("sources.0.type", "otlp.logs", "sources[0].type", "otlp.logs is not supported"),
        ("sources.0.format", "avro", "sources[0].format", "avro is not supported"),
        ("sources.0.schema_registry", {"uri": "x"}, "sources[0].schema_registry.uri", "did you mean 'url'?"),
        (
            "resources.nats.stream",
            {"maxAge": "1h", "max_age": "1h"},
            "resources.nats.stream.maxAge",
            "is the same field as max_age, which is also given",
        ),
        ("sources.0.schema", {}, "sources[0].schema", "Avro and Protobuf schemas are not supported"),
        ("sources.0.topic", "a b", "sources[0].topic", "must be a Kafka topic name"),
        ("sources.0.topic", "..", "sources[0].topic", "must be a Kafka topic name"),
        ("sources.0.consumer_group_initial_offset", "first", "sources[0].consumer_group_initial_offset", "must be one of earliest, latest"),
        ("sources.0.start_offsets", {"first": 1}, "sources[0].start_offsets.first", "must be the number of a partition"),
        ("sources.0.start_offsets", {"0": -1}, "sources[0].start_offsets.0", "must be at least 0"),
        ("sources.0.on_data_loss", "ignore", "sources[0].on_data_loss", "must be one of halt, skip"),
        ("sources.0.connection_params.brokers", [], "sources[0].connection_params.brokers", "must not be empty"),
        ("sources.0.connection_params.brokers", "k:9092", "sources[0].connection_params.brokers", "must be a list"),
        ("sources.0.connection_params.brokers", ["a:1,kafka"], "sources[0].connection_params.brokers[1]", "must be host:port, got 'kafka'"),
        ("sources.0.connection_params.brokers", ["a:70000"], "sources[0].connection_params.brokers[0]", "must be host:port"),
        ("sources.0.connection_params.protocol", "TLS", "sources[0].connection_params.protocol", "must be one of PLAINTEXT"),
        ("sources.0.connection_params.mechanism", "SCRAM-SHA256", "sources[0].connection_params.mechanism", "did you mean SCRAM-SHA-256?"),
        ("sources.0.connection_params.skip_auth", "maybe", "sources[0].connection_params.skip_auth", "must be true or false"),
        ("sources.0.schema_fields", [], "sources[0].schema_fields", "must not be empty"),
        ("sources.0.schema_fields.0.type", "datetime", "sources[0].schema_fields[0].type", "string if it is ISO 8601"),
        ("sources.0.schema_fields.1.name", "customer..city", "sources[0].schema_fields[1].name", "must be a field name"),
        ("sources.0.schema_fields.1.name", "order_id", "sources[0].schema_fields[1].name", "is used twice"),
        ("sources.0.columns", [{"name": "order_id", "from": "key"}], "sources[0].columns[0].name", "is used twice"),
        ("lanes", 17, "lanes", "must be at most 16, got 17"),
        ("lanes", 3, "lanes", "3 lanes need as many buckets at least, the file has 2: each lane works on some of them"),
        ("sources.0.columns", [{"name": "_tf_x", "from": "key"}], "sources[0].columns[0].name", "reserved"),
        ("sources.0.columns", [{"name": "k", "from": "kye"}], "sources[0].columns[0].from", "did you mean key?"),
        ("sources.0.columns", [{"name": "k", "from": "key", "header": "h"}], "sources[0].columns[0].header", "only for 'from: headers'"),
        ("sources.0.columns", [{"name": "k", "from": "offset", "type": "string"}], "sources[0].columns[0].type", "offset is int64"),
        ("sources.0.columns", [{"name": "k", "from": "arrival", "type": "int64"}], "sources[0].columns[0].type", "arrival is timestamp"),
        ("sources.0.columns", [{"name": "k", "from": "key", "unit": "min"}], "sources[0].columns[0].unit", "must be"),
        ("sources.0.columns", [{"name": "k", "from": "key", "type": "bytes", "unit": "s"}], "sources[0].columns[0].unit", "only for a key"),
        ("sources.0.columns", [{"name": "k", "from": "timestamp", "unit": "ms"}], "sources[0].columns[0].unit", "only for a key or one"),
        ("sources.0.columns", [{"name": "k", "from": "headers", "unit": "ms"}], "sources[0].columns[0].unit", "only for a key or one"),
        ("sources.0.columns", [{"name": "k", "from": "value", "type": "map"}], "sources[0].columns[0].type", "value is string or bytes"),
        ("sink.type", "postgres", "sink.type", "must be clickhouse"),
        ("sink.connection_params.host", "http://ch", "sink.connection_params.host", "without scheme"),
        ("sink.connection_params.port", "http", "sink.connection_params.port", "must be a whole number, got 'http'"),
        ("sink.connection_params.port", 0, "sink.connection_params.port", "must be at least 1"),
        ("sink.connection_params.port", 65536, "sink.connection_params.port", "must be at most 65535"),
        ("sink.connection_params.port", ..., "sink.connection_params.port", "is required"),
        ("sink.connection_params.database", "a-b", "sink.connection_params.database", "must be letters"),
        ("sink.connection_params.password", 5, "sink.connection_params.password", "must be text"),
        ("sink.table", "db.orders", "sink.table", "must be letters"),
        ("sink.table", "t`; DROP", "sink.table", "must be letters"),
        ("sink.max_batch_size", 0, "sink.max_batch_size", "must be more than 0, got 0"),
        ("sink.max_batch_size", True, "sink.max_batch_size", "must be a whole number"),
        ("sink.max_batch_size", 1.5, "sink.max_batch_size", "must be a whole number"),
        ("sink.max_delay_time", 60, "sink.max_delay_time", "with its unit"),
        ("sink.max_delay_time", "60", "sink.max_delay_time", "must be a duration"),
        ("sink.max_delay_time", "0s", "sink.max_delay_time", "longer than zero"),
        ("sink.mapping", [], "sink.mapping", "must not be empty"),
        ("sink.mapping.1.column_name", "order_id", "sink.mapping[1].column_name", "mapped twice"),
        ("sink.ledger_table", "a; DROP TABLE b", "sink.ledger_table", "must be letters"),
        ("sink.ledger_table", "orders", "sink.ledger_table", "name another table for the ledger"),
        ("sink.max_insert_time", "0.5s", "sink.max_insert_time", "between 1s and 10m"),
        ("sink.max_insert_time", "11m", "sink.max_insert_time", "between 1s and 10m"),
        ("sink.max_outage", "0s", "sink.max_outage", "longer than zero"),
        ("sink.mapping.1.column_name", "_tf_x", "sink.mapping[1].column_name", "reserved"),
        ("sink.mapping.1.column_name", "a b", "sink.mapping[1].column_name", "must be letters"),
        ("sink.mapping.1.column_type", "Strng", "sink.mapping[1].column_type", "Strng"),
        ("sink.mapping.1.name", "customer.ctiy", "sink.mapping[1].name", "did you mean 'customer.city'?"),
        ("sink.order_by", ["nope"], "sink.order_by[0]", "not in the mapping"),
        ("sink.order_by", ["city", "city"], "sink.order_by[1]", "named twice"),
        ("sink.delivery", "once", "sink.delivery", "must be one of exactly_once, at_least_once"),
        ("resources.nats.stream.max_age", "0s", "resources.nats.stream.max_age", "longer than zero"),
        ("resources.nats.stream.max_bytes", "ten", "resources.nats.stream.max_bytes", "must be a size"),
        ("resources.nats.stream.max_bytes", -1, "resources.nats.stream.max_bytes", "must be at least 0"),
        (
            "resources.nats.stream.max_bytes",
            "2MiB",
            "resources.nats.stream.max_bytes",
            "at least 7110656 bytes for a topic of one partition",
        ),
        ("resources.nats.stream.max_bytes", 7_110_655, "resources.nats.stream.max_bytes", "dead letters could never be redriven"),
        ("metadata.tags", "demo", "metadata.tags", "must be a list"),
        ("buckets", 0, "buckets", "must be at least 1"),
        ("buckets", True, "buckets", "must be a whole number"),
        ("on_error", "ignore", "on_error", "must be one of dead_letter, halt"),
        ("nats.url", "http://n:4222", "nats.url", "must be nats://host:port"),
        ("nats.url", f"nats://u:{CANARY}@a:4222,nats://b:4222", "nats.url", "give the credentials once"),
        ("nats.username", "u", "nats.password", "go together"),
        ("state_uri", "ftp://host/keys", "state_uri", "must be file:///path, or a URI of s3, gs"),
        ("state_uri", "/var/lib/keys", "state_uri", "must be file:///path"),
        ("state_uri", "file://var/lib/keys", "state_uri", "must be file:///path"),
        ("state_uri", "s3://bucket", "state_uri", "with a path"),
        ("state_uri", f"s3://key:{CANARY}@bucket/keys", "state_uri", "must not hold credentials"),
        ("nats", {"token": "t", "credentials_file": "c"}, "nats.token", "choose one way"),
        ("nats.tls.cert_file", "c", "nats.tls.key_file", "is required with cert_file"),
        ("sources.0.connection_params.client_cert", "c", "sources[0].connection_params.client_key", "is required with client_cert"),
        ("join.enabled", True, "join.enabled", "a join needs two sources"),
    ],
)
def test_faulty_value_is_refused_in_plain_words(path: str, value: Any, at: str, message: str) -> None:
    found = faults_of(changed(path, value))
    assert at in found, found
    assert message in found[at]


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("sorces", "sources"),
        ("sources.0.consumer_group_inital_offset", "consumer_group_initial_offset"),
        ("sources.0.connection_params.user_name", "username"),
        ("sources.0.schema_fields.0.nmae", "name"),
        ("sink.max_batch_sise", "max_batch_size"),
        ("sink.connection_params.passwort", "password"),
        ("sink.mapping.0.colum_name", "column_name"),
        ("resources.nats.stream.maxage", "max_age"),
        ("join.output_field", "output_fields"),
    ],
)
def test_unknown_field_is_refused_with_the_nearest_name(path: str, near: str) -> None:
    found = faults_of(changed(path, CANARY))
    assert [message for message in found.values() if f"unknown field; did you mean '{near}'?" in message]
    assert CANARY not in str(found)


# Logging in


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        ({"protocol": "SASL_SSL"}, {"mechanism"}),
        ({"protocol": "SASL_SSL", "mechanism": "PLAIN", "skip_auth": True}, {"mechanism"}),
        ({"protocol": "SASL_SSL", "mechanism": "PLAIN"}, {"username", "password"}),
        ({"protocol": "SASL_PLAINTEXT", "mechanism": "SCRAM-SHA-512", "username": "u", "password": ""}, {"password"}),
        ({"protocol": "SASL_SSL", "mechanism": "GSSAPI", "username": "u"}, {"kerberos_service_name", "kerberos_keytab"}),
        (
            {"protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", "oauth_client_id": "c"},
            {"oauth_token_endpoint_url", "oauth_client_secret"},
        ),
        ({"protocol": "PLAINTEXT", "client_cert": "c", "client_key": "k"}, {"client_cert"}),
        ({"protocol": "SSL", "client_key": "k"}, {"client_cert"}),
    ],
)
def test_login_that_cannot_work_is_refused(connection: dict[str, Any], expected: set[str]) -> None:
    found = faults_of(changed("sources.0.connection_params", {"brokers": ["k:1"], **connection}))
    assert found.keys() == {f"sources[0].connection_params.{name}" for name in expected}


@pytest.mark.parametrize(
    "connection",
    [
        {"protocol": "PLAINTEXT", "mechanism": "NO_AUTH"},
        {"protocol": "SSL", "mechanism": "PLAIN", "skip_tls_verification": True},
        {"protocol": "SSL", "client_cert": "c.pem", "client_key": "k.pem", "root_ca": "ca.pem"},
        {"protocol": "SASL_PLAINTEXT", "mechanism": "SCRAM-SHA-256", "username": "u", "password": "p"},
        {"protocol": "SASL_SSL", "mechanism": "GSSAPI", "username": "u@R", "kerberos_service_name": "kafka", "kerberos_keytab": "QQ=="},
        {
            "protocol": "SASL_SSL",
            "mechanism": "OAUTHBEARER",
            "oauth_token_endpoint_url": "https://idp/token",
            "oauth_client_id": "c",
            "oauth_client_secret": "s",
        },
        {"brokers": ["[::1]:9092", "10.0.0.1:9092"]},
    ],
)
def test_login_that_can_work_loads(connection: dict[str, Any]) -> None:
    (source,) = parsed(changed("sources.0.connection_params", {"brokers": ["k:1"], **connection})).sources
    assert source.connection_params.model_fields_set == {"brokers", *connection}


# Transforms and join


@pytest.mark.parametrize(
    ("transform", "at", "message"),
    [
        ({"config": {}}, "transforms[0].type", "is required"),
        (
            {"type": "dedupe", "config": {}},
            "transforms[0].type",
            "dedup, compute, filter, lookup, pyspark, python, stateless (did you mean",
        ),
        ({"type": "dedup"}, "transforms[0].config", "is required"),
        (changed("source_id", "oders", DEDUP), "transforms[0].source_id", "did you mean 'orders'?"),
        (changed("config.key", "order", DEDUP), "transforms[0].config.key", "did you mean 'order_id'?"),
        (changed("config.key", ["order_id", "order_id"], DEDUP), "transforms[0].config.key", "names a field twice"),
        (changed("config.key", [], DEDUP), "transforms[0].config.key", "must not be empty"),
        (changed("config.time_window", "1 h", DEDUP), "transforms[0].config.time_window", "must be a duration"),
        (changed("config.time_window", ..., DEDUP), "transforms[0].config.time_window", "is required"),
        (changed("config.time", "event", DEDUP), "transforms[0].config.time_field", "is required with 'time: event'"),
        (changed("config.time_field", "order_id", DEDUP), "transforms[0].config.time_field", "only for 'time: event'"),
        (changed("config.allowed_lateness", "1s", DEDUP), "transforms[0].config.allowed_lateness", "only for 'time: event'"),
        (
            {"type": "dedup", "config": {"key": "order_id", "time_window": "1h", "time": "event", "time_field": "at"}},
            "transforms[0].config.time_field",
            "there is no field 'at'",
        ),
        ({"type": "filter", "config": {"expression": ""}}, "transforms[0].config.expression", "must not be empty"),
        ({"type": "stateless", "config": {"transforms": []}}, "transforms[0].config.transforms", "must not be empty"),
        (
            {"type": "stateless", "config": {"transforms": [{"expression": "a", "output_name": "a", "output_type": "txt"}]}},
            "transforms[0].config.transforms[0].output_type",
            "must be one of string",
        ),
        (
            {"type": "stateless", "config": {"transforms": [{"expression": "a", "output_name": "a", "output_type": "int"}] * 2}},
            "transforms[0].config.transforms[1].output_name",
            "is given twice",
        ),
    ],
)
def test_misshapen_transform_is_refused(transform: dict[str, Any], at: str, message: str) -> None:
    found = faults_of(with_transforms(transform))
    assert message in found[at]


def test_a_source_has_at_most_one_dedup() -> None:
    assert "at most one dedup" in faults_of(with_transforms(DEDUP, changed("source_id", "orders", DEDUP)))["transforms[1]"]


def test_a_stateless_transform_replaces_the_fields() -> None:
    output = {"expression": "order_id", "output_name": "order_id", "output_type": "string"}
    found = faults_of(with_transforms({"type": "stateless", "config": {"transforms": [output]}}))
    assert found.keys() == {"sink.mapping[1].name"}


@pytest.mark.parametrize(
    ("path", "value", "at", "message"),
    [
        ("join.left_source", ..., "join.left_source", "is required"),
        ("join.output_fields", [], "join.output_fields", "is required"),
        ("join.type", "window", "join.type", "must be temporal"),
        ("join.left_source.source_id", "order", "join.left_source.source_id", "did you mean 'orders'?"),
        ("join.right_source.source_id", "orders", "join.right_source.source_id", "another source"),
        ("join.right_source.key", "userid", "join.right_source.key", "did you mean 'user_id'?"),
        ("join.right_source.key", ["user_id", "email"], "join.right_source.key", "as many fields"),
        ("join.right_source.time_window", "0s", "join.right_source.time_window", "longer than zero"),
        ("join.output_fields.0.name", "oder_id", "join.output_fields[0].name", "did you mean 'order_id'?"),
        ("join.output_fields.0.source_id", "x", "join.output_fields[0].source_id", "there is no source 'x'"),
        ("join.output_fields.1.output_name", "order_id", "join.output_fields[1]", "is given twice"),
        ("join.unmatched", "keep", "join.unmatched", "must be one of drop, emit, dead_letter"),
        ("sources.1.topic", "orders", "sources[1].source_id", "is used twice"),
        ("transforms", [DEDUP], "transforms[0].source_id", "is required with a join"),
        ("sink.mapping.0.name", "user_id", "sink.mapping[0].name", "there is no field 'user_id'"),
    ],
)
def test_misshapen_join_is_refused(path: str, value: Any, at: str, message: str) -> None:
    found = faults_of(changed(path, value, joined()))
    assert at in found, found
    assert message in found[at]


def test_a_join_of_three_sources_is_refused() -> None:
    document = joined()
    document["sources"].append(changed("topic", "third", document["sources"][0]))
    assert faults_of(document)["join.enabled"] == "a join needs two sources, the file has 3"


# All at once


def test_faults_of_all_sections_and_rules_come_together() -> None:
    document = with_transforms(changed("config.key", "nope", DEDUP), {"type": "filter", "config": {}})
    for path, value in (
        ("pipeline_id", "x"),
        ("bucket", 4),
        ("sources.0.connection_params.brokers", ["${NO_BROKERS}"]),
        ("sources.0.connection_params.protocol", "SASL_SSL"),
        ("sink.connection_params.port", "abc"),
        ("sink.max_batch_size", 0),
        ("sink.mapping.0.name", "nope"),
        ("sink.mapping.1.column_type", "Strng"),
        ("sink.mapping.1.column_name", "order_id"),
    ):
        document = changed(path, value, document)
    assert faults_of(document).keys() == {
        "pipeline_id",
        "bucket",
        "sources[0].connection_params.brokers[0]",
        "sources[0].connection_params.mechanism",
        "transforms[0].config.key",
        "transforms[1].config.expression",
        "sink.connection_params.port",
        "sink.max_batch_size",
        "sink.mapping[0].name",
        "sink.mapping[1].column_type",
        "sink.mapping[1].column_name",
    }


def test_a_faulty_part_makes_no_faults_elsewhere() -> None:
    assert faults_of(changed("sources.0.schema_fields.0.name", 5)).keys() == {"sources[0].schema_fields[0].name"}
    assert faults_of(changed("sources.0.topic", "a b", with_transforms(DEDUP))).keys() == {"sources[0].topic"}


# Secrets


SECRET_PATHS = (
    "sources.0.connection_params.password",
    "sources.0.connection_params.kerberos_keytab",
    "sources.0.connection_params.client_key",
    "sources.0.connection_params.oauth_client_secret",
    "sink.connection_params.password",
    "nats.token",
)


@pytest.mark.parametrize(
    "show", [repr, str, lambda c: c.model_dump_json(), lambda c: str(c.model_dump()), lambda c: str(pipeline_file.document_of(c))]
)
def test_secrets_never_show(show: Callable[[pipeline_file.PipelineConfig], str]) -> None:
    document = changed("sources.0.connection_params", {"brokers": ["k:1"], "protocol": "SSL", "client_cert": "c"})
    for path in SECRET_PATHS:
        document = changed(path, CANARY, document)
    assert CANARY not in show(parsed(document))
    assert len([note for note in notes(parsed(document)) if "written into the file" in note]) == len(SECRET_PATHS)
    assert CANARY not in str(notes(parsed(document)))


def message_of(document: dict[str, Any], **environment: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parsed(document, **environment)
    return f"{caught.value} {caught.value.__cause__!r} {caught.value.__context__!r}"


@pytest.mark.parametrize("path", [*SECRET_PATHS, "nats.url", "state_uri", "sources.0.pasword", "sink.connection_params.url"])
def test_faults_never_show_a_secret_in_the_wrong_shape(path: str) -> None:
    for value in ([CANARY], {"value": CANARY}, f"${CANARY}${{"):
        assert CANARY not in message_of(changed(path, value))
    assert "7731955" not in message_of(changed(path, 7731955)), "a password of digits without quotes"


@pytest.mark.parametrize(
    "path",
    [
        "pipeline_id",
        "version",
        "sources.0.type",
        "sources.0.topic",
        "sources.0.connection_params",
        "sources.0.connection_params.protocol",
        "sources.0.connection_params.brokers.0",
        "transforms",
        "sink.connection_params.port",
        "sink.connection_params.secure",
        "sink.table",
        "sink.max_batch_size",
        "sink.max_delay_time",
        "nats.url",
        "sink.mapping.0.column_type",
    ],
)
def test_faults_never_show_what_the_environment_holds(path: str) -> None:
    assert CANARY not in message_of(changed(path, "${SECRET}"), SECRET=f"{CANARY}, {CANARY}")


@pytest.mark.parametrize(
    ("path", "at"),
    [
        ("sources.0.connection_params.brokers.0", "sources[0].connection_params.brokers[0]"),
        ("sink.connection_params.host", "sink.connection_params.host"),
        ("sink.connection_params.port", "sink.connection_params.port"),
    ],
)
@pytest.mark.parametrize("value", [f"user:{CANARY}@kafka:9092", f"https://user:{CANARY}@ch", f"SASL://u:{CANARY}@h:1"])
def test_a_login_in_the_place_of_an_address_is_not_shown(path: str, at: str, value: str) -> None:
    assert at in faults_of(changed(path, value))
    assert CANARY not in message_of(changed(path, value))


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a*", "_tf_x", "a.b*", "\x1b[2J"])
def test_a_field_that_no_record_can_be_read_by_is_a_fault(name: str) -> None:
    found = faults_of(changed("sources.0.schema_fields.0.name", name))
    assert "sources[0].schema_fields[0].name" in found
    assert "\x1b" not in str(found)


@pytest.mark.parametrize(
    ("change", "noted"),
    [
        ({"nats": {"url": "nats://u:p@nats:4222"}}, "nats.url: the credentials are sent unencrypted"),
        ({"nats": {"url": "nats://127.0.0.1:4222,nats://nats:4222", "token": "t"}}, "nats.url: the credentials are sent unencrypted"),
        ({"nats": {"url": "nats://u:p@127.0.0.1:4222"}}, None),
        ({"nats": {"url": "nats://u:p@localhost"}}, None),
        ({"nats": {"url": "tls://u:p@nats:4222"}}, None),
        ({"nats": {"url": "nats://u:p@nats:4222", "tls": {}}}, None),
        ({"nats": {"url": "nats://nats:4222"}}, None),
    ],
)
def test_a_login_at_nats_in_the_clear_is_noted(change: dict[str, Any], noted: str | None) -> None:
    found = [note for note in notes(parsed({**MINIMAL, **change})) if "unencrypted" in note]
    assert [note for note in found if noted is None or not note.startswith(noted)] == []
    assert bool(found) == (noted is not None)


@pytest.mark.parametrize(
    ("host", "secure", "password", "is_noted"),
    [
        ("ch", False, "x", True),
        ("ch", True, "x", False),
        ("ch", False, "", False),
        ("127.0.0.1", False, "x", False),
        ("::1", False, "x", False),
    ],
)
def test_a_password_for_clickhouse_in_the_clear_is_noted(host: str, secure: bool, password: str, is_noted: bool) -> None:
    sink = {"host": host, "port": 8123, "secure": secure, "password": password}
    found = notes(parsed(changed("sink.connection_params", sink)))
    assert ("sink.connection_params.secure: the password and the rows are sent unencrypted" in found) == is_noted


@pytest.mark.parametrize(
    ("url", "is_noted"), [("http://idp/token", True), ("https://idp/token", False), ("HTTP://idp/token", True), ("http://[::1]/t", False)]
)
def test_an_oauth_endpoint_in_the_clear_is_noted(url: str, is_noted: bool) -> None:
    oauth = {"oauth_token_endpoint_url": url, "oauth_client_id": "i", "oauth_client_secret": "s"}
    connection = {"brokers": ["k:1"], "protocol": "SASL_SSL", "mechanism": "OAUTHBEARER", **oauth}
    found = notes(parsed(changed("sources.0.connection_params", connection)))
    assert any("the client secret is sent unencrypted" in note for note in found) == is_noted


def test_model_errors_hide_their_input() -> None:
    with pytest.raises(ValueError, match="password") as caught:
        pipeline_file.PipelineConfig.model_validate(changed("sink.connection_params.password", [CANARY]))
    assert CANARY not in str(caught.value)


# Notes, version, shape


@pytest.mark.parametrize(
    ("path", "value", "note"),
    [
        ("transforms", [changed("config.time_window", "7d", DEDUP)], "transforms[0].config.time_window: 168h is longer than"),
        ("sources.0.connection_params.skip_tls_verification", True, "anyone can impersonate the brokers"),
        ("sources.0.connection_params.username", "u", "is not used"),
        ("sink.connection_params.skip_certificate_verification", True, "anyone can impersonate the server"),
        ("sink.connection_params.port", 9000, "is usually the native port"),
        ("sink.order_by", ["city"], "is ignored without create_table"),
        ("sink.delivery", "at_least_once", "rows may be duplicated"),
        ("resources.sink.replicas", 2, "resources.sink: replicas"),
    ],
)
def test_note(path: str, value: Any, note: str) -> None:
    assert notes(parsed(MINIMAL)) == []
    (found,) = notes(parsed(changed(path, value)))
    assert note in found


def test_note_on_a_limit_that_the_last_frames_may_fill() -> None:
    document = changed("resources.nats.stream.max_bytes", 9_142_271)
    (found,) = notes(parsed({**document, "buckets": 8}))
    assert "the last frame of each of 8 buckets" in found


def test_note_on_a_join_window_and_on_a_password_in_the_clear() -> None:
    document = changed("join.right_source.time_window", "48h", joined())
    login = {"protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN", "username": "u", "password": "${P}"}
    document["sources"][0]["connection_params"] |= login
    assert [note.partition(":")[0] for note in notes(parsed(document, P="p"))] == [
        "join.right_source.time_window",
        "sources[0].connection_params.protocol",
    ]


MANY: dict[str, Any] = {
    "type": "python",
    "config": {"function": "shops:named", "rows": "many", "output": [{"name": "shop", "type": "string"}]},
}
AT = "transforms[{}].config.rows"


@pytest.mark.parametrize(
    ("document", "at", "message"),
    [
        (with_transforms(MANY, DEDUP), 0, "does not go before a dedup yet: move this transform behind transforms[1]"),
        (with_transforms(DEDUP, MANY, MANY), 2, "transforms[1] makes several rows already: let one function make all of them"),
        (changed("transforms", [MANY], joined()), 0, "does not go with a join yet"),
    ],
)
def test_several_rows_are_made_once_and_behind_dedup(document: dict[str, Any], at: int, message: str) -> None:
    found = faults_of(document)
    assert [*found] == [AT.format(at)]
    assert message in found[AT.format(at)]


def test_several_rows_behind_dedup_or_without_it_load() -> None:
    for transforms in ([DEDUP, MANY, {"type": "filter", "config": {"expression": "shop <> 'x'"}}], [MANY]):
        config = parsed(with_transforms(*transforms))
        assert [one.config.makes_several for one in config.transforms] == [one is MANY for one in transforms]


def test_version_depends_on_the_code_of_functions(tmp_path: Path) -> None:
    function = {"type": "python", "config": {"function": "shops:named", "output": [{"name": "shop", "type": "string"}]}}
    file, code = tmp_path / "orders.yaml", tmp_path / "shops.py"
    file.write_text(yaml.safe_dump({**MINIMAL, "transforms": [function]}))
    versions = []
    for text in ("a = 1", "a = 2", "a = 1"):
        code.write_text(text)
        versions.append(version_of(load(file, {})))
    assert versions[0] == versions[2] != versions[1]
    code.unlink()
    assert version_of(load(file, {})) not in versions


def test_version_does_not_depend_on_how_the_systems_are_reached() -> None:
    version = version_of(parsed(MINIMAL))
    assert version == "21104289d8037b73"
    for path, value in (
        ("sink.connection_params.password", "new"),
        ("sources.0.connection_params.brokers", ["x:1"]),
        ("nats.url", "nats://n:1"),
        ("state_uri", "s3://bucket/keys"),
    ):
        assert version_of(parsed(changed(path, value))) == version
    assert version_of(parsed(changed("sink.max_batch_size", 1000))) == version, "a default that is written out is the same config"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sink.table", "other"),
        ("sink.connection_params.database", "other"),
        ("buckets", 16),
        ("transforms", [DEDUP]),
        ("sources.0.topic", "t"),
    ],
)
def test_version_depends_on_what_becomes_of_records(path: str, value: Any) -> None:
    assert version_of(parsed(changed(path, value))) != version_of(parsed(MINIMAL))


# Durations and sizes


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36500)))
def test_duration_round_trip(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("60s", timedelta(seconds=60)),
        ("1h30m", timedelta(minutes=90)),
        ("500ms", timedelta(milliseconds=500)),
        ("1.5h", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
        ("250us", timedelta(microseconds=250)),
        ("1000ns", timedelta(microseconds=1)),
        ("0", timedelta(0)),
    ],
)
def test_duration(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "s", "5", "-1s", "1 s", "1h 2m", "1w", "1.s", "１s", "1ns", "9" * 40 + "d", "1s\n"])
def test_text_that_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be|is too long"):
        parse_duration(text)


def test_negative_duration_has_no_text() -> None:
    with pytest.raises(ValueError, match="negative"):
        format_duration(timedelta(seconds=-1))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 1048576),
        ("512MiB", 512 * 2**20),
        ("10Gi", 10 * 2**30),
        ("25GB", 25 * 10**9),
        ("1.5 KiB", 1536),
        ("2k", 2000),
        ("7B", 7),
    ],
)
def test_size(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1.5", "1XB", "0.3KiB", "1  MB"])
def test_text_that_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_size(text)


# JSON Schema


def test_every_field_of_the_json_schema_is_described() -> None:
    schema = pipeline_file.json_schema()
    for name, model in {"root": schema, **schema["$defs"]}.items():
        for field, about in model["properties"].items():
            assert about.get("description"), f"{name}.{field}"
        assert model["additionalProperties"] is False, name


def test_json_schema_allows_what_the_file_may_say() -> None:
    definitions = pipeline_file.json_schema()["$defs"]
    port = definitions["ClickHouseConnection"]["properties"]["port"]["anyOf"]
    assert port[0] == {"type": "integer", "minimum": 1, "maximum": 65535}
    assert port[1] == {"type": "string", "pattern": r"\$\{|^[0-9]+$"}
    assert definitions["ClickHouseSink"]["properties"]["max_delay_time"]["default"] == "1m"
    assert {"type": "string", "pattern": r"\$\{"} in definitions["KafkaConnection"]["properties"]["protocol"]["anyOf"]
    assert definitions["DedupTransform"]["properties"]["type"]["const"] == "dedup"
    assert any("file" in choice.get("properties", {}) for choice in definitions["ClickHouseConnection"]["properties"]["password"]["anyOf"])


def test_schema_needs_no_column_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pipelines.types.columns", None)
    schema = pipeline_file.json_schema()
    assert schema["required"] == ["pipeline_id", "sources"]
    assert schema["oneOf"] == [{"required": ["sink"]}, {"required": ["sinks"]}]


# Several sources


def united() -> dict[str, Any]:
    document = deepcopy(MINIMAL)
    crm = changed("topic", "crm", document["sources"][0])
    crm["schema_fields"] = [{"name": "id", "type": "int"}, {"name": "customer.city", "type": "string"}]
    document["sources"].append(crm)
    fields = [{"name": "order_id", "expression": "CAST(id AS VARCHAR)"}]
    document["transforms"] = [{"type": "compute", "source_id": "crm", "config": {"fields": fields}}, DEDUP]
    return document


def test_a_union_of_two_topics_loads_and_can_run() -> None:
    config = parsed(united())
    assert unsupported(config) == []
    assert at_sink(config) == {"order_id": "string", "customer.city": "string"}
    swapped = united()
    swapped["sources"].reverse()
    assert shape_of(parsed(swapped)) != shape_of(config)
    shape = shape_of(config)["sources"]
    assert shape["orders"]["dedup_key_fields"] == [{"type": "string"}]
    assert shape["crm"]["dedup_key_fields"] == [{"type": "string", "sql": "CAST(id AS VARCHAR)", "of": {"id": {"type": "int"}}}]


@pytest.mark.parametrize(
    ("path", "value", "at", "message"),
    [
        ("sink.mapping.0.name", "id", "sink.mapping[0].name", "it is missing in orders and int in crm: give it one name and one type"),
        ("sources.1.schema_fields.1.type", "int", "sink.mapping[1].name", "it is string in orders and int in crm"),
        ("transforms.1.config.key", "id", "transforms[1].config.key", "it is missing in orders and int in crm"),
        ("sources.1.topic", "orders", "sources[1].topic", "is read by sources[0], too: each of its records would enter twice"),
        ("transforms.0.source_id", "crn", "transforms[0].source_id", "did you mean 'crm'?"),
    ],
)
def test_a_misshapen_union_is_refused(path: str, value: Any, at: str, message: str) -> None:
    found = faults_of(changed(path, value, united()))
    assert at in found, found
    assert message in found[at]


def test_a_condition_over_a_field_of_one_source_says_which() -> None:
    document = united()
    document["transforms"].append({"type": "filter", "config": {"expression": "id > 1"}})
    assert "id: it is missing in orders and int in crm" in faults_of(document)["transforms[2].config.expression"]


def test_a_dedup_of_one_source_among_several_is_not_supported() -> None:
    config = parsed(changed("transforms.1.source_id", "orders", united()))
    assert unsupported(config)[0].startswith("transforms[1]: a dedup of one source among several is not supported yet")


def test_several_rows_of_one_source_among_several_are_refused() -> None:
    function = {**MANY, "source_id": "crm"}
    document = united()
    document["transforms"] = [document["transforms"][0], function]
    assert "is for the records of all sources: leave out source_id" in faults_of(document)[AT.format(1)]
    document["transforms"] = [document["transforms"][0], MANY]
    assert parsed(document).transforms[1].config.makes_several
