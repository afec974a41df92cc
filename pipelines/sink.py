"""The sink stage: waiting out frames become chunks, a chunk becomes one insert block.

In: out frames in stream order. Out: per chunk one Arrow IPC stream of one record batch with the table's columns, and the chunk's digest.
Guarantee: a chunk is a function of its bounds (first and last out sequence), so a retry sends the same rows with the same token.
Rejected: nothing here; a chunk that ClickHouse refuses for good is a halt. State: none; what is planned and confirmed is in the ledger.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipelines.records import Message, decode_frame

MAX_CHUNK_ROWS = 200_000
MAX_CHUNK_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Chunk:
    """Out frames that are inserted together: sequences `first`..`last` (inclusive), in order, without a gap."""

    messages: tuple[Message, ...]

    @property
    def first(self) -> int:
        return self.messages[0].sequence

    @property
    def last(self) -> int:
        return self.messages[-1].sequence

    @property
    def rows(self) -> int:
        return sum(message.rows for message in self.messages)

    @property
    def digest(self) -> str:
        """64 bits over the frames' bytes, hex: what is stored does not change, so it names the chunk's rows."""
        state = hashlib.blake2b(digest_size=8)
        for message in self.messages:
            state.update(message.payload)
        return state.hexdigest()


def chunks(messages: Iterable[Message], max_rows: int = MAX_CHUNK_ROWS, max_bytes: int = MAX_CHUNK_BYTES) -> Iterator[Chunk]:
    """Cuts frames into chunks of at most `max_rows` rows and `max_bytes` encoded bytes, at frame borders; one frame alone always fits."""
    held: list[Message] = []
    rows = size = 0
    for message in messages:
        if held and (rows + message.rows > max_rows or size + len(message.payload) > max_bytes):
            yield Chunk(tuple(held))
            held, rows, size = [], 0, 0
        held.append(message)
        rows += message.rows
        size += len(message.payload)
    if held:
        yield Chunk(tuple(held))


def insert_block(chunk: Chunk, columns: Sequence[str]) -> bytes:
    """The chunk's rows, `columns` only, as one Arrow IPC stream of one record batch: one block, so the token covers all or nothing.

    Raises KeyError when a frame lacks one of the columns: frames are written under the config of their plan, which named another table.
    """
    tables = [decode_frame(message.payload) for message in chunk.messages]
    table = pa.concat_tables([t for t in tables if t.num_rows] or tables[:1]).select(list(columns)).unify_dictionaries().combine_chunks()
    batch = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema=table.schema)
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4", unify_dictionaries=True)) as writer:
        writer.write_batch(batch)
    block: bytes = out.getvalue().to_pybytes()
    return block
