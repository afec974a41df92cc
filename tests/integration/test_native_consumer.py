"""What our own C code reads of Kafka is what the client's objects hold, whatever the records are."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.kafka_mock import MockKafka, Record
from support.native import build_library

from pipelines.config import KafkaSource
from pipelines.connectors.kafka.client import RangeReader
from pipelines.connectors.kafka.consumers import ClientConsumer, MakeConsumer
from pipelines.connectors.kafka.librdkafka import kafka_library
from pipelines.connectors.kafka.native_consumer import NativeConsumer, cheapest_consumer
from pipelines.native_library import KAFKA_READER
from pipelines.protocol.records import MAX_RECORD_BYTES, RAW_SCHEMA

pytestmark = pytest.mark.integration

TEXTS = st.none() | st.binary(max_size=40)
NAMES = st.text(max_size=8).map(lambda name: name.replace("\0", "").encode()) | st.sampled_from([b"\xff", b"a\x80"])
HEADERS = st.lists(st.tuples(NAMES, TEXTS), max_size=3)
TIMES = st.sampled_from([1, 1_767_960_000_000, 2**62]) | st.integers(1, 2**48)
RECORDS: Any = st.tuples(TEXTS, TIMES, st.just([]) | HEADERS)
"""Kafka's clients write no record without a time; `test_kafka_records` has those."""


@pytest.fixture
def cluster() -> Iterator[MockKafka]:
    build_library(KAFKA_READER)
    with MockKafka("orders", partitions=3) as made:
        yield made


def source(bootstrap: str) -> KafkaSource:
    document = {
        "type": "kafka",
        "topic": "orders",
        "connection_params": {"brokers": [bootstrap]},
        "schema_fields": [{"name": "id", "type": "int"}],
    }
    return KafkaSource.model_validate(document)


def read(bootstrap: str, ranges: dict[int, tuple[int, int]], consumer: MakeConsumer = cheapest_consumer) -> dict[int, pa.Table]:
    with closing(RangeReader(source(bootstrap), consumer=consumer)) as reader:
        blocks = list(reader.read(ranges))
    return {p: pa.concat_tables([RAW_SCHEMA.empty_table(), *(b.records for b in blocks if b.partition == p)]) for p in ranges}


def read_both(cluster: MockKafka, ranges: dict[int, tuple[int, int]]) -> tuple[dict[int, pa.Table], dict[int, pa.Table]]:
    """By our code, and by the client's objects."""
    return read(cluster.bootstrap, ranges), read(cluster.bootstrap, ranges, ClientConsumer)


def same(ours: dict[int, pa.Table], theirs: dict[int, pa.Table]) -> bool:
    for partition, table in ours.items():
        table.validate(full=True)
        assert table.schema.equals(RAW_SCHEMA)
        assert table.to_pylist() == theirs[partition].to_pylist()
    return True


def test_our_code_reads_where_it_is_built(cluster: MockKafka) -> None:
    with closing(RangeReader(source(cluster.bootstrap))) as reader:
        assert isinstance(reader._consumer, NativeConsumer)


@pytest.mark.parametrize("wrong", [{"no.such": 1}, {"log_level": "high"}, {"security.protocol": "ssl", "ssl.ca.location": "/none"}])
def test_a_setting_that_no_consumer_takes_is_named_alike(cluster: MockKafka, wrong: dict[str, str | int]) -> None:
    library = kafka_library()
    assert library is not None
    given, said = {"group.id": "orders", **wrong}, list[tuple[int, str]]()
    for made in (lambda: NativeConsumer(library, "orders", given), lambda: ClientConsumer("orders", given)):
        with pytest.raises(KafkaException) as caught:
            made()
        said.append((caught.value.args[0].code(), caught.value.args[0].str()))
    (code, text), (their_code, their_text) = said
    assert code == their_code
    assert their_text.endswith(text)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2), RECORDS, TEXTS), min_size=1, max_size=40))
def test_any_records_are_read_alike(cluster: MockKafka, drawn: list[tuple[int, Record, bytes | None]]) -> None:
    ranges = {}
    for partition in range(3):
        own = [(record, key) for at, record, key in drawn if at == partition]
        start = ENDS.get((id(cluster), partition), 0)
        end = ENDS[id(cluster), partition] = start + len(own)
        if own:
            cluster.produce(partition, [record for record, _ in own], [key for _, key in own])
            ranges[partition] = (start, end)
    ours, theirs = read_both(cluster, ranges)
    assert sum(table.num_rows for table in ours.values()) == len(drawn)
    assert same(ours, theirs)


ENDS: dict[tuple[int, int], int] = {}
"""The end of each partition of a cluster: the examples of a test share one."""


def test_large_records_and_many_headers_are_read_alike(cluster: MockKafka) -> None:
    noon = 1_767_960_000_000
    headers = [(b"h%d" % n, b"v" * n) for n in range(40)]
    many = [(b"x" * n, noon, headers[: n % 40]) for n in range(500)]
    large: list[Record] = [(b"y" * size, noon, [(b"h", b"z" * 1000)]) for size in (MAX_RECORD_BYTES - 1014, MAX_RECORD_BYTES, 1_040_000)]
    cluster.produce(0, [*many, *large])
    ours, theirs = read_both(cluster, {0: (0, len(many) + len(large))})
    assert same(ours, theirs)
    assert ours[0].column("oversize").null_count == len(many) + 1


def test_columns_are_cut_before_their_offsets_end(cluster: MockKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.produce(0, [(b"%d" % n, 1, []) for n in range(100)])
    library = kafka_library()
    assert library is not None
    sizes, asked = library.sizes, list[int]()

    def few(at: int, count: int) -> Any:
        asked.append(count)
        return sizes(at, min(count, 7))

    monkeypatch.setattr(library, "sizes", few)
    assert read(cluster.bootstrap, {0: (0, 100)})[0].column("value").to_pylist() == [b"%d" % n for n in range(100)]
    assert len(asked) > 14
