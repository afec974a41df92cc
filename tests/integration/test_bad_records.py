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
    producer = make_producer(case.addresses.kafka_client, **{"message.max.bytes": 8 * 1024 * 1024})
    for key, value, headers in records:
        producer.produce(case.topic, value, key=key, headers=headers, partition=0)
    assert producer.flush(60) == 0


def by_offset(dead_letters: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {dead_letter["_tf_offset"]: dead_letter for dead_letter in dead_letters}


def test_each_bad_record_is_a_dead_letter_and_others_arrive(case: PipelineCase, way: None) -> None:
    case.create_topic(1)
    records: list[Record] = []
    for number, (value, _) in enumerate(BAD_VALUES.values()):
        records += [(b"k", good(number), []), (b"key %d" % number, value, [("source", b"test")])]
    produce(case, [*records, (b"k", good(99), [])])
    case.warm_run()
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
    assert case.count() == len(BAD_VALUES) + 1
    case.check()


def test_a_record_of_5_megabytes_travels_as_its_head_and_digest(case: PipelineCase) -> None:
    case.create_topic(1, **{"max.message.bytes": str(8 * 1024 * 1024)})
    huge = event_of_size(1, MEGABYTES_5)
    produce(case, [(b"k", good(0), []), (b"K" * 5000, huge, [("h", b"x")]), (b"k", good(2), [])])
    case.warm_run()
    (dead_letter,) = case.dead_letters()
    assert (dead_letter["stage"], dead_letter["code"], dead_letter["field"]) == ("parse", "oversize", None)
    assert str(MAX_RECORD_BYTES) in dead_letter["message"]
    assert (dead_letter["_tf_topic"], dead_letter["_tf_partition"], dead_letter["_tf_offset"]) == (case.topic, 0, 1)
    assert dead_letter["oversize"] == {"bytes": MEGABYTES_5 + 5000 + 2, "sha256": hashlib.sha256(huge).digest()}
    assert dead_letter["value"] == huge[:OVERSIZE_HEAD_BYTES]
    assert dead_letter["key"] == b"K" * OVERSIZE_HEAD_BYTES
    assert dead_letter["headers"] is None
    assert sorted(row[1] for row in case.rows()) == [0, 2]
    case.check()


def test_many_huge_records_in_a_row_pass_one_after_the_other(case: PipelineCase) -> None:
    case.create_topic(1, **{"max.message.bytes": str(8 * 1024 * 1024)})
    produce(case, [(None, event_of_size(number, MEGABYTES_5 // 2) if number % 3 else good(number), []) for number in range(30)])
    case.warm_run()
    assert len(case.dead_letters()) == 20
    assert case.count() == 10
    case.check()


def test_the_size_limit_counts_the_whole_record_inclusively(case: PipelineCase) -> None:
    case.create_topic(1)
    headers: Headers = [("name", b"12345")]
    around = len(b"key") + len(b"name") + len(b"12345")
    fits, above = MAX_RECORD_BYTES - around, MAX_RECORD_BYTES - around + 1
    bad = event_of_size(4, fits).replace(b'"id": 4', b'"id":"4')
    records: list[Record] = [
        (b"key", event_of_size(0, fits), headers),
        (b"key", event_of_size(1, above), headers),
        (None, event_of_size(2, MAX_RECORD_BYTES), []),
        (None, event_of_size(3, MAX_RECORD_BYTES + 1), []),
        (b"key", bad, headers),
        (bytes(300_000), event_of_size(5, 300_000), []),
        (b"key", good(6), [("h", bytes(MAX_RECORD_BYTES))]),
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
    }
    assert dead_letters[4]["value"] == bad
    assert sorted(row[1] for row in case.rows()) == [0, 2]
    case.check()


def test_a_batch_of_only_bad_records_leaves_an_empty_table(case: PipelineCase, way: None) -> None:
    case.create_topic()
    case.send([b"bad %d" % number for number in range(3000)])
    case.warm_run(accept=True)
    assert case.count() == 0
    assert len(case.dead_letters()) == 3000
    case.check()
    case.send([good(number) for number in range(30)])
    case.warm_run()
    assert case.count() == 30
    case.check()


def test_keys_and_headers_survive_into_dead_letters(case: PipelineCase) -> None:
    headers: list[Headers] = [
        [],
        [("one", b"1")],
        [("binary", b"\x00\xff\xfe"), ("null", None), ("empty", b"")],
        [("twice", b"a"), ("twice", b"b")],
        [("schlüssel", "größe".encode())],
    ]
    keys = [None, b"", b"\x00\xff", b"key", "schlüssel".encode()]
    case.create_topic(1)
    produce(case, [(key, b"bad", each) for key, each in zip(keys, headers, strict=True)])
    case.warm_run()
    dead_letters = by_offset(case.dead_letters())
    assert [dead_letters[offset]["key"] for offset in range(5)] == keys
    expected = [[(name.encode(), value) for name, value in each] or None for each in headers]
    assert [dead_letters[offset]["headers"] for offset in range(5)] == expected
    case.check()
