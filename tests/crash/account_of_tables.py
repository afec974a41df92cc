"""The account of five tables from outside: it reads Kafka, ClickHouse and NATS with their own clients, and imports nothing of ours.

A program: it takes one JSON object on its standard input, gives the numbers as one on its standard output, and ends with 1 if they differ.
What each table must hold follows from Kafka's records alone. A record is broken if it is no JSON; the others have an `id`, and records of
one id are equal.

    every      each id
    cheap      ids with an amount below 10
    strict     ids with an amount of 5 or more that 13 does not divide
    rest       those that `strict` refuses, which 13 divides, with the reason
    rejected   each broken record, by partition and offset; so does the dead-letter stream
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import nats
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

ODD = 13
"""The ids that it divides are refused by `strict`."""
TAKES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "every": lambda record: True,
    "cheap": lambda record: record["amount"] < 10,
    "strict": lambda record: record["amount"] >= 5 and record["id"] % ODD != 0,
    "rest": lambda record: record["amount"] >= 5 and record["id"] % ODD == 0,
}
Row = tuple[Any, ...]


def _records(settings: dict[str, str], topic: str) -> Iterator[tuple[int, int, bytes]]:
    """Partition, offset and value of every record up to the present end."""
    consumer = Consumer({**settings, "group.id": "account-of-tables", "enable.auto.commit": False, "auto.offset.reset": "error"})
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    ends = {number: consumer.get_watermark_offsets(TopicPartition(topic, number), 30) for number in partitions}
    consumer.assign([TopicPartition(topic, number, first) for number, (first, _) in ends.items()])
    missing = sum(last - first for first, last in ends.values())
    while missing:
        found = consumer.consume(min(10_000, missing), 30)
        if not found:
            raise RuntimeError(f"{missing} records of {topic} are not served")
        for message in found:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            yield message.partition(), message.offset(), message.value() or b""
        missing -= len(found)
    consumer.close()


def _rows(place: dict[str, str], columns: str) -> Iterator[Row]:
    """The rows of a table."""
    query = f"SELECT {columns} FROM {place['table']} FORMAT JSONCompactEachRow"
    settings = "?output_format_json_quote_64bit_integers=0"
    request = Request(place["url"] + settings, query.encode(), {"X-ClickHouse-User": place["user"], "X-ClickHouse-Key": place["password"]})
    with build_opener(ProxyHandler({})).open(request, timeout=120) as answer:
        yield from (tuple(json.loads(line)) for line in answer)


async def _dead_letters(url: str, stream: str, subject: str) -> list[Row]:
    """Partition and offset of all dead letters: each message is one Arrow stream."""
    client = await nats.connect(url)
    jetstream = client.jetstream()
    missing = (await jetstream.stream_info(stream)).state.messages
    subscription = await jetstream.pull_subscribe(subject, stream=stream)
    found: list[Row] = []
    while missing:
        for message in await subscription.fetch(min(256, missing), timeout=30):
            frame = pa.ipc.open_stream(message.data).read_all()
            found += zip(frame["_tf_partition"].to_pylist(), frame["_tf_offset"].to_pylist(), strict=True)
            await message.ack()
            missing -= 1
    await client.close()
    return found


def _differences(wanted: Iterable[Row], found: Iterable[Row]) -> dict[str, Any]:
    must, has = Counter(wanted), Counter(found)
    lost, surplus = must - has, has - must
    some = {name: [str(row) for row in [*rows][:5]] for name, rows in (("some lost", lost), ("some too many", surplus)) if rows}
    return {"rows": has.total(), "lost": lost.total(), "too many": surplus.total(), **some}


def account(asked: dict[str, Any]) -> dict[str, Any]:
    by_id: dict[int, dict[str, Any]] = {}
    broken: list[Row] = []
    count = 0
    for partition, offset, value in _records(asked["kafka"], asked["topic"]):
        count += 1
        try:
            record = json.loads(value)
        except ValueError:
            broken.append((partition, offset))
            continue
        if by_id.setdefault(record["id"], record) != record:
            raise RuntimeError(f"two records of the id {record['id']} differ")
    places = asked["tables"]
    tables: dict[str, Any] = {}
    for name, takes in TAKES.items():
        wanted = ((one["id"], one["name"], float(one["amount"])) for one in by_id.values() if takes(one))
        tables[name] = _differences(
            wanted, ((number, text, float(amount)) for number, text, amount in _rows(places[name], "id, name, amount"))
        )
    unexplained = next(_rows(places["rest"], f"countIf(why NOT LIKE '%id % {ODD}%')"))[0]
    tables["rejected"] = _differences(broken, _rows(places["rejected"], "partition, offset"))
    tables["dead-letter stream"] = _differences(broken, asyncio.run(_dead_letters(**asked["dead_letters"])))
    return {"records": count, "ids": len(by_id), "broken": len(broken), "refused without a reason": unexplained, "tables": tables}


def main() -> int:
    counts = account(json.load(sys.stdin))
    json.dump(counts, sys.stdout, indent=1)
    is_uneven = any(one["lost"] or one["too many"] for one in counts["tables"].values())
    return bool(is_uneven or counts["refused without a reason"])


if __name__ == "__main__":
    sys.exit(main())
