"""Records that no pipeline can take: each becomes a dead letter with its reason and its bytes, and its neighbours arrive."""

import hashlib
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from support.bad_records import BAD_VALUES
from support.pipeline_case import PipelineCase
from support.producer import make_producer

from pipelines.protocol.records import MAX_RECORD_BYTES, OVERSIZE_HEAD_BYTES

pytestmark = [pytest.mark.integration, pytest.mark.spark]

Headers = list[tuple[str, bytes | None]]
Record = tuple[bytes | None, bytes | None, Headers]
"""Key, value, headers."""
ODD: list[Record] = [
    (None, b"bad", []),
    (b"", b"bad", [("one", b"1")]),
    (b"\x00\xff", b"bad", [("binary", b"\x00\xff\xfe"), ("null", None), ("empty", b"")]),
    (b"key", b"bad", [("twice", b"a"), ("twice", b"b")]),
    ("schlüssel".encode(), b"bad", [("schlüssel", "größe".encode())]),
]
"""Keys and headers that dead letters keep."""

MEGABYTES_5 = 5 * 1024 * 1024


def good(number: int) -> bytes:
    return json.dumps({"id": number, "name": f"event {number}", "amount": number / 4}).encode()


def event_of_size(number: int, size: int) -> bytes:
    """A good event of exactly `size` bytes that no compression makes smaller."""
    around = json.dumps({"id": number, "name": "", "amount": None}).encode()
    name = random.Random(number).randbytes(size).hex()[: size - len(around)]
    value = json.dumps({"id": number, "name": name, "amount": None}).encode()
    assert len(value) == size
    return value


def produce(case: PipelineCase, records: Sequence[Record]) -> None:
    """Sends the records to partition 0, in order."""
    producer = make_producer(case.addresses.kafka_client)
    for key, value, headers in records:
        producer.produce(case.topic, value, key=key, headers=headers, partition=0)
    assert producer.flush(60) == 0


def by_offset(dead_letters: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {dead_letter["_tf_offset"]: dead_letter for dead_letter in dead_letters}


@pytest.mark.parametrize("way", ["in tasks"], indirect=True)
def test_each_bad_record_is_a_dead_letter_and_others_arrive(case: PipelineCase, way: None) -> None:
    case.create_topic(1)
    records: list[Record] = []
    for number, (value, _) in enumerate(BAD_VALUES.values()):
        records += [(b"k", good(number), []), (b"key %d" % number, value, [("source", b"test")])]
    produce(case, [*records, (b"k", good(99), []), *ODD])
    case.warm_run(accept=True)
    dead_letters = by_offset(case.dead_letters())
    found = {name: dead_letters[2 * number + 1] for number, name in enumerate(BAD_VALUES)}
    reported = {name: (dead_letter["stage"], dead_letter["code"], dead_letter["field"]) for name, dead_letter in found.items()}
    assert reported == {name: reason for name, (_, reason) in BAD_VALUES.items()}
    for number, (name, dead_letter) in enumerate(found.items()):
        assert dead_letter["value"] == BAD_VALUES[name][0]
        assert dead_letter["key"] == b"key %d" % number
        assert dead_letter["headers"] == [(b"source", b"test")]
        assert dead_letter["message"]
        assert dead_letter["attempts"] == 1
        assert dead_letter["first_time"] == dead_letter["last_time"] == dead_letter["_tf_arrival"]
    odd = [dead_letters[len(records) + 1 + number] for number in range(len(ODD))]
    assert [dead_letter["key"] for dead_letter in odd] == [key for key, _, _ in ODD]
    expected = [[(name.encode(), value) for name, value in headers] or None for _, _, headers in ODD]
    assert [dead_letter["headers"] for dead_letter in odd] == expected
    assert case.count() == len(BAD_VALUES) + 1
    case.check()


def test_many_huge_records_in_a_row_pass_one_after_the_other(case: PipelineCase) -> None:
    case.create_topic(1, **{"max.message.bytes": str(8 * 1024 * 1024)})
    produce(case, [(None, event_of_size(number, MEGABYTES_5 // 2) if number % 3 else good(number), []) for number in range(12)])
    case.warm_run()
    assert len(case.dead_letters()) == 8
    assert case.count() == 4
    case.check()


def test_above_the_size_limit_only_head_and_digest_travel(case: PipelineCase) -> None:
    """The limit counts the whole record, inclusively, and where a header lies."""
    case.create_topic(1, **{"max.message.bytes": str(8 * 1024 * 1024)})
    headers: Headers = [("name", b"12345")]
    around = len(b"key") + len(b"name") + len(b"12345") + 11
    fits, above = MAX_RECORD_BYTES - around, MAX_RECORD_BYTES - around + 1
    bad = event_of_size(4, fits).replace(b'"id": 4', b'"id":"4')
    records: list[Record] = [
        (b"key", event_of_size(0, fits), headers),
        (b"key", event_of_size(1, above), headers),
        (None, event_of_size(2, MAX_RECORD_BYTES), []),
        (None, event_of_size(3, MAX_RECORD_BYTES + 1), []),
        (b"key", bad, headers),
        (bytes(600_000), event_of_size(5, 600_000), []),
        (b"key", good(6), [("h", bytes(MAX_RECORD_BYTES))]),
        (b"K" * 5000, huge := event_of_size(7, MEGABYTES_5), [("h", b"x")]),
        (b"key", good(8), headers),
        (b"key", good(9), [("h", b"")] * 50_000),
        (b"key", good(10), [("h", b"")] * 100_000),
    ]
    produce(case, records)
    case.warm_run()
    dead_letters = by_offset(case.dead_letters())
    assert {offset: dead_letter["code"] for offset, dead_letter in dead_letters.items()} == {
        1: "oversize",
        3: "oversize",
        4: "invalid_json",
        5: "oversize",
        6: "oversize",
        7: "oversize",
        10: "oversize",
    }
    assert dead_letters[4]["value"] == bad
    assert sorted(row[1] for row in case.rows()) == [0, 2, 8, 9]
    largest = dead_letters[7]
    assert (largest["stage"], largest["field"], str(MAX_RECORD_BYTES) in largest["message"]) == ("parse", None, True)
    assert (largest["_tf_topic"], largest["_tf_partition"]) == (case.topic, 0)
    assert largest["oversize"] == {"bytes": MEGABYTES_5 + 5000 + 2 + 11, "sha256": hashlib.sha256(huge).digest()}
    assert (largest["value"], largest["key"], largest["headers"]) == (huge[:OVERSIZE_HEAD_BYTES], b"K" * OVERSIZE_HEAD_BYTES, None)
    case.check()


def test_a_batch_of_only_bad_records_leaves_an_empty_table(case: PipelineCase) -> None:
    case.create_topic()
    case.send([b"bad %d" % number for number in range(600)])
    case.warm_run(accept=True)
    assert case.count() == 0
    assert len(case.dead_letters()) == 600
    case.check()
    case.send([good(number) for number in range(30)])
    case.warm_run()
    assert case.count() == 30
    case.check()
