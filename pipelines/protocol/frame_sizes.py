"""Reads the sizes that an Arrow IPC stream declares, before any of it is uncompressed.

Layouts: Arrow's Message.fbs and the flatbuffers' "Internals"; pyarrow does not expose them. Arrow verifies that the metadata is a sound
flatbuffer when it opens the message.
"""

import struct

import pyarrow as pa

LZ4_FRAME = 0
_LENGTHS = {"dictionary": True, "record batch": False}
"""Whether the header is a dictionary's, which holds the header of a record batch, by type of message that has a body."""


def declared_bytes(payload: bytes) -> int:
    """Return the uncompressed bytes of all bodies of the stream.

    Raise pyarrow.ArrowInvalid for bytes that are no stream, or that are not compressed with lz4.
    """
    total = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(payload):
            if message.type in _LENGTHS:
                total += _body_bytes(message.metadata.to_pybytes(), memoryview(message.body), _LENGTHS[message.type])
    except (struct.error, IndexError, EOFError) as error:
        raise pa.ArrowInvalid(f"its metadata is damaged: {error}") from error
    return total


def _body_bytes(metadata: bytes, body: memoryview, is_dictionary: bool) -> int:
    batch = _child(metadata, _root(metadata), 2)
    if is_dictionary:
        batch = _child(metadata, batch, 1)
    compression = _child(metadata, batch, 3)
    if compression and (at := _field(metadata, compression, 0)) and metadata[at] != LZ4_FRAME:
        raise pa.ArrowInvalid("its buffers are compressed, and not with lz4")
    buffers = _child(metadata, batch, 2)
    if not buffers:
        return 0
    (count,) = struct.unpack_from("<I", metadata, buffers)
    extents = struct.unpack_from(f"<{2 * count}q", metadata, buffers + 4)
    total = 0
    for offset, length in zip(extents[::2], extents[1::2], strict=True):
        if not compression or length == 0:
            total += length
            continue
        if offset < 0 or length < 8 or offset + length > len(body):
            raise pa.ArrowInvalid("a buffer lies outside its message")
        # -1: this buffer did not become smaller and is not compressed.
        (declared,) = struct.unpack_from("<q", body, offset)
        if declared < -1:
            raise pa.ArrowInvalid("a buffer declares a negative length")
        total += length - 8 if declared == -1 else declared
    return total


def _root(metadata: bytes) -> int:
    return int(struct.unpack_from("<I", metadata, 0)[0])


def _field(metadata: bytes, table: int, number: int) -> int:
    """Return the place of a table's field; 0 if the field is missing."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    (size,) = struct.unpack_from("<H", metadata, vtable)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)
    return table + offset if offset else 0


def _child(metadata: bytes, table: int, number: int) -> int:
    """Return the place of the table or vector to which the field refers; 0 if the field is missing."""
    at = _field(metadata, table, number)
    return at + struct.unpack_from("<I", metadata, at)[0] if at else 0
