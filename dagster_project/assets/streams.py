"""The assets that Dagster shows of a pipeline, from the pipeline file alone. Connects to nothing.

    kafka/<topic>  ->  raw_stream  ->  dedup_store  ->  out_stream  ->  clickhouse_table
                                                     ->  dead_letters
With a join `join_stores` are in the place of `dedup_store`; without key stores there is none.
A new stage is one more entry in `stream_assets`: its name, its inputs, and its storage.
"""

import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import dagster as dg
from dagster import TableColumn, TableColumnDep, TableColumnLineage, TableSchema

from dagster_project.assets.stream_names import COMPACTIONS, DEAD_LETTERS, DEDUP, JOIN, OUT, RAW, published_name, table_name
from dagster_project.pipeline_files import Pipeline, PipelineFiles
from pipelines.config import KafkaSource, PipelineConfig, version_of
from pipelines.config.checks import FreshnessCheck
from pipelines.config.fields import joins, origins
from pipelines.protocol.records import POSITION_COLUMN_TYPES
from pipelines.protocol.topology import DEAD_LETTERS as LETTERS

REPORTED_EVERY = timedelta(minutes=5)
"""Interval of the reports that out is fresh while nothing waits; Dagster's freshness policies look at materializations only."""
PIPELINE_TAG = "tallyflow/pipeline"
"""Tag of the runs of a sensor or of an asset job: the id of the pipeline."""
_TAG = re.compile(r"[^A-Za-z0-9_.-]")
_TAG_LENGTH = 63


def asset_key(pipeline: Pipeline, name: str) -> dg.AssetKey:
    return dg.AssetKey([*pipeline.key_prefix, pipeline.key, name])


def published_keys(pipeline: Pipeline) -> list[dg.AssetKey]:
    """Return the keys of the publications of a pipeline's tables."""
    return [asset_key(pipeline, published_name(leg)) for leg in pipeline.config.topology.tables]


def topic_key(pipeline: Pipeline, source: KafkaSource) -> dg.AssetKey:
    return dg.AssetKey([*pipeline.key_prefix, "kafka", source.topic])


def key_store(pipeline: Pipeline) -> str | None:
    """Return the name of the asset of the pipeline's key stores, None without them."""
    if joins(pipeline.config):
        return JOIN
    return DEDUP if any(transform.type == "dedup" for transform in pipeline.config.transforms) else None


def compaction_key(pipeline: Pipeline) -> dg.AssetKey | None:
    """Return the key of the compaction of the pipeline's key stores, None without them."""
    store = key_store(pipeline)
    return asset_key(pipeline, COMPACTIONS[store]) if store else None


@dataclass(frozen=True)
class StreamAsset:
    """One asset of a pipeline. `inputs` are topics' keys or names of other assets.

    Freshness belongs to out, not to the table: a materialization resets the table's checks until they run again.
    """

    name: str
    kinds: frozenset[str]
    description: str
    inputs: tuple[dg.AssetKey | str, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    freshness: dg.FreshnessPolicy | None = None


def stream_assets(pipeline: Pipeline) -> tuple[StreamAsset, ...]:
    """Return the assets of a pipeline in the order of the data."""
    config, names = pipeline.config, pipeline.names
    nats = config.nats.servers[0]

    def stream(role: str) -> dict[str, Any]:
        return {"dagster/uri": f"{nats}/{names.stream(role)}", "stream": names.stream(role), "subjects": names.subjects(role)}

    assets = [
        StreamAsset(
            RAW,
            frozenset({"nats", "spark"}),
            "Every record of the topic, once, unchanged: frames on a JetStream stream.",
            tuple(topic_key(pipeline, source) for source in config.sources),
            stream("raw"),
        )
    ]
    store = key_store(pipeline)
    if store:
        assets.append(_join_asset(pipeline) if store == JOIN else _dedup_asset(pipeline))
    assets += [
        StreamAsset(
            OUT,
            frozenset({"nats", "spark"}),
            "Typed rows in the order of their positions, ready for the table.",
            (store or RAW,),
            stream("out"),
            _freshness(config.checks.freshness),
        ),
        *(_table_asset(pipeline, seen) for seen in config.by_sink),
        StreamAsset(
            DEAD_LETTERS,
            frozenset({"nats"}),
            "Records that a stage or ClickHouse rejected, in full, each with its reason.",
            (RAW, OUT),
            stream("dlq"),
        ),
        *(_table_asset(pipeline, config.seen_from(leg)) for leg in config.topology.dead_letters),
    ]
    return tuple(assets)


def _dedup_asset(pipeline: Pipeline) -> StreamAsset:
    config = next(transform.config for transform in pipeline.config.transforms if transform.type == "dedup")
    metadata = {"key": ", ".join(config.key), "window": str(config.time_window), "measured on": config.time_field or "arrival"}
    return StreamAsset(DEDUP, frozenset({"spark", "file"}), "The keys accepted within the window, in immutable files.", (RAW,), metadata)


def _join_asset(pipeline: Pipeline) -> StreamAsset:
    join = pipeline.config.join
    assert join is not None and join.left_source is not None and join.right_source is not None
    metadata = {
        f"{side.source_id}": f"by {', '.join(side.key)}, within {side.time_window}" for side in (join.left_source, join.right_source)
    }
    text = "The newest right record of each key, and the left ones that wait for one, in immutable files."
    return StreamAsset(JOIN, frozenset({"spark", "file"}), text, (RAW,), metadata)


def _table_asset(pipeline: Pipeline, config: PipelineConfig) -> StreamAsset:
    """Return the asset of the table of the config's sink."""
    sink = config.sink
    connection = sink.connection_params
    scheme = "https" if connection.secure else "http"
    metadata = {
        "dagster/table_name": f"{connection.database}.{sink.table}",
        "dagster/uri": f"{scheme}://{connection.host}:{connection.http_port_effective}/{connection.database}/{sink.table}",
        "dagster/storage_kind": "clickhouse",
        "dagster/column_schema": _table_schema(config),
        "dagster/column_lineage": _lineage(pipeline, config),
    }
    name = table_name(config.sink_leg)
    rest = "records that no other table takes" if sink.default else "rows of the pipeline"
    description = f"The {f'records that {sink.when} takes' if sink.when else rest}, each exactly once."
    refuser = config.topology.refuser_of(config.sink_leg)
    if refuser:
        description = f"The rows that the table {table_name(refuser)} refuses, each exactly once."
    made_of = table_name(refuser) if refuser else OUT
    if config.sink_leg.kind == LETTERS:
        description, made_of = "Every dead letter of the pipeline, exactly once, whatever became of it later.", DEAD_LETTERS
    return StreamAsset(name, frozenset({"clickhouse", "table"}), description, (made_of,), metadata)


def _freshness(check: FreshnessCheck) -> dg.FreshnessPolicy | None:
    if not check.enabled:
        return None
    return dg.FreshnessPolicy.time_window(fail_window=check.fail_after + REPORTED_EVERY, warn_window=check.warn_after + REPORTED_EVERY)


def _table_schema(config: PipelineConfig) -> TableSchema:
    sink = config.sink
    columns = [TableColumn(entry.column_name, entry.column_type, description=f"field {entry.name}") for entry in sink.mapping]
    positions = POSITION_COLUMN_TYPES if sink.create_table else ()
    return TableSchema([*columns, *(TableColumn(name, kind, description="position of the record") for name, kind in positions)])


def _lineage(pipeline: Pipeline, config: PipelineConfig) -> TableColumnLineage:
    """Name for each column of the config's sink the fields of the topics that decide it."""
    deps = defaultdict[str, list[TableColumnDep]](list)
    for source in config.sources:
        key, decided_by = topic_key(pipeline, source), origins(config, source)
        for entry in config.sink.mapping:
            deps[entry.column_name] += [TableColumnDep(asset_key=key, column_name=name) for name in sorted(decided_by.get(entry.name, ()))]
    return TableColumnLineage(dict(deps))


def specs(pipeline: Pipeline) -> list[dg.AssetSpec]:
    """Build the asset specs of one pipeline, without its topics."""
    reference = {"dagster/code_references": file_reference(pipeline)}
    return [
        dg.AssetSpec(
            asset_key(pipeline, asset.name),
            deps=[one if isinstance(one, dg.AssetKey) else asset_key(pipeline, one) for one in asset.inputs],
            description=asset.description,
            metadata={**asset.metadata, **reference},
            kinds=set(asset.kinds),
            freshness_policy=asset.freshness,
            skippable=True,
            code_version=version_of(pipeline.config),
            **about(pipeline),
        )
        for asset in stream_assets(pipeline)
    ]


def op_name(pipeline: Pipeline, name: str) -> str:
    """Name the op that makes one asset beside the stream; Dagster requires unique names."""
    return f"{pipeline.label}_{name}"


def spec_behind(
    pipeline: Pipeline,
    name: str,
    after: str,
    description: str,
    partitions: dg.PartitionsDefinition[Any] | None = None,
    automation: dg.AutomationCondition[Any] | None = None,
) -> dg.AssetSpec:
    """Build the spec of an asset beside the stream, made from one of the pipeline's assets.

    It has the kinds of that asset.
    """
    kinds = next(asset.kinds for asset in stream_assets(pipeline) if asset.name == after)
    return dg.AssetSpec(
        asset_key(pipeline, name),
        deps=[asset_key(pipeline, after)],
        description=description,
        metadata={"dagster/code_references": file_reference(pipeline)},
        kinds=set(kinds),
        partitions_def=partitions,
        automation_condition=automation,
        **about(pipeline),
    )


def about(pipeline: Pipeline) -> dict[str, Any]:
    """Return group, owners and tags of everything that belongs to a pipeline."""
    metadata = pipeline.config.metadata
    return {"group_name": pipeline.key, "owners": list(metadata.owners), "tags": _tags(metadata.tags)}


def _tags(texts: Iterable[str]) -> dict[str, str]:
    """Convert tags to Dagster's: `tier:gold` is the key `tier` with the value `gold`; another tag is a key; a key has one value."""
    tags: dict[str, str] = {}
    for text in texts:
        name, _, value = (_TAG.sub("_", part)[:_TAG_LENGTH] for part in text.partition(":"))
        if name and name not in tags:
            tags[name] = value
        else:
            tags[_TAG.sub("_", text)[:_TAG_LENGTH]] = ""
    return tags


def file_reference(pipeline: Pipeline) -> dg.CodeReferencesMetadataValue:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        reference = dg.LocalFileCodeReference(file_path=str(pipeline.path), label="pipeline file")
        return dg.CodeReferencesMetadataValue(code_references=[reference])


def topic_specs(files: PipelineFiles) -> list[dg.AssetSpec]:
    """Build one external asset per topic, however many pipelines read it; its columns are the fields that any of them reads."""
    sources: dict[dg.AssetKey, list[KafkaSource]] = {}
    for pipeline in files.pipelines:
        for source in pipeline.config.sources:
            sources.setdefault(topic_key(pipeline, source), []).append(source)
    return [_topic_spec(key, found) for key, found in sources.items()]


def faulty_specs(files: PipelineFiles) -> list[dg.AssetSpec]:
    """Build an external asset per faulty file, in the group `faulty_files`, with the file's faults."""
    return [
        dg.AssetSpec(
            files.asset_key("faulty_files", *(one.path.relative_to(files.directory).parts or [one.path.name])),
            description=f"Ignored. Correct the file, then reload the code location.\n```\n{one.message}\n```",
            group_name="faulty_files",
        )
        for one in files.faulty
    ]


def _topic_spec(key: dg.AssetKey, sources: Iterable[KafkaSource]) -> dg.AssetSpec:
    of_topic = list(sources)
    fields = {name: kind for source in of_topic for name, kind in source.fields.items()}
    brokers = ",".join(of_topic[0].connection_params.brokers)
    return dg.AssetSpec(
        key,
        description=f"Kafka topic {of_topic[0].topic}. Written by others, read by Tallyflow.",
        kinds={"kafka"},
        group_name="kafka",
        metadata={
            "dagster/uri": f"kafka://{brokers}/{of_topic[0].topic}",
            "dagster/column_schema": TableSchema([TableColumn(name, kind) for name, kind in fields.items()]),
        },
    )
