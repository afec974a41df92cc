"""What Dagster loads: one `Definitions`, made from the pipeline files as they are when the code location is loaded."""

import dagster as dg

from dagster_project import event_log, observation, pipeline_assets, scheduled_assets, table_checks
from dagster_project.pipeline_files import PipelineFiles, pipelines_directory, read_pipeline_files
from resources.clickhouse import ClickHouseResource
from resources.kafka import KafkaResource
from resources.nats import NatsResource
from resources.streaming_jobs import StreamingJobs

RESOURCES = {
    "streaming_jobs": StreamingJobs(kafka=KafkaResource(), nats=NatsResource(), clickhouse=ClickHouseResource()),
}


def build_definitions(files: PipelineFiles) -> dg.Definitions:
    """Everything of every sound file. Starts nothing and connects to nothing."""
    return dg.Definitions.merge(
        dg.Definitions(
            resources=RESOURCES, metadata={"pipelines": ", ".join(pipeline.config.pipeline_id for pipeline in files.pipelines) or "none"}
        ),
        pipeline_assets.build(files),
        table_checks.build(files),
        scheduled_assets.build(files),
        observation.build(files),
        event_log.build(files),
    )


defs = build_definitions(read_pipeline_files(pipelines_directory()))
