"""Work beside the stream, as assets with schedules: compaction of the key store, redrive of dead letters.

Each may run beside the live pipeline, may be killed at any time, and may be repeated.
"""

from typing import Any

import dagster as dg

from dagster_project.assets.stream_names import COMPACTIONS, DEAD_LETTERS, REPROCESSED
from dagster_project.assets.streams import PIPELINE_TAG, key_store, op_name, spec_behind
from dagster_project.dagster_private import UnresolvedAssetJobDefinition
from dagster_project.failures import RETRY, errors_as_failures
from dagster_project.jobs.repairs import DeadLetterChoice, WithSpark, compacted, note_pipeline, reprocessing
from dagster_project.pipeline_files import Pipeline, PipelineFiles
from dagster_project.run_config import read_config, schema_of
from dagster_project.schedule_status import schedule_of
from dagster_project.sensors.automation import COMPACTED_AT, due
from resources.spark import SparkResource
from resources.streaming_jobs import StreamingJobs


def build(files: PipelineFiles) -> dg.Definitions:
    parts = []
    for pipeline in files.pipelines:
        if store := key_store(pipeline):
            asset = _compaction(pipeline, store)
            parts.append(dg.Definitions(assets=[asset], jobs=[_job(pipeline, "compact", asset)]))
        asset = _reprocessed(pipeline)
        job = _job(pipeline, "reprocess", asset, {"everything": True})
        # Disabled by default: dead letters that are redriven before the cause is fixed are rejected again.
        schedule = schedule_of(pipeline, job, "daily", "40 4 * * *", dg.DefaultScheduleStatus.STOPPED)
        parts.append(dg.Definitions(assets=[asset], jobs=[job], schedules=[schedule]))
    return dg.Definitions.merge(*parts)


def _job(pipeline: Pipeline, verb: str, asset: dg.AssetsDefinition, config: dict[str, Any] | None = None) -> UnresolvedAssetJobDefinition:
    """Define the job `<verb>_<pipeline>` that materializes the asset."""
    return dg.define_asset_job(
        f"{verb}_{pipeline.label}",
        selection=dg.AssetSelection.assets(asset),
        config={"ops": {asset.op.name: {"config": config}}} if config else None,
        tags={PIPELINE_TAG: pipeline.config.pipeline_id},
        description=next(iter(asset.descriptions_by_key.values())),
    )


def _compaction(pipeline: Pipeline, store: str) -> dg.AssetsDefinition:
    name = COMPACTIONS[store]
    text = (
        "One segment per bucket, without expired keys. Verified: every live key is found in the new segments. May run beside the pipeline."
    )

    @dg.multi_asset(
        specs=[spec_behind(pipeline, name, store, text, automation=due(COMPACTED_AT))],
        name=op_name(pipeline, name),
        config_schema=schema_of(WithSpark),
        retry_policy=RETRY,
    )
    def compaction(
        context: dg.AssetExecutionContext, streaming_jobs: StreamingJobs, tallyflow_spark: SparkResource
    ) -> dg.MaterializeResult[Any]:
        note_pipeline(context, pipeline)
        pyspark = tallyflow_spark if read_config(context, WithSpark).with_spark else None
        with errors_as_failures():
            return dg.MaterializeResult(metadata=compacted(streaming_jobs, pipeline, pyspark))

    return compaction


def _reprocessed(pipeline: Pipeline) -> dg.AssetsDefinition:
    text = "Redrives dead letters, each at most once. Fix the cause first; choose the dead letters in the configuration."

    @dg.multi_asset(
        specs=[spec_behind(pipeline, REPROCESSED, DEAD_LETTERS, text)],
        name=op_name(pipeline, REPROCESSED),
        config_schema=schema_of(DeadLetterChoice),
        retry_policy=RETRY,
    )
    def reprocessed(context: dg.AssetExecutionContext, streaming_jobs: StreamingJobs) -> dg.MaterializeResult[Any]:
        note_pipeline(context, pipeline)
        selection = read_config(context, DeadLetterChoice).selection()
        with errors_as_failures(), reprocessing(streaming_jobs, pipeline) as work:
            outcome = work.enter(selection)
        left = {f"left_{state}": count for state, count in outcome.left.items()}
        return dg.MaterializeResult(metadata={"entered": outcome.taken, **left})

    return reprocessed
