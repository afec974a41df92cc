"""The reader of ranges on librdkafka's mock cluster: what it does where a real broker is hard to bring to it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing

import pytest
from support.kafka_mock import MockKafka, Record
from support.native import build_library

from pipelines.config import KafkaSource
from pipelines.connectors.kafka import client as kafka
from pipelines.connectors.kafka.client import Block, KafkaTopic, RangeReader
from pipelines.connectors.kafka.consumers import ClientConsumer
from pipelines.connectors.kafka.native_consumer import cheapest_consumer
from pipelines.connectors.sources import Ahead
from pipelines.errors import DataLossError, RetryableError
from pipelines.native_library import KAFKA_READER
from pipelines.protocol.records import UNREADABLE_HEADER

pytestmark = pytest.mark.integration

PATIENCE_SECONDS = 10.0
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
def cluster() -> Iterator[MockKafka]:
    with MockKafka("orders", partitions=2, brokers=2) as made:
        for partition, broker in ((0, 1), (1, 2)):
            made.give_leader(partition, broker)
        yield made


Open = Callable[..., RangeReader]


@pytest.fixture(params=[cheapest_consumer, ClientConsumer])
def opened(request: pytest.FixtureRequest, cluster: MockKafka) -> Iterator[Open]:
    """Makes readers of the cluster, by our own C code and by the client's objects."""
    build_library(KAFKA_READER)
    with ExitStack() as readers:
        yield lambda **options: readers.enter_context(closing(RangeReader(source(cluster.bootstrap), consumer=request.param, **options)))


def some(count: int, size: int = 10) -> list[Record]:
    return [(b"%08d" % number * (size // 8), NOON_MS, [(b"h", b"v")]) for number in range(count)]


def offsets(blocks: Sequence[Block], partition: int) -> list[int]:
    return [offset for block in blocks if block.partition == partition for offset in block.records.column("offset").to_pylist()]


def test_a_header_name_not_in_utf8_is_unreadable_alone(cluster: MockKafka, opened: Open) -> None:
    good = some(20)
    cluster.produce(0, [*good[:7], (b"poison", NOON_MS, [(b"\xff\xfe", b"v")] * 3), *good[7:]])
    reader = opened()
    rows = [row for block in reader.read({0: (0, 21)}) for row in block.records.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(21))
    assert [(row["value"], row["key"], row["headers"]) for row in rows if row["oversize"]] == [
        (b"poison", b"k", [(UNREADABLE_HEADER, b"SystemError")])
    ]
    assert {row["headers"][0] for row in rows if not row["oversize"]} == {(b"h", b"v")}


def test_what_kafka_has_sent_is_read_ahead_and_then_read(cluster: MockKafka, opened: Open) -> None:
    reader = opened(keep_partitions=True)
    assert reader.ahead({0: 0, 1: 0}, 0.1) == Ahead({0: 0, 1: 0}, True)
    cluster.produce(0, some(30))
    cluster.produce(1, some(20))
    starts = {0: 0, 1: 0}
    while (ends := reader.ahead(starts, PATIENCE_SECONDS).ends) != {0: 30, 1: 20}:
        assert ends[0] <= 30 and ends[1] <= 20
    blocks = list(reader.read({0: (0, 30), 1: (0, 15)}))
    assert (offsets(blocks, 0), offsets(blocks, 1)) == (list(range(30)), list(range(15)))
    assert reader.ahead({0: 30, 1: 15}, 0.1).ends == {0: 30, 1: 20}
    assert offsets(list(reader.read({1: (15, 20)})), 1) == list(range(15, 20))


def test_reading_ahead_stops_where_its_memory_is_full(cluster: MockKafka, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "CONSUME_BYTES", 20_000)
    cluster.produce(0, some(500, size=1000))
    reader = opened()
    ahead = reader.ahead({0: 0}, PATIENCE_SECONDS)
    while ahead.is_all:
        ahead = reader.ahead({0: 0}, PATIENCE_SECONDS)
    full = reader.ahead({0: 0}, PATIENCE_SECONDS)
    assert reader.ahead({0: 0}, PATIENCE_SECONDS) == full
    assert (0 < full.ends[0] < 500, full.is_all) == (True, False)
    assert offsets(list(reader.read({0: (0, 500)})), 0) == list(range(500))


def test_reading_ahead_beyond_the_end_is_a_loss(cluster: MockKafka, opened: Open) -> None:
    cluster.produce(0, some(3))
    reader = opened()
    with pytest.raises(DataLossError):
        while True:
            reader.ahead({0: 50}, PATIENCE_SECONDS)


def test_a_leaderless_partition_is_named_beside_other_ends(cluster: MockKafka) -> None:
    cluster.produce(0, some(3))
    cluster.take_leader(1)
    ends, silent = KafkaTopic(source(cluster.bootstrap)).known_ends((0, 1), 10)
    assert ends == {0: 3}
    assert str(silent[1]).startswith("partition 1 of orders does not answer: ")


@pytest.mark.crash
def test_an_unreachable_leader_gives_no_end(cluster: MockKafka) -> None:
    """librdkafka tells the offset -1001 then, and no error: taken for an end, it would be one that has gone back."""
    topic = KafkaTopic(source(cluster.bootstrap))
    cluster.produce(0, some(3))
    assert topic.ends((0, 1)) == {0: 3, 1: 0}
    cluster.stop_broker(2)
    for _ in range(3):
        ends, silent = topic.known_ends((0, 1), 1)
        assert ends == {0: 3}
        assert "partition 1 of orders does not answer: listing offsets of orders: " in str(silent[1])
        with pytest.raises(RetryableError, match="partition 1 of orders does not answer"):
            topic.ends((0, 1), 1)


def test_without_any_leader_the_ends_are_waited_for(cluster: MockKafka) -> None:
    for partition in (0, 1):
        cluster.take_leader(partition)
    with pytest.raises(RetryableError, match="partition 0 of orders does not answer"):
        KafkaTopic(source(cluster.bootstrap)).known_ends((0, 1), 1)


def test_partitions_that_others_read_are_not_fetched_ahead(cluster: MockKafka, opened: Open) -> None:
    cluster.produce(0, some(3000, 1000))
    cluster.produce(1, some(3000, 1000))
    reader = opened(keep_partitions=True)
    list(reader.read({0: (0, 10), 1: (0, 10)}))
    reader.keep_only({0})
    assert offsets(list(reader.read({0: (10, 3000)})), 0) == list(range(10, 3000))
    assert 1 not in reader._ahead
    assert offsets(list(reader.read({1: (500, 3000)})), 1) == list(range(500, 3000))


def test_few_records_behind_many_of_another_take_few_looks(cluster: MockKafka, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.produce(1, some(3000, 1000))
    reader = opened(keep_partitions=True)
    list(reader.read({1: (0, 10)}))
    heard: list[set[int]] = []
    poll = RangeReader._poll

    def noted(self: RangeReader, most: int, seconds: float) -> tuple[set[int], bool]:
        found = poll(self, most, seconds)
        if found[0] == {1} and {1} not in heard:
            # Only now: what was fetched of the other partition stands before them.
            cluster.produce(0, some(5))
        heard.append(found[0])
        return found

    monkeypatch.setattr(RangeReader, "_poll", noted)
    assert offsets(list(reader.read({0: (0, 5)})), 0) == list(range(5))
    assert len([found for found in heard if found]) < 30
    assert offsets(list(reader.read({1: (10, 3000)})), 1) == list(range(10, 3000))


@pytest.mark.crash
def test_a_silent_partition_is_given_up_beside_flowing_ones(cluster: MockKafka, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "GIVE_UP_SECONDS", 5.0)
    monkeypatch.setattr(kafka, "AHEAD_BYTES", 100_000)
    cluster.produce(0, some(5000, 1000))
    cluster.produce(1, some(10))
    reader = opened(keep_partitions=True)
    assert offsets(list(reader.read({0: (0, 10), 1: (0, 5)})), 1) == [0, 1, 2, 3, 4]
    cluster.stop_broker(2)
    held: list[set[int]] = []
    hold_back = RangeReader._hold_back
    monkeypatch.setattr(RangeReader, "_hold_back", lambda self, asked: (hold_back(self, asked), held.append(set(self._paused))))
    read: list[Block] = []
    with pytest.raises(RetryableError, match=r"Kafka gave nothing of partition 1 from offset \d+ for 5 s"):
        # Far beyond what was fetched before.
        for block in reader.read({0: (10, 20), 1: (5, 1000)}):
            read.append(block)
            assert sum(b.records.nbytes for blocks in reader._ahead.values() for b in blocks) < 6_000_000
    assert offsets(read, 0) == list(range(10, 20))
    assert {0} in held
    cluster.start_broker(2)
    cluster.produce(1, some(990))
    assert offsets(list(reader.read({0: (20, 5000), 1: (offsets(read, 1)[-1] + 1, 1000)})), 0) == list(range(20, 5000))
