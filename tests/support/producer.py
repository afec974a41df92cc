"""A Kafka producer that raises what it could not deliver: `flush` returns 0 for failed records, too."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer


def make_producer(client: Mapping[str, Any], **settings: Any) -> Producer:
    """One that waits for all replicas and keeps the order; `poll` and `flush` raise KafkaException for a record that failed."""
    ordered = {"linger.ms": 5, "acks": "all", "max.in.flight": 1, "message.max.bytes": 16_000_000}
    reports = {"on_delivery": _raise_failed, "delivery.report.only.error": True}
    return Producer({"log_level": 0, **client, **ordered, **reports, **settings})


def produce(producer: Producer, *record: Any, **options: Any) -> None:
    """Hands a record to the producer, once its queue has room: a slow machine fills it faster than it empties it."""
    while True:
        try:
            producer.produce(*record, **options)
            return
        except BufferError:
            producer.poll(0.1)


def _raise_failed(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        raise KafkaException(error)
