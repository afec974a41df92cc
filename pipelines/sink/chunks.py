"""The sink stage: waiting out frames become chunks, and chunks that ClickHouse refuses become pieces.

In: out frames in stream order. Out: chunks with their digests, and the progress of one that is inserted in pieces. Guarantee: a chunk is a
function of its bounds (first and last out sequence), a piece is a function of its rows' places in the chunk, so a retry sends the same rows
with the same token (`inserts`). Rejected: `refused`, rows that ClickHouse refuses alone. State: none; the ledger holds everything that is
planned, cut, refused and confirmed.
"""

import hashlib
import zlib
from base64 import b64decode, b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from pipelines.protocol.bodies import PlannedPieces
from pipelines.protocol.frame_sizes import declared_bytes
from pipelines.protocol.records import Message, payloads_digest

MAX_CHUNK_ROWS = 200_000
MAX_CHUNK_BYTES = 128 * 1024 * 1024
"""Limit of a chunk, uncompressed as the block is in memory: lz4 packs 250:1 if values repeat, and a block has one buffer per column."""
MAX_REASONS = 100
"""Limit of the reasons that a plan lists; its content stays below 1 MiB."""
MOST_SENT_AGAIN = 5_000
"""Rows before a refused one that are sent again with what follows it; more of them become a piece of their own, sent once."""
_MORE_REASONS = "refused for one more reason than the plan lists; look at the record"

Rows = npt.NDArray[np.int64]
"""Numbers of rows, counted from 0 within the chunk, ascending."""


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
        return self.ends[-1]

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The number of rows up to the end of each frame."""
        return tuple(accumulate(message.rows for message in self.messages))

    @cached_property
    def digest(self) -> str:
        """The name of the chunk's rows."""
        return payloads_digest(self.messages)

    def part(self, first: int, end: int) -> tuple["Chunk", int]:
        """Return the frames that hold the rows [`first`, `end`), and the number of the first row of these frames."""
        begin, last = bisect_right(self.ends, first), bisect_left(self.ends, end)
        return Chunk(self.messages[begin : last + 1]), self.ends[begin - 1] if begin else 0

    @property
    def configs(self) -> frozenset[str]:
        """Versions of the configurations under which its rows were made: one, or none if it has no rows."""
        return frozenset(message.config for message in self.messages if message.rows)


def chunks(
    messages: Iterable[Message],
    max_rows: int = MAX_CHUNK_ROWS,
    max_bytes: int = MAX_CHUNK_BYTES,
    bytes_of: Callable[[bytes], int] = declared_bytes,
) -> Iterator[Chunk]:
    """Cut frames into chunks of at most `max_rows` rows and `max_bytes` bytes, uncompressed, at frame borders.

    A single frame always fits. The rows of a chunk were made under one configuration, so they have the same columns; a frame without rows
    has none. Raise pyarrow.ArrowInvalid for bytes that are no frame.
    """
    held: list[Message] = []
    rows = size = 0
    version = ""
    for message in messages:
        message_bytes = bytes_of(message.payload)
        is_of_another = bool(rows and message.rows and message.config != version)
        if held and (is_of_another or rows + message.rows > max_rows or size + message_bytes > max_bytes):
            yield Chunk(tuple(held))
            held, rows, size = [], 0, 0
        held.append(message)
        version = message.config if message.rows else version
        rows += message.rows
        size += message_bytes
    if held:
        yield Chunk(tuple(held))


@dataclass(frozen=True)
class Pieces:
    """The progress of a chunk that ClickHouse refuses as a whole. Rows are counted from 0 within the chunk.

    Rows before `sent` are settled: in the table, or in `refused`, which has (row, reason), ascending. The next piece is [sent, ends[0])
    without the rows of `stored`, a bitmap of rows that are settled although their piece, or one before it, is not. The last of `ends` is
    the number of rows; `ends` is empty when all rows are settled. Each step is decided once, before the next insert, so pieces are never
    joined again, not even if the table is repaired half-way.
    """

    sent: int
    ends: tuple[int, ...]
    refused: tuple[tuple[int, str], ...] = ()
    stored: bytes = b""

    @classmethod
    def of(cls, found: PlannedPieces | None, rows: int) -> "Pieces":
        """Return the progress in the plan of a chunk of `rows` rows: the whole chunk at first."""
        if found is None:
            return cls(0, (rows,) if rows else ())
        refused = tuple((row, found.reasons[reason]) for row, reason in found.refused)
        stored = zlib.decompress(b64decode(found.stored)) if found.stored else b""
        return cls(found.sent, found.ends, refused, stored)

    def planned(self) -> PlannedPieces:
        """Return the form in the plan: the inverse of `of`. It is bounded: a bitmap of a chunk takes 33 kB at most."""
        reasons = tuple(dict.fromkeys(reason for _, reason in self.refused))
        refused = tuple((row, reasons.index(reason)) for row, reason in self.refused)
        stored = b64encode(zlib.compress(self.stored)).decode() if self.stored else ""
        return PlannedPieces(self.sent, self.ends, refused, reasons, stored)

    def to_send(self) -> Rows:
        """Return the rows of the next piece."""
        rows = np.arange(self.sent, self.ends[0])
        if not self.stored:
            return rows
        return rows[~self._bits()[self.sent : self.ends[0]]]

    def _bits(self) -> npt.NDArray[np.bool_]:
        bits = np.zeros(self.ends[-1], np.bool_)
        found = np.unpackbits(np.frombuffer(self.stored, np.uint8), bitorder="little")[: len(bits)]
        bits[: len(found)] = found
        return bits

    @property
    def is_as_planned(self) -> bool:
        """Whether nothing has been decided about several pieces of a plan."""
        return len(self.ends) > 1 and not (self.sent or self.refused or self.stored)

    @property
    def settled(self) -> int:
        """The number of rows that need no insert any more."""
        return self.sent + int(self._bits()[self.sent :].sum()) if self.stored else self.sent

    def inserted(self) -> "Pieces":
        """Return the progress after the next piece has been confirmed."""
        return self.found(self.to_send())

    def found(self, rows: Rows) -> "Pieces":
        """Return the progress after `rows` of the pieces were found in the table: the next piece is the first that misses rows."""
        bits = self._bits()
        bits[rows] = True
        missing = np.flatnonzero(~bits[self.sent :])
        behind = bisect_right(self.ends, self.sent + missing[0]) if len(missing) else len(self.ends)
        sent = self.ends[behind - 1] if behind else self.sent
        # A bit of a settled row would only make the plan larger.
        bits[:sent] = False
        return Pieces(sent, self.ends[behind:], self.refused, np.packbits(bits, bitorder="little").tobytes() if bits.any() else b"")

    def refuse(self, reason: str, at: int | None, is_named: bool = False) -> "Pieces":
        """Return the progress after the next piece has been refused.

        `at`: the row of `to_send` that caused the refusal, if known. A single row is refused for good; a piece of several rows is cut. With
        `is_named` the row `at` is refused for good wherever it is: the others of its piece are sent again, together, but for many rows
        before it: these become a piece of their own, or each refused row of a large chunk would send all of them once more.
        """
        rows = self.to_send()
        if len(rows) > 1 and not is_named:
            return self.cut(at)
        at = at if is_named and at is not None else 0
        row, reasons = int(rows[at]), {known for _, known in self.refused}
        known_reason = reason if reason in reasons or len(reasons) < MAX_REASONS else _MORE_REASONS
        after = self.found(np.array([row]))
        ends = (row, *after.ends) if at >= MOST_SENT_AGAIN else after.ends
        return replace(after, ends=ends, refused=tuple(sorted((*self.refused, (row, known_reason)))))

    def cut(self, at: int | None = None) -> "Pieces":
        """Return the next piece in halves, or with the row `at` of `to_send` alone. A single row stays unchanged."""
        rows = self.to_send()
        indices = (at, at + 1) if at is not None and 0 <= at < len(rows) else (len(rows) // 2,)
        cuts = (int(rows[suffix]) for suffix in indices if 0 < suffix < len(rows))
        return replace(self, ends=(*cuts, *self.ends))

    def token(self, of_chunk: str, rows: int) -> str:
        """Return the insert token of the next piece: the chunk's own if it is the whole chunk."""
        suffix = "" if (self.sent, self.ends[0]) == (0, rows) else f":{self.sent}-{self.ends[0]}"
        sent = self.to_send()
        if len(sent) < self.ends[0] - self.sent:
            # ClickHouse would drop other rows under a used token as known.
            suffix = f":{self.sent}-{self.ends[0]}:{hashlib.sha256(sent.tobytes()).hexdigest()[:16]}"
        return of_chunk + suffix
