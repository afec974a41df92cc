"""A source in memory: what a source has to be, and no more. It opens no socket."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pipelines.config import PipelineConfig
from pipelines.connectors.sources import Ahead, Asked, Block, SourceFacts, Words
from pipelines.errors import DataLossError, RetryableError
from pipelines.testing import records


@dataclass
class Lists:
    """The records of each partition from offset 0 on; those before `firsts` have expired. `published`: what was told to lag tools."""

    held: dict[int, list[bytes]]
    identity: str = "first"
    firsts: dict[int, int] = field(default_factory=dict)
    published: dict[int, int] = field(default_factory=dict)


LISTS: dict[str, Lists] = {}
"""The lists of this process by their name."""


class MemorySource:
    """The lists of a name."""

    def __init__(self, pipeline: PipelineConfig, source: Any, keep_partitions: bool) -> None:
        self._lists = LISTS[source.topic]
        self.words = Words("Memory", "list", source.topic, "it was cut")
        self.skips_expired = source.on_data_loss == "skip"

    def facts(self, timeout_seconds: float = 0) -> SourceFacts:
        return SourceFacts(self._lists.identity, tuple(self._lists.held))

    def beginnings(self, partitions: Sequence[int]) -> dict[int, int]:
        return self.starts(partitions)

    def starts(self, partitions: Sequence[int]) -> dict[int, int]:
        return {partition: self._lists.firsts.get(partition, 0) for partition in partitions}

    def ends(self, partitions: Sequence[int], timeout_seconds: float = 0) -> dict[int, int]:
        return {partition: len(self._lists.held[partition]) for partition in partitions}

    def known_ends(self, partitions: Sequence[int], timeout_seconds: float = 0) -> tuple[dict[int, int], dict[int, RetryableError]]:
        return self.ends(partitions), {}

    def ask_ends(self, partitions: Sequence[int], timeout_seconds: float = 0) -> Asked:
        asked = {partition: Future[int]() for partition in partitions}
        for partition, future in asked.items():
            future.set_result(len(self._lists.held[partition]))
        return asked

    def heard(self, asked: Asked) -> tuple[dict[int, int], dict[int, RetryableError]]:
        return {partition: future.result() for partition, future in asked.items()}, {}

    def first_since(self, partitions: Sequence[int], instant: datetime) -> dict[int, int]:
        return self.ends(partitions)

    def open(self) -> int:
        return len(self._lists.held)

    def ahead(self, starts: Mapping[int, int], seconds: float) -> Ahead:
        if (ends := self.ends(list(starts))) == starts:
            time.sleep(min(seconds, 0.01))
        return Ahead(ends, True)

    def read(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Block]:
        for partition, (start, end) in ranges.items():
            if start < self._lists.firsts.get(partition, 0):
                raise DataLossError(f"reading {self.words}: offset {start} of partition {partition} has expired")
            yield Block(partition, records(partition, self._lists.held[partition][start:end], first=start), end)

    def keep_only(self, partitions: object) -> None:
        """Nothing is read ahead."""

    def discard(self) -> None:
        """Nothing is kept between two reads."""

    def publish(self, next_offsets: Mapping[int, int]) -> None:
        self._lists.published = dict(next_offsets)

    def close(self) -> None:
        """Nothing is open."""


SOURCE = MemorySource
