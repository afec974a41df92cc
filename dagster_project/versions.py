"""What "Unsynced" means on the pages of a pipeline: something is to be done, and not that records have come since.

Dagster compares versions. The seams of a pipeline are read without end, so the **data version** of each is the id of its raw stream:
another one once the pipeline was deleted and made anew. The **code version** is that of the configuration: `version_of` the file as it was
loaded, against the one that the runner was started with. So a file that was changed shows as a new code version until a restart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import dagster as dg

from dagster_project.assets.streams import asset_key, seams, topic_key
from dagster_project.dagster_private import (
    CODE_VERSION_TAG,
    DATA_VERSION_IS_USER_PROVIDED_TAG,
    DATA_VERSION_TAG,
    DEFAULT_DATA_VERSION,
    NULL_EVENT_POINTER,
    get_input_data_version_tag,
    get_input_event_pointer_tag,
)
from dagster_project.pipeline_files import Pipeline

Tags = Mapping[str, str]


@dataclass(frozen=True)
class Version:
    """Of a running pipeline: the id of its raw stream, and the version of the configuration that its runner was started with."""

    stream_id: str
    config: str


def tags_of_seams(pipeline: Pipeline, version: Version, topics: Mapping[dg.AssetKey, str]) -> dict[str, dict[str, str]]:
    """By seam, what a materialization must carry. `topics`: data versions of `topic_versions`."""
    own = {CODE_VERSION_TAG: version.config, DATA_VERSION_TAG: version.stream_id, DATA_VERSION_IS_USER_PROVIDED_TAG: "true"}
    found = {}
    for seam in seams(pipeline):
        tags = dict(own)
        for one in seam.inputs:
            key = one if isinstance(one, dg.AssetKey) else asset_key(pipeline, one)
            tags[get_input_data_version_tag(key)] = topics.get(key, version.stream_id)
            tags[get_input_event_pointer_tag(key)] = NULL_EVENT_POINTER
        found[seam.name] = tags
    return found


def topic_versions(instance: dg.DagsterInstance, pipelines: Iterable[Pipeline]) -> dict[dg.AssetKey, str]:
    """The data versions that others have reported of the topics; Dagster's own default where nobody has."""
    found = {}
    for key in {topic_key(pipeline, source) for pipeline in pipelines for source in pipeline.config.sources}:
        record = instance.get_latest_data_version_record(key)
        tags = (record.event_log_entry.tags or {}) if record else {}
        found[key] = tags.get(DATA_VERSION_TAG, DEFAULT_DATA_VERSION.value)
    return found


def known_tags(instance: dg.DagsterInstance, pipelines: Iterable[Pipeline]) -> dict[dg.AssetKey, Tags]:
    """What the newest materialization of each seam carries, in one query; nothing of those that have none."""
    keys = [asset_key(pipeline, seam.name) for pipeline in pipelines for seam in seams(pipeline)]
    entries = [record.asset_entry for record in instance.get_asset_records(keys)]
    return {one.asset_key: one.last_materialization.tags or {} for one in entries if one.last_materialization}


def is_known(wanted: Tags, known: Tags) -> bool:
    """True if a materialization with the tags `known` says the same. Pointers to events are of no account: no seam is partitioned."""
    return all(known.get(name) == value for name, value in wanted.items() if value != NULL_EVENT_POINTER)
