"""Options of a run, and what it needs of its host."""

from dataclasses import dataclass
from pathlib import Path

from pipelines.config import PipelineConfig
from pipelines.config.fields import joins
from pipelines.host import RESERVED_FILES
from pipelines.key_store.store import RUNS_PER_BUCKET
from pipelines.protocol.topology import LegId


@dataclass(frozen=True)
class RunOptions:
    """Options of a run: the legs, whether to exit when Kafka's present end is confirmed, and how long to wait for systems at startup.

    `legs`: empty for all legs of the pipeline. `drain`: exit when what ingest has begun to write is confirmed, whatever else Kafka holds.
    `accept`: without the rejection limit. `properties`: Spark's own file of
    settings for the master.
    """

    legs: tuple[LegId, ...] = ()
    until_caught_up: bool = False
    connect_seconds: float = 60.0
    master: str | None = None
    accept: bool = False
    properties: Path | None = None
    drain: bool = False

    @property
    def has_an_end(self) -> bool:
        """Whether the run ends by itself."""
        return self.until_caught_up or self.drain


def files_needed(config: PipelineConfig) -> int:
    """Return how many files each process of a run may open: a segment of the key store is mapped from its own file."""
    # A dedup keeps one store in each bucket, a join two.
    stores = sum(transform.type == "dedup" for transform in config.transforms) + 2 * joins(config)
    return RESERVED_FILES + stores * config.buckets * RUNS_PER_BUCKET
