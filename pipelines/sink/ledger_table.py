"""The ledger as a ClickHouse table: the columns of a row, and the rows that are inserted together. Pure.

In: messages of the ledger stream, in order. Out: blocks of LEDGER_SCHEMA, one row per chain entry; leases, configurations and offers of a
compaction are left out. The end of a block is a function of its entries and its beginning, so every copier that starts at one place sends
the same blocks with the same tokens, except for the last block, which holds the entries present.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from pipelines.protocol.bodies import RedrivePlan
from pipelines.protocol.ledger import Done, Open
from pipelines.protocol.naming import Names, insert_token, leg_token_text
from pipelines.protocol.records import INSTANT, Message, payloads_digest
from pipelines.protocol.topology import chain_of

LEDGER_SCHEMA = pa.schema(
    [
        ("pipeline", pa.string()),
        ("stream_id", pa.string()),
        ("sequence", pa.uint64()),
        ("leg", pa.string()),
        ("kind", pa.string()),
        ("time", INSTANT),
        ("epoch", pa.uint64()),
        ("range_from", pa.string()),
        ("range_to", pa.string()),
        ("counts", pa.map_(pa.string(), pa.uint64())),
        ("body", pa.string()),
    ]
)
"""A row of the table: one chain entry.

`range_from` and `range_to`: JSON as in the entry, empty if it has none. `counts`: the counts of a `done`. `body`: the whole entry without
edited records that were redriven: readers of the table may have no right to read these.
"""
MAX_BLOCK_ENTRIES = 1000
MAX_BLOCK_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Block:
    """Chain entries that are inserted together, `first` to `last` by their sequences, both inclusive."""

    messages: tuple[Message, ...]

    @property
    def first(self) -> int:
        return self.messages[0].sequence

    @property
    def last(self) -> int:
        return self.messages[-1].sequence

    def token(self, pipeline: str, stream_id: str, table: str) -> str:
        return insert_token(pipeline, stream_id, table, self.first, self.last, payloads_digest(self.messages))

    def rows(self, pipeline: str, stream_id: str) -> pa.Table:
        return pa.Table.from_pylist([_row(message, pipeline, stream_id) for message in self.messages], schema=LEDGER_SCHEMA)


def _row(message: Message, pipeline: str, stream_id: str) -> dict[str, object]:
    kind = chain_of(leg_token_text(message.subject.rpartition(".")[2]))
    entry = kind.decode(message)
    body = entry.body
    shown = replace(entry, body=replace(body, records="")) if isinstance(body, RedrivePlan) else entry
    return {
        "pipeline": pipeline,
        "stream_id": stream_id,
        "sequence": message.sequence,
        "leg": str(kind.leg),
        "kind": entry.kind,
        "time": message.time,
        "epoch": entry.epoch,
        "range_from": "" if isinstance(body, Open) else _compact(body.start),
        "range_to": "" if isinstance(body, Open) else _compact(body.to),
        "counts": list(body.counts.items()) if isinstance(body, Done) else [],
        "body": shown.encode().decode(),
    }


def _compact(end: object) -> str:
    return json.dumps(end, separators=(",", ":"))


def blocks(messages: Iterable[Message], names: Names) -> Iterator[Block]:
    """Yield the chain entries among the messages, in blocks."""
    held: list[Message] = []
    size = 0
    for message in messages:
        if message.subject == names.compaction():
            continue
        held.append(message)
        size += len(message.payload)
        if len(held) == MAX_BLOCK_ENTRIES or size >= MAX_BLOCK_BYTES:
            yield Block(tuple(held))
            held, size = [], 0
    if held:
        yield Block(tuple(held))
