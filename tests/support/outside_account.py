"""The account of a run with dedup from outside: it reads Kafka, ClickHouse and NATS with their own clients, and nothing of ours.

A program: it takes one JSON object on its standard input, gives the numbers as one on its standard output, and ends with 1 if they differ.
Copies of a key must be in one partition of Kafka: there the first of them is the one of the lowest offset, in whatever order the partitions
were read. A record is broken if it is no JSON object with an `id`.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import duckdb
import nats
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

_BATCH = 20_000
_RECORDS = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("id", pa.int64()), ("name", pa.string())])
_POSITIONS = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
_FIRST = """
CREATE TABLE first AS
SELECT partition, "offset", id, name FROM kafka WHERE id IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY id ORDER BY "offset") = 1
"""
_KEYS_ACROSS_PARTITIONS = (
    "SELECT count(*) FROM (SELECT id FROM kafka WHERE id IS NOT NULL GROUP BY id HAVING count(DISTINCT partition) > 1)"
)
_DIFFERENCES = {
    "lost rows": "SELECT * FROM first EXCEPT ALL SELECT * FROM stored",
    "rows too many": "SELECT * FROM stored EXCEPT ALL SELECT * FROM first",
    "lost dead letters": 'SELECT partition, "offset" FROM kafka WHERE id IS NULL EXCEPT ALL SELECT * FROM dead_letters',
    "dead letters too many": 'SELECT * FROM dead_letters EXCEPT ALL SELECT partition, "offset" FROM kafka WHERE id IS NULL',
}


def _read(partition: int, offset: int, value: bytes | None) -> tuple[int, int, int | None, str | None]:
    try:
        found = json.loads(value or b"")
    except ValueError:
        return partition, offset, None, None
    return partition, offset, found["id"], found["name"]


def _kafka(settings: dict[str, str], topic: str) -> Iterator[pa.Table]:
    """All records up to the present end."""
    consumer = Consumer({**settings, "group.id": "outside-account", "enable.auto.commit": False, "auto.offset.reset": "error"})
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    ends = {number: consumer.get_watermark_offsets(TopicPartition(topic, number), 30) for number in partitions}
    consumer.assign([TopicPartition(topic, number, first) for number, (first, _) in ends.items()])
    missing = sum(last - first for first, last in ends.values())
    while missing:
        records = []
        for message in consumer.consume(min(_BATCH, missing), 30):
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            records.append(_read(message.partition(), message.offset(), message.value()))
        if not records:
            raise RuntimeError(f"{missing} records of {topic} are not served")
        missing -= len(records)
        yield pa.Table.from_pylist([dict(zip(_RECORDS.names, record, strict=True)) for record in records], _RECORDS)
    consumer.close()


def _clickhouse(url: str, user: str, password: str, table: str) -> pa.Table:
    query = f"SELECT _tf_partition AS partition, _tf_offset AS offset, id, name FROM {table} FORMAT ArrowStream"
    request = Request(url, query.encode(), {"X-ClickHouse-User": user, "X-ClickHouse-Key": password})
    with build_opener(ProxyHandler({})).open(request, timeout=120) as answer:
        return pa.ipc.open_stream(answer).read_all()


async def _dead_letters(url: str, stream: str, subject: str) -> list[pa.Table]:
    """The positions of all dead letters: each message is one Arrow stream."""
    client = await nats.connect(url)
    jetstream = client.jetstream()
    missing = (await jetstream.stream_info(stream)).state.messages
    subscription = await jetstream.pull_subscribe(subject, stream=stream)
    found = []
    while missing:
        for message in await subscription.fetch(min(256, missing), timeout=30):
            frame = pa.ipc.open_stream(message.data).read_all()
            found.append(frame.select(["_tf_partition", "_tf_offset"]).rename_columns(_POSITIONS.names).cast(_POSITIONS))
            await message.ack()
            missing -= 1
    await client.close()
    return found


def account(asked: dict[str, Any]) -> dict[str, Any]:
    connection = duckdb.connect()
    connection.register("none", _RECORDS.empty_table())
    connection.execute("CREATE TABLE kafka AS FROM none")
    for records in _kafka(asked["kafka"], asked["topic"]):
        connection.register("records", records)
        connection.execute("INSERT INTO kafka FROM records")
    connection.execute(_FIRST)
    connection.register("found", _clickhouse(**asked["clickhouse"]))
    connection.execute("CREATE TABLE stored AS FROM found")
    letters = asyncio.run(_dead_letters(**asked["dead_letters"]))
    connection.register("letters", pa.concat_tables([_POSITIONS.empty_table(), *letters]))
    connection.execute("CREATE TABLE dead_letters AS FROM letters")
    counts: dict[str, Any] = {
        name: connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]
        for name, table in (("records", "kafka"), ("keys", "first"), ("rows", "stored"), ("dead letters", "dead_letters"))
    }
    counts["keys in several partitions"] = connection.execute(_KEYS_ACROSS_PARTITIONS).fetchall()[0][0]
    for name, query in _DIFFERENCES.items():
        counts[name] = connection.execute(f"SELECT count(*) FROM ({query})").fetchall()[0][0]
        counts[f"some {name}"] = [str(row) for row in connection.execute(f"{query} LIMIT 5").fetchall()]
    return counts


def main() -> int:
    counts = account(json.load(sys.stdin))
    json.dump(counts, sys.stdout)
    return any(counts[name] for name in ("keys in several partitions", *_DIFFERENCES))


if __name__ == "__main__":
    sys.exit(main())
