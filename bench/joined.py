"""The join in the whole pipeline: left records over right ones that are stored, on a warm Spark: rate and CPU per left record.

Right records are taken first, one for each key. Then the Python workers are held while left records of 200 bytes over random keys are
produced, and the window is from their release to the last row.
"""

import json
import random
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.pipeline import MeasuredPipeline
from bench.processes import GROUPS, PIPELINE_GROUPS, Meter
from bench.warm import LIMIT_SECONDS, held
from resources.local.stack import SERVERS, LocalStack

PARTITIONS = 4
WARM_LEFTS = 100_000
_PADDING = "x" * 120


@dataclass(frozen=True)
class JoinedRun:
    """One run: CPU microseconds per left record, by process group, lefts/s, and memory of the pipeline's processes in bytes."""

    right_keys: int
    lefts: int
    seconds: float
    cpu_us: dict[str, float]
    pss_bytes: int

    @property
    def lefts_per_second(self) -> float:
        return self.lefts / self.seconds

    @property
    def pipeline_cpu_us(self) -> float:
        return sum(self.cpu_us[group] for group in PIPELINE_GROUPS)


def measure(stack: LocalStack, right_keys: int, lefts: int) -> JoinedRun:
    """Run the pipeline over so many lefts with so many right keys."""
    unique = uuid4().hex[:6]
    orders, customers = f"bench-orders-{unique}", f"bench-customers-{unique}"
    kafka, chance = stack.addresses().kafka_client, random.Random(right_keys)
    _send(kafka, customers, (json.dumps({"id": key, "name": f"customer {key}", "city": f"c{key % 500}"}) for key in range(right_keys)))
    _send(kafka, orders, _orders(chance, right_keys, WARM_LEFTS))

    def edit(document: dict[str, Any]) -> None:
        _join(document, customers)

    with MeasuredPipeline(stack, orders, with_dedup=False, edit=edit) as pipeline:
        meter = Meter(pipeline.start(), {name: int(stack.server(name).pid or 0) for name in SERVERS})
        pipeline.wait(lambda: pipeline.rows("process", "rows_in") >= right_keys + WARM_LEFTS, LIMIT_SECONDS)
        pipeline.wait(lambda: pipeline.rows("sink", "rows_out") >= pipeline.rows("process", "rows_out"), LIMIT_SECONDS)
        done = pipeline.rows("sink", "rows_out")
        with held(meter):
            _send(kafka, orders, _orders(chance, right_keys, lefts))
            begun, before = monotonic(), meter.read()
        pipeline.wait(lambda: pipeline.rows("sink", "rows_out") >= done + lefts, LIMIT_SECONDS)
        seconds, after = monotonic() - begun, meter.read(with_memory=True)
        used = after.since(before)
    return JoinedRun(right_keys, lefts, seconds, {group: used[group] / lefts * 1e6 for group in GROUPS}, after.pipeline_pss_bytes)


def _orders(chance: random.Random, right_keys: int, count: int) -> Iterable[str]:
    for number in range(count):
        yield f'{{"order_id":"o{number}","customer":{{"id":{chance.randrange(right_keys)}}},"price":{number % 90}.5,"note":"{_PADDING}"}}'


def _send(kafka: Mapping[str, Any], topic: str, values: Iterable[str]) -> None:
    admin = AdminClient({"log_level": 0, **kafka})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].exception(30)
    while len(admin.list_topics(topic, 30).topics[topic].partitions) < PARTITIONS:
        # A new topic is known somewhat later.
        sleep(0.1)
    producer = Producer({"log_level": 0, **kafka, "linger.ms": 20, "batch.num.messages": 50_000, "queue.buffering.max.kbytes": 256 * 1024})
    for number, value in enumerate(values):
        while True:
            with suppress(BufferError):
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            producer.poll(0.1)
    if producer.flush(120):
        raise TimeoutError(f"{topic}: not all records were taken")


def _join(document: dict[str, Any], customers: str) -> None:
    """Make the example pipeline one that joins orders with customers."""
    (orders,) = document["sources"]
    orders["schema_fields"] = [
        {"name": "order_id", "type": "string"},
        {"name": "customer.id", "type": "int"},
        {"name": "price", "type": "float"},
        {"name": "note", "type": "string"},
    ]
    fields = [{"name": "id", "type": "int"}, {"name": "name", "type": "string"}, {"name": "city", "type": "string"}]
    others = {**orders, "source_id": "customers", "topic": customers, "schema_fields": fields}
    document["sources"] = [orders, others]
    left = orders["source_id"] = orders.get("source_id", "orders")
    taken = [(left, "order_id"), (left, "price"), (left, "note"), ("customers", "name"), ("customers", "city")]
    document["join"] = {
        "enabled": True,
        "left_source": {"source_id": left, "key": "customer.id", "time_window": "1h"},
        "right_source": {"source_id": "customers", "key": "id", "time_window": "24h"},
        "output_fields": [{"source_id": source, "name": name} for source, name in taken],
    }
    for name in ("order_by", "partition_by"):
        document["sink"].pop(name, None)
    kinds = {"price": "Float64"}
    document["sink"]["mapping"] = [{"name": name, "column_name": name, "column_type": kinds.get(name, "String")} for _, name in taken]
