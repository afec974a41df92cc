"""The account of a join from outside: it reads Kafka, NATS and ClickHouse with their own clients, and imports nothing of ours.

What was first is what NATS says: its sequences are the order, the running maximum of its times is the arrival. The join is played record
by record. A record is broken if it is no JSON object; the key of a left record is `id`, that of a right one `who.id`. Where a dedup
stands before the join, copies are records of one `id`, or of one `who.id` and `name`. By event time the records meet by their `at`, in
milliseconds.
"""

import asyncio
import json
from collections import Counter
from typing import Any, NamedTuple
from urllib.request import ProxyHandler, Request, build_opener

import nats
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

Place = tuple[str, int, int]
"""Source, partition, offset."""
DIFFERENCES = ("not on raw", "too many on raw", "not processed", "lost rows", "rows too many")
"""The numbers of an account that are zero, or empty, if each record is where it must be."""


class Frame(NamedTuple):
    """A raw message: when NATS stored it, in microseconds, its source, (partition, offset, value) of its records, and its headers."""

    time_us: int
    source: str
    records: list[tuple[int, int, bytes | None]]
    headers: dict[str, str]


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


async def raw_frames(url: str, stream: str, subject: str, read: int) -> tuple[list[Frame], list[Frame]]:
    """The frames up to the sequence `read`, and those behind it."""
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
            found[message.metadata.sequence.stream] = Frame(time_us, message.subject.split(".")[3], records, dict(message.headers or {}))
            await message.ack()
            missing -= 1
    await client.close()
    sequences = sorted(found)
    return [found[one] for one in sequences if one <= read], [found[one] for one in sequences if one > read]


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


class TimedModel(Model):
    """The join by the records' own times, frame by frame: what a left record meets is final when the watermark says so."""

    def __init__(self, left_us: int, right_us: int, emits: bool, copies_us: list[int], lateness_us: int) -> None:
        super().__init__(left_us, right_us, emits, copies_us)
        self.lateness_us = lateness_us
        self.watermark_us: int | None = None
        self.reached: dict[tuple[str, int], int | None] = {}
        self.read: dict[tuple[str, int], int] = {}
        self.idle: set[tuple[str, int]] = set()
        self.lefts: list[tuple[int, int, int, int]] = []
        self.rights: dict[int, list[tuple[int, str]]] = {}
        self.late = 0

    def take_frame(self, frame: Frame, arrival_us: int) -> None:
        newest_us = None
        for partition, offset, value in frame.records:
            try:
                record = json.loads(value or b"")
            except ValueError:
                self.broken += 1
                continue
            time_us = record["at"] * 1000
            newest_us = time_us if newest_us is None else max(newest_us, time_us)
            if self.is_copy(frame.source, arrival_us, record):
                self.copies += 1
            elif self.watermark_us is not None and time_us < self.watermark_us:
                self.late += 1
            elif frame.source == "names":
                self.rights.setdefault(record["who"]["id"], []).append((time_us, record["name"]))
            else:
                self.lefts.append((time_us, partition, offset, record["id"]))
        self.note(frame, newest_us)
        self.decide()

    def note(self, frame: Frame, newest_us: int | None) -> None:
        if frame.source == "=tick":
            mark = json.loads(frame.headers.get("Tf-Idle", '{"source": "", "next": {}}'))
            for number, offset in mark["next"].items():
                place = (mark["source"], int(number))
                if offset >= self.read.get(place, 0):
                    self.idle.add(place)
                    self.reached.setdefault(place, None)
        else:
            place = (frame.source, int(frame.headers["Tf-Partition"]))
            self.read[place] = int(frame.headers["Tf-Last"]) + 1
            known_us = self.reached.get(place)
            self.reached[place] = known_us if newest_us is None else newest_us if known_us is None else max(known_us, newest_us)
            self.idle -= {place} if newest_us is not None else set()
        if len({source for source, _ in self.reached}) < 2:
            return
        holding = [self.reached[place] for place in self.reached.keys() - self.idle]
        known = [time_us for time_us in holding if time_us is not None]
        if len(known) < len(holding):
            return
        every = known if holding else [time_us for time_us in self.reached.values() if time_us is not None]
        if every:
            new_us = (min(every) if holding else max(every)) - self.lateness_us
            self.watermark_us = new_us if self.watermark_us is None else max(self.watermark_us, new_us)

    def decide(self) -> None:
        if self.watermark_us is None:
            return
        still = []
        for left in self.lefts:
            time_us, partition, offset, key = left
            name, final_us = self.met(time_us, self.rights.get(key, []))
            if final_us > self.watermark_us:
                still.append(left)
            elif name is not None or self.emits:
                self.rows[partition, offset, key, name] += 1
            self.unmatched += name is None and final_us <= self.watermark_us
        self.lefts = still
        self.waiting = {0: [left[:3] for left in still]}

    def met(self, time_us: int, rights: list[tuple[int, str]]) -> tuple[str | None, int]:
        earlier = max((at for at, _ in rights if at <= time_us), default=None)
        if earlier is not None and time_us - earlier < self.right_us:
            return [name for at, name in rights if at == earlier][-1], time_us + 1
        later = min((at for at, _ in rights if at > time_us), default=None)
        if later is not None and later - time_us < self.left_us:
            return next(name for at, name in rights if at == later), later + 1
        return None, time_us + self.left_us


def account(asked: dict[str, Any]) -> dict[str, Any]:
    how, arrival_us, raw = [asked[name] for name in ("left_us", "right_us", "emits", "copies_us")], 0, Counter[Place]()
    model = Model(*how) if asked["lateness_us"] is None else TimedModel(*how, asked["lateness_us"])
    # Those behind `read` are in no row: a run until the end of its sources may leave a tick of its last moment, but no record.
    read, left = asyncio.run(raw_frames(**asked["raw"], read=asked["read"]))
    raw.update((frame.source, partition, offset) for frame in left for partition, offset, _ in frame.records)
    for frame in read:
        arrival_us = max(arrival_us, frame.time_us)
        raw.update((frame.source, partition, offset) for partition, offset, _ in frame.records)
        if isinstance(model, TimedModel):
            model.take_frame(frame, arrival_us)
            continue
        model.at(arrival_us)
        for partition, offset, value in frame.records:
            model.take(frame.source, arrival_us, partition, offset, value)
    kafka = sum((kafka_places(one["kafka"], one["source"], one["topic"]) for one in asked["topics"]), Counter[Place]())
    stored = clickhouse_rows(**asked["clickhouse"])
    return {
        "records": kafka.total(),
        "ticks": sum(not frame.records and frame.source == "=tick" for frame in read),
        "rows": stored.total(),
        "joined": sum(count for row, count in model.rows.items() if row[3] is not None),
        "unmatched": model.unmatched,
        "waiting": sum(map(len, model.waiting.values())),
        "broken": model.broken,
        "copies": model.copies,
        "late": model.late if isinstance(model, TimedModel) else 0,
        "marks": sum("Tf-Idle" in frame.headers for frame in read),
        "not on raw": (kafka - raw).total(),
        "too many on raw": (raw - kafka).total(),
        "not processed": sum(len(frame.records) for frame in left),
        "lost rows": [str(row) for row in (model.rows - stored).elements()][:5],
        "rows too many": [str(row) for row in (stored - model.rows).elements()][:5],
    }
