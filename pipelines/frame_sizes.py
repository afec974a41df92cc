"""How large an Arrow IPC stream is once it is decoded, told by its metadata: nothing is decompressed.

Format.html of Arrow, "Serialization and Interprocess Communication": a message's flatbuffer lists (offset, length) of its buffers, and a
buffer of a compressed body begins with its own length as an int64, -1 where it is not compressed.
"""

import struct
from collections.abc import Iterator

import pyarrow as pa

_HEADER, _BUFFERS, _COMPRESSION, _DICTIONARY_DATA = 2, 2, 3, 1
"""Field numbers in Message, RecordBatch and DictionaryBatch (Message.fbs)."""


def uncompressed_bytes(payload: bytes) -> int:
    """Bytes of all buffers of an IPC stream, decompressed. Raises pyarrow.ArrowInvalid for bytes that are none."""
    try:
        return sum(map(_message_bytes, pa.ipc.MessageReader.open_stream(payload)))
    except (struct.error, OverflowError) as error:
        raise pa.ArrowInvalid(f"a message of an Arrow IPC stream is damaged: {error}") from error


def _message_bytes(message: pa.ipc.Message) -> int:
    if message.type not in ("record batch", "dictionary"):
        return 0
    metadata, body = memoryview(message.metadata), memoryview(message.body)
    batch = _field(metadata, _int(metadata, 0), _HEADER)
    if message.type == "dictionary":
        batch = _field(metadata, batch, _DICTIONARY_DATA)
    buffers = _buffers(metadata, _field(metadata, batch, _BUFFERS))
    if not _has(metadata, batch, _COMPRESSION):
        return sum(length for _, length in buffers)
    return sum(_buffer_bytes(body, offset, length) for offset, length in buffers)


def _buffers(metadata: memoryview, at: int) -> Iterator[tuple[int, int]]:
    (count,) = struct.unpack_from("<I", metadata, at)
    yield from struct.iter_unpack("<qq", metadata[at + 4 : at + 4 + 16 * count])


def _buffer_bytes(body: memoryview, offset: int, length: int) -> int:
    if length < 8:
        return 0
    (size,) = struct.unpack_from("<q", body, offset)
    return length - 8 if size == -1 else max(0, int(size))


def _offset(metadata: memoryview, table: int, number: int) -> int:
    """Where field `number` lies within the table at `table`; 0 for a field that is not there."""
    vtable = table - int(struct.unpack_from("<i", metadata, table)[0])
    size, place = struct.unpack_from("<H", metadata, vtable)[0], 4 + 2 * number
    return int(struct.unpack_from("<H", metadata, vtable + place)[0]) if place < size else 0


def _has(metadata: memoryview, table: int, number: int) -> bool:
    return _offset(metadata, table, number) != 0


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Where the table or vector lies that field `number` of the table at `table` refers to."""
    at = table + _offset(metadata, table, number)
    return at + _int(metadata, at)


def _int(metadata: memoryview, at: int) -> int:
    return int(struct.unpack_from("<I", metadata, at)[0])
