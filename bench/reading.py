"""Reading Kafka alone: CPU of blocks made by our own C code, and of those made of confluent-kafka's objects, in turns in one process."""

import time
from contextlib import closing
from dataclasses import dataclass
from statistics import median

from pipelines.collection import collect_rarely
from pipelines.config import KafkaSource
from pipelines.connectors.kafka.client import KafkaTopic, RangeReader
from pipelines.connectors.kafka.consumers import ClientConsumer, MakeConsumer
from pipelines.connectors.kafka.native_consumer import cheapest_consumer
from resources.local.stack import LocalStack

STEP = 25_000
"""Records of each partition that one read asks for: four make a plan of ingest."""
_WAYS: dict[str, MakeConsumer] = {"our own C code": cheapest_consumer, "objects of the client": ClientConsumer}


@dataclass(frozen=True)
class ReadingCost:
    """CPU microseconds per event, medians of the rounds: of the thread that reads, and with the threads of librdkafka."""

    way: str
    thread_us: float
    process_us: float


def measure(stack: LocalStack, topic: str, rounds: int) -> list[ReadingCost]:
    """Read a whole topic in both ways, so many times."""
    # As the workers of a run do.
    collect_rarely()
    of = stack.addresses().environment()
    login = {"mechanism": of["KAFKA_SASL_MECHANISM"], "username": of["KAFKA_SASL_USERNAME"], "password": of["KAFKA_SASL_PASSWORD"]}
    connection = {"brokers": [of["KAFKA_BOOTSTRAP"]], "protocol": of["KAFKA_SECURITY_PROTOCOL"], **login}
    document = {"type": "kafka", "topic": topic, "schema_fields": [{"name": "id", "type": "int"}]}
    source = KafkaSource.model_validate({**document, "connection_params": connection})
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in _WAYS}
    for _ in range(rounds):
        for way, consumer in _WAYS.items():
            found[way].append(_costs(source, consumer))
    return [ReadingCost(way, *(median(column) for column in zip(*costs, strict=True))) for way, costs in found.items()]


def _costs(source: KafkaSource, consumer: MakeConsumer) -> tuple[float, float]:
    topic = KafkaTopic(source)
    ends = topic.ends(topic.facts().partitions)
    thread, process, events = time.thread_time(), time.process_time(), 0
    with closing(RangeReader(source, consumer=consumer)) as reader:
        for start in range(0, max(ends.values()), STEP):
            ranges = {partition: (start, min(start + STEP, end)) for partition, end in ends.items() if start < end}
            events += sum(block.records.num_rows for block in reader.read(ranges))
    assert events == sum(ends.values())
    return (time.thread_time() - thread) * 1e6 / events, (time.process_time() - process) * 1e6 / events
