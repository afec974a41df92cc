"""The states on the chains of lanes. A lane's last `done` is its whole state: what is finished, and what is decided about what follows.

There are no plans: a decision is a `done` whose range is empty (`start` equals `to`), and it stands before its first effect. Ranges of
sequences extend from `start` (exclusive) to `to` (inclusive); a range of offsets is [start, to).
"""

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field, Strict

from pipelines.protocol.codec import Count, Digest, Flag, Form, PartitionKey, Text, Version
from pipelines.protocol.ledger import ChainType, Done, Plan
from pipelines.protocol.naming import Names, subject_token

Buckets = tuple[Count, ...]


@dataclass(frozen=True, kw_only=True)
class IngestState(Done):
    """The offsets of one partition that are on raw: all records in [begin, to), `rows` of them.

    `layout`: the number of the layout by which records are dealt to buckets. `is_closed`: no more is written under this layout.
    """

    start: Count
    to: Count
    begin: Count
    rows: Count = 0
    skipped: Count = 0
    layout: Count = 0
    is_closed: Flag = False


@dataclass(frozen=True)
class Segments(Form):
    """The live segments of a bucket's key store, as a difference to the state before, or all of them (`is_full`)."""

    added: tuple[Text, ...] = ()
    removed: tuple[Text, ...] = ()
    is_full: Flag = False
    changes: Count = 0
    """The number of differences since the last full list."""


@dataclass(frozen=True, kw_only=True)
class ProcessState(Done):
    """The raw sequences of one bucket that are processed.

    `config` holds for the next sequence; `switches` name the configurations that follow, each behind a sequence, ascending.
    """

    start: Count
    to: Count
    config: Version
    switches: tuple[tuple[Count, Version], ...] = ()
    segments: Segments = Segments()
    layout: Count = 0


@dataclass(frozen=True)
class Chunk(Form):
    """The chunk that a sink lane inserts next: out sequences up to `to`, its rows' number and digest.

    `refused`, `stored`: positions of rows that become dead letters, and of rows that the table was found to hold after a refusal.
    """

    to: Count
    rows: Count
    digest: Digest
    refused: tuple[Text, ...] = ()
    stored: tuple[Text, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SinkState(Done):
    """The out sequences of one group of buckets that are confirmed, and the open chunk behind them.

    `ahead`: buckets of which an earlier group has confirmed more than `to`. `is_closed`: the lanes of the next generation go on.
    """

    start: Count
    to: Count
    ahead: dict[PartitionKey, Count] = field(default_factory=dict)
    chunk: Chunk | None = None
    is_closed: Flag = False


@dataclass(frozen=True)
class Layout(Form):
    """How keys are dealt to buckets, for raw frames behind the sequence `since`. `segments`: those that its buckets begin with."""

    number: Count
    buckets: Annotated[int, Strict(), Field(ge=1, le=2**20)]
    since: Count = 0
    segments: tuple[Text, ...] = ()


@dataclass(frozen=True)
class Generation(Form):
    """The groups of buckets, one for each sink lane; `before`: the groups of the generation before, empty for the first."""

    number: Count
    groups: tuple[Buckets, ...]
    before: tuple[Buckets, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Assignment(Done):
    """Which lanes run, and in which share: one entry for each epoch; `to` is its number.

    `is_draining`: ingest lanes close the layout, after which another one follows.
    """

    start: Count
    to: Count
    config: Version
    layout: Layout
    generation: Generation
    shares: tuple[tuple[Text, ...], ...]
    is_draining: Flag = False


MAX_ATTEMPTS = 1024
ASSIGNMENTS = ChainType("lanes", Plan, Assignment)


def lane_epoch(assignment: int, attempt: int) -> int:
    """Return the epoch of an attempt at a share: a later assignment fences every attempt at an earlier one."""
    return assignment * MAX_ATTEMPTS + attempt


def ingest_chain(source: str, partition: int) -> ChainType[Plan, IngestState]:
    return ChainType(f"ingest.{subject_token(source)}.{partition}", Plan, IngestState)


def process_chain(bucket: int) -> ChainType[Plan, ProcessState]:
    return ChainType(f"process.{bucket}", Plan, ProcessState)


def sink_chain(generation: int, group: int) -> ChainType[Plan, SinkState]:
    return ChainType(f"sink.{generation}.{group}", Plan, SinkState)


def raw_subject(names: Names, source: str, partition: int, bucket: int) -> str:
    return f"{names.raw(source, partition)}.{bucket}"


def raw_of_bucket(names: Names, bucket: int) -> str:
    """Return the wildcard of a bucket's raw subjects."""
    return f"tf.{names.pipeline}.raw.*.*.{bucket}"
