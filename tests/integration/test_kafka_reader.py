"""The reader of ranges on librdkafka's mock broker: what it does where a real broker is hard to bring to it."""

from collections.abc import Iterator

import pytest
from kafka_mock import mock_brokers, produce_raw

from pipelines.config import KafkaSource
from pipelines.connectors.kafka import RangeReader
from pipelines.records import UNREADABLE_HEADER

pytestmark = pytest.mark.integration

NOON_MS = 1_767_960_000_000


def source(bootstrap: str) -> KafkaSource:
    document = {
        "type": "kafka",
        "topic": "orders",
        "connection_params": {"brokers": bootstrap.split(",")},
        "schema_fields": [{"name": "id", "type": "int"}],
    }
    return KafkaSource.model_validate(document)


@pytest.fixture
def broker() -> Iterator[str]:
    with mock_brokers("orders") as bootstrap:
        yield bootstrap


def test_a_header_whose_name_is_not_utf8_is_read_as_unreadable_and_its_neighbours_whole(broker: str) -> None:
    good = [(b"{%d}" % number, NOON_MS, [(b"h", b"v")]) for number in range(20)]
    produce_raw(broker, "orders", [*good[:7], (b"poison", NOON_MS, [(b"\xff\xfe", b"v")] * 3), *good[7:]])
    reader = RangeReader(source(broker))
    rows = [row for block in reader.read({0: (0, 21)}) for row in block.records.to_pylist()]
    reader.close()
    assert [row["offset"] for row in rows] == list(range(21))
    assert [(row["value"], row["key"], row["headers"]) for row in rows if row["oversize"]] == [
        (b"poison", b"k", [(UNREADABLE_HEADER, b"SystemError")])
    ]
    assert {row["headers"][0] for row in rows if not row["oversize"]} == {(b"h", b"v")}
