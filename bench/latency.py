"""Latency from produce to queryable, CPU at a steady rate, and CPU when idle."""

import json
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import clickhouse_connect
import numpy as np
from confluent_kafka import Producer

from bench.pipeline import MeasuredPipeline
from bench.processes import PIPELINE_GROUPS, Meter
from pipelines.demo.produce import ensure_topic
from resources.local.stack import LocalStack

WARM_UP_SECONDS = 30.0
LOOK_EVERY_SECONDS = 0.02
OVERLAP_SEQUENCES = 50
"""Rows of a lower raw sequence may become visible after those of a higher one, in another bucket."""


@dataclass(frozen=True)
class Latency:
    """Milliseconds from the producer's call to the first query that saw the row; cores used by runner and workers."""

    events: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    busy_cores: float
    idle_cores: float


def measure(stack: LocalStack, topic: str, with_dedup: bool, per_second: int, seconds: float, idle_seconds: float) -> Latency:
    addresses = stack.addresses()
    ensure_topic(addresses.kafka_client, topic, 4)
    with MeasuredPipeline(stack, topic, with_dedup) as pipeline:
        return _measure(stack, pipeline, per_second, seconds, idle_seconds)


def _measure(stack: LocalStack, pipeline: MeasuredPipeline, per_second: int, seconds: float, idle_seconds: float) -> Latency:
    topic = pipeline.topic
    pid = pipeline.start()
    pipeline.wait(lambda: (pipeline.status() or {}).get("ready"))
    meter = Meter(pid, {name: int(stack.server(name).pid or 0) for name in ("kafka", "nats", "clickhouse")})
    stop = threading.Event()
    producer = threading.Thread(target=produce, args=(stack.addresses().kafka_client, topic, per_second, stop), daemon=True)
    producer.start()
    time.sleep(WARM_UP_SECONDS)
    before, begun = meter.read(), time.monotonic()
    latencies = watch(pipeline, seconds)
    used, elapsed = meter.read().since(before), time.monotonic() - begun
    stop.set()
    producer.join()
    time.sleep(10)
    resting, rested = meter.read(), time.monotonic()
    time.sleep(idle_seconds)
    idle, idled = meter.read().since(resting), time.monotonic() - rested
    p50, p95, p99 = np.percentile(latencies, [50, 95, 99])
    return Latency(
        len(latencies),
        float(p50),
        float(p95),
        float(p99),
        sum(used[group] for group in PIPELINE_GROUPS) / elapsed,
        sum(idle[group] for group in PIPELINE_GROUPS) / idled,
    )


def produce(connection: dict[str, str], topic: str, per_second: int, stop: threading.Event) -> None:
    """Sends `per_second` orders evenly, in steps of 10 ms, each with the instant of its sending."""
    producer = Producer({**connection, "linger.ms": 0})
    begun = time.monotonic()
    number = 0
    while not stop.is_set():
        due = int((time.monotonic() - begun) * per_second)
        for index in range(number, due):
            producer.produce(topic, _order(index), key=str(index).encode())
        number = max(number, due)
        producer.poll(0)
        stop.wait(0.01)
    producer.flush(10)


def _order(number: int) -> bytes:
    order = {
        "order_id": f"o-{number}",
        "customer": {"id": number % 1000, "city": "Lyon"},
        "restaurant": "Chez Ana",
        "dish": "gratin",
        "quantity": 2,
        "price": 11.5,
        "tags": ["lunch"],
        "ordered_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    return json.dumps(order).encode()


def watch(pipeline: MeasuredPipeline, seconds: float) -> list[float]:
    """Looks every 20 ms for rows not seen before, for `seconds`; a row's latency ends when the answer that shows it has come."""
    addresses = pipeline.addresses
    client = clickhouse_connect.get_client(
        host=addresses.clickhouse_host,
        port=addresses.clickhouse_port,
        username=addresses.clickhouse_user,
        password=addresses.clickhouse_password,
    )
    query = (
        "SELECT _tf_partition, _tf_offset, _tf_sequence, toUnixTimestamp64Milli(ordered_at) "
        f"FROM {pipeline.table} WHERE _tf_sequence > {{after:UInt64}}"
    )
    seen: set[tuple[int, int]] = set()
    latencies: list[float] = []
    rows = client.query(query, {"after": 0}).result_rows
    seen.update((partition, offset) for partition, offset, _, _ in rows)
    newest = max(sequence for _, _, sequence, _ in rows)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        rows = client.query(query, {"after": max(0, newest - OVERLAP_SEQUENCES)}).result_rows
        now_ms = time.time() * 1000
        for partition, offset, sequence, sent_ms in rows:
            if (partition, offset) not in seen:
                seen.add((partition, offset))
                newest = max(newest, sequence)
                latencies.append(now_ms - sent_ms)
        time.sleep(LOOK_EVERY_SECONDS)
    return latencies
