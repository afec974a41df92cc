"""What jobs and assets share: which pipeline and dead letters are meant, the work on a pipeline's letters and keys, and Spark tasks."""

import os
from contextlib import AbstractContextManager, closing
from datetime import datetime
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_project.assets.streams import PIPELINE_TAG
from dagster_project.pipeline_files import Pipeline
from pipelines.dead_letters.reprocess import Reprocessing
from pipelines.dead_letters.triage import Selection
from pipelines.engine.execute import Tasks
from pipelines.engine.run_spec import RunSpec
from pipelines.maintenance.compact import Compacted, compact
from pipelines.maintenance.inspect import KeyState
from resources.spark import SparkResource
from resources.streaming_jobs import StreamingJobs


class Letters(dg.Config):
    """Which dead letters enter again: those that fit everything that is given. Parked ones stay."""

    everything: bool = Field(default=False, description="All of them, when nothing below narrows the selection.")
    group: str | None = Field(default=None, description="Those of one cause, as `tallyflow dlq groups` names it.")
    stage: str | None = Field(default=None, description="Those of one stage, such as parse, transform or sink.")
    since: str | None = Field(default=None, description="Rejected at or after this instant (ISO 8601).")
    until: str | None = Field(default=None, description="Rejected before this instant (ISO 8601).")

    def selection(self) -> Selection:
        """Raises Failure when nothing says which letters are meant, or an instant cannot be read."""
        given = [value for value in (self.group, self.stage, self.since, self.until) if value is not None]
        if not given and not self.everything:
            raise dg.Failure("say which dead letters: group, stage, since, until, or everything: true", allow_retries=False)
        return Selection(self.stage, self.group, instant("since", self.since), instant("until", self.until))


def instant(name: str, text: str | None) -> datetime | None:
    """Of a field of a launchpad, ISO 8601 with its zone. Raises Failure for another text."""
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
    """Where the work is done."""

    with_spark: bool = Field(
        default=False,
        description="Side by side, as tasks of the Spark resource: for work that takes much longer than a JVM's start.",
    )


def spark_tasks(jobs: StreamingJobs, run: RunSpec, pyspark: SparkResource) -> Tasks:
    """What a resource says of servers goes with the tasks where it is not what the environment says, which workers have by themselves."""
    variables = {name: value for name, value in jobs.environment().items() if os.environ.get(name) != value}
    return Tasks(pyspark.spark_session, run, variables)


def note_pipeline(context: dg.OpExecutionContext | dg.AssetExecutionContext | dg.AssetCheckExecutionContext, pipeline: Pipeline) -> None:
    """Tags the run with the pipeline, however it was launched, so that the list of runs can be narrowed to it."""
    context.instance.add_run_tags(context.run.run_id, {PIPELINE_TAG: pipeline.config.pipeline_id})


def check_same_pipeline(jobs: StreamingJobs, pipeline: Pipeline) -> None:
    """A file that was given another id since it was loaded is another pipeline, which nobody has asked for."""
    now = jobs.config(pipeline.path).pipeline_id
    if now != pipeline.config.pipeline_id:
        raise dg.Failure(
            f"pipeline {pipeline.config.pipeline_id}: {pipeline.path} says pipeline_id {now} now; reload the code location, or put it back",
            allow_retries=False,
        )


def reprocessing(jobs: StreamingJobs, pipeline: Pipeline) -> AbstractContextManager[Reprocessing]:
    """The pipeline's dead letters, to let them enter again or to give them up; closed at the end of the block."""
    config = jobs.config(pipeline.path)
    return closing(Reprocessing(config, jobs.directory(config.pipeline_id)))


def key_state(jobs: StreamingJobs, pipeline: Pipeline, needs_dedup: bool = True) -> AbstractContextManager[KeyState]:
    """The pipeline's key store; closed at the end of the block."""
    return closing(KeyState(jobs.config(pipeline.path), pipeline.path.read_text(), jobs.home_directory(), needs_dedup))


def compacted(jobs: StreamingJobs, pipeline: Pipeline, pyspark: SparkResource | None) -> dict[str, Any]:
    """Compacts the pipeline's key store, as Spark tasks where a resource is given; the numbers."""
    with key_state(jobs, pipeline) as keys:
        share = spark_tasks(jobs, keys.connections.run, pyspark).run if pyspark else None
        return compaction_numbers(compact(keys, share=share))


def compaction_numbers(buckets: list[Compacted]) -> dict[str, Any]:
    """Sums over the buckets; the oldest key before and after; per bucket as a table."""

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
    rows = [f"| {one.bucket} | {one.before.entries:,} | {one.after.entries:,} | {one.live_keys:,} | {one.outcome} |" for one in buckets]
    head = ["| bucket | keys before | after | live keys, all found | outcome |", "|---|---|---|---|---|"]
    return {**numbers, "buckets": dg.MetadataValue.md("\n".join([*head, *rows]))}
