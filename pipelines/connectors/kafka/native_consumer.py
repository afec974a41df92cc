"""A consumer of one topic whose messages become blocks of RAW_SCHEMA by our own C code: no object is made of a message.

It gives what `consumers.ClientConsumer` gives, which is used where the library is not built, or this process has no librdkafka that can be
reached. The consumer is made by librdkafka's C interface: the client's own calls back into Python from a poll, for which it must have begun
the poll itself.
"""

import ctypes
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from pipelines.connectors.kafka.consumers import ClientConsumer, Polled, Settings, TopicConsumer
from pipelines.connectors.kafka.librdkafka import POINTER, Columns, KafkaLibrary, Metadata, Sizes, kafka_library
from pipelines.connectors.kafka.records import instants, shorten_oversize, timeless, unreadable
from pipelines.connectors.sources import Block
from pipelines.protocol.records import HEADERS_TYPE, OVERSIZE_TYPE, RAW_SCHEMA

_CONSUMER = 1
_ERROR_BYTES = 512
_NO_NAME = "SystemError"
"""What the client raises for a header whose name is not UTF-8."""


def cheapest_consumer(topic: str, settings: Settings) -> TopicConsumer:
    """Make the consumer of our own C code, or without it that of the client."""
    library = kafka_library()
    return NativeConsumer(library, topic, settings) if library else ClientConsumer(topic, settings)


class NativeConsumer:
    """A consumer, as `consumers.TopicConsumer` says."""

    def __init__(self, library: KafkaLibrary, topic: str, settings: Settings) -> None:
        self._library, self._call, self._topic = library, library.call, topic.encode()
        self._client = self._made(settings)
        self._check(self._call["poll_set_consumer"](self._client))
        self._queue = self._call["queue_get_consumer"](self._client)

    def _made(self, settings: Settings) -> int:
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
        found = ctypes.POINTER(Metadata)()
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
        messages = (POINTER * most)()
        count = int(self._library.poll(self._queue, math.ceil(seconds * 1000), messages, most))
        if count < 0:
            raise KafkaException(KafkaError(self._call["last_error"]()))
        blocks, ends, errors = list[Block](), dict[int, int](), list[KafkaError]()
        at, end, width = ctypes.addressof(messages), ctypes.addressof(messages) + count * ctypes.sizeof(POINTER), ctypes.sizeof(POINTER)
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

    def __init__(self, count: int, sizes: Sizes) -> None:
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
        arrays: dict[str, npt.NDArray[Any]] = {**self._numbers, **self._wide, **self._bits}
        addresses = {name: array.ctypes.data for name, array in arrays.items()}
        self.columns = Columns(**addresses, **{name: buffer.address for name, buffer in self._texts.items()})

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
