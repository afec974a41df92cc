"""The assets of each pipeline. Materializing any of them starts or adopts the pipeline's job, and reports numbers.

The run is short: the stream is a separate process and continues after the run has ended. With `until_caught_up` the run lasts until every
record now in Kafka is in ClickHouse, and nothing runs afterwards: for backfills, tests and small deployments.
"""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_project.assets.stream_names import TABLE
from dagster_project.assets.streams import asset_key, specs, stream_assets, topic_specs
from dagster_project.failures import errors_as_failures
from dagster_project.jobs.repairs import check_same_pipeline, note_pipeline
from dagster_project.numbers import ROW_COUNT, numbers, read_account, without_row_count
from dagster_project.pipeline_files import Pipeline, PipelineFiles
from dagster_project.run_config import read_config, schema_of
from dagster_project.versions import Version, tags_of_assets, topic_versions
from pipelines.config import version_of
from pipelines.control.control import file_version, find_runners
from resources.streaming_jobs import Started, StreamingJobs


class Mode(Enum):
    """How long the job runs."""

    CONTINUOUS = "continuous"
    UNTIL_CAUGHT_UP = "until_caught_up"


class RunPipeline(dg.Config):
    """Options of a pipeline's run."""

    mode: Mode = Field(
        default=Mode.CONTINUOUS,
        description="continuous: run until stopped. until_caught_up: run until every record now in Kafka is in ClickHouse.",
    )
    restart: bool = Field(
        default=False, description="Restart a running runner, so that a changed file takes effect. Else the runner is adopted."
    )
    accept: bool = Field(
        default=False, description="Disable the rejection limit for this start: rejected records become dead letters, however many."
    )


def build(files: PipelineFiles) -> dg.Definitions:
    """Build the topics as external assets, and one multi-asset per pipeline."""
    return dg.Definitions(assets=[*topic_specs(files), *map(_assets, files.pipelines)])


def _assets(pipeline: Pipeline) -> dg.AssetsDefinition:
    @dg.multi_asset(
        specs=specs(pipeline),
        name=f"{pipeline.label}_pipeline",
        can_subset=True,
        description=f"Runs pipeline {pipeline.config.pipeline_id}. Any selection starts the whole job.",
        config_schema=schema_of(RunPipeline),
        pool=f"tallyflow_{pipeline.label}",
    )
    def run(context: dg.AssetExecutionContext, streaming_jobs: StreamingJobs) -> Iterator[dg.MaterializeResult[Any]]:
        config = read_config(context, RunPipeline)
        note_pipeline(context, pipeline)
        with errors_as_failures():
            check_same_pipeline(streaming_jobs, pipeline)
            started = _run(pipeline, config, streaming_jobs)
            config_now = streaming_jobs.config(pipeline.path)
            account = read_account(config_now, started.state.lag)
            directory = streaming_jobs.directory(started.pipeline)
        about_job = _about_job(started, directory)
        # An adopted runner may have an older version than the file.
        version = Version(account.stream_id, file_version(find_runners(directory)) or version_of(config_now))
        tags = tags_of_assets(pipeline, version, topic_versions(context.instance, [pipeline]))
        for asset in stream_assets(pipeline):
            key = asset_key(pipeline, asset.name)
            if key in context.selected_asset_keys:
                found, metadata = numbers(account, asset.name), about_job if asset.name == TABLE else {}
                if ROW_COUNT in found and config.mode is Mode.UNTIL_CAUGHT_UP:
                    context.log_event(dg.AssetObservation(key, metadata={ROW_COUNT: found[ROW_COUNT]}))
                yield dg.MaterializeResult(
                    asset_key=key,
                    metadata={**without_row_count(found), **metadata},
                    # Includes the assets upstream, which this run may have started without materializing them.
                    tags=tags[asset.name],
                )

    return run


def _run(pipeline: Pipeline, config: RunPipeline, jobs: StreamingJobs) -> Started:
    if config.mode is Mode.UNTIL_CAUGHT_UP:
        # A continuous runner would hold the leases that this run needs.
        jobs.stop(pipeline.path)
        return jobs.start(pipeline.path, accept=config.accept, until_caught_up=True)
    start = jobs.restart if config.restart else jobs.start
    return start(pipeline.path, accept=config.accept)


def _about_job(started: Started, directory: Path) -> dict[str, Any]:
    """Return facts on the job for the table's page, beside its numbers: state, version, logs and status pages."""
    metadata: dict[str, Any] = {
        "state": started.state.state,
        "config version": started.state.config_version or "unknown",
        # Logs of the runner and of Spark, and Spark's checkpoints with its progress.
        "directory": dg.MetadataValue.path(str(directory)),
    }
    if started.log:
        metadata["log"] = dg.MetadataValue.path(str(started.log))
    for runner in find_runners(directory):
        metadata[f"status of {', '.join(runner['legs'])}"] = dg.MetadataValue.url(f"http://127.0.0.1:{runner['port']}/status")
    if started.state.message:
        metadata["message"] = started.state.message
    return metadata
