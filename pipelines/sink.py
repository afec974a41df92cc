"""The sink stage: waiting out frames become chunks, a chunk becomes one insert block.

In: out frames in stream order. Out: per chunk one Arrow IPC stream of one record batch with the table's columns, and the chunk's digest;
of a chunk that ClickHouse refuses, one per piece of it.
Guarantee: a chunk is a function of its bounds (first and last out sequence), a piece of its rows' places in the chunk, so a retry sends the
same rows with the same token. Rejected: `refused`, rows that ClickHouse refuses alone. State: none; what is planned, cut, refused and
confirmed is in the ledger.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipelines.records import Message, decode_frame, payloads_digest, place_of_frame

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
        """Names the chunk's rows."""
        return payloads_digest(self.messages)


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


@dataclass(frozen=True)
class Pieces:
    """How far a chunk is whose whole ClickHouse refuses. Rows are counted from 0 within the chunk.

    Rows before `sent` are settled: in the table, or in `refused`, which has (row, reason). The next piece is [sent, ends[0]); the last of
    `ends` is the number of rows, and there is none when all is settled. Each step is decided once and for all before the next insert, so
    pieces are never put together again, not even when the table is mended half-way.
    """

    sent: int
    ends: tuple[int, ...]
    refused: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, plan: Mapping[str, Any], rows: int) -> "Pieces":
        """Where the plan of a chunk of `rows` rows stands: the whole chunk at first."""
        found = plan.get("pieces")
        if found is None:
            return cls(0, (rows,) if rows else ())
        return cls(found["sent"], tuple(found["ends"]), tuple((row, found["reasons"][reason]) for row, reason in found["refused"]))

    def body(self) -> dict[str, Any]:
        """The part of the plan that `of` reads."""
        reasons = list(dict.fromkeys(reason for _, reason in self.refused))
        refused = [[row, reasons.index(reason)] for row, reason in self.refused]
        return {"pieces": {"sent": self.sent, "ends": list(self.ends), "refused": refused, "reasons": reasons}}

    def inserted(self) -> "Pieces":
        """After the next piece has been confirmed."""
        return Pieces(self.ends[0], self.ends[1:], self.refused)

    def refuse(self, reason: str, at: int | None) -> "Pieces":
        """After the next piece has been refused, for its row `at` if that is known: a single row is refused for good, more are cut."""
        size = self.ends[0] - self.sent
        if size == 1:
            return Pieces(self.ends[0], self.ends[1:], (*self.refused, (self.sent, reason)))
        cuts = (at, at + 1) if at is not None and 0 <= at < size else (size // 2,)
        return Pieces(self.sent, (*(self.sent + cut for cut in cuts if 0 < cut < size), *self.ends), self.refused)

    def token(self, of_chunk: str, rows: int) -> str:
        """The insert token of the next piece: the chunk's own if it is the whole chunk."""
        return of_chunk if (self.sent, self.ends[0]) == (0, rows) else f"{of_chunk}:{self.sent}-{self.ends[0]}"


def chunk_rows(chunk: Chunk, columns: Sequence[str]) -> pa.Table:
    """The chunk's rows, `columns` only.

    Raises KeyError when a frame lacks one of the columns: frames are written under the config of their plan, which named another table.
    """
    tables = [decode_frame(message.payload, place_of_frame(message)) for message in chunk.messages]
    return pa.concat_tables([t for t in tables if t.num_rows] or tables[:1]).select(list(columns)).unify_dictionaries().combine_chunks()


def insert_block(table: pa.Table) -> bytes:
    """Rows as one Arrow IPC stream of one record batch: one block, so the token covers all or nothing."""
    batch = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema=table.schema)
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4", unify_dictionaries=True)) as writer:
        writer.write_batch(batch)
    block: bytes = out.getvalue().to_pybytes()
    return block
