"""The work of ingest on ranges of a source's offsets: read them, and append their frames to raw.

An item may be a whole plan, or some of its partitions, for a lane.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from pipelines.connectors.nats.client import fetch_whole
from pipelines.connectors.sources import Block, Source
from pipelines.engine.balance import OWN_SHARES
from pipelines.engine.connections import Connections
from pipelines.errors import DataLossError, RetryableError
from pipelines.ingest.writer import PartitionWriter, check_cover, last_offset
from pipelines.protocol.append import Appender, Appending, Tail, Written, together
from pipelines.protocol.bodies import RawTail
from pipelines.protocol.codec import Count, Flag, Form, PartitionKey, Text, from_text, to_text
from pipelines.protocol.failpoints import reach
from pipelines.protocol.ledger import Log
from pipelines.protocol.records import (
    HEADER_FIRST,
    HEADER_PARTITION,
    HEADER_RUN,
    HEADER_SKIPPED,
    HEADER_TOPIC,
    HEADER_TOPIC_ID,
    RAW_SCHEMA,
)

FLUSH_BYTES = 4 * 1024 * 1024
"""Ingest makes frames of what it has read as soon as it is this large."""
INGEST_PART = "ingest"
"""The name of the work that a lane does for ingest."""


@dataclass(frozen=True)
class IngestItem(Form):
    """Offsets [start, end) of a source to read by partition, and the known ends of their subjects.

    Offsets of `standing` partitions are on raw already, and are only reported. `is_part`: other processes read the other partitions.
    """

    source: Text
    ranges: dict[PartitionKey, tuple[Count, Count]]
    tails: dict[PartitionKey, RawTail]
    standing: tuple[PartitionKey, ...] = ()
    epoch: Count = 0
    flush_bytes: Count = FLUSH_BYTES
    is_part: Flag = False

    def of(self, partitions: Sequence[str]) -> "IngestItem":
        """Return the part of the item for these partitions."""
        tails = {p: tail for p, tail in self.tails.items() if p in partitions}
        standing = tuple(p for p in self.standing if p in partitions)
        return replace(self, ranges={p: self.ranges[p] for p in partitions}, tails=tails, standing=standing, is_part=True)

    @property
    def offsets(self) -> int:
        """The number of offsets in the ranges."""
        return sum(end - start for start, end in self.ranges.values())


@dataclass(frozen=True)
class PartitionReport(Form):
    """The frames of one partition's range that are on raw."""

    frames: Count
    tail: RawTail
    rows: Count
    skipped: Count
    bytes: Count


@dataclass(frozen=True)
class IngestReport(Form):
    """The reports of an item, by partition."""

    partitions: dict[PartitionKey, PartitionReport]


def ingest(connections: Connections, item: IngestItem) -> IngestReport:
    """Read the item's ranges and append their frames; report the frames now on raw, including other attempts' frames.

    While more is read, encoding and publishing run on a thread of their own, one flush behind.
    """
    ranges = {int(p): range_ for p, range_ in item.ranges.items()}
    tails = {int(p): Tail(tail.sequence, tail.offset) for p, tail in item.tails.items()}
    copy = _Copy(connections, item, ranges, tails)
    if item.is_part:
        copy.source.keep_only(ranges.keys())
    standing = set(map(int, item.standing))
    for partition in standing:
        copy.writers[partition].must_read_back = True
    try:
        copy.run({p: r for p, r in ranges.items() if p not in standing}, item.flush_bytes)
    except (DataLossError, RetryableError):
        copy.source.discard()
        raise
    return IngestReport({str(p): copy.report(p, tails.get(p)) for p in ranges})


def ingest_part(connections: Connections, text: str) -> bytes:
    """Do `ingest` for an item as text; return the report as text. The work of a lane."""
    return to_text(ingest(connections, from_text(IngestItem, text))).encode()


def parts_of(item: IngestItem, most: int) -> list[IngestItem]:
    """Return the parts, `most` at most, into which an item is cut; the first one is the leg's own.

    The number of a partition decides, so that the process which reads it has fetched ahead.
    """
    shares: list[list[str]] = [[] for _ in range(most)]
    for partition in item.ranges:
        shares[max(0, int(partition) % (most - 1 + OWN_SHARES) - OWN_SHARES + 1)].append(partition)
    return [item.of(share) for share in shares if share]


def ingest_divided(connections: Connections, item: IngestItem) -> IngestReport:
    """Do `ingest` for an item, here and in lanes; return one report."""
    parts = parts_of(item, connections.lanes.parts_for(item.offsets))
    if len(parts) < 2:
        return ingest(connections, item)
    reports = connections.lanes.divide(INGEST_PART, parts, partial(ingest, connections), partial(from_text, IngestReport))
    return IngestReport({p: report for each in reports for p, report in each.partitions.items()})


class _Copy:
    """One attempt at the ranges of an item: its source, and a writer per partition."""

    def __init__(
        self, connections: Connections, item: IngestItem, ranges: Mapping[int, tuple[int, int]], tails: Mapping[int, Tail[int]]
    ) -> None:
        self.connections, self.item, self.ranges = connections, item, ranges
        self.source = connections.source(item.source)
        self.writers = {p: self._writer(p, start, end, tails.get(p)) for p, (start, end) in ranges.items()}

    def _writer(self, partition: int, start: int, end: int, tail: Tail[int] | None) -> PartitionWriter:
        framing = self.connections.means.framing
        appender = Appender(*place_of(self.connections, self.item.source, partition), last_offset, end - 1, tail, framing)
        return PartitionWriter(appender, start, end, headers_of(self.connections, self.item.source, partition, self.item.epoch))

    def run(self, ranges: dict[int, tuple[int, int]], flush_bytes: int) -> None:
        """Copy these ranges of the item; publish whenever `flush_bytes` have been read."""
        blocks: dict[int, list[Block]] = {}
        blocks_bytes = 0
        with self.connections.means.threads(1, "append") as publisher:
            last: Future[None] | None = None
            for block in _blocks(self.source, ranges):
                reach("ingest.after-poll")
                blocks.setdefault(block.partition, []).append(block)
                blocks_bytes += block.records.get_total_buffer_size()
                if block.is_expired or blocks_bytes >= flush_bytes:
                    if last is not None:
                        last.result()
                    last = publisher.submit(self._flush, blocks)
                    blocks, blocks_bytes = {}, 0
            if last is not None:
                last.result()
            if blocks:
                self._flush(blocks)
        reach("ingest.after-publish")

    def _flush(self, held: dict[int, list[Block]]) -> None:
        """Write blocks, once it is certain that they were read from the pipeline's original source: identities are never reused."""
        self._check_identity()
        together(self.connections.log, [_writing(self.writers[partition], blocks) for partition, blocks in held.items()])

    def _check_identity(self) -> None:
        if self.source.facts().identity != self.connections.run.identities[self.item.source]:
            raise DataLossError(
                f"{self.source.words} was deleted and made again while it was read: its offsets mean other "
                "records; delete the pipeline and start it anew, or use another pipeline_id and another table"
            )

    def report(self, partition: int, tail: Tail[int] | None) -> PartitionReport:
        """Report the frames of a partition's range on its subject, with their sequences."""
        writer, (start, end) = self.writers[partition], self.ranges[partition]
        subject = self.connections.names.raw(self.item.source, partition)
        frames = writer.frames
        skipped = 0
        if writer.must_read_back:
            frames, skipped = _stored_frames(self.connections, subject, start, end, tail)
        check_cover(frames, start, end, subject)
        rows = sum(frame.rows for frame in frames)
        tail_now = RawTail(frames[-1].sequence, frames[-1].last)
        return PartitionReport(len(frames), tail_now, rows, skipped, sum(frame.bytes for frame in frames))


def place_of(connections: Connections, source_id: str, partition: int) -> tuple[Log, str, str]:
    """Return the log, the stream and the subject of a partition's frames."""
    names = connections.names
    return connections.log, names.stream("raw"), names.raw(source_id, partition)


def headers_of(connections: Connections, source_id: str, partition: int, epoch: int) -> dict[str, str]:
    """Return the headers that every frame of a partition has; they are named after the first kind of source."""
    name, identity = connections.source(source_id).words.name, connections.run.identities[source_id]
    return {HEADER_TOPIC: name, HEADER_TOPIC_ID: identity, HEADER_PARTITION: str(partition), HEADER_RUN: str(epoch)}


def _writing(writer: PartitionWriter, blocks: list[Block]) -> Appending[None]:
    """Write blocks as frames.

    Expired offsets, which only a last block has, become a frame of their own that names the number of skipped offsets.
    """
    *before, end = blocks
    if end.is_expired:
        if before:
            yield from writer.writing(pa.concat_tables([b.records for b in before]), before[-1].next_offset)
        yield from writer.skipping(end.next_offset)
    else:
        yield from writer.writing(pa.concat_tables([b.records for b in blocks]), end.next_offset)


def _blocks(source: Source, ranges: dict[int, tuple[int, int]]) -> Iterator[Block]:
    """Yield the blocks of all ranges; from a source that skips expired offsets, they come as a block that names them."""
    left = dict(ranges)
    while left:
        try:
            for block in source.read(left):
                left[block.partition] = (block.next_offset, left[block.partition][1])
                yield block
            return
        except DataLossError:
            if not source.skips_expired:
                raise
            source.discard()
        expired = list(_expired(source, left))
        if not expired:
            words = source.words
            raise DataLossError(f"reading {words.name}: offsets {left} cannot be read, yet {words.system} says they exist")
        for block in expired:
            left[block.partition] = (block.next_offset, left[block.partition][1])
            yield block
        left = {p: (start, end) for p, (start, end) in left.items() if start < end}


def _expired(source: Source, left: dict[int, tuple[int, int]]) -> Iterator[Block]:
    first_kept = source.starts(list(left))
    for partition, (start, end) in left.items():
        resume = min(first_kept[partition], end)
        if resume > start:
            yield Block(partition, RAW_SCHEMA.empty_table(), resume, is_expired=True)


def _stored_frames(connections: Connections, subject: str, start: int, end: int, tail: Tail[int] | None) -> tuple[list[Written[int]], int]:
    """Return the frames of [start, end) on the subject, ours and other attempts', and the number of offsets that they skip.

    Raise RetryableError while the replica that answers lags behind the leader.
    """
    stream = connections.names.stream("raw")
    newest = connections.log.last(stream, subject)
    frames, skipped = [], 0
    for message in fetch_whole(connections.log, stream, subject, tail.sequence if tail else 0, newest.sequence if newest else 0):
        first = int(message.headers[HEADER_FIRST])
        if start <= first < end and last_offset(message) >= first:
            frames.append(Written(first, last_offset(message), message.rows, message.sequence, len(message.payload)))
            skipped += int(message.headers.get(HEADER_SKIPPED, "0"))
    return frames, skipped
