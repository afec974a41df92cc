"""Verification by hour of arrival: the rows recomputed in DuckDB and compared with ClickHouse; a partition per hour with records.

The verdict is a check of the asset itself, and counts for the table's check while the hour is within that check's period.
"""

import warnings
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC
from typing import Any

import dagster as dg

from dagster_project.assets.stream_names import TABLE, VERIFICATION
from dagster_project.assets.streams import PIPELINE_TAG, asset_key, op_name, spec_behind
from dagster_project.assets.verification_hours import (
    HOUR,
    begin_of_hour,
    hour_of,
    hours_to_list,
    hours_without_verdict,
    partitions,
    partitions_name,
)
from dagster_project.failures import RETRY, errors_as_failures
from dagster_project.jobs.repairs import note_pipeline
from dagster_project.pipeline_files import Pipeline, PipelineFiles
from dagster_project.report_metadata import examples_metadata, report_metadata, summary
from dagster_project.schedule_status import schedule_status
from pipelines.connectors.nats.client import JetStream
from pipelines.proof.verification.run import Request, verify
from resources.streaming_jobs import StreamingJobs

CHECK = "match"
MINUTE_OF_HOUR = 10
CATCH_UP = 3 * HOUR
"""How far back the schedule looks for hours that it missed while NATS or Dagster was away."""


def build(files: PipelineFiles) -> dg.Definitions:
    return dg.Definitions.merge(dg.Definitions(), *(_part(files, pipeline) for pipeline in files.pipelines))


def _part(files: PipelineFiles, pipeline: Pipeline) -> dg.Definitions:
    asset = _asset(pipeline)
    job = dg.define_asset_job(
        f"verify_{pipeline.label}",
        selection=dg.AssetSelection.assets(asset),
        tags={PIPELINE_TAG: pipeline.config.pipeline_id},
        description="Compares the records that arrived in one hour with ClickHouse.",
    )

    @dg.schedule(
        job=job,
        name=f"{job.name}_hourly",
        cron_schedule=f"{MINUTE_OF_HOUR} * * * *",
        execution_timezone="UTC",
        default_status=schedule_status(files),
        description="Verifies the last hour if records arrived in it, and earlier hours that were missed.",
    )
    def hourly(context: dg.ScheduleEvaluationContext, streaming_jobs: StreamingJobs) -> list[dg.RunRequest] | dg.SkipReason:
        now = context.scheduled_execution_time.astimezone(UTC)
        with errors_as_failures():
            found = hours_to_list(context.instance, pipeline, streaming_jobs.config(pipeline.path), now)
        context.instance.add_dynamic_partitions(partitions_name(pipeline), found)
        due = hours_without_verdict(context.instance, pipeline, begin_of_hour(now) - CATCH_UP)
        # The run key requests each hour once: an hour that failed needs a person.
        return [dg.RunRequest(run_key=hour, partition_key=hour) for hour in due] or dg.SkipReason("no hour to verify")

    return dg.Definitions(assets=[asset], jobs=[job], schedules=[hourly])


def _asset(pipeline: Pipeline) -> dg.AssetsDefinition:
    text = "The records that arrived in one hour, recomputed in DuckDB and compared with the table: counts, checksums, then rows."
    spec = spec_behind(pipeline, VERIFICATION, TABLE, text, partitions(pipeline))
    text = "ClickHouse holds exactly the rows that the records of the hour produce."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)
        check = dg.AssetCheckSpec(CHECK, asset=spec.key, description=text, partitions_def=partitions(pipeline))

    @dg.multi_asset(specs=[spec], check_specs=[check], name=op_name(pipeline, VERIFICATION), retry_policy=RETRY)
    def verification(context: dg.AssetExecutionContext, streaming_jobs: StreamingJobs) -> Iterator[dg.MaterializeResult[Any]]:
        note_pipeline(context, pipeline)
        if not context.has_partition_key:
            raise dg.Failure("no hour given: choose a partition", allow_retries=False)
        hour = hour_of(context.partition_key)
        with errors_as_failures():
            config = streaming_jobs.config(pipeline.path)
            request = Request(streaming_jobs.directory(config.pipeline_id), hour, hour + HOUR)
            with closing(JetStream.of(config).connect()) as log:
                report = verify(config, log, request)
        # What is not proven yet is no difference: a warning.
        severity = dg.AssetCheckSeverity.ERROR if report.findings else dg.AssetCheckSeverity.WARN
        result = dg.AssetCheckResult(
            passed=report.is_clean,
            check_name=CHECK,
            severity=severity,
            description=summary(report),
            metadata=examples_metadata(report.examples()),
        )
        yield dg.MaterializeResult(asset_key=asset_key(pipeline, VERIFICATION), metadata=report_metadata(report), check_results=[result])

    return verification
