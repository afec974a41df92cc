"""The account of a join from outside: it reads Kafka, NATS and ClickHouse with their own clients, and nothing of ours.

A program: it takes one JSON object on its standard input, gives the numbers as one on its standard output, and ends with 1 if they differ.
What was first is what NATS says: its sequences are the order, the running maximum of its times is the arrival. The join is played record
by record. A record is broken if it is no JSON object; the key of a left record is `id`, that of a right one `who.id`. Where a dedup
stands before the join, copies are records of one `id`, or of one `who.id` and `name`.
"""

import asyncio
import json
import sys
from collections import Counter
from typing import Any, NamedTuple
from urllib.request import ProxyHandler, Request, build_opener

import nats
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

Place = tuple[str, int, int]
"""Source, partition, offset."""


class Frame(NamedTuple):
    """A raw message: when NATS stored it, in microseconds, its source, and (partition, offset, value) of its records."""

    time_us: int
    source: str
    records: list[tuple[int, int, bytes | None]]


def kafka_places(settings: dict[str, str], source: str, topic: str) -> Counter[Place]:
    """Every record up to the present end."""
    consumer = Consumer({**settings, "group.id": "outside-join", "enable.auto.commit": False, "auto.offset.reset": "error"})
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    ends = {number: consumer.get_watermark_offsets(TopicPartition(topic, number), 30) for number in partitions}
    consumer.assign([TopicPartition(topic, number, first) for number, (first, _) in ends.items()])
    found, missing = Counter[Place](), sum(last - first for first, last in ends.values())
    while missing:
        messages = consumer.consume(min(10_000, missing), 30)
        if not messages or any(message.error() for message in messages):
            raise RuntimeError(f"{missing} records of {topic} are not served")
        found.update((source, message.partition(), message.offset()) for message in messages)
        missing -= len(messages)
    consumer.close()
    return found


async def raw_frames(url: str, stream: str, subject: str) -> list[Frame]:
    client = await nats.connect(url)
    jetstream = client.jetstream()
    missing = (await jetstream.stream_info(stream)).state.messages
    subscription = await jetstream.pull_subscribe(subject, stream=stream)
    found: dict[int, Frame] = {}
    while missing:
        for message in await subscription.fetch(min(256, missing), timeout=30):
            table = pa.ipc.open_stream(message.data).read_all()
            records = list(zip(*(table.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True))
            at = message.metadata.timestamp
            time_us = int(at.timestamp()) * 1_000_000 + at.microsecond
            found[message.metadata.sequence.stream] = Frame(time_us, message.subject.split(".")[3], records)
            await message.ack()
            missing -= 1
    await client.close()
    return [found[sequence] for sequence in sorted(found)]


def clickhouse_rows(url: str, user: str, password: str, table: str) -> Counter[tuple[Any, ...]]:
    query = f"SELECT _tf_partition, _tf_offset, id, name FROM {table} FORMAT JSONCompactEachRow"
    request = Request(url, query.encode(), {"X-ClickHouse-User": user, "X-ClickHouse-Key": password})
    with build_opener(ProxyHandler({})).open(request, timeout=120) as answer:
        rows = [json.loads(line) for line in answer]
    return Counter((partition, int(offset), int(number), name) for partition, offset, number, name in rows)


class Model:
    """The join, record by record. `rows`: (partition, offset, id, name) of left records that have a row; a name is None without a match."""

    def __init__(self, left_us: int, right_us: int, emits: bool, copies_us: list[int]) -> None:
        self.left_us, self.right_us, self.emits = left_us, right_us, emits
        self.copies_us = dict(zip(("events", "names"), copies_us, strict=False))
        self.firsts: dict[tuple[Any, ...], int] = {}
        self.newest: dict[int, tuple[int, str]] = {}
        self.waiting: dict[int, list[tuple[int, int, int]]] = {}
        self.rows = Counter[tuple[Any, ...]]()
        self.unmatched = self.broken = self.copies = 0

    def at(self, arrival_us: int) -> None:
        for key, lefts in list(self.waiting.items()):
            over = [left for left in lefts if left[0] + self.left_us <= arrival_us]
            self.unmatched += len(over)
            if self.emits:
                self.rows.update((partition, offset, key, None) for _, partition, offset in over)
            self.waiting[key] = [left for left in lefts if left not in over]

    def is_copy(self, source: str, arrival_us: int, record: dict[str, Any]) -> bool:
        if source not in self.copies_us:
            return False
        key = (source, record["who"]["id"], record["name"]) if source == "names" else (source, record["id"])
        if key in self.firsts and arrival_us - self.firsts[key] < self.copies_us[source]:
            return True
        self.firsts[key] = arrival_us
        return False

    def take(self, source: str, arrival_us: int, partition: int, offset: int, value: bytes | None) -> None:
        try:
            record = json.loads(value or b"")
        except ValueError:
            self.broken += 1
            return
        if self.is_copy(source, arrival_us, record):
            self.copies += 1
            return
        if source == "names":
            key, name = record["who"]["id"], record["name"]
            self.rows.update((left[1], left[2], key, name) for left in self.waiting.pop(key, []))
            self.newest[key] = (arrival_us, name)
            return
        key = record["id"]
        if key in self.newest and arrival_us < self.newest[key][0] + self.right_us:
            self.rows[partition, offset, key, self.newest[key][1]] += 1
        else:
            self.waiting.setdefault(key, []).append((arrival_us, partition, offset))


def account(asked: dict[str, Any]) -> dict[str, Any]:
    model, arrival_us, raw = Model(asked["left_us"], asked["right_us"], asked["emits"], asked["copies_us"]), 0, Counter[Place]()
    frames = asyncio.run(raw_frames(**asked["raw"]))
    for frame in frames:
        arrival_us = max(arrival_us, frame.time_us)
        model.at(arrival_us)
        for partition, offset, value in frame.records:
            raw[frame.source, partition, offset] += 1
            model.take(frame.source, arrival_us, partition, offset, value)
    kafka = sum((kafka_places(one["kafka"], one["source"], one["topic"]) for one in asked["topics"]), Counter[Place]())
    stored = clickhouse_rows(**asked["clickhouse"])
    return {
        "records": kafka.total(),
        "ticks": sum(not frame.records and frame.source == "=tick" for frame in frames),
        "rows": stored.total(),
        "joined": sum(count for row, count in model.rows.items() if row[3] is not None),
        "unmatched": model.unmatched,
        "waiting": sum(map(len, model.waiting.values())),
        "broken": model.broken,
        "copies": model.copies,
        "not on raw": (kafka - raw).total(),
        "too many on raw": (raw - kafka).total(),
        "lost rows": [str(row) for row in (model.rows - stored).elements()][:5],
        "rows too many": [str(row) for row in (stored - model.rows).elements()][:5],
    }


def main() -> int:
    counts = account(json.load(sys.stdin))
    json.dump(counts, sys.stdout)
    return any(counts[name] for name in ("not on raw", "too many on raw", "lost rows", "rows too many"))


if __name__ == "__main__":
    sys.exit(main())
