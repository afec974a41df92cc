"""Sources of records: what ingest needs of one, and the kinds of sources.

A source has partitions, which are numbered, and records at ascending offsets in each. Each kind is a module of this package, whose `SOURCE`
opens a source of the pipeline file; the source's `type` there names the module. A new kind is three files: its module here, its model in
`config/sources`, and its test.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa

from pipelines.config import PipelineConfig
from pipelines.config.source_ids import source_by_id
from pipelines.errors import RetryableError

REQUEST_TIMEOUT_SECONDS = 10.0
Asked = Mapping[Any, "Future[Any]"]
"""Requests for ends, by partition, whose answers may be missing."""


@dataclass(frozen=True)
class Block:
    """Records of one partition in offset order (RAW_SCHEMA), and the offset after the last one passed, row or not.

    `is_expired`: the offsets before `next_offset` have expired in the source; such a block has no rows.
    """

    partition: int
    records: pa.Table
    next_offset: int
    is_expired: bool = False


@dataclass(frozen=True)
class SourceFacts:
    """The identity of a source, which must not change while a pipeline reads it, and its partitions.

    `note`: a note for the start about an identity that shows less than it should; else empty.
    """

    identity: str
    partitions: tuple[int, ...]
    note: str = ""


@dataclass(frozen=True)
class Ahead:
    """Records that were read ahead: the offset after the last one, per partition, and whether the system had sent no more."""

    ends: Mapping[int, int]
    is_all: bool


@dataclass(frozen=True)
class Words:
    """The words of a source in messages: its system, what that system calls it, its name, and how the system may lose records."""

    system: str
    noun: str
    name: str
    losses: str

    def __str__(self) -> str:
        return f"{self.noun} {self.name}"


class Source(Protocol):
    """One source of a pipeline. Methods raise RetryableError while its system is away, HaltError for what does not pass.

    `skips_expired`: offsets that expired before they were read are skipped and counted; otherwise they halt the pipeline. Reading and
    `publish` serve one thread at a time, everything else serves many.
    """

    words: Words
    skips_expired: bool

    def facts(self, timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> SourceFacts:
        """Return the present facts. Raise HaltError if the source does not exist."""

    def beginnings(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the offset per partition at which the first start of a pipeline begins."""

    def starts(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the first offset that still exists, per partition."""

    def ends(self, partitions: Sequence[int], timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> dict[int, int]:
        """Return the end per partition, exclusive. Raise RetryableError while any gives no answer."""

    def known_ends(
        self, partitions: Sequence[int], timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    ) -> tuple[dict[int, int], dict[int, RetryableError]]:
        """Return the ends of the partitions that answer, and the errors of the others. Raise RetryableError if none answers."""

    def ask_ends(self, partitions: Sequence[int], timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> Asked:
        """Request the ends without waiting; `heard` returns them."""

    def heard(self, asked: Asked) -> tuple[dict[int, int], dict[int, RetryableError]]:
        """Return the result of `ask_ends` as `known_ends` does; wait for answers that are missing."""

    def first_since(self, partitions: Sequence[int], instant: datetime) -> dict[int, int]:
        """Return per partition the offset of the first record whose own time is at or after the instant; the end if there is none."""

    def open(self) -> int:
        """Open what reading needs, so that the first range need not; return the number of partitions."""

    def ahead(self, starts: Mapping[int, int], seconds: float) -> Ahead:
        """Read ahead from `starts` on, as far as the memory for it goes; wait at most `seconds` for a first record.

        A `read` from there needs the system no more. Raise DataLossError if a start has expired, or is beyond the end.
        """

    def read(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Block]:
        """Yield blocks that cover every range {partition: (start, end)} (end exclusive), each partition's in offset order.

        The last block of a partition has `next_offset` == end. Raise DataLossError if `start` has expired.
        """

    def keep_only(self, partitions: Collection[int]) -> None:
        """Stop fetching ahead of all other partitions: another process reads them now. They may still be read."""

    def discard(self) -> None:
        """Discard the state of reading after a failed read: the next one starts afresh."""

    def publish(self, next_offsets: Mapping[int, int]) -> None:
        """Publish the progress for the system's own tools, without waiting. Nothing resumes from it, and an error is no fault."""

    def close(self) -> None: ...


def open_source(pipeline: PipelineConfig, source_id: str, keep_partitions: bool = False) -> Source:
    """Open the source of this id without connecting. Raise HaltError for settings that its client refuses.

    `keep_partitions`: the opener reads all partitions in turn, so that the source may fetch ahead.
    """
    source = source_by_id(pipeline, source_id)
    kind: Callable[[PipelineConfig, Any, bool], Source] = import_module(f"{__name__}.{source.type}").SOURCE
    return kind(pipeline, source, keep_partitions)
