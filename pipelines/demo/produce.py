"""Sends the events of an example to a Kafka topic and reports exactly what it sent.

Guarantee: when `produce` returns, every event of the recipe is in the topic exactly once (acknowledged by all in-sync replicas, idempotent
producer), in order per key. When it raises, some prefix may be there.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from pipelines.connectors.kafka.client import map_error
from pipelines.counts import count_of
from pipelines.demo.events import DUPLICATE, GOOD, Events, Generator, Recipe
from pipelines.demo.orders import ORDERS
from pipelines.errors import ConfigurationError, Fault
from pipelines.progress import Progress, no_progress

_DELIVERY_SECONDS = 30.0
_REQUEST_SECONDS = 10.0
_QUEUE_MESSAGES = 50_000
_QUEUE_KBYTES = 64 * 1024
_TICK_SECONDS = 0.01
_SLICE_EVENTS = 1_000


@dataclass(frozen=True)
class ProduceSummary:
    """The records that one call added to the topic.

    `produced` = `good` + `bad` + `duplicates`; `bad_kinds` adds up to `bad`.

    `bytes` counts values without keys. `offsets`: per partition the first and the last offset (inclusive) of the events; records of another
    producer may lie between them.
    """

    topic: str
    produced: int
    good: int
    bad: int
    duplicates: int
    bad_kinds: dict[str, int]
    bytes: int
    seconds: float
    offsets: dict[int, tuple[int, int]]


def produce(
    connection: Mapping[str, str | bool | int],
    topic: str,
    recipe: Recipe,
    count: int,
    rate: float | None = None,
    partitions: int = 4,
    progress: Progress = no_progress,
    generator: Generator = ORDERS,
) -> ProduceSummary:
    """Send `count` events of the recipe with their keys; create the topic with `partitions` partitions if it is missing.

    `connection`: librdkafka settings that connect and log in, as `connection_settings` gives them.
    `rate`: events per second on average since the first event: after a stall the rest is sent faster. None: as fast as possible.
    Raises ConfigurationError for a rate that is not positive, RetryableError when Kafka is away or an event was not acknowledged within
    30 s, and HaltError for an error that waiting does not repair.
    """
    if rate is not None and rate <= 0:
        raise ConfigurationError("produce", [Fault("rate", f"must be more than 0, not {rate}")])
    ensure_topic(connection, topic, partitions)
    sending = _Sending(connection, topic)
    kinds: Counter[str] = Counter()
    value_bytes = 0
    started = time.monotonic()
    for due in _paced(generator.events(recipe, count), rate, started):
        sending.send(due)
        kinds += due.count_kinds()
        value_bytes += pc.sum(pc.binary_length(due.values)).as_py() or 0
        progress("producing", kinds.total(), count)
    sending.finish()
    bad_kinds = {kind: kinds[kind] for kind in generator.bad_kinds if kinds[kind]}
    bad = sum(bad_kinds.values())
    seconds = time.monotonic() - started
    return ProduceSummary(topic, kinds.total(), kinds[GOOD], bad, kinds[DUPLICATE], bad_kinds, value_bytes, seconds, sending.offsets())


def ensure_topic(connection: Mapping[str, str | bool | int], topic: str, partitions: int) -> None:
    """Create the topic if it is missing; an existing one keeps its partitions. Raise RetryableError or HaltError."""
    doing = f"creating topic {topic}"
    admin = AdminClient({**connection, "log_level": 0})
    new_topic = NewTopic(topic, num_partitions=partitions, replication_factor=-1)
    try:
        admin.create_topics([new_topic], request_timeout=_REQUEST_SECONDS)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise map_error(doing, error) from error


def _paced(blocks: Iterator[Events], rate: float | None, started: float) -> Iterator[Events]:
    """Yield the events in slices, each when its first event is due.

    The schedule counts from `started`, so it does not drift.
    """
    sent = 0
    for block in blocks:
        done = 0
        while done < len(block):
            count = _SLICE_EVENTS
            if rate is not None:
                elapsed = time.monotonic() - started
                count = min(count, int(elapsed * rate) + 1 - sent)
                if count < 1:
                    time.sleep(max(0.0, min(sent / rate - elapsed, 1.0)))
                    continue
            piece = block.slice(done, count)
            yield piece
            done += len(piece)
            sent += len(piece)


class _Sending:
    """One producer and the offsets that were acknowledged to it. Use it from one thread."""

    def __init__(self, connection: Mapping[str, str | bool | int], topic: str) -> None:
        self._topic = topic
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._failure: KafkaError | None = None
        self._producer = Producer(
            {
                **connection,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 10,
                "queue.buffering.max.messages": _QUEUE_MESSAGES,
                "queue.buffering.max.kbytes": _QUEUE_KBYTES,
                "delivery.timeout.ms": int(_DELIVERY_SECONDS * 1000),
                "log_level": 0,
            }
        )

    def send(self, events: Events) -> None:
        """Queue the events; wait while the queue is full. Raise for an earlier event that was not delivered."""
        for key, value in zip(events.keys.to_pylist(), events.values.to_pylist(), strict=True):
            while True:
                try:
                    self._producer.produce(self._topic, value, key, on_delivery=self._delivered)
                    break
                except BufferError:
                    self._poll(_TICK_SECONDS)
                except KafkaException as error:
                    raise map_error(self._doing, error) from error
        self._poll(0)

    def finish(self) -> None:
        """Wait until everything is acknowledged."""
        left = self._producer.flush(2 * _DELIVERY_SECONDS)
        self._poll(0)
        if left:
            raise map_error(self._doing, KafkaError(KafkaError._TIMED_OUT, f"{count_of(left, 'event')} not acknowledged"))

    def offsets(self) -> dict[int, tuple[int, int]]:
        return {partition: (self._first[partition], self._last[partition]) for partition in sorted(self._first)}

    @property
    def _doing(self) -> str:
        return f"sending records to {self._topic}"

    def _poll(self, seconds: float) -> None:
        self._producer.poll(seconds)
        if self._failure is not None:
            raise map_error(self._doing, self._failure)

    def _delivered(self, error: KafkaError | None, record: Message) -> None:
        if error is not None:
            self._failure = self._failure or error
            return
        partition, offset = record.partition(), record.offset()
        self._first.setdefault(partition, offset)
        self._last[partition] = offset
