"""librdkafka's mock broker, and a producer on it that can write what the Python client cannot: header names that are not UTF-8."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
from confluent_kafka import Producer

_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _TIMESTAMP, _HEADER, _END = 1, 3, 4, 5, 7, 8, 9, 0
"""`rd_kafka_vtype_t`, rdkafka.h."""
_COPY, _CONF_OK = 2, 0
_PRODUCER = 0


@contextmanager
def mock_brokers(topic: str, brokers: int = 1) -> Iterator[str]:
    """The bootstrap address of a cluster that lives in this process and has `topic`."""
    owner = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": brokers, "log_level": 0})
    found = owner.list_topics(topic, 10).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in found)
    # The cluster ends with its owner.
    owner.flush(0)


def produce_raw(bootstrap: str, topic: str, records: Sequence[tuple[bytes, int, Sequence[tuple[bytes, bytes]]]]) -> None:
    """Appends records (value, milliseconds, headers) to partition 0, with names of headers in any bytes."""
    (path,) = (Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka*.so*")
    library = ctypes.CDLL(str(path))
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    conf, said = ctypes.c_void_p(library.rd_kafka_conf_new()), ctypes.create_string_buffer(512)
    for name, value in ((b"bootstrap.servers", bootstrap.encode()), (b"log_level", b"0")):
        assert library.rd_kafka_conf_set(conf, name, value, said, ctypes.c_size_t(512)) == _CONF_OK, said.value
    made = library.rd_kafka_new(_PRODUCER, conf, said, ctypes.c_size_t(512))
    assert made, said.value
    client = ctypes.c_void_p(made)
    for value, milliseconds, headers in records:
        arguments: list[object] = [_TOPIC, ctypes.c_char_p(topic.encode()), _PARTITION, ctypes.c_int32(0), _FLAGS, _COPY]
        arguments += [_VALUE, ctypes.c_char_p(value), ctypes.c_size_t(len(value)), _KEY, ctypes.c_char_p(b"k"), ctypes.c_size_t(1)]
        arguments += [_TIMESTAMP, ctypes.c_int64(milliseconds)]
        for name, content in headers:
            arguments += [_HEADER, ctypes.c_char_p(name), ctypes.c_char_p(content), ctypes.c_ssize_t(len(content))]
        assert library.rd_kafka_producev(client, *arguments, _END) == 0
    assert library.rd_kafka_flush(client, 10_000) == 0
    library.rd_kafka_destroy(client)
