"""The sources of a pipeline by id."""

from typing import TYPE_CHECKING

from pipelines.errors import ConfigurationError, Fault, HaltError

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
    """Return the only source. Raise ConfigurationError for several: the caller needs one."""
    return chosen_source(config, None)


def chosen_source(config: "PipelineConfig", source_id: str | None) -> "KafkaSource":
    """Return the source of this id; without one, the only source. Raise ConfigurationError with the ids for another id, and for none."""
    ids = [source.source_id for source in config.sources]
    if source_id in ids:
        return config.sources[ids.index(source_id)]
    if source_id is None and len(ids) == 1:
        return config.sources[0]
    asked = "several sources, so one must be named" if source_id is None else f"no source {source_id!r}"
    raise ConfigurationError(f"pipeline {config.pipeline_id}", [Fault("sources", f"it has {asked}: {', '.join(ids)}")])
