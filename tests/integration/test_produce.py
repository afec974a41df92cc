"""Orders in a real topic are exactly those that the summary tells of."""

import time
from collections import Counter
from collections.abc import Iterator
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.demo.events import Recipe
from pipelines.demo.examples import example_file, load_example
from pipelines.demo.orders import orders
from pipelines.demo.produce import ensure_topic, produce
from pipelines.errors import ConfigurationError, HaltError, RetryableError, TallyflowError
from pipelines.proof.readers.kafka import TopicReader, open_topic
from resources.local.stack import LocalStack

pytestmark = pytest.mark.integration


@pytest.fixture
def kafka(running_stack: LocalStack) -> dict[str, str]:
    """Settings that connect."""
    return running_stack.addresses().kafka_client


@pytest.fixture
def topic() -> str:
    return f"orders-{uuid4().hex[:10]}"


def records_in(kafka: dict[str, str], topic: str) -> list[tuple[int, int, bytes, bytes | None]]:
    """(partition, offset, key, value) of every record, in order per partition."""
    consumer = Consumer({**kafka, "group.id": uuid4().hex, "enable.partition.eof": True, "log_level": 0})
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found: list[tuple[int, int, bytes, bytes | None]] = []
    ended: set[int] = set()
    while len(ended) < len(partitions):
        for message in consumer.consume(5000, 0.2):
            if message.error() is None:
                found.append((message.partition(), message.offset(), message.key(), message.value()))
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
    consumer.close()
    return found


def test_the_topic_holds_exactly_the_events_of_the_recipe(kafka: dict[str, str], topic: str) -> None:
    recipe = Recipe(3, 200, 0.1, 0.05)
    summary = produce(kafka, topic, recipe, 20_000, partitions=3)
    expected = [event for block in orders(recipe, 20_000) for event in zip(block.keys.to_pylist(), block.values.to_pylist(), strict=True)]
    found = records_in(kafka, topic)
    assert Counter((key, value) for *_, key, value in found) == Counter(expected)
    assert summary.produced == summary.good + summary.bad + summary.duplicates == 20_000
    assert summary.bad == sum(summary.bad_kinds.values()) > 0
    assert summary.bytes == sum(len(value or b"") for _, value in expected)
    assert set(summary.offsets) == {0, 1, 2}
    for partition, (first, last) in summary.offsets.items():
        offsets = [offset for number, offset, *_ in found if number == partition]
        assert (first, last) == (offsets[0], offsets[-1])


@pytest.mark.parametrize("file", [[], [str(example_file("fraud"))]], ids=["its file", "named file"])
def test_the_command_sends_the_records_of_the_named_example(
    kafka: dict[str, str], topic: str, running_stack: LocalStack, file: list[str]
) -> None:
    environment = {**running_stack.addresses().environment(), "FRAUD_TOPIC": topic}
    command = ["produce", *file, "--example", "fraud", "--count", "100", "--seed", "5"]
    shown = CliRunner().invoke(app, command, env=environment)
    assert shown.exit_code == 0, shown.output
    expected = [event for block in load_example("fraud").generator.events(Recipe(5), 100) for event in block]
    assert Counter((key, value) for *_, key, value in records_in(kafka, topic)) == Counter((key, value) for key, value, _ in expected)


def test_records_of_one_key_are_in_one_partition_in_their_order(kafka: dict[str, str], topic: str) -> None:
    produce(kafka, topic, Recipe(duplicate_share=0.5), 5000, partitions=4)
    partitions_of: dict[bytes, set[int]] = {}
    for partition, _, key, _ in records_in(kafka, topic):
        partitions_of.setdefault(key, set()).add(partition)
    assert {len(partitions) for partitions in partitions_of.values()} == {1}


def test_a_second_call_appends_and_tells_its_own_offsets(kafka: dict[str, str], topic: str) -> None:
    first = produce(kafka, topic, Recipe(), 300, partitions=1)
    second = produce(kafka, topic, Recipe(seed=2), 200, partitions=7)
    assert first.offsets == {0: (0, 299)}
    assert second.offsets == {0: (300, 499)}


def test_the_rate_is_kept_without_drift(kafka: dict[str, str], topic: str) -> None:
    seen: list[tuple[float, int]] = []
    started = time.monotonic()

    def note(_: str, sent: int = 0, total: int = 0) -> None:
        seen.append((time.monotonic() - started, sent))

    produce(kafka, topic, Recipe(), 1500, rate=1000, partitions=1, progress=note)
    assert seen[-1][1] == 1500
    # Never ahead of the schedule; behind it only while the machine is busy.
    assert all(sent - 1 <= 1000 * elapsed for elapsed, sent in seen)


def test_an_event_that_kafka_refuses_is_an_error(kafka: dict[str, str], topic: str) -> None:
    admin = AdminClient({**kafka, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "1000"})])[topic].result()
    with pytest.raises(TallyflowError, match="MSG_SIZE_TOO_LARGE"):
        produce(kafka, topic, Recipe(size=50_000), 10)


def test_a_rate_of_zero_is_refused_and_nothing_is_sent(kafka: dict[str, str], topic: str) -> None:
    with pytest.raises(ConfigurationError, match="must be more than 0"):
        produce(kafka, topic, Recipe(), 10, rate=0.0)
    assert topic not in AdminClient({**kafka, "log_level": 0}).list_topics(timeout=10).topics


def topic_batches(kafka: dict[str, str], topic: str, with_values: bool = False) -> Iterator[pa.Table]:
    with open_topic({**kafka}, topic) as reader:
        yield from reader.batches(with_values)


def test_the_oracle_reads_every_position_and_value_once(kafka: dict[str, str], topic: str) -> None:
    produce(kafka, topic, Recipe(bad_share=0.01), 12_000, partitions=3)
    rows = [tuple(row.values()) for batch in topic_batches(kafka, topic, with_values=True) for row in batch.to_pylist()]
    assert sorted(rows, key=lambda row: row[:2]) == sorted(
        ((p, o, value) for p, o, _, value in records_in(kafka, topic)), key=lambda row: row[:2]
    )


def test_the_oracle_looks_again_behind_what_it_has_read(kafka: dict[str, str], topic: str) -> None:
    produce(kafka, topic, Recipe(), 10, partitions=1)
    with open_topic({**kafka}, topic) as reader:
        assert [offset for batch in reader.batches() for offset in batch["offset"].to_pylist()] == [*range(10)]
        first, admin = TopicPartition(topic, 0, 4), AdminClient({**kafka, "log_level": 0})
        admin.delete_records([first])[first].result(30)
        assert reader.bounds() == {0: (4, 10)}


class OneAtATime(Consumer):
    """Says where a broker would let the question wait: it answers a connection's requests in turn, and holds a fetch that finds nothing."""

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        assert self.assignment() == [], "a fetch is under way"
        found: tuple[int, int] = super().get_watermark_offsets(partition, timeout=timeout)
        return found


def test_the_oracle_fetches_nothing_while_it_looks_again(kafka: dict[str, str], topic: str) -> None:
    produce(kafka, topic, Recipe(), 10, partitions=2)
    consumer = OneAtATime({**kafka, "group.id": topic, "enable.partition.eof": True, "log_level": 0})
    reader = TopicReader(consumer, topic)
    assert sum(batch.num_rows for batch in reader.batches()) == 10
    assert sum(end for _, end in reader.bounds().values()) == 10
    consumer.close()


def test_the_oracle_skips_offsets_without_a_committed_record(kafka: dict[str, str], topic: str) -> None:
    produce(kafka, topic, Recipe(), 1, partitions=1)
    producer = Producer({**kafka, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    for is_committed in (True, False, True, False):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(topic, b"%d" % number)
        assert producer.flush(30) == 0
        producer.commit_transaction(30) if is_committed else producer.abort_transaction(30)
    assert [offset for batch in topic_batches(kafka, topic) for offset in batch["offset"].to_pylist()] == [0, 1, 2, 3, 9, 10, 11]


def test_the_oracle_reads_an_empty_topic_and_no_absent_one(kafka: dict[str, str], topic: str) -> None:
    with pytest.raises(HaltError, match="create the topic"):
        list(topic_batches(kafka, topic))
    ensure_topic(kafka, topic, 2)
    # Its partitions have a leader a moment later.
    patiently = Retrying(retry=retry_if_exception_type(RetryableError), stop=stop_after_delay(30), wait=wait_fixed(0.1), reraise=True)
    assert patiently(lambda: list(topic_batches(kafka, topic))) == []
