"""The latency of a table beside one whose server is away, and beside the same one while it is up: one pipeline, in turns."""

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.latency import PER_SECOND, WARM_UP_SECONDS, Seen, producing, watch
from bench.pipeline import MeasuredPipeline
from pipelines.demo.produce import ensure_topic
from resources.local.stack import LocalStack

UP, AWAY = "both up", "the other away"


@dataclass(frozen=True)
class Beside:
    """Milliseconds from the producer's call to the first query that saw the row in the first table."""

    events: int
    p50_ms: float
    p99_ms: float


def measure(stack: LocalStack, other: LocalStack, topic: str, seconds: float, turns: int) -> dict[str, list[Beside]]:
    """Return the latencies of each turn: `seconds` with both servers up, as long with the other killed, then until it has all rows."""
    ensure_topic(stack.addresses().kafka_client, topic, 4)
    found: dict[str, list[Beside]] = {UP: [], AWAY: []}
    with MeasuredPipeline(stack, topic, False, edit=_into_both(other)) as pipeline:
        pipeline.start()
        pipeline.wait(lambda: (pipeline.status() or {}).get("ready"))
        with producing(stack, topic):
            threading.Event().wait(WARM_UP_SECONDS)
            for _ in range(turns):
                found[UP].append(_beside(watch(pipeline, seconds)))
                other.server("clickhouse").kill()
                found[AWAY].append(_beside(watch(pipeline, seconds)))
                other.server("clickhouse").start()
                pipeline.wait(lambda: pipeline.rows("sink:other", "rows_in") > pipeline.rows("process", "rows_out") - 2 * PER_SECOND)
    return found


def _into_both(other: LocalStack) -> Any:
    there = other.addresses()
    login = {"username": there.clickhouse_user, "password": there.clickhouse_password}
    connection = {"host": there.clickhouse_host, "port": there.clickhouse_port, **login}

    def edit(document: dict[str, Any]) -> None:
        sink = document.pop("sink")
        document["sinks"] = [{**sink, "id": "first"}, {**sink, "id": "other", "connection_params": connection}]

    return edit


def _beside(seen: list[Seen]) -> Beside:
    p50, p99 = np.percentile([one.latency_ms for one in seen], [50, 99])
    return Beside(len(seen), float(p50), float(p99))
