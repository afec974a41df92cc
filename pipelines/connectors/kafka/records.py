"""Messages of the Kafka client as RAW_SCHEMA; a message that the client cannot read becomes a row that parse rejects."""

import hashlib
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from pipelines.host import is_of_host
from pipelines.protocol.records import (
    HEADERS_TYPE,
    INSTANT,
    MAX_RECORD_BYTES,
    OVERSIZE_HEAD_BYTES,
    OVERSIZE_TYPE,
    RAW_SCHEMA,
    TIMESTAMPS_MS,
    UNREADABLE_HEADER,
    record_bytes,
)

_NO_TIMESTAMP_MS = -1
"""Kafka's RecordBatch.NO_TIMESTAMP."""
_Headers = list[tuple[str, bytes | None]] | None


def to_records(messages: list[Message], partition: int) -> pa.Table:
    """Convert confluent-kafka messages of one partition to RAW_SCHEMA.

    A message that the client cannot read (for example, a header name is not UTF-8) becomes an unreadable row, which parse rejects. An error
    of the host, such as no memory, is raised.
    """
    return _isolated(messages, _headers(messages), partition)


def _headers(messages: list[Message]) -> list[_Headers | Exception]:
    """Return the headers of each message, or the client's error (SystemError for a name that is not UTF-8).

    Each message is read once: a second read returns a list with holes, which crashes the process (confluent-kafka 2.16).
    """
    headers: list[_Headers | Exception] = []
    asked = map(Message.headers, messages)
    while len(headers) < len(messages):
        try:
            headers.extend(asked)
        except Exception as error:
            if is_of_host(error):
                raise
            headers.append(error)
    return headers


def _isolated(messages: list[Message], headers: list[_Headers | Exception], partition: int) -> pa.Table:
    """Convert as `to_records` does; on an error, convert the halves, down to the message at fault."""
    try:
        return _records(messages, headers, partition)
    except Exception as error:
        if is_of_host(error):
            raise
        if len(messages) == 1:
            message = messages[0]
            row = unreadable(message.key(), message.value(), partition, message.offset(), type(error).__name__)
            return pa.Table.from_pylist([row], schema=RAW_SCHEMA)
        half = len(messages) // 2
        return pa.concat_tables(
            [_isolated(messages[:half], headers[:half], partition), _isolated(messages[half:], headers[half:], partition)]
        )


def unreadable(key: bytes | None, value: bytes | None, partition: int, offset: int, error: str) -> dict[str, Any]:
    """Return the row of a record without its headers and its time: its bytes, and the kind of the client's error."""
    row = {"key": key, "value": value, "partition": partition, "offset": offset}
    return {**_head_of(row, len(key or b"") + len(value or b"")), "headers": [(UNREADABLE_HEADER, error.encode())]}


def _records(messages: list[Message], headers: list[_Headers | Exception], partition: int) -> pa.Table:
    """Convert as `to_records` does, raising the client's errors.

    No Python code runs per record, only C calls under `map`.
    """
    count = len(messages)
    value = pa.array(list(map(Message.value, messages)), pa.binary())
    key = pa.array(list(map(Message.key, messages)), pa.binary())
    millis = np.fromiter(map(itemgetter(1), map(Message.timestamp, messages)), dtype=np.int64, count=count)
    columns = [
        key,
        value,
        pa.array(list(map(_encoded, headers)), HEADERS_TYPE) if any(headers) else pa.nulls(count, HEADERS_TYPE),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array(np.fromiter(map(Message.offset, messages), dtype=np.int64, count=count)),
        instants(millis, _without_time(messages, millis)),
        pa.nulls(count, OVERSIZE_TYPE),
    ]
    return shorten_oversize(pa.table(columns, schema=RAW_SCHEMA))


def instants(millis: npt.NDArray[np.int64], is_timeless: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Return the times of records, those beyond TIMESTAMPS_MS as its nearer end; null where there is none."""
    return pa.array(np.clip(millis, *TIMESTAMPS_MS) * 1000, mask=is_timeless).cast(INSTANT)


def _without_time(messages: list[Message], millis: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
    """Return which messages have no time; None where all have one. The client gives 0 or -1 beside TIMESTAMP_NOT_AVAILABLE."""
    if not len(millis) or millis.min() > 0:
        return None
    return timeless(np.fromiter(map(itemgetter(0), map(Message.timestamp, messages)), dtype=np.int64, count=len(messages)), millis)


def timeless(kinds: npt.NDArray[Any], millis: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which messages have no time, by the kind of their timestamps and these."""
    without: npt.NDArray[np.bool_] = (kinds == TIMESTAMP_NOT_AVAILABLE) | (millis == _NO_TIMESTAMP_MS)
    return without


def _encoded(headers: _Headers | Exception) -> list[tuple[bytes, bytes | None]] | None:
    """Encode the headers of one message; raise the error if there is one in their place."""
    if isinstance(headers, Exception):
        raise headers
    return [(name.encode(), value) for name, value in headers] if headers else None


def shorten_oversize(records: pa.Table) -> pa.Table:
    """Replace the value of each record over MAX_RECORD_BYTES by its head, with its size and SHA-256 in `oversize`; drop its headers.

    The record keeps its position and parse rejects it, so all dead letters have one writer and one identity.
    """
    sizes = record_bytes(records)
    large = np.flatnonzero(sizes > MAX_RECORD_BYTES)
    if not len(large):
        return records
    rows = records.take(pa.array(large)).to_pylist()
    heads = pa.Table.from_pylist([_head_of(row, size) for row, size in zip(rows, sizes[large].tolist(), strict=True)], schema=RAW_SCHEMA)
    places = np.arange(records.num_rows)
    places[large] = records.num_rows + np.arange(len(large))
    return pa.concat_tables([records, heads]).take(pa.array(places))


def _head_of(row: dict[str, Any], size: int) -> dict[str, Any]:
    """Return the row of a record that does not travel whole: the heads of key and value, no headers, and what `oversize` says of it."""
    key, value = row["key"], row["value"] or b""
    return {
        **row,
        "key": key and key[:OVERSIZE_HEAD_BYTES],
        "value": value[:OVERSIZE_HEAD_BYTES],
        "headers": None,
        "oversize": {"bytes": size, "sha256": hashlib.sha256(value).digest()},
    }
