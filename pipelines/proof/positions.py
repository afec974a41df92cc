"""Is every record of a topic in the table or in the dead-letter queue, exactly once? The oracle of the demo and of the crash tests.

It shares nothing with the path it judges: the topic is read with a plain consumer, the table with SELECT, and neither the ledger nor a
stage is asked. `verify_positions` is pure; the three readers under it give it the positions that it compares.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import clickhouse_connect
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from clickhouse_connect.driver.client import Client
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from pipelines.config import ClickHouseSink
from pipelines.connectors.clickhouse.answers import pool_for
from pipelines.connectors.clickhouse.errors import map_error as map_clickhouse_error
from pipelines.connectors.kafka.client import map_error as map_kafka_error
from pipelines.connectors.nats.client import JetStream
from pipelines.dead_letters.stream import read_letters
from pipelines.errors import RetryableError
from pipelines.protocol.naming import Names
from pipelines.types.columns import quote_identifier

POSITION_SCHEMA = pa.schema([("_tf_topic", pa.string()), ("_tf_partition", pa.int32()), ("_tf_offset", pa.int64())])
"""Where a record stands in Kafka; one row per occurrence, in any order."""
_DOUBLED_SCHEMA = pa.schema([*POSITION_SCHEMA, ("rows", pa.int64()), ("dead_letters", pa.int64())])
_PARTITION_BITS, _OFFSET_BITS, _TOPIC_BITS = 16, 40, 7
_QUIET_SECONDS = 30.0
_CONSUME_MESSAGES = 10_000

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PositionVerdict:
    """What comparing the positions of Kafka, table and dead letters found.

    `missing` (POSITION_SCHEMA): in Kafka only. `unexpected` (POSITION_SCHEMA): in the table or among the dead letters, but not in Kafka
    or a duplicate there.
    `doubled` (POSITION_SCHEMA, `rows`, `dead_letters`): there more than once, the two places together. Each sorted, a position once.
    """

    records: int
    duplicates: int
    rows: int
    dead_letters: int
    expected_dead_letters: int | None
    missing: pa.Table
    doubled: pa.Table
    unexpected: pa.Table

    @property
    def is_exact(self) -> bool:
        """True iff every record is in exactly one place, once, and there are as many dead letters as expected, if that was said."""
        faults = self.missing.num_rows + self.doubled.num_rows + self.unexpected.num_rows
        return faults == 0 and self.expected_dead_letters in (None, self.dead_letters)

    def lines(self, examples: int = 5) -> list[str]:
        """The verdict in words, one line per finding, with up to `examples` positions as `topic/partition/offset`."""
        places = [f"{self.rows:,} rows", f"{self.dead_letters:,} dead letters"]
        if self.duplicates:
            places.append(f"{self.duplicates:,} duplicates")
        found = [f"{self.records:,} records in Kafka = {' + '.join(places)}"]
        for name, table in (("missing", self.missing), ("doubled", self.doubled), ("unexpected", self.unexpected)):
            shown = ", ".join(_told(row) for row in table.slice(0, examples).to_pylist())
            more = ", ..." if table.num_rows > examples else ""
            found.append(f"{name}: {table.num_rows:,}" + (f" ({shown}{more})" if shown else ""))
        if self.expected_dead_letters is not None:
            found.append(f"dead letters expected: {self.expected_dead_letters:,}, found: {self.dead_letters:,}")
        return found


def _told(row: dict[str, object]) -> str:
    text = f"{row['_tf_topic']}/{row['_tf_partition']}/{row['_tf_offset']}"
    return f"{text}: {row['rows']} in the table, {row['dead_letters']} dead letters" if "rows" in row else text


def verify_positions(
    records: pa.Table, rows: pa.Table, dead_letters: pa.Table, expected_dead_letters: int | None = None, duplicates: pa.Table | None = None
) -> PositionVerdict:
    """Compares the positions as multisets: each of `records` must be in `rows` or in `dead_letters`, exactly once in all;
    those that are in `duplicates`, in neither.

    The tables need the columns of POSITION_SCHEMA (a dictionary is fine for the topic); others are ignored. `records` holds each position
    once. `expected_dead_letters`: how many bad records were produced, where that is known. Raises ValueError for a null, or for a position
    that cannot be encoded: over 127 topics, partition over 65,535, offset over 2^40.
    """
    none = POSITION_SCHEMA.empty_table()
    tables = [_positions(table) for table in (records, rows, dead_letters, none if duplicates is None else duplicates)]
    topics = pc.unique(pa.concat_tables(tables)["_tf_topic"]).sort()
    in_kafka, in_table, in_queue, dropped = (_encode(table, topics) for table in tables)
    expected = np.setdiff1d(in_kafka, dropped)
    found, counts = np.unique(np.concatenate([in_table, in_queue]), return_counts=True)
    doubled = found[counts > 1]
    doubled_table = _decode(doubled, topics)
    doubled_table = doubled_table.append_column("rows", pa.array(_occurrences(in_table, doubled)))
    doubled_table = doubled_table.append_column("dead_letters", pa.array(_occurrences(in_queue, doubled)))
    return PositionVerdict(
        len(in_kafka),
        len(dropped),
        len(in_table),
        len(in_queue),
        expected_dead_letters,
        missing=_decode(np.setdiff1d(expected, found), topics),
        doubled=doubled_table.cast(_DOUBLED_SCHEMA),
        unexpected=_decode(np.setdiff1d(found, expected), topics),
    )


def _positions(table: pa.Table) -> pa.Table:
    positions = table.select(POSITION_SCHEMA.names).cast(POSITION_SCHEMA)
    if any(column.null_count for column in positions.columns):
        raise ValueError("a position is null")
    return positions


def _encode(positions: pa.Table, topics: pa.Array) -> Codes:
    """Each position as one integer that sorts like (topic, partition, offset)."""
    topic = pc.index_in(positions["_tf_topic"], value_set=topics).to_numpy().astype(np.int64)
    partition = positions["_tf_partition"].to_numpy().astype(np.int64)
    offset = positions["_tf_offset"].to_numpy()
    for values, bits in ((topic, _TOPIC_BITS), (partition, _PARTITION_BITS), (offset, _OFFSET_BITS)):
        if len(values) and (values.min() < 0 or values.max() >= 1 << bits):
            raise ValueError(f"positions hold a topic index, partition or offset outside of 0..2^{bits}: {values.min()} to {values.max()}")
    codes: Codes = (topic << (_PARTITION_BITS + _OFFSET_BITS)) | (partition << _OFFSET_BITS) | offset
    return codes


def _decode(codes: Codes, topics: pa.Array) -> pa.Table:
    topic = topics.take(pa.array(codes >> (_PARTITION_BITS + _OFFSET_BITS)))
    partition = (codes >> _OFFSET_BITS) & ((1 << _PARTITION_BITS) - 1)
    offset = codes & ((1 << _OFFSET_BITS) - 1)
    return pa.table([topic, pa.array(partition.astype(np.int32)), pa.array(offset)], schema=POSITION_SCHEMA)


def _occurrences(codes: Codes, wanted: Codes) -> npt.NDArray[np.int64]:
    ordered = np.sort(codes)
    found: npt.NDArray[np.int64] = np.searchsorted(ordered, wanted, side="right") - np.searchsorted(ordered, wanted, side="left")
    return found


def duplicates_by_key(records: pa.Table) -> pa.Table:
    """The records (POSITION_SCHEMA, `key`) whose key an earlier record of their partition has: what dedup by that key must drop.

    Only for topics whose copies have the Kafka key of their original, and so its partition, within one window; null keys are all different.
    """
    records = records.select([*POSITION_SCHEMA.names, "key"]).filter(pc.is_valid(records["key"]))
    order = [("key", "ascending"), ("_tf_partition", "ascending"), ("_tf_offset", "ascending")]
    ordered = records.sort_by(order).combine_chunks()
    if ordered.num_rows < 2:
        return POSITION_SCHEMA.empty_table()
    is_same = [pc.equal(ordered[name].slice(1), ordered[name].slice(0, ordered.num_rows - 1)) for name in ("key", "_tf_partition")]
    is_copy = pc.and_(*is_same)
    return ordered.slice(1).filter(is_copy).select(POSITION_SCHEMA.names)


def read_topic(settings: Mapping[str, str | bool | int], topic: str, columns: Sequence[str] = ()) -> pa.Table:
    """Every committed record of a topic, from its first offset to the end that it has now: POSITION_SCHEMA, and `columns`: `key`, `value`.

    `settings` are librdkafka's, `bootstrap.servers` at least. Offsets may have gaps. Raises RetryableError when Kafka gives nothing for
    30 s, HaltError when the topic does not exist.
    """
    return pa.concat_tables([_topic_schema(columns).empty_table(), *topic_batches(settings, topic, columns)])


def topic_batches(
    settings: Mapping[str, str | bool | int], topic: str, columns: Sequence[str] = (), within: Mapping[int, tuple[int, int]] | None = None
) -> Iterator[pa.Table]:
    """As `read_topic`, batch by batch, so that memory holds one.

    `within`: only these partitions, from one offset to another, both inclusive, as far as they are there.
    """
    with _consumer(f"verifying topic {topic}", settings) as consumer:
        ends, starts = _bounds(consumer, topic)
        if within is not None:
            ends = {partition: min(ends[partition], last + 1) for partition, (_, last) in within.items() if partition in ends}
            starts = {partition: max(starts[partition], within[partition][0]) for partition in ends}
        consumer.assign([TopicPartition(topic, partition, starts[partition]) for partition, end in ends.items() if starts[partition] < end])
        for messages in _messages(consumer, topic, starts, ends):
            yield _records(topic, messages, _topic_schema(columns))


def first_offsets(settings: Mapping[str, str | bool | int], topic: str) -> dict[int, int]:
    """The first offset that each partition holds now. Raises as `read_topic`."""
    with _consumer(f"looking at topic {topic}", settings) as consumer:
        return _bounds(consumer, topic)[1]


def end_offsets(settings: Mapping[str, str | bool | int], topic: str) -> dict[int, int]:
    """The end of each partition now, exclusive. Raises as `read_topic`."""
    with _consumer(f"looking at topic {topic}", settings) as consumer:
        return _bounds(consumer, topic)[0]


def is_compacted(settings: Mapping[str, str | bool | int], topic: str) -> bool:
    """Whether Kafka may remove records of the topic before they expire."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    # A client that nobody holds ends, and its futures with it.
    admin = AdminClient({**settings, "log_level": 0})
    try:
        found = admin.describe_configs([resource])[resource].result(_QUIET_SECONDS)
    except TimeoutError as error:
        raise RetryableError(f"looking at the settings of topic {topic}: Kafka gave no answer for {_QUIET_SECONDS:.0f} s") from error
    except KafkaException as error:
        raise map_kafka_error(f"looking at the settings of topic {topic}", error) from error
    return "compact" in found["cleanup.policy"].value


def _topic_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([*POSITION_SCHEMA, *((name, pa.binary()) for name in columns)])


@contextmanager
def _consumer(doing: str, settings: Mapping[str, str | bool | int]) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            **settings,
            "group.id": f"tallyflow-verify-{uuid4().hex}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    try:
        yield consumer
    except KafkaException as error:
        raise map_kafka_error(doing, error) from error
    finally:
        consumer.close()


def _bounds(consumer: Consumer, topic: str) -> tuple[dict[int, int], dict[int, int]]:
    """({partition: end, exclusive}, {partition: first offset})."""
    metadata = consumer.list_topics(topic, timeout=_QUIET_SECONDS).topics[topic]
    if metadata.error is not None:
        raise KafkaException(metadata.error)
    marks = {
        partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_QUIET_SECONDS)
        for partition in metadata.partitions
    }
    return {partition: high for partition, (_, high) in marks.items()}, {partition: low for partition, (low, _) in marks.items()}


def _messages(consumer: Consumer, topic: str, starts: Mapping[int, int], ends: Mapping[int, int]) -> Iterator[list[Message]]:
    """The records before `ends` in batches; a partition is through when the consumer stands at its end, with or without a record there."""
    reached = {partition: start for partition, start in starts.items() if start < ends[partition]}
    heard = time.monotonic()
    while reached:
        left = sum(ends[partition] - offset for partition, offset in reached.items())
        messages = consumer.consume(min(left + len(reached), _CONSUME_MESSAGES), timeout=0.1)
        if messages:
            heard = time.monotonic()
        elif time.monotonic() - heard > _QUIET_SECONDS:
            raise RetryableError(f"verifying topic {topic}: Kafka gave no record for {_QUIET_SECONDS:.0f} s")
        records = []
        for message in messages:
            error, partition = message.error(), message.partition()
            if error is None:
                reached[partition] = message.offset() + 1
                if message.offset() < ends[partition]:
                    records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                reached[partition] = message.offset()
            elif not isinstance(map_kafka_error(f"verifying topic {topic}", error), RetryableError):
                raise KafkaException(error)
        reached = {partition: offset for partition, offset in reached.items() if offset < ends[partition]}
        yield records


def _records(topic: str, messages: Sequence[Message], schema: pa.Schema) -> pa.Table:
    count = len(messages)
    positions = [
        pa.repeat(pa.scalar(topic), count),
        pa.array(np.fromiter(map(Message.partition, messages), dtype=np.int32, count=count)),
        pa.array(np.fromiter(map(Message.offset, messages), dtype=np.int64, count=count)),
    ]
    parts = {"key": Message.key, "value": Message.value}
    others = [pa.array(list(map(part, messages)), pa.binary()) for name, part in parts.items() if name in schema.names]
    return pa.table([*positions, *others], schema=schema)


def read_table(sink: ClickHouseSink, columns: Sequence[str] = ()) -> pa.Table:
    """The position columns of every row of the sink's table, and `columns`. Raises RetryableError or HaltError."""
    with _client(sink) as client:
        return client.query_arrow(_select(sink, [*columns, *POSITION_SCHEMA.names]), use_strings=True)


def table_batches(sink: ClickHouseSink, columns: Sequence[str], where: str = "true") -> Iterator[pa.Table]:
    """These columns of the rows of the sink's table, as the server streams them. `where` is a condition over position columns and numbers,
    and nothing that came from outside. Raises RetryableError or HaltError.
    """
    yield from stream_rows(sink, f"{_select(sink, columns)} WHERE {where}", as_text=True)


def stream_rows(sink: ClickHouseSink, sql: str, as_text: bool = False) -> Iterator[pa.Table]:
    """What a SELECT of checked identifiers and numbers gives, as the server streams it; nothing where there is no row. Strings come as
    bytes unless `as_text`. Raises RetryableError or HaltError.
    """
    settings = {"output_format_arrow_low_cardinality_as_dictionary": 0}
    with _client(sink) as client, client.query_arrow_stream(sql, settings=settings, use_strings=as_text) as batches:
        for batch in batches:
            yield pa.Table.from_batches([batch])


def count_rows(sink: ClickHouseSink, where: str) -> int:
    """How many rows of the sink's table fit a condition as in `table_batches`. Raises RetryableError or HaltError."""
    with _client(sink) as client:
        return int(client.query(f"SELECT count() FROM {full_name(sink)} WHERE {where}").result_rows[0][0])  # noqa: S608


def _select(sink: ClickHouseSink, columns: Sequence[str]) -> str:
    return f"SELECT {', '.join(quote_identifier(name) for name in columns)} FROM {full_name(sink)}"  # noqa: S608


def full_name(sink: ClickHouseSink) -> str:
    """The sink's table, as it may stand in a statement."""
    return f"{quote_identifier(sink.connection_params.database)}.{quote_identifier(sink.table)}"


@contextmanager
def _client(sink: ClickHouseSink) -> Iterator[Client]:
    """Raises what goes wrong while it is used as RetryableError or HaltError."""
    connection = sink.connection_params
    try:
        client = clickhouse_connect.get_client(
            host=connection.host,
            port=connection.http_port_effective,
            username=connection.username,
            password=connection.password.get_secret_value(),
            secure=connection.secure,
            verify=not connection.skip_certificate_verification,
            pool_mgr=pool_for(connection),
        )
        try:
            yield client
        finally:
            client.close()
    except Exception as error:
        raise map_clickhouse_error(f"verifying table {full_name(sink)}", error) from error


def read_dead_letters(log: JetStream, names: Names) -> pa.Table:
    """POSITION_SCHEMA, `stage`, `code` and `field` of every dead letter; empty where there is no stream. Raises as the log does."""
    schema = pa.schema([*POSITION_SCHEMA, ("stage", pa.string()), ("code", pa.string()), ("field", pa.string())])
    return pa.concat_tables([schema.empty_table(), *(letters.select(schema.names).cast(schema) for letters in read_letters(log, names))])
