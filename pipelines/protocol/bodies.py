"""The entries of the ledger's chains, per leg: the plan before the first effect of a range, and the `done` after the last one.

These dataclasses are the schema: their fields are the JSON of an entry (`codec`), and a start of a release with other fields is refused.
`ledger` appends and reads entries without knowing the meaning of a leg's fields. A range extends from `start` (exclusive) to `to`
(inclusive) in sequences of a stream; for ingest it is a range of offsets per partition, [start, to).
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, Strict

from pipelines.protocol.codec import (
    Base64,
    Count,
    Digest,
    Flag,
    Form,
    FullTable,
    Long,
    PartitionKey,
    SnapshotDigest,
    TableName,
    Text,
    Version,
)
from pipelines.protocol.ledger import ChainState, ChainType, Done, Plan
from pipelines.protocol.naming import REDRIVE, REPROCESS

NEVER = int(np.iinfo(np.int64).min)
"""An instant before every other, in microseconds."""
Offsets = dict[PartitionKey, Count]
"""Next offsets by partition."""
Poison = tuple[Count, Count, Text, Text] | tuple[Count, Count, Text, Text, Text] | tuple[Count, Count, Text, Text, Text, Count]
"""A record on which a stage ends: raw sequence, ordinal, stage, message, and its code unless it is `internal_error`.

With a count: as many records of its frame from this one on."""
Lookups = dict[TableName, SnapshotDigest]
"""The snapshots of look-up tables (`lookups.snapshot`), by the name of the table."""


@dataclass(frozen=True)
class InputMark(Form):
    """The last input frame of a range, so that a stream recreated with other content is noticed. `time` is the server's, ISO 8601."""

    sequence: Count
    subject: Text
    time: Text
    digest: Digest


# Ingest.


class RawTail(NamedTuple):
    """The end of a partition's raw subject: the sequence of its last frame, and the last offset that this frame covers."""

    sequence: Count
    offset: Long


@dataclass(frozen=True, kw_only=True)
class IngestPlan(Plan):
    """Offsets to read. `is_anchor`: the first plan, which fixes the beginning of each partition.

    `standing`: partitions that are not read any further, because they have lost their leader; `rest` holds the plan's earlier end for
    them.
    """

    start: Offsets
    to: Offsets
    standing: tuple[PartitionKey, ...] = ()
    rest: Offsets = field(default_factory=dict)
    is_anchor: Flag = False


@dataclass(frozen=True, kw_only=True)
class IngestDone(Done):
    """Offsets on raw. `tails` by partition; `rest`: ends of narrowed plans that no range has reached yet."""

    start: Offsets
    to: Offsets
    tails: dict[PartitionKey, RawTail] = field(default_factory=dict)
    rest: Offsets = field(default_factory=dict)


# Process.


@dataclass(frozen=True)
class ClockReset(Form):
    """A decision of the ledger: after the frame at `after` the arrival advances at half the speed of the server's clock.

    The arrival had run ahead to `arrival_us` while the server's clock showed `server_us`. The reset holds until the server's clock catches
    up. So the arrival neither stands still nor steps back, and no window is shorter than before. The frames up to `last` were stored before
    the decision: none arrived later than `server_us`, whatever their times show.
    """

    after: Count
    last: Count
    server_us: Long
    arrival_us: Long

    def time_us(self, sequence: int, server_us: int) -> int:
        """Return the time that replaces the server's time of a frame after `after`."""
        known_us = min(server_us, self.server_us) if sequence <= self.last else server_us
        return max(known_us, self.arrival_us + max(0, known_us - self.server_us) // 2)


@dataclass(frozen=True)
class Watermarks(Form):
    """The watermarks up to some frame. Times in microseconds, or NEVER.

    The combined watermark, without the lateness; the newest time of all records; the number of records of partitions; and for each
    partition its newest time and that number after its last record.
    """

    combined_us: Long = NEVER
    newest_us: Long = NEVER
    records: Count = 0
    partitions: dict[Annotated[int, Field(ge=0)], tuple[Long, Count]] = field(default_factory=dict)


NOTHING = Watermarks()
"""The watermarks before the first frame."""


@dataclass(frozen=True)
class Waiting(Form):
    """The oldest left record that a join has stored while its window is open: raw sequence, ordinal, and arrival in microseconds.

    It may have met a right record since. Raw keeps the records from there on.
    """

    sequence: Count
    ordinal: Count
    arrival_us: Long


@dataclass(frozen=True)
class PageReference(Form):
    """A reference to the pages that list the live segments of the key store (`run_lists`).

    `first` and `last`: pages by sequence; `digest`: the last one's; `changes`: the number of batches whose changes follow the first.
    """

    first: Count
    last: Count
    digest: Digest
    changes: Count


@dataclass(frozen=True, kw_only=True)
class ProcessPlan(Plan):
    """Raw sequences to process, under the configuration of a version. `poison`: their records that are dead letters without being tried.

    `lookups`: the digest of the snapshot of each table that its look-ups read, by the table's name. `times`: the facts of its frames by
    which an attempt without this poison has joined (`join.progress.Fact`): records that are not tried have no time.
    """

    start: Count
    to: Count
    config: Version
    poison: tuple[Poison, ...] = ()
    lookups: Lookups = field(default_factory=dict)
    times: tuple[tuple[Count, Long, Long, Count], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProcessDone(Done):
    """Raw sequences that were processed. `clock_us`: the arrival of the last frame; `clock_resets`, `watermarks`: as of this frame.

    `lookups`: as in its plan.

    `ends`: the last sequences of the streams that the sinks read, by role, and of `duplicates`. `arrivals` of the range's frames: the
    first, then the difference of each frame from the one before it. `waiting`: after this range, if there is a join.
    """

    start: Count
    to: Count
    config: Version
    buckets: Annotated[int, Strict(), Field(ge=1, le=2**20)] = 1
    clock_us: Long = 0
    clock_resets: tuple[ClockReset, ...] = ()
    watermarks: Watermarks = NOTHING
    input: InputMark | None = None
    ends: dict[Text, Count] = field(default_factory=dict)
    runs: PageReference | None = None
    waiting: Waiting | None = None
    arrivals: tuple[Long, ...] = ()
    lookups: Lookups = field(default_factory=dict)


# Sink.


@dataclass(frozen=True)
class PlannedPieces(Form):
    """The progress of a chunk that was cut (`sink.chunks.Pieces`): rows before `sent` are settled, pieces end at `ends`.

    `refused`: row and place of its reason in `reasons`. `stored`: a packed bitmap of rows that the table has.
    """

    sent: Count
    ends: tuple[Count, ...] = ()
    refused: tuple[tuple[Count, Count], ...] = ()
    reasons: tuple[Text, ...] = ()
    stored: Base64 = ""

    def __post_init__(self) -> None:
        if any(later <= before for before, later in zip((self.sent, *self.ends), self.ends, strict=False)):
            raise ValueError("its pieces do not follow each other")
        if any(reason >= len(self.reasons) for _, reason in self.refused):
            raise ValueError("a row is refused for a reason that is not listed")


@dataclass(frozen=True)
class Abandoned(Form):
    """Rows that were abandoned: their number, the reason, and a packed bit for each row of the chunk."""

    reason: Text
    rows: Count
    bits: Base64


@dataclass(frozen=True, kw_only=True)
class SinkPlan(Plan):
    """One chunk: its out sequences, digest and number of rows, and the configuration and table for its inserts."""

    start: Count
    to: Count
    config: Version
    rows: Count
    digest: Digest
    table: FullTable = ""
    pieces: PlannedPieces | None = None
    abandoned: Abandoned | None = None


@dataclass(frozen=True, kw_only=True)
class SinkDone(Done):
    """Out sequences whose rows are in the table or dead letters."""

    start: Count
    to: Count
    input: InputMark | None = None


# Redrive.


@dataclass(frozen=True, kw_only=True)
class RedrivePlan(Plan):
    """Dead letters that are redriven or discarded; plans are numbered, `to` is the number.

    `letters`: sequence of the dlq frame, and ranges of rows in it, both ends inclusive. `records`: a frame of edited dead letters that
    replaces their records.
    """

    start: Count
    to: Count
    action: Literal["enter", "discard"]
    letters: tuple[tuple[Count, tuple[tuple[Count, Count], ...]], ...]
    reason: Text = ""
    records: Base64 = ""


@dataclass(frozen=True, kw_only=True)
class RedriveDone(Done):
    """Dead letters that were taken."""

    start: Count
    to: Count


# Reprocess.


@dataclass(frozen=True, kw_only=True)
class ReprocessPlan(Plan):
    """Rows of a table that are deleted and made anew; plans are numbered, `to` is the number.

    `first` and `last`: their raw sequences, both inclusive. `config`: the mapping of the new rows. `rows`: their number. `positions`: the
    packed positions of the rows that the table had (`positions.encoded`): exactly these get a row.
    """

    start: Count
    to: Count
    first: Count
    last: Count
    config: Version
    table: FullTable
    rows: Count
    positions: Base64 = ""


@dataclass(frozen=True, kw_only=True)
class ReprocessDone(Done):
    """Rows that were made anew: raw sequences `first` to `last`, both inclusive, and the mapping under which they are now."""

    start: Count
    to: Count
    first: Count
    last: Count
    config: Version


# The chains.

INGEST_CHAIN = ChainType("ingest", IngestPlan, IngestDone)
PROCESS_CHAIN = ChainType("process", ProcessPlan, ProcessDone)
SINK_CHAIN = ChainType("sink", SinkPlan, SinkDone)
DEAD_LETTERS_CHAIN = ChainType("dead_letters", SinkPlan, SinkDone)
REDRIVE_CHAIN = ChainType(REDRIVE, RedrivePlan, RedriveDone)
REPROCESS_CHAIN = ChainType(REPROCESS, ReprocessPlan, ReprocessDone)
_ALL = (INGEST_CHAIN, PROCESS_CHAIN, SINK_CHAIN, DEAD_LETTERS_CHAIN, REDRIVE_CHAIN, REPROCESS_CHAIN)
CHAINS: dict[str, ChainType[Any, Any]] = {kind.leg: kind for kind in _ALL}
"""The chains by leg."""
ProcessState = ChainState[ProcessPlan, ProcessDone]
