"""Work beside the stream, as assets with schedules: compaction of the key store, dead letters that enter again, verification by the hour.

Each may run beside the live pipeline, may be killed at any time, and may be repeated.
"""

from contextlib import nullcontext
from datetime import datetime
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_project.failures import errors_as_failures
from dagster_project.pipeline_files import Pipeline, PipelineFiles
from dagster_project.schedule_status import schedule_status
from dagster_project.seam_names import COMPACTION, DEAD_LETTERS, DEDUP, REPROCESSED
from dagster_project.seams import op_name, spec_behind
from dagster_project.table_checks import RETRY
from pipelines.compaction import Compacted, compact, in_tasks
from pipelines.config import PipelineConfig
from pipelines.key_state import KeyState
from pipelines.reprocess import Reprocessing
from pipelines.triage import Selection
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
        return Selection(self.stage, self.group, _instant("since", self.since), _instant("until", self.until))


def _instant(name: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise dg.Failure(f"{name}: {text!r} is no instant such as 2026-01-31T12:00:00+00:00", allow_retries=False) from None
    if found.tzinfo is None:
        raise dg.Failure(f"{name}: {text!r} has no time zone; add Z or +00:00", allow_retries=False)
    return found


def build(files: PipelineFiles) -> dg.Definitions:
    parts = []
    for pipeline in files.pipelines:
        if any(transform.type == "dedup" for transform in pipeline.config.transforms):
            parts.append(_part(pipeline, "compact", _compaction(pipeline), "20 3 * * *", schedule_status()))
        # Off: letters that enter again unmended come back as letters.
        off = dg.DefaultScheduleStatus.STOPPED
        parts.append(_part(pipeline, "reprocess", _reprocessed(pipeline), "40 4 * * *", off, {"everything": True}))
    return dg.Definitions.merge(*parts)


def _part(
    pipeline: Pipeline,
    verb: str,
    asset: dg.AssetsDefinition,
    cron: str,
    status: dg.DefaultScheduleStatus,
    config: dict[str, Any] | None = None,
) -> dg.Definitions:
    """The asset, the job `<verb>_<pipeline>` that makes it, and its schedule."""
    job = dg.define_asset_job(
        f"{verb}_{pipeline.key}",
        selection=dg.AssetSelection.assets(asset),
        config={"ops": {asset.op.name: {"config": config}}} if config else None,
        tags={"tallyflow/pipeline": pipeline.config.pipeline_id},
    )
    schedule = dg.ScheduleDefinition(name=f"{job.name}_daily", job=job, cron_schedule=cron, execution_timezone="UTC", default_status=status)
    return dg.Definitions(assets=[asset], jobs=[job], schedules=[schedule])


class Compaction(dg.Config):
    """Where the work is done."""

    with_spark: bool = Field(
        default=False,
        description="The buckets side by side, as Spark tasks: for stores whose compaction takes much longer than a JVM's start.",
    )


def _compaction(pipeline: Pipeline) -> dg.AssetsDefinition:
    text = "One run per bucket, expired keys dropped. Proof: every live key is looked up in the new runs. May run beside the pipeline."

    @dg.multi_asset(specs=[spec_behind(pipeline, COMPACTION, DEDUP, text)], name=op_name(pipeline, COMPACTION), retry_policy=RETRY)
    def compaction(config: Compaction, streaming_jobs: StreamingJobs, pyspark: SparkResource) -> dg.MaterializeResult[Any]:
        with errors_as_failures():
            state = KeyState(streaming_jobs.config(pipeline.path), pipeline.path.read_text(), streaming_jobs.home_directory())
            try:
                with in_tasks(state, pyspark.spark_session) if config.with_spark else nullcontext() as share:
                    found = compact(state, share=share)
            finally:
                state.close()
        return dg.MaterializeResult(metadata=compaction_numbers(found))

    return compaction


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


def _reprocessed(pipeline: Pipeline) -> dg.AssetsDefinition:
    text = "Lets dead letters enter the pipeline again, each at most once. Mend the cause first; the configuration says which."

    @dg.multi_asset(specs=[spec_behind(pipeline, REPROCESSED, DEAD_LETTERS, text)], name=op_name(pipeline, REPROCESSED), retry_policy=RETRY)
    def reprocessed(config: Letters, streaming_jobs: StreamingJobs) -> dg.MaterializeResult[Any]:
        selection = config.selection()
        with errors_as_failures():
            pipeline_config: PipelineConfig = streaming_jobs.config(pipeline.path)
            work = Reprocessing(pipeline_config, streaming_jobs.directory(pipeline_config.pipeline_id))
            try:
                outcome = work.enter(selection)
            finally:
                work.close()
        left = {f"left_{state}": count for state, count in outcome.left.items()}
        return dg.MaterializeResult(metadata={"entered": outcome.taken, **left})

    return reprocessed
