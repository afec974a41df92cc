"""The definitions that Dagster loads: one `Definitions`, built from the pipeline files when the code location is loaded."""

import logging
from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_project import checks as table_checks
from dagster_project.assets import running as pipeline_assets
from dagster_project.assets import scheduled as scheduled_assets
from dagster_project.assets import verification, verification_hours
from dagster_project.assets.streams import faulty_specs
from dagster_project.jobs import batch as batch_jobs
from dagster_project.jobs import event_log
from dagster_project.pipeline_files import PipelineFiles, pipelines_directory, read_pipeline_files
from dagster_project.run_config import sealed_resources
from dagster_project.sensors import alerting, automation, observation
from dagster_project.sensors import control as control_sensors
from resources.alerts import AlertsResource
from resources.clickhouse import ClickHouseResource
from resources.kafka import KafkaResource
from resources.nats import NatsResource
from resources.spark import SparkResource
from resources.streaming_jobs import StreamingJobs

_LOG = logging.getLogger(__name__)

# Empty fields mean the environment variables of their names, as in pipeline files: the definitions hold no secret.
# Sealed once: several components must provide the same objects.
RESOURCES: Mapping[str, Any] = sealed_resources(
    {
        "tallyflow_spark": SparkResource(),
        "tallyflow_alerts": AlertsResource(),
        "streaming_jobs": StreamingJobs(kafka=KafkaResource(), nats=NatsResource(), clickhouse=ClickHouseResource()),
    }
)


def build_definitions(
    files: PipelineFiles, resources: Mapping[str, Any] = RESOURCES, *, with_resources: bool = True, prunes: bool = True
) -> dg.Definitions:
    """Build the definitions of every sound file, and list the faults of faulty files.

    Starts nothing and connects to nothing.

    `with_resources`: include the resources; else the project defines them. `prunes`: include the job that prunes Dagster's own event log.
    """
    for one in files.faulty:
        _LOG.warning("ignoring a faulty pipeline file: %s", one.message)
    return dg.Definitions.merge(
        dg.Definitions(resources=sealed_resources(resources) if with_resources else None, assets=faulty_specs(files)),
        pipeline_assets.build(files),
        table_checks.build(files),
        scheduled_assets.build(files),
        verification.build(files),
        verification_hours.build(files),
        observation.build(files),
        event_log.build(files) if prunes else dg.Definitions(),
        control_sensors.build(files),
        batch_jobs.build(files),
        automation.build(files),
        alerting.build(files, [event_log.JOB]),
    )


@dg.definitions
def defs() -> dg.Definitions:
    """Build what the code location shows.

    Runs when Dagster loads the code location, not when a component imports this module.
    """
    # A step in a process of its own would import all of this again: 2 s before each check.
    in_process = dg.Definitions(executor=dg.in_process_executor)
    return dg.Definitions.merge(build_definitions(read_pipeline_files(pipelines_directory())), in_process)
