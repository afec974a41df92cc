"""Ticks: raw frames without records. They show that time has passed, and may mark partitions of a source as idle.

A tick counts by its place on raw alone, so a replay meets it where the first pass did. One too many, of a leg that was fenced, is a frame
like others. What a mark says of a partition is checked against the frames of the partition before it (`process.join.progress`).
"""

from dataclasses import dataclass

from pipelines.errors import ConflictError
from pipelines.protocol.codec import Count, Form, PartitionKey, Text, from_text, to_text
from pipelines.protocol.ledger import Log
from pipelines.protocol.naming import Names
from pipelines.protocol.records import (
    HEADER_FIRST,
    HEADER_IDLE,
    HEADER_LAST,
    HEADER_PARTITION,
    HEADER_ROWS,
    HEADER_TOPIC,
    RAW_SCHEMA,
    Message,
    encode_frame,
)
from pipelines.without_pandas import empty_table

_HEADERS = {HEADER_ROWS: "0", HEADER_TOPIC: "", HEADER_PARTITION: "0", HEADER_FIRST: "0", HEADER_LAST: "0"}
_TICK = encode_frame(empty_table(RAW_SCHEMA))


@dataclass(frozen=True)
class Idle(Form):
    """Partitions of a source of which nothing has come for a while: each with the next offset that was to be read of it."""

    source: Text
    next: dict[PartitionKey, Count]


def append_tick(log: Log, names: Names, idle: Idle | None = None) -> bool:
    """Append a tick, unless another process appends one now; return whether it was appended.

    `idle`: the mark that it bears. Raise RetryableError if NATS is away, or raw is full.
    """
    last = log.last(names.stream("raw"), names.tick())
    headers = _HEADERS if idle is None else {**_HEADERS, HEADER_IDLE: to_text(idle)}
    try:
        log.publish(names.tick(), _TICK, headers, last.sequence if last else 0)
    except ConflictError:
        return False
    return True


def idle_of(tick: Message) -> Idle | None:
    """Return the mark that a tick bears, None for one without."""
    text = tick.headers.get(HEADER_IDLE)
    return None if text is None else from_text(Idle, text)
