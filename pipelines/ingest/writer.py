"""The ingest stage: blocks of one partition of a source become raw frames that cover a range of offsets without a gap.

In: RAW_SCHEMA blocks in offset order, each with the offset after the last one passed. Out: frames on `raw.<source>.<partition>` with
`Tf-First`/`Tf-Last` (offsets, inclusive, row or not) and the source's identity. Guarantee: each offset is covered by exactly one frame.
Rejected: nothing; bytes are not inspected. State: none; the subject's last message is the resume point. After a restart a range may be
read again from the source, but only offsets beyond the subject's tail are written.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.errors import InvariantError
from pipelines.protocol.append import Appender, Appending, Written
from pipelines.protocol.failpoints import reach
from pipelines.protocol.records import HEADER_BYTES, HEADER_LAST, HEADER_SKIPPED, HEADER_TOPIC_ID, RAW_SCHEMA, Framing, Message


def last_offset(message: Message) -> int:
    """Return the last offset that a stored raw frame covers."""
    return int(message.headers[HEADER_LAST])


def identity_of(message: Message) -> str:
    """Return the identity of the source from which a stored raw frame was read."""
    return message.headers[HEADER_TOPIC_ID]


class PartitionWriter:
    """Writes one partition's range [start, end) after the subject's tail.

    `headers` are set on every frame. Not thread-safe.
    """

    def __init__(self, appender: Appender[int], start: int, end: int, headers: dict[str, str]) -> None:
        self._appender, self._end, self._headers = appender, end, headers
        self._covered = start - 1
        self.start = start
        self.frames: list[Written[int]] = []
        self.must_read_back = False
        """True if `frames` is not the whole range: another attempt wrote a part of it, or offsets were skipped."""

    def skipping(self, next_offset: int) -> Appending[None]:
        """Cover the expired offsets before `next_offset` with an empty frame that names their number."""
        self.must_read_back = True
        while not self._catch_up(next_offset):
            empty = RAW_SCHEMA.empty_table()
            yield from self._append(
                empty, self._appender.framing.encode(empty), next_offset - 1, {HEADER_SKIPPED: str(next_offset - 1 - self._covered)}
            )

    def writing(self, records: pa.Table, next_offset: int) -> Appending[None]:
        """Write the frames for `records`, which end before `next_offset`; skip the offsets that another attempt has already written.

        A stretch without rows gets an empty frame if it ends the range, so that the tail shows the progress of reading.
        """
        while not self._catch_up(next_offset):
            rest = records.filter(pc.greater(records.column("offset"), self._covered)) if records.num_rows else records
            if rest.num_rows == 0 and next_offset < self._end:
                return
            for part, payload, last in _frames(self._appender.framing, rest, next_offset):
                if not (yield from self._append(part, payload, last, {HEADER_BYTES: str(part.nbytes)})):
                    break

    def _append(self, part: pa.Table, payload: bytes, last: int, headers: dict[str, str]) -> Appending[bool]:
        """Append one frame; return False if another attempt has written here meanwhile."""
        written = yield from self._appender.appending(payload, self._covered + 1, last, part.num_rows, {**self._headers, **headers})
        if written is None:
            self.must_read_back = True
            return False
        reach("ingest.between-frames")
        self._covered = last
        self.frames.append(written)
        return True

    def _catch_up(self, next_offset: int) -> bool:
        """Move behind the subject's tail; return True if the tail covers everything before `next_offset`."""
        tail = self._appender.tail.position
        if tail is not None and tail > self._covered:
            self._covered, self.must_read_back = tail, True
        return self._covered >= next_offset - 1


def _frames(framing: Framing, records: pa.Table, next_offset: int) -> Iterator[tuple[pa.Table, bytes, int]]:
    """Yield (rows, encoded frame, last offset covered); the last frame covers up to `next_offset` - 1."""
    if records.num_rows == 0:
        empty = RAW_SCHEMA.empty_table()
        yield empty, framing.encode(empty), next_offset - 1
        return
    done = 0
    for part, payload in framing.cut(records):
        done += part.num_rows
        last = next_offset - 1 if done == records.num_rows else part.column("offset")[-1].as_py()
        yield part, payload, last


def check_cover(frames: list[Written[int]], start: int, end: int, subject: str) -> None:
    """Raise InvariantError unless the frames cover [start, end) without gap or overlap."""
    expected = start
    for frame in frames:
        if frame.first != expected:
            raise InvariantError(f"{subject}: the frame at {frame.sequence} starts at offset {frame.first}, expected {expected}")
        expected = frame.last + 1
    if expected != end:
        raise InvariantError(f"{subject}: frames end before offset {expected}, the range ends before {end}")
