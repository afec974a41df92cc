"""Jobs for the launchpad that read a pipeline's stored data: compact and rebuild keys, verify the table.

Each job takes the pipeline's id and does one thing; it may be repeated, and killed at any time.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_project.jobs.control import OfPipeline, done, job_of, known
from dagster_project.jobs.repairs import WithSpark, check_same_pipeline, compacted, instant, key_state
from dagster_project.pipeline_files import Pipeline, PipelineFiles
from dagster_project.report_metadata import examples_metadata, report_metadata, summary
from dagster_project.run_config import read_config
from pipelines.connectors.nats.client import JetStream
from pipelines.counts import count_of
from pipelines.maintenance.rebuild import rebuild
from pipelines.progress import as_lines
from pipelines.proof.put_back import put_back
from pipelines.proof.verification.result import Verification
from pipelines.proof.verification.run import Request, verify
from resources.spark import SparkResource
from resources.streaming_jobs import Announce, StreamingJobs

Work = Callable[[StreamingJobs, SparkResource, Pipeline, Any, Announce], dict[str, Any]]


class Compact(OfPipeline, WithSpark):
    """The pipeline whose keys are compacted."""


class Verify(OfPipeline):
    """The records to verify: those that arrived in a range, as far as proof is possible."""

    since: str | None = Field(default=None, description="Records that arrived at this instant (ISO 8601) or later. Empty: all.")
    until: str | None = Field(default=None, description="Records that arrived before this instant. Empty: all that the sink has confirmed.")
    with_kafka: bool = Field(default=False, description="Compare the bytes of the raw records with Kafka's as well.")
    examples: int = Field(default=10, ge=0, le=1000, description="How many faults of each kind to list.")


class PutBackMissing(OfPipeline):
    """The records to look at: those that arrived in a range, as far as the sink has confirmed them."""

    since: str | None = Field(default=None, description="Records that arrived at this instant (ISO 8601) or later. Empty: all.")
    until: str | None = Field(default=None, description="Records that arrived before this instant. Empty: all that the sink has confirmed.")
    feed_views: bool = Field(default=False, description="Insert even if materialized views receive the rows again.")


def build(files: PipelineFiles) -> dg.Definitions:
    work: list[tuple[str, type[dg.Config], Work, str]] = [
        ("compact_keys", Compact, _compact, "Merge the segments of the key store and drop expired keys."),
        ("rebuild_state", OfPipeline, _rebuild_state, "Rebuild the key store of a stopped pipeline from the raw stream."),
        ("verify_pipeline", Verify, _verify, "Recompute the table's rows from the raw records, and compare."),
        ("put_back_missing", PutBackMissing, _put_back, "Insert confirmed rows that the table has lost, recomputed from raw."),
    ]
    return dg.Definitions(jobs=[_job(files, *one) for one in work])


def _job(files: PipelineFiles, name: str, config_class: type[dg.Config], work: Work, description: str) -> dg.JobDefinition:
    def run(context: dg.OpExecutionContext, streaming_jobs: StreamingJobs, tallyflow_spark: SparkResource) -> dg.Output[None]:
        config: Any = read_config(context, config_class)

        def checked(pipeline: Pipeline) -> dict[str, Any]:
            check_same_pipeline(streaming_jobs, pipeline)
            return work(streaming_jobs, tallyflow_spark, pipeline, config, context.log.info)

        return done(context, name, known(files, config.pipeline), checked)

    return job_of(files, name, config_class, run, description)


def _compact(jobs: StreamingJobs, pyspark: SparkResource, pipeline: Pipeline, config: Compact, _: Announce) -> dict[str, Any]:
    return compacted(jobs, pipeline, pyspark if config.with_spark else None)


def _rebuild_state(jobs: StreamingJobs, _: SparkResource, pipeline: Pipeline, config: OfPipeline, announce: Announce) -> dict[str, Any]:
    with key_state(jobs, pipeline) as keys:
        return asdict(rebuild(keys))


def _put_back(jobs: StreamingJobs, _: SparkResource, pipeline: Pipeline, config: PutBackMissing, announce: Announce) -> dict[str, Any]:
    """Insert missing rows. Raise Failure with the findings if something still differs; unproven rows are only reported."""
    resolved = jobs.config(pipeline.path)
    since, until = instant("since", config.since), instant("until", config.until)
    with closing(JetStream.of(resolved).connect()) as log:
        request = Request(jobs.directory(resolved.pipeline_id), since, until)
        sinks = {resolved.topology.file_id(seen.sink_leg): seen for seen in resolved.by_sink}
        found = {sink: put_back(seen, log, request, config.feed_views, as_lines(announce)) for sink, seen in sinks.items()}
    after, rows = Verification.together({sink: one.after for sink, one in found.items()}), sum(one.rows for one in found.values())
    metadata = {"missing": sum(one.missing for one in found.values()), "put back": rows, **report_metadata(after)}
    if after.findings:
        message = f"{count_of(rows, 'row')} put back; verified afterwards: {summary(after)}"
        raise dg.Failure(message, metadata={**metadata, **examples_metadata(after.examples())}, allow_retries=False)
    return metadata


def _verify(jobs: StreamingJobs, _: SparkResource, pipeline: Pipeline, config: Verify, announce: Announce) -> dict[str, Any]:
    """Verify the table. Raise Failure with the findings if something differs."""
    resolved = jobs.config(pipeline.path)
    since, until = instant("since", config.since), instant("until", config.until)
    request = Request(jobs.directory(resolved.pipeline_id), since, until, config.examples, config.with_kafka)
    with closing(JetStream.of(resolved).connect()) as log:
        report = verify(resolved, log, request, as_lines(announce))
    metadata = report_metadata(report)
    if report.findings:
        raise dg.Failure(summary(report), metadata={**metadata, **examples_metadata(report.examples())}, allow_retries=False)
    return metadata
