"""Versions of the assets, so that "Unsynced" on Dagster's pages means work to do, not new records.

Dagster compares versions. The assets of a pipeline are streams without end, so the **data version** of each is the id of its raw stream,
which changes if the pipeline is deleted and created again. The **code version** is the version of the configuration: Dagster compares the
file as loaded with the version that the runner was started with, so a changed file shows as a new code version until a restart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import dagster as dg

from dagster_project.assets.streams import asset_key, stream_assets, topic_key
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
    """Version of a running pipeline: the id of its raw stream, and the config version that its runner was started with."""

    stream_id: str
    config: str


def tags_of_assets(pipeline: Pipeline, version: Version, topics: Mapping[dg.AssetKey, str]) -> dict[str, dict[str, str]]:
    """Return by asset the tags that a materialization must carry.

    `topics`: data versions of `topic_versions`.
    """
    own = {CODE_VERSION_TAG: version.config, DATA_VERSION_TAG: version.stream_id, DATA_VERSION_IS_USER_PROVIDED_TAG: "true"}
    by_asset = {}
    for asset in stream_assets(pipeline):
        tags = dict(own)
        for one in asset.inputs:
            key = one if isinstance(one, dg.AssetKey) else asset_key(pipeline, one)
            tags[get_input_data_version_tag(key)] = topics.get(key, version.stream_id)
            tags[get_input_event_pointer_tag(key)] = NULL_EVENT_POINTER
        by_asset[asset.name] = tags
    return by_asset


def topic_versions(instance: dg.DagsterInstance, pipelines: Iterable[Pipeline]) -> dict[dg.AssetKey, str]:
    """Return the data versions that others have reported for the topics; Dagster's own default if there is none."""
    by_topic = {}
    for key in {topic_key(pipeline, source) for pipeline in pipelines for source in pipeline.config.sources}:
        record = instance.get_latest_data_version_record(key)
        tags = (record.event_log_entry.tags or {}) if record else {}
        by_topic[key] = tags.get(DATA_VERSION_TAG, DEFAULT_DATA_VERSION.value)
    return by_topic


def known_tags(instance: dg.DagsterInstance, pipelines: Iterable[Pipeline]) -> dict[dg.AssetKey, Tags]:
    """Return the tags of the newest materialization of each asset, in one query; assets without one are absent."""
    keys = [asset_key(pipeline, asset.name) for pipeline in pipelines for asset in stream_assets(pipeline)]
    entries = [record.asset_entry for record in instance.get_asset_records(keys)]
    return {one.asset_key: one.last_materialization.tags or {} for one in entries if one.last_materialization}


def is_known(wanted: Tags, known: Tags) -> bool:
    """Return True if a materialization with the tags `known` reports the same version.

    Event pointers do not count: no asset is partitioned.
    """
    return all(known.get(name) == value for name, value in wanted.items() if value != NULL_EVENT_POINTER)
