"""Kafka, read with a consumer of its own: the reader of `pipelines.connectors.kafka` could hide its own faults."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from uuid import uuid4

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from pipelines.connectors.kafka.client import map_error
from pipelines.errors import RetryableError

_QUIET_SECONDS = 30.0
_CONSUME_MESSAGES = 10_000
Settings = Mapping[str, str | bool | int]


class TopicReader:
    """A topic and a consumer of its own. Methods raise as `open_topic`."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer, self._topic = consumer, topic

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return the first offset that each partition holds now, and its end, exclusive."""
        metadata = self._consumer.list_topics(self._topic, timeout=_QUIET_SECONDS).topics[self._topic]
        if metadata.error is not None:
            raise KafkaException(metadata.error)
        return {
            partition: self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=_QUIET_SECONDS)
            for partition in metadata.partitions
        }

    def batches(self, with_values: bool = False, within: Mapping[int, tuple[int, int]] | None = None) -> Iterator[pa.Table]:
        """Yield `partition` and `offset`, and on request `value`, of every committed record up to the present end, in batches.

        Offsets may have gaps. `within`: only these partitions, each from one offset to another, both inclusive, as far as Kafka still
        holds them.
        """
        bounds = self.bounds()
        if within is not None:
            bounds = {
                partition: (max(bounds[partition][0], first), min(bounds[partition][1], last + 1))
                for partition, (first, last) in within.items()
                if partition in bounds
            }
        bounds = {partition: (start, end) for partition, (start, end) in bounds.items() if start < end}
        self._consumer.assign([TopicPartition(self._topic, partition, start) for partition, (start, _) in bounds.items()])
        for messages in _messages(self._consumer, self._topic, bounds):
            yield _records(messages, with_values)
        # A broker answers a connection's requests in turn: bounds, which may be asked next, would wait for each fetch that finds nothing.
        self._consumer.unassign()


@contextmanager
def open_topic(settings: Settings, topic: str) -> Iterator[TopicReader]:
    """Open a reader of a topic; it is closed at the end. `settings` are librdkafka's, `bootstrap.servers` at least.

    Raise RetryableError if Kafka gives nothing for 30 s, HaltError if the topic does not exist.
    """
    consumer = Consumer(
        {
            **settings,
            "group.id": f"tallyflow-verify-{uuid4().hex}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            # So long an answer without records takes, which tells the end of a partition whose last offset holds none (500 by itself).
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    try:
        yield TopicReader(consumer, topic)
    except KafkaException as error:
        raise map_error(f"verifying topic {topic}", error) from error
    finally:
        consumer.close()


def is_compacted(settings: Settings, topic: str) -> bool:
    """Return whether Kafka may remove records of the topic before they expire."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    # A client without a reference is closed, and its futures fail.
    admin = AdminClient({**settings, "log_level": 0})
    try:
        config = admin.describe_configs([resource])[resource].result(_QUIET_SECONDS)
    except TimeoutError as error:
        raise RetryableError(f"looking at the settings of topic {topic}: Kafka gave no answer for {_QUIET_SECONDS:.0f} s") from error
    except KafkaException as error:
        raise map_error(f"looking at the settings of topic {topic}", error) from error
    return "compact" in config["cleanup.policy"].value


def _messages(consumer: Consumer, topic: str, bounds: Mapping[int, tuple[int, int]]) -> Iterator[list[Message]]:
    """Yield the records before the ends of `bounds` in batches.

    A partition is complete when the consumer's position is its end, whether or not a record is there.
    """
    reached = {partition: start for partition, (start, _) in bounds.items()}
    ends = {partition: end for partition, (_, end) in bounds.items()}
    last_answer = time.monotonic()
    while reached:
        left = sum(ends[partition] - offset for partition, offset in reached.items())
        # Not for the ends of partitions, too: they come later, and of a topic without gaps nobody needs them.
        messages = consumer.consume(min(left, _CONSUME_MESSAGES), timeout=0.1)
        if messages:
            last_answer = time.monotonic()
        elif time.monotonic() - last_answer > _QUIET_SECONDS:
            raise RetryableError(f"verifying topic {topic}: Kafka gave no record for {_QUIET_SECONDS:.0f} s")
        records = []
        for message in messages:
            error, partition = message.error(), message.partition()
            if error is None:
                reached[partition] = message.offset() + 1
                if message.offset() < ends[partition]:
                    records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                reached[partition] = message.offset()
            elif not isinstance(map_error(f"verifying topic {topic}", error), RetryableError):
                raise KafkaException(error)
        reached = {partition: offset for partition, offset in reached.items() if offset < ends[partition]}
        yield records


def _records(messages: Sequence[Message], with_values: bool) -> pa.Table:
    count = len(messages)
    columns = {
        "partition": pa.array(np.fromiter(map(Message.partition, messages), dtype=np.int32, count=count)),
        "offset": pa.array(np.fromiter(map(Message.offset, messages), dtype=np.int64, count=count)),
    }
    if with_values:
        columns["value"] = pa.array(list(map(Message.value, messages)), pa.binary())
    return pa.table(columns)
