"""Latency from produce to queryable, CPU at a steady rate, and CPU when idle."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from confluent_kafka import Producer

from bench.pipeline import MeasuredPipeline
from bench.processes import PIPELINE_GROUPS, Meter
from bench.release import HERE, Release
from pipelines.demo.produce import ensure_topic
from resources.local.stack import LocalStack

PER_SECOND = 1000
WARM_UP_SECONDS = 30.0
SETTLE_SECONDS = 10.0
IDLE_SECONDS = 40.0
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

    def figures(self) -> dict[str, float]:
        """What is compared with another release."""
        return {"p50, ms": self.p50_ms, "p99, ms": self.p99_ms, "cores": self.busy_cores, "cores, idle": self.idle_cores}


def measure(stack: LocalStack, topic: str, with_dedup: bool, seconds: float, release: Release = HERE) -> Latency:
    ensure_topic(stack.addresses().kafka_client, topic, 4)
    with MeasuredPipeline(stack, topic, with_dedup, release=release) as pipeline:
        return _measure(stack, pipeline, seconds)


def _measure(stack: LocalStack, pipeline: MeasuredPipeline, seconds: float) -> Latency:
    pid = pipeline.start()
    pipeline.wait(lambda: (pipeline.status() or {}).get("ready"))
    meter = Meter(pid, {name: int(stack.server(name).pid or 0) for name in ("kafka", "nats", "clickhouse")})
    with producing(stack, pipeline.topic):
        time.sleep(WARM_UP_SECONDS)
        before, begun = meter.read(), time.monotonic()
        latencies = [one.latency_ms for one in watch(pipeline, seconds)]
        used, elapsed = meter.read().since(before), time.monotonic() - begun
    time.sleep(SETTLE_SECONDS)
    resting, rested = meter.read(), time.monotonic()
    time.sleep(IDLE_SECONDS)
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


class Load:
    """Orders that a thread sends; `sent`: how many it has handed to the producer."""

    def __init__(self) -> None:
        self.sent = 0

    def send(self, connection: dict[str, str], topic: str, stop: threading.Event) -> None:
        """Sends PER_SECOND orders evenly, in steps of 10 ms, each with the instant of its sending; all are in Kafka when it returns."""
        producer = Producer({**connection, "linger.ms": 0})
        begun = time.monotonic()
        while not stop.is_set():
            due = int((time.monotonic() - begun) * PER_SECOND)
            for number in range(self.sent, due):
                producer.produce(topic, _order(number), key=str(number).encode())
            self.sent = max(self.sent, due)
            producer.poll(0)
            stop.wait(0.01)
        if left := producer.flush(10):
            raise RuntimeError(f"Kafka has not taken the last {left} orders within 10 s")


@contextmanager
def producing(stack: LocalStack, topic: str) -> Iterator[Load]:
    load, stop = Load(), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        sending = threads.submit(load.send, stack.addresses().kafka_client, topic, stop)
        try:
            yield load
        finally:
            stop.set()
        sending.result()


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


class Seen(NamedTuple):
    """When an order was sent, since 1970, and how long after that the answer that shows its row has come."""

    sent_ms: float
    latency_ms: float


def watch(pipeline: MeasuredPipeline, seconds: float) -> list[Seen]:
    """Looks every 20 ms for rows not seen before, for `seconds`."""
    client = pipeline.clickhouse()
    query = (
        "SELECT _tf_partition, _tf_offset, _tf_sequence, toUnixTimestamp64Milli(ordered_at) "
        f"FROM {pipeline.table} WHERE _tf_sequence > {{after:UInt64}}"
    )
    seen: set[tuple[int, int]] = set()
    found: list[Seen] = []
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
                found.append(Seen(sent_ms, now_ms - sent_ms))
        time.sleep(LOOK_EVERY_SECONDS)
    return found
