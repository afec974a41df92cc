"""The sources of a pipeline by id."""

from typing import TYPE_CHECKING

from pipelines.errors import HaltError, NotSupportedError

if TYPE_CHECKING:
    from pipelines.config.pipeline import PipelineConfig
    from pipelines.config.sources import KafkaSource


def source_by_id(config: "PipelineConfig", source_id: str) -> "KafkaSource":
    """Return the source of this id. Raise HaltError for an id that the file does not have."""
    for source in config.sources:
        if source.source_id == source_id:
            return source
    raise HaltError(
        f"pipeline {config.pipeline_id}: its file has no source {source_id!r}, from which it holds records; "
        "restore this source_id in the file"
    )


def only_source(config: "PipelineConfig") -> "KafkaSource":
    """Return the only source. Raise NotSupportedError for several: this release has no join and no union, and runs no such file."""
    if len(config.sources) > 1:
        raise NotSupportedError(f"pipeline {config.pipeline_id}: not supported yet: {MORE_SOURCES}. Nothing was started")
    return next(iter(config.sources))


MORE_SOURCES = "sources: two sources are not supported yet"
