"""librdkafka's mock cluster, by its C interface: partitions without a leader, and records that the Python client cannot write."""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import confluent_kafka

_PRODUCER = 0
_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _TIMESTAMP, _HEADER, _END = 1, 3, 4, 5, 7, 8, 9, 0
"""`rd_kafka_vtype_t`, rdkafka.h."""
_COPY = 2
_NO_LEADER = -1
Record = tuple[bytes | None, int, Sequence[tuple[bytes, bytes | None]]]
"""Value, milliseconds, and headers with names in any bytes but zero."""


@cache
def _library() -> Any:
    (path,) = (Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka*.so*")
    library = ctypes.CDLL(str(path))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_handle_mock_cluster"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


class MockKafka:
    """A cluster of one topic in this process; a context manager. `bootstrap` is its address."""

    def __init__(self, topic: str, partitions: int = 1, brokers: int = 1) -> None:
        self._topic = topic.encode()
        self._client = _client({b"test.mock.num.brokers": str(brokers).encode()})
        self._cluster = ctypes.c_void_p(_library().rd_kafka_handle_mock_cluster(self._client))
        assert _library().rd_kafka_mock_topic_create(self._cluster, self._topic, partitions, 1) == 0
        self.bootstrap: str = _library().rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def __enter__(self) -> "MockKafka":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _library().rd_kafka_destroy(self._client)

    def take_leader(self, partition: int) -> None:
        self.give_leader(partition, _NO_LEADER)

    def give_leader(self, partition: int, broker: int = 1) -> None:
        assert _library().rd_kafka_mock_partition_set_leader(self._cluster, self._topic, partition, broker) == 0

    def stop_broker(self, broker: int) -> None:
        """It refuses connections; its partitions keep it as their leader."""
        assert _library().rd_kafka_mock_broker_set_down(self._cluster, broker) == 0

    def start_broker(self, broker: int) -> None:
        assert _library().rd_kafka_mock_broker_set_up(self._cluster, broker) == 0

    def produce(self, partition: int, records: Sequence[Record], keys: Sequence[bytes | None] = ()) -> None:
        """Appends records, each with the key b"k" if no keys are given."""
        client = _client({b"bootstrap.servers": self.bootstrap.encode(), b"message.max.bytes": b"16000000"})
        for (value, milliseconds, headers), key in zip(records, keys or [b"k"] * len(records), strict=True):
            arguments: list[object] = [_TOPIC, ctypes.c_char_p(self._topic), _PARTITION, ctypes.c_int32(partition), _FLAGS, _COPY]
            arguments += [_VALUE, ctypes.c_char_p(value), ctypes.c_size_t(len(value or b""))]
            arguments += [_KEY, ctypes.c_char_p(key), ctypes.c_size_t(len(key or b""))]
            arguments += [_TIMESTAMP, ctypes.c_int64(milliseconds)]
            for name, content in headers:
                arguments += [_HEADER, ctypes.c_char_p(name), ctypes.c_char_p(content), ctypes.c_ssize_t(len(content or b""))]
            assert _library().rd_kafka_producev(client, *arguments, _END) == 0
        assert _library().rd_kafka_flush(client, 10_000) == 0
        _library().rd_kafka_destroy(client)


def _client(settings: dict[bytes, bytes]) -> ctypes.c_void_p:
    answer = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(_library().rd_kafka_conf_new())
    for name, value in {b"log_level": b"0", **settings}.items():
        assert _library().rd_kafka_conf_set(conf, name, value, answer, ctypes.c_size_t(512)) == 0, answer.value
    made = _library().rd_kafka_new(_PRODUCER, conf, answer, ctypes.c_size_t(512))
    assert made, answer.value
    return ctypes.c_void_p(made)
