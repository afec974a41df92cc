"""Records made to break a parser, each in the middle of good ones: only they become dead letters, and at the first attempt."""

import json
from random import Random

import pytest
from pyspark.sql import SparkSession
from support.pipeline_case import PipelineCase

pytestmark = [pytest.mark.integration, pytest.mark.spark]

KIB = 1024
DEPTH = 50_000


def event(number: int, name: str = "event", more: str = "") -> bytes:
    return b'{"id": %d, "name": %s, "amount": null%s}' % (number, json.dumps(name).encode(), more.encode())


def of_size(number: int, size: int) -> bytes:
    """A good event of so many bytes that hardly compress."""
    around = len(event(number, ""))
    return event(number, Random(number).randbytes(size).hex()[: size - around])


DEAD_LETTERS: dict[str, tuple[bytes, str]] = {
    "deep arrays": (b"[" * DEPTH + b"]" * DEPTH, "invalid_json"),
    "deep objects": (b'{"id":' * DEPTH + b"1" + b"}" * DEPTH, "wrong_type"),
    "deep and never closed": (b"[" * DEPTH, "invalid_json"),
    "an id of 300,000 digits": (b'{"id": 1' + b"0" * 300_000 + b', "name": "x"}', "out_of_range"),
    "an amount of 300,000 digits": (b'{"id": 1, "name": "x", "amount": 1' + b"0" * 300_000 + b"}", "out_of_range"),
    "a million digits": (b'{"id": 1' + b"0" * 1_000_000 + b', "name": "x"}', "oversize"),
    "NUL outside a string": (b'{"id": 1, \x00"name": "x"}', "invalid_json"),
    "NUL bytes only": (bytes(1000), "invalid_json"),
    "a high surrogate alone": (b'{"id": 1, "name": "\\ud800"}', "invalid_json"),
    "a low surrogate alone": (b'{"id": 1, "name": "\\udc00 x"}', "invalid_json"),
    "surrogates as bytes": (b'{"id": 1, "name": "\xed\xa0\x80"}', "invalid_json"),
    "NaN": (b'{"id": 1, "name": "x", "amount": NaN}', "out_of_range"),
    "Infinity": (b'{"id": 1, "name": "x", "amount": -Infinity}', "out_of_range"),
    "a key twice": (b'{"id": 1, "id": 1, "name": "x"}', "invalid_json"),
    "a key twice, of two types": (b'{"id": 1, "id": "2", "name": "x"}', "invalid_json"),
    "0.9 MiB": (of_size(1, 900 * KIB), "oversize"),
    "1.0 MiB": (of_size(1, KIB * KIB), "oversize"),
    "1.1 MiB": (of_size(1, 1100 * KIB), "oversize"),
    "5 MiB": (of_size(1, 5 * KIB * KIB), "oversize"),
}
ROWS: dict[str, tuple[bytes, tuple[int, str, float | None]]] = {
    "NUL in a string": (b'{"id": 1, "name": "a\\u0000b"}', (1, "a\0b", None)),
    "a pair of surrogates": (b'{"id": 1, "name": "\\ud83d\\ude00"}', (1, "\U0001f600", None)),
    "deep where nothing is read": (event(1, "x", ', "more": ' + "[" * 500 + "]" * 500), (1, "x", None)),
    "0.4 MiB": (of_size(1, 400 * KIB), (1, json.loads(of_size(1, 400 * KIB))["name"], None)),
}


def test_poison_becomes_dead_letters_and_nothing_else_does(case: PipelineCase, way: None) -> None:
    case.create_topic(1, **{"max.message.bytes": str(8 * KIB * KIB)})
    values = [
        value
        for pair in zip((v for v, _ in [*DEAD_LETTERS.values(), *ROWS.values()]), map(event, range(100)), strict=False)
        for value in pair
    ]
    case.send(values, partitions=1, **{"message.max.bytes": 8 * KIB * KIB})
    runner = case.warm_run()
    assert [leg.status.retries for leg in runner.legs.values()] == [0, 0, 0]
    case.check()
    # By content: a producer that sends again under load may change the order.
    names = {value: name for name, (value, _) in {**DEAD_LETTERS, **ROWS}.items()}
    records = case.records()
    dead_letters = {names.get(records[le["_tf_partition"], le["_tf_offset"]], "a good record"): le["code"] for le in case.dead_letters()}
    assert dead_letters == {name: code for name, (_, code) in DEAD_LETTERS.items()}
    rows = {names.get(records[position], "a good record"): tuple(row) for position, *row in case.rows()}
    del rows["a good record"]
    assert rows == {name: row for name, (_, row) in ROWS.items()}
    assert case.count() == len(DEAD_LETTERS) + 2 * len(ROWS)


def test_one_percent_of_poison_at_volume(case: PipelineCase, session: SparkSession) -> None:
    case.session = session
    case.create_topic()
    poison = [value for value, code in DEAD_LETTERS.values() if code == "invalid_json" and len(value) < 10_000]
    case.send(poison[number % len(poison)] if number % 100 == 50 else event(number) for number in range(100_000))
    case.warm_run()
    assert (case.count(), len(case.dead_letters())) == (99_000, 1000)
    case.check()
