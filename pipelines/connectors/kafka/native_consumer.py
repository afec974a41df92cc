"""A consumer of one topic whose messages our own C code makes blocks of RAW_SCHEMA, for half of the CPU: no object is made of a message.

It gives what `consumers.ClientConsumer` gives, which is used where the library is not built, or this process has no librdkafka that can be
reached. The consumer is made by librdkafka's C interface: the client's own calls back into Python from a poll, for which it must have begun
the poll itself. https://docs.confluent.io/platform/current/clients/librdkafka/html/rdkafka_8h.html
"""

import ctypes
import math
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from pipelines.connectors.kafka.consumers import Polled
from pipelines.connectors.kafka.records import instants, shorten_oversize, timeless, unreadable
from pipelines.connectors.sources import Block
from pipelines.native_library import KAFKA_READER
from pipelines.protocol.records import HEADERS_TYPE, OVERSIZE_TYPE, RAW_SCHEMA

_OF_MESSAGES = ("consume_batch_queue", "message_timestamp", "message_headers", "header_get_all", "message_errstr", "message_destroy")
_POINTER, _SIZE, _INT, _TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
_CALLS: Mapping[str, tuple[object, tuple[object, ...]]] = {
    "conf_new": (_POINTER, ()),
    "conf_set": (_INT, (_POINTER, _TEXT, _TEXT, _TEXT, _SIZE)),
    "conf_destroy": (None, (_POINTER,)),
    "new": (_POINTER, (_INT, _POINTER, _TEXT, _SIZE)),
    "poll_set_consumer": (_INT, (_POINTER,)),
    "queue_get_consumer": (_POINTER, (_POINTER,)),
    "queue_destroy": (None, (_POINTER,)),
    "topic_partition_list_new": (_POINTER, (_INT,)),
    "topic_partition_list_add": (_POINTER, (_POINTER, _TEXT, ctypes.c_int32)),
    "topic_partition_list_set_offset": (_INT, (_POINTER, _TEXT, ctypes.c_int32, ctypes.c_int64)),
    "topic_partition_list_destroy": (None, (_POINTER,)),
    "assign": (_INT, (_POINTER, _POINTER)),
    "pause_partitions": (_INT, (_POINTER, _POINTER)),
    "resume_partitions": (_INT, (_POINTER, _POINTER)),
    "topic_new": (_POINTER, (_POINTER, _TEXT, _POINTER)),
    "topic_destroy": (None, (_POINTER,)),
    "metadata": (_INT, (_POINTER, _INT, _POINTER, _POINTER, _INT)),
    "metadata_destroy": (None, (_POINTER,)),
    "consumer_close": (_INT, (_POINTER,)),
    "destroy": (None, (_POINTER,)),
    "last_error": (_INT, ()),
}
"""What each function of librdkafka returns and takes."""
_CONSUMER = 1
_ERROR_BYTES = 512
_NO_NAME = "SystemError"
"""What the client raises for a header whose name is not UTF-8."""


class _Sizes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("keys", "values", "headers", "names", "contents")]


class _Columns(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_void_p)
        for name in (
            *("key_offsets", "value_offsets", "header_offsets", "name_offsets", "content_offsets", "keys", "values", "names", "contents"),
            *("key_valid", "value_valid", "header_valid", "content_valid"),
            *("partitions", "errors", "time_kinds", "offsets", "times"),
        )
    ]


class _TopicMetadata(ctypes.Structure):
    _fields_ = [("topic", _TEXT), ("partitions", _INT), ("of_partitions", _POINTER), ("error", _INT)]


class _Metadata(ctypes.Structure):
    _fields_ = [("brokers", _INT), ("of_brokers", _POINTER), ("topics", _INT), ("of_topics", ctypes.POINTER(_TopicMetadata))]


class KafkaLibrary:
    """The library, and the librdkafka of this process. `call` has the functions of _CALLS."""

    def __init__(self, library: ctypes.CDLL, client: ctypes.CDLL) -> None:
        """Raise AttributeError for a librdkafka that lacks a function."""
        found = (_POINTER * len(_OF_MESSAGES))(*(ctypes.cast(getattr(client, f"rd_kafka_{name}"), _POINTER).value for name in _OF_MESSAGES))
        library.tallyflow_kafka_bind(found)
        self.call = {}
        for name, (returned, taken) in _CALLS.items():
            function = self.call[name] = getattr(client, f"rd_kafka_{name}")
            function.restype, function.argtypes = returned, taken
        self.poll, self._sizes = library.tallyflow_kafka_poll, library.tallyflow_kafka_sizes
        self.fill, self.drop = library.tallyflow_kafka_fill, library.tallyflow_kafka_drop
        self.poll.argtypes, self.poll.restype = [_POINTER, _INT, _POINTER, _SIZE], ctypes.c_ssize_t
        self._sizes.argtypes, self._sizes.restype = [_POINTER, _SIZE, ctypes.POINTER(_Sizes)], _SIZE
        self.fill.argtypes, self.drop.argtypes = [_POINTER, _SIZE, ctypes.POINTER(_Columns)], [_POINTER, _SIZE]

    def sizes(self, at: int, count: int) -> tuple[int, _Sizes]:
        """Return how many messages fit into columns, and their sizes."""
        found = _Sizes()
        return int(self._sizes(at, count, ctypes.byref(found))), found


@cache
def kafka_library() -> KafkaLibrary | None:
    """Return the library; None if it is not built, or this process has no librdkafka with what it takes."""
    library, client = KAFKA_READER.load(), _librdkafka()
    if library is None or client is None:
        return None
    try:
        return KafkaLibrary(library, client)
    except AttributeError:
        return None


def _librdkafka() -> ctypes.CDLL | None:
    """Return the librdkafka that confluent-kafka has loaded; None where it is part of another library, or the system tells of none."""
    try:
        mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        paths = {line.split(maxsplit=5)[5] for line in mapped if "/librdkafka" in line}
        # Not that of a wheel which was replaced meanwhile: its path ends in " (deleted)".
        return ctypes.CDLL(paths.pop()) if len(paths) == 1 else None
    except OSError:
        return None


class NativeConsumer:
    """A consumer, as `consumers.TopicConsumer` says."""

    def __init__(self, library: KafkaLibrary, topic: str, settings: Mapping[str, str | bool | int]) -> None:
        self._library, self._call, self._topic = library, library.call, topic.encode()
        self._client = self._made(settings)
        self._check(self._call["poll_set_consumer"](self._client))
        self._queue = self._call["queue_get_consumer"](self._client)

    def _made(self, settings: Mapping[str, str | bool | int]) -> int:
        answer = ctypes.create_string_buffer(_ERROR_BYTES)
        conf = self._call["conf_new"]()
        is_wrong = False
        for name, value in settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            is_wrong = is_wrong or self._call["conf_set"](conf, name.encode(), text.encode(), answer, _ERROR_BYTES) != 0
        client: int | None = None if is_wrong else self._call["new"](_CONSUMER, conf, answer, _ERROR_BYTES)
        if client is None:
            self._call["conf_destroy"](conf)
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, answer.value.decode(errors="replace")))
        return client

    def _check(self, code: int) -> None:
        if code:
            raise KafkaException(KafkaError(code))

    def partitions(self, timeout_seconds: float) -> int:
        topic = self._call["topic_new"](self._client, self._topic, None)
        found = ctypes.POINTER(_Metadata)()
        try:
            self._check(self._call["metadata"](self._client, 0, topic, ctypes.byref(found), math.ceil(timeout_seconds * 1000)))
            count = int(found.contents.of_topics[0].partitions)
            self._call["metadata_destroy"](found)
        finally:
            self._call["topic_destroy"](topic)
        return count

    def assign(self, offsets: Mapping[int, int]) -> None:
        self._listed("assign", offsets, offsets)

    def pause(self, partitions: Collection[int]) -> None:
        self._listed("pause_partitions", partitions, {})

    def resume(self, partitions: Collection[int]) -> None:
        self._listed("resume_partitions", partitions, {})

    def _listed(self, name: str, partitions: Collection[int], offsets: Mapping[int, int]) -> None:
        """Call a function with a list of partitions."""
        listed = self._call["topic_partition_list_new"](len(partitions))
        try:
            for partition in partitions:
                self._call["topic_partition_list_add"](listed, self._topic, partition)
                if partition in offsets:
                    self._call["topic_partition_list_set_offset"](listed, self._topic, partition, offsets[partition])
            self._check(self._call[name](self._client, listed))
        finally:
            self._call["topic_partition_list_destroy"](listed)

    def poll(self, most: int, seconds: float) -> Polled:
        messages = (_POINTER * most)()
        count = int(self._library.poll(self._queue, math.ceil(seconds * 1000), messages, most))
        if count < 0:
            raise KafkaException(KafkaError(self._call["last_error"]()))
        blocks, ends, errors = list[Block](), dict[int, int](), list[KafkaError]()
        at, end, width = ctypes.addressof(messages), ctypes.addressof(messages) + count * ctypes.sizeof(_POINTER), ctypes.sizeof(_POINTER)
        try:
            while at < end:
                fitting, sizes = self._library.sizes(at, (end - at) // width)
                read = _Read(fitting, sizes)
                self._library.fill(at, fitting, ctypes.byref(read.columns))
                self._library.drop(at, fitting)
                at += fitting * width
                blocks.extend(read.blocks())
                for partition, offset, error in read.errors():
                    if error.code() == KafkaError._PARTITION_EOF:
                        ends[partition] = offset
                    else:
                        errors.append(error)
        finally:
            self._library.drop(at, (end - at) // width)
        return Polled(count, blocks, ends, errors)

    def close(self) -> None:
        self._call["consumer_close"](self._client)
        self._call["queue_destroy"](self._queue)
        self._call["destroy"](self._client)


class _Read:
    """Columns for so many messages."""

    def __init__(self, count: int, sizes: _Sizes) -> None:
        self._count, self._headers = count, int(sizes.headers)
        texts = {"keys": sizes.keys, "values": sizes.values, "names": sizes.names, "contents": sizes.contents}
        self._texts = {name: pa.allocate_buffer(size) for name, size in texts.items()}
        rows = {"key_offsets": count + 1, "value_offsets": count + 1, "header_offsets": count + 1}
        rows |= {"name_offsets": self._headers + 1, "content_offsets": self._headers + 1}
        rows |= dict.fromkeys(("partitions", "errors", "time_kinds"), count)
        self._numbers: dict[str, npt.NDArray[np.int32]] = {name: np.empty(size, np.int32) for name, size in rows.items()}
        self._wide: dict[str, npt.NDArray[np.int64]] = {name: np.empty(count, np.int64) for name in ("offsets", "times")}
        bits = {"key_valid": count, "value_valid": count, "header_valid": count, "content_valid": self._headers}
        self._bits: dict[str, npt.NDArray[np.uint8]] = {name: np.zeros((size + 7) // 8, np.uint8) for name, size in bits.items()}
        arrays = {**self._numbers, **self._wide, **self._bits}
        addresses = {name: array.ctypes.data for name, array in arrays.items()}
        self.columns = _Columns(**addresses, **{name: buffer.address for name, buffer in self._texts.items()})

    def errors(self) -> Iterator[tuple[int, int, KafkaError]]:
        """Yield partition, offset and error of each event that is no message."""
        codes = self._numbers["errors"]
        texts = self._binary("value", "values") if codes.any() else None
        for row in np.flatnonzero(codes):
            assert texts is not None
            error = KafkaError(int(codes[row]), texts[row].as_py().decode(errors="replace"))
            yield int(self._numbers["partitions"][row]), int(self._wide["offsets"][row]), error

    def blocks(self) -> Iterator[Block]:
        """Yield the messages as one block per partition."""
        partitions, is_message = self._numbers["partitions"], self._numbers["errors"] == 0
        if not is_message.any():
            return
        records = self._records()
        for partition in np.unique(partitions[is_message]):
            mine = is_message & (partitions == partition)
            own = records if mine.all() else records.filter(pa.array(mine))
            own = shorten_oversize(_readable(own))
            yield Block(int(partition), own, own.column("offset")[-1].as_py() + 1)

    def _records(self) -> pa.Table:
        count, millis = self._count, self._wide["times"]
        columns = [
            self._binary("key", "keys"),
            self._binary("value", "values"),
            self._header_maps() if self._headers else pa.nulls(count, HEADERS_TYPE),
            pa.array(self._numbers["partitions"]),
            pa.array(self._wide["offsets"]),
            instants(millis, timeless(self._numbers["time_kinds"], millis)),
            pa.nulls(count, OVERSIZE_TYPE),
        ]
        return pa.table(columns, schema=RAW_SCHEMA)

    def _binary(self, column: str, text: str) -> pa.Array:
        buffers = [self._bits[f"{column}_valid"], self._numbers[f"{column}_offsets"]]
        return pa.Array.from_buffers(pa.binary(), self._count, [*map(pa.py_buffer, buffers), self._texts[text]])

    def _header_maps(self) -> pa.Array:
        names = pa.Array.from_buffers(pa.binary(), self._headers, [None, pa.py_buffer(self._numbers["name_offsets"]), self._texts["names"]])
        contents = [pa.py_buffer(self._bits["content_valid"]), pa.py_buffer(self._numbers["content_offsets"]), self._texts["contents"]]
        pairs = pa.StructArray.from_arrays(
            [names, pa.Array.from_buffers(pa.binary(), self._headers, contents)],
            fields=[HEADERS_TYPE.key_field, HEADERS_TYPE.item_field],
        )
        buffers = [pa.py_buffer(self._bits["header_valid"]), pa.py_buffer(self._numbers["header_offsets"])]
        return pa.Array.from_buffers(HEADERS_TYPE, self._count, buffers, children=[pairs])


def _readable(records: pa.Table) -> pa.Table:
    """Replace each record with a header name that is not UTF-8, which the client cannot read, by an unreadable one."""
    headers = records.column("headers")
    if headers.null_count == len(headers) or all(map(_is_text, headers.chunks)):
        return records
    rows = []
    for row in records.to_pylist():
        is_readable = row["headers"] is None or _is_text(pa.array([row["headers"]], HEADERS_TYPE))
        rows.append(row if is_readable else unreadable(row["key"], row["value"], row["partition"], row["offset"], _NO_NAME))
    return pa.Table.from_pylist(rows, schema=RAW_SCHEMA)


def _is_text(headers: pa.Array) -> bool:
    try:
        headers.keys.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True
