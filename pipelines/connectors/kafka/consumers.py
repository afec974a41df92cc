"""What a consumer of one topic gives: blocks of RAW_SCHEMA; and the one that makes them of confluent-kafka's objects."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Protocol

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from pipelines.connectors.kafka.records import to_records
from pipelines.connectors.sources import Block


@dataclass(frozen=True)
class Polled:
    """What one poll has given. `count`: messages and events. `ends`: the offset of a partition's last end event, by partition."""

    count: int = 0
    blocks: Sequence[Block] = ()
    ends: Mapping[int, int] = field(default_factory=dict)
    errors: Sequence[KafkaError] = ()


class TopicConsumer(Protocol):
    """A consumer of one topic, by partition. Calls raise KafkaException; none is thread-safe."""

    def partitions(self, timeout_seconds: float) -> int:
        """Connect, and return the number of the topic's partitions."""
        ...

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Read these partitions, each from its offset on, and no others."""
        ...

    def pause(self, partitions: Collection[int]) -> None: ...

    def resume(self, partitions: Collection[int]) -> None: ...

    def poll(self, most: int, seconds: float) -> Polled:
        """Wait `seconds` at most, and no longer once there are `most`."""
        ...

    def close(self) -> None: ...


Settings = Mapping[str, str | bool | int]
MakeConsumer = Callable[[str, Settings], TopicConsumer]
"""Makes a consumer of a topic by the settings of librdkafka; raises KafkaException for such as it does not take."""


class ClientConsumer:
    """The consumer of confluent-kafka, which makes an object of each message."""

    def __init__(self, topic: str, settings: Settings) -> None:
        self._topic, self._consumer = topic, Consumer(dict(settings))

    def partitions(self, timeout_seconds: float) -> int:
        return len(self._consumer.list_topics(self._topic, timeout=timeout_seconds).topics[self._topic].partitions)

    def assign(self, offsets: Mapping[int, int]) -> None:
        self._consumer.assign([TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()])

    def pause(self, partitions: Collection[int]) -> None:
        self._consumer.pause(self._named(partitions))

    def resume(self, partitions: Collection[int]) -> None:
        self._consumer.resume(self._named(partitions))

    def _named(self, partitions: Collection[int]) -> list[TopicPartition]:
        return [TopicPartition(self._topic, partition) for partition in partitions]

    def poll(self, most: int, seconds: float) -> Polled:
        messages = self._consumer.consume(most, timeout=seconds)
        count, ends, errors = len(messages), dict[int, int](), list[KafkaError]()
        found = list(map(Message.error, messages))
        if any(found):
            for message, error in zip(messages, found, strict=True):
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    # A reader that keeps up gets an end event with every few messages: only the last one of a partition matters.
                    ends[message.partition()] = message.offset()
                elif error is not None:
                    errors.append(error)
            messages = list(compress(messages, [error is None for error in found]))
        return Polled(count, list(_blocks(messages)), ends, errors)

    def close(self) -> None:
        self._consumer.close()


def _blocks(messages: list[Message]) -> Iterator[Block]:
    """Yield the messages as one block per partition."""
    if not messages:
        return
    partitions = np.fromiter(map(Message.partition, messages), dtype=np.int32, count=len(messages))
    for partition in np.unique(partitions):
        mine = partitions == partition
        own = messages if mine.all() else list(compress(messages, mine))
        records = to_records(own, int(partition))
        yield Block(int(partition), records, own[-1].offset() + 1)
