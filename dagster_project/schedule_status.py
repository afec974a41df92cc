"""Schedules and sensors: whether they start enabled, and which pipelines they skip.

They start enabled in `tallyflow dagster`, and in a deployment only on request. Schedules skip a pipeline that was never started, so that it
does not fail a run every hour.
"""

import os
from contextlib import closing

import dagster as dg

from dagster_project.dagster_private import UnresolvedAssetJobDefinition
from dagster_project.pipeline_files import Pipeline, PipelineFiles
from pipelines.connectors.nats.client import JetStream
from pipelines.errors import TallyflowError
from pipelines.protocol.existence import NeverStartedError, check_started
from resources.streaming_jobs import StreamingJobs

VARIABLE = "TALLYFLOW_SCHEDULES"


def schedule_status(files: PipelineFiles) -> dg.DefaultScheduleStatus:
    return dg.DefaultScheduleStatus.RUNNING if _is_running(files) else dg.DefaultScheduleStatus.STOPPED


def sensor_status(files: PipelineFiles) -> dg.DefaultSensorStatus:
    return dg.DefaultSensorStatus.RUNNING if _is_running(files) else dg.DefaultSensorStatus.STOPPED


def _is_running(files: PipelineFiles) -> bool:
    """Return the setting of the component, or of the environment if the component has none."""
    return files.is_scheduled if files.is_scheduled is not None else os.environ.get(VARIABLE) == "running"


def schedule_of(
    pipeline: Pipeline, job: UnresolvedAssetJobDefinition, often: str, cron: str, status: dg.DefaultScheduleStatus
) -> dg.ScheduleDefinition:
    """Build the schedule `<job>_<often>`, UTC, with the description of its job; it skips a pipeline that was never started."""

    @dg.schedule(
        job=job,
        name=f"{job.name}_{often}",
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=status,
        description=job.description,
    )
    def due(streaming_jobs: StreamingJobs) -> dg.RunRequest | dg.SkipReason:
        try:
            with closing(JetStream.of(streaming_jobs.config(pipeline.path))) as log:
                check_started(log.connect(), pipeline.names)
        except NeverStartedError as error:
            return dg.SkipReason(str(error))
        except TallyflowError:
            # The run meets it as well: it retries, or fails with the message.
            pass
        return dg.RunRequest()

    return due
