"""Shared parts of jobs and assets: the chosen pipeline and dead letters, work on dead letters and keys, and Spark tasks."""

import os
from contextlib import AbstractContextManager, closing
from datetime import datetime
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_project.assets.streams import PIPELINE_TAG
from dagster_project.pipeline_files import Pipeline
from pipelines.dead_letters import reprocess
from pipelines.dead_letters.reprocess import Reprocessing
from pipelines.dead_letters.triage import Selection
from pipelines.engine.execute import Tasks, batch_tasks
from pipelines.engine.run_spec import RunSpec
from pipelines.maintenance.compact import Compacted, compact
from pipelines.maintenance.inspect import KeyState, Needs
from resources.spark import SparkResource
from resources.streaming_jobs import StreamingJobs


class DeadLetterChoice(dg.Config):
    """The dead letters to redrive: those that match every given field. Parked ones are skipped."""

    everything: bool = Field(default=False, description="All dead letters, if no other field narrows the selection.")
    group: str | None = Field(default=None, description="Only one group, by its fingerprint in `tallyflow dlq groups`.")
    stage: str | None = Field(default=None, description="Only one stage, such as parse, transform or sink.")
    since: str | None = Field(default=None, description="Rejected at or after this instant (ISO 8601).")
    until: str | None = Field(default=None, description="Rejected before this instant (ISO 8601).")

    def selection(self) -> Selection:
        """Return the selection. Raise Failure if no field chooses dead letters, or an instant cannot be read."""
        given = [value for value in (self.group, self.stage, self.since, self.until) if value is not None]
        if not given and not self.everything:
            raise dg.Failure("choose the dead letters: group, stage, since, until, or everything: true", allow_retries=False)
        return Selection(self.stage, self.group, instant("since", self.since), instant("until", self.until))


def instant(name: str, text: str | None) -> datetime | None:
    """Parse an instant of the launchpad, ISO 8601 with its zone. Raise Failure for other text."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise dg.Failure(f"{name}: write an instant such as 2026-01-31T12:00:00+00:00", allow_retries=False) from None
    if found.tzinfo is None:
        raise dg.Failure(f"{name}: the instant has no time zone; add Z or +00:00", allow_retries=False)
    return found


class WithSpark(dg.Config):
    """Where the work runs."""

    with_spark: bool = Field(
        default=False,
        description="Run in parallel, as tasks of the Spark resource: for work that takes much longer than starting a JVM.",
    )


def _spark_tasks(jobs: StreamingJobs, run: RunSpec, pyspark: SparkResource) -> Tasks:
    """Return the Spark tasks; they receive the servers' addresses that differ from the environment, which workers have already."""
    variables = {name: value for name, value in jobs.environment().items() if os.environ.get(name) != value}
    return batch_tasks(pyspark.spark_session, run, variables)


def note_pipeline(context: dg.OpExecutionContext | dg.AssetExecutionContext | dg.AssetCheckExecutionContext, pipeline: Pipeline) -> None:
    """Tag the run with the pipeline, however it was launched, so that the list of runs can be filtered."""
    context.instance.add_run_tags(context.run.run_id, {PIPELINE_TAG: pipeline.config.pipeline_id})


def check_same_pipeline(jobs: StreamingJobs, pipeline: Pipeline) -> None:
    """Raise Failure if the file was given another pipeline_id since it was loaded: that is a pipeline that nobody launched."""
    now = jobs.config(pipeline.path).pipeline_id
    if now != pipeline.config.pipeline_id:
        raise dg.Failure(
            f"pipeline {pipeline.config.pipeline_id}: {pipeline.path} has pipeline_id {now} now; reload the code location, or restore it",
            allow_retries=False,
        )


def reprocessing(jobs: StreamingJobs, pipeline: Pipeline) -> AbstractContextManager[Reprocessing]:
    """Open the pipeline's dead letters, to redrive or discard them; closed at the end of the block."""
    config = jobs.config(pipeline.path)
    return reprocess.reprocessing(config, jobs.directory(config.pipeline_id))


def key_state(jobs: StreamingJobs, pipeline: Pipeline, needs: Needs = "keys") -> AbstractContextManager[KeyState]:
    """Open the pipeline's key store; closed at the end of the block."""
    return closing(KeyState(jobs.config(pipeline.path), pipeline.path.read_text(), jobs.home_directory(), needs))


def compacted(jobs: StreamingJobs, pipeline: Pipeline, pyspark: SparkResource | None) -> dict[str, Any]:
    """Compact the pipeline's key store, as Spark tasks if a resource is given; return the numbers."""
    with key_state(jobs, pipeline) as keys:
        share = _spark_tasks(jobs, keys.connections.run, pyspark).run if pyspark else None
        return compaction_numbers(compact(keys, share=share))


def compaction_numbers(buckets: list[Compacted]) -> dict[str, Any]:
    """Sum the numbers over the buckets, with the oldest key before and after, and a table per bucket."""

    def total(side: str, name: str) -> int:
        return sum(getattr(getattr(one, side), name) for one in buckets)

    numbers: dict[str, Any] = {
        f"{what}_{side}": total(side, name)
        for side in ("before", "after")
        for what, name in (("keys", "entries"), ("bytes", "bytes"), ("runs", "runs"))
    }
    for side in ("before", "after"):
        oldest = [extent.oldest for one in buckets if (extent := getattr(one, side)).oldest is not None]
        numbers[f"oldest_{side}"] = f"{min(oldest):%Y-%m-%d %H:%M:%S} UTC" if oldest else "none"
    numbers["live_keys_found"] = sum(one.live_keys for one in buckets)
    rows = [
        f"| {one.store} | {one.bucket} | {one.before.entries:,} | {one.after.entries:,} | {one.live_keys:,} | {one.outcome} |"
        for one in buckets
    ]
    head = ["| store | bucket | keys before | after | live keys, all found | outcome |", "|---|---|---|---|---|---|"]
    return {**numbers, "buckets": dg.MetadataValue.md("\n".join([*head, *rows]))}
