"""Pipeline files made to harm: they cost little, and end as faults or as a pipeline; nothing else is ever raised."""

import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.config import notes, parse, run_digest, shape_of, unsupported, version_of
from pipelines.errors import ConfigurationError
from pipelines.runner.file_checks import check_types

ORDERS = Path(__file__).parents[3] / "examples" / "orders" / "pipeline.yaml"
ENVIRONMENT = {
    "KAFKA_BOOTSTRAP": "k1:9092",
    "CLICKHOUSE_HOST": "ch",
    "CLICKHOUSE_PORT": "8123",
    "A": "a\udc80",
    "NATS_URL": "nats://h:4222",
}
PLAIN: dict[str, Any] = yaml.safe_load(ORDERS.read_text())
SOURCE, SINK = PLAIN["sources"][0], PLAIN["sink"]


def with_fields(fields: list[Any]) -> str:
    return json.dumps({**PLAIN, "sources": [{**SOURCE, "schema_fields": fields}]})


def with_type(text: str) -> str:
    return json.dumps({**PLAIN, "sink": {**SINK, "mapping": [{"name": "order_id", "column_name": "a", "column_type": text}, 1]}})


def merge_bomb() -> str:
    """Nine levels of ten merged objects each: a billion fields, had they other names."""
    levels = ["l0: &l0 {" + ", ".join(f"k{index}: 1" for index in range(10)) + "}"]
    levels += [f"l{level}: &l{level} {{<<: [{', '.join([f'*l{level - 1}'] * 10)}], x{level}: 1}}" for level in range(1, 9)]
    return "\n".join(levels)


ENUM = ", ".join(f"'m{index}' = {index}" for index in range(-15_000, 15_000))
HOSTILE = {
    "open brackets": "[" * 100_000,
    "open brackets of JSON": '{"a":' * 100_000,
    "open brackets in YAML": "a: " + "[" * 1000,
    "dashes": "- " * 400_000,
    "question marks": "? " * 400_000,
    "an anchor that holds itself": "name: &a {b: *a}",
    "a merge key that holds itself": "name: &a {<<: *a}",
    "merge keys of merge keys": merge_bomb(),
    "one merge key of many": "a: &a {x: 1}\nb: {<<: [" + "*a, " * 90_000 + "]}",
    "a hexadecimal number": "buckets: 0x" + "f" * 4000,
    "a long number": "buckets: " + "9" * 900_000,
    "a long number in JSON": '{"buckets": ' + "9" * 900_000 + "}",
    "a long fraction": "buckets: 0." + "9" * 900_000,
    "a long duration": "sink: {max_delay_time: " + "1h" * 400_000 + "}",
    "a long duration of digits": "sink: {max_delay_time: " + "9" * 400_000 + "h}",
    "a long size": "dead_letters: {max_bytes: '" + "9" * 400_000 + " kB'}",
    "a size beyond 64 bits": "dead_letters: {max_bytes: 9999999999999 PB}",
    "many unknown fields": "\n".join(f"versio{index}: 1" for index in range(40_000)),
    "many faulty fields": with_fields([{"name": 1}] * 15_000),
    "many fields of one name": with_fields([{"name": "a", "type": "int"}] * 9_000),
    "many unknown names": json.dumps(
        {
            **PLAIN,
            "sources": [{**SOURCE, "schema_fields": [{"name": f"field{index}", "type": "int"} for index in range(3500)]}],
            "sink": {
                **SINK,
                "mapping": [{"name": f"fjeld{index}", "column_name": f"c{index}", "column_type": "Int64"} for index in range(3500)],
            },
        }
    ),
    "an Enum of many members": with_type(f"Enum16({ENUM})"),
    "an Enum of one member again and again": with_type("Enum16(" + "'a' = 1, " * 80_000),
    "a type of many brackets": with_type("Array(" * 100_000),
    "a type of many Tuples": with_type("Tuple(" + "a Int8," * 60_000),
    "control characters": "\x00\x01",
    "a byte order mark inside": "a: \ufeffb\ufeff",
    "an escape as a field": '"\\x1b[2J": 1',
    "a second document": "a: 1\n---\nb: 2",
    "a directive": "%YAML 9.9\n---\na: 1",
    "a field that is a list": "? [a, b]\n: 1",
    "a path that no file can have": 'name: {file: "\\0"}',
    "an endless file": "name: {file: /dev/zero}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_costs_little_and_is_faulty(text: str) -> None:
    before, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigurationError) as caught:
        parse(text, name="file", environment=ENVIRONMENT)
    seconds, grown = time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert caught.value.faults and "\x1b" not in str(caught.value) and len(str(caught.value)) < 50_000
    assert seconds < 5 and grown < 500_000


PIECES = [
    *(
        "a",
        "b: ",
        "? ",
        "- ",
        ", ",
        ": ",
        "{",
        "}",
        "[",
        "]",
        "&a ",
        "*a",
        "<<: ",
        "'",
        '"',
        "|\n",
        ">\n",
        "\n",
        "\n  ",
        "\t",
        "#",
        "~",
        "=",
        "`",
    ),
    *(
        "!!bool ",
        "!!timestamp ",
        "!x ",
        "!!int ",
        "!!float ",
        "! ",
        "%YAML 1.1",
        "---\n",
        "...\n",
        "\\u0000",
        "\\ud800",
        "\ufeff",
        "\x85",
        "@",
    ),
    *("0x" + "f" * 4000, "1e999", ".nan", "-.inf", "1:30:00", "0o7", "${A}", "${", "{file: /}", "\U0001f600", "\udc80", "\0", "sources"),
]
ODD_TEXTS = [
    *(
        "",
        "0",
        "-1",
        "${A}",
        "${A:-}",
        "1h",
        "9" * 70,
        "nats://a:b@c@d:1",
        "nats://h:port",
        "//[",
        "http://[",
        "a:99999999999999999999",
        "v3",
    ),
    *("kafka", "file:///", "s3://[::1/a", "postgres://u:p@h", "_tf_a", 'a"b', "a.b", "Array(String", "Tuple()", "Decimal(99)", "\ud800"),
]
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(ODD_TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.sampled_from(["type", "file"]), inner, max_size=3),
    max_leaves=6,
)
RICH = {
    **PLAIN,
    "nats": {"url": "nats://a:1", "tls": {"ca_file": "a"}},
    "state_uri": "file:///a",
    "dead_letters": {"max_age": "1h"},
    "alerts": {},
    "checks": {"dead_letters": {"max_percent": 2}},
    "join": {"enabled": False, "left_source": {"source_id": "orders", "key": "order_id", "time_window": "1h"}},
    "metadata": {"tags": ["a"], "owners": ["team:a"]},
    "resources": {"nats": {"stream": {"max_age": "1h", "max_bytes": "1GiB", "maxMsgs": 1}}, "sink": {"replicas": 1}},
}


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, item in items for place in places(item, (*at, key)))]


def with_value(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    changed = list(document) if isinstance(document, list) else dict(document)
    changed[at[0]] = with_value(document[at[0]], at[1:], value)
    return changed


def assert_loads_or_is_faulty(text: str) -> None:
    """Whatever a file says, it is a pipeline that every command can judge, or a ConfigurationError."""
    try:
        config = parse(text, name="file", environment=ENVIRONMENT)
        check_types(config)
    except ConfigurationError as error:
        assert error.faults and str(error).encode()
        return
    assert notes(config) is not None and unsupported(config) is not None and shape_of(config) and version_of(config)
    assert run_digest(text)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=40).map("".join))
def test_no_text_makes_the_reader_fail_otherwise(text: str) -> None:
    assert_loads_or_is_faulty(text)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(places(RICH)), ODD)
def test_no_odd_value_makes_the_reader_fail_otherwise(at: tuple[Any, ...], value: Any) -> None:
    assert_loads_or_is_faulty(json.dumps(with_value(RICH, at, value)))
