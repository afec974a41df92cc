"""Jobs for the launchpad: start, stop, drain and restart a pipeline; redrive and discard its dead letters.

Each job takes the pipeline's id and does one thing; it may be repeated, and killed at any time. Batch work: `jobs.batch`.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from dagster_project.assets.stream_names import REPROCESSED
from dagster_project.assets.streams import asset_key, compaction_key
from dagster_project.failures import RETRY, errors_as_failures
from dagster_project.jobs.repairs import DeadLetterChoice, check_same_pipeline, key_state, note_pipeline, reprocessing
from dagster_project.pipeline_files import Pipeline, PipelineFiles
from dagster_project.run_config import read_config, schema_of
from pipelines.dead_letters.dry_run import rehearse
from pipelines.dead_letters.reprocess import Outcome
from pipelines.dead_letters.stream import DeadLetters
from pipelines.dead_letters.triage import Selection
from pipelines.protocol.positions import Position, record_position
from pipelines.protocol.topology import KINDS
from resources.streaming_jobs import Announce, Started, StreamingJobs

_NOTHING_CHANGED = "nothing was changed"
IF_WANTED_TAG = "tallyflow/if_wanted"
"""Tag of the runs that sensors launch to start a pipeline: skip it if its desired state is `stopped` when the run begins."""
_LEFT_ALONE: dict[str, Any] = {"state": "skipped: its desired state is stopped"}
Work = Callable[[StreamingJobs, Pipeline, Any, Announce], dict[str, Any]]


class OfPipeline(dg.Config):
    """The pipeline."""

    pipeline: str = Field(description="Id of the pipeline, as in its file.")


class Start(OfPipeline):
    """Starts the legs that do not run; a running runner is adopted."""

    accept: bool = Field(
        default=False, description="Disable the rejection limit for this start: rejected records become dead letters, however many."
    )
    legs: list[str] = Field(default=[*KINDS], description="The legs to start: ingest, process, sink, dead_letters.")


class Stop(OfPipeline):
    """Stops the pipeline after the batches in progress; it stays stopped."""

    kill_after_seconds: float | None = Field(
        default=None, ge=0, description="Kill a runner that has not stopped by then. Empty: fail instead."
    )


class Restart(OfPipeline):
    """Stops the pipeline and starts it again with its desired legs."""

    accept: bool = Field(default=False, description="As for start_pipeline.")
    kill_after_seconds: float | None = Field(default=60.0, ge=0, description="As for stop_pipeline.")


class Chosen(OfPipeline, DeadLetterChoice):
    """The dead letters that match every given field."""

    key: str | None = Field(default=None, description="Only dead letters with this Kafka key.")
    positions: list[str] = Field(
        default_factory=list, description="Only the dead letters at these raw positions, such as 17.3, parked or not."
    )

    def selection(self) -> Selection:
        """Return the selection. Raise Failure as `DeadLetterChoice` does, and for text that is not a position."""
        named = self.key is not None or bool(self.positions)
        chosen = DeadLetterChoice.selection(self.model_copy(update={"everything": self.everything or named}))
        key = self.key.encode() if self.key is not None else None
        return replace(chosen, key=key, positions=frozenset(map(_position, self.positions)) if self.positions else None)


class Reprocess(Chosen):
    """Redrives the dead letters, each once, whether the pipeline is running or not."""

    dry_run: bool = Field(default=False, description="Show the outcome of a redrive; change nothing.")
    not_rejected_by: str | None = Field(
        default=None, description="Skip dead letters that this config version has rejected: it would reject them again."
    )


class Discard(Chosen):
    """Discards the dead letters permanently, and counts them."""

    reason: str = Field(description="Why; recorded in the ledger.")


def control_jobs(files: PipelineFiles) -> dict[str, dg.JobDefinition]:
    """Build the jobs by name; each lists its pipelines at launch."""
    work: list[tuple[str, type[dg.Config], Work, str]] = [
        ("start_pipeline", Start, _start, "Start a pipeline, or those of its legs that do not run."),
        ("stop_pipeline", Stop, _stop, "Stop a pipeline; it stays stopped."),
        ("drain_pipeline", OfPipeline, _drain, "Stop a pipeline once every record now in Kafka is in ClickHouse."),
        ("restart_pipeline", Restart, _restart, "Stop a pipeline and start it again."),
        ("reprocess_dead_letters", Reprocess, _reprocess, "Redrive dead letters."),
        ("discard_dead_letters", Discard, _discard, "Discard dead letters permanently."),
    ]
    return {one[0]: _job(files, *one) for one in work}


def _job(files: PipelineFiles, name: str, config_class: type[dg.Config], work: Work, description: str) -> dg.JobDefinition:
    def run(context: dg.OpExecutionContext, streaming_jobs: StreamingJobs) -> dg.Output[None]:
        config: Any = read_config(context, config_class)

        def checked(pipeline: Pipeline) -> dict[str, Any]:
            if work is not _stop:
                check_same_pipeline(streaming_jobs, pipeline)
            if IF_WANTED_TAG in context.run.tags and _is_unwanted(streaming_jobs, pipeline):
                return _LEFT_ALONE
            return work(streaming_jobs, pipeline, config, context.log.info)

        return done(context, name, known(files, config.pipeline), checked)

    return job_of(files, name, config_class, run, description)


def done(context: dg.OpExecutionContext, name: str, pipeline: Pipeline, work: Callable[[Pipeline], dict[str, Any]]) -> dg.Output[None]:
    """Run `work`, log and record its outcome, and return the output of the job's op."""
    note_pipeline(context, pipeline)
    with errors_as_failures():
        metadata = work(pipeline)
    summary = ", ".join(f"{key} {getattr(value, 'value', value)}" for key, value in metadata.items() if not _is_long(value))
    context.log.info(f"{name} {pipeline.config.pipeline_id}: {summary}")
    made = _also_made(name, pipeline)
    if made is not None and not metadata.get(_NOTHING_CHANGED):
        context.log_event(dg.AssetMaterialization(made, metadata=metadata))
    return dg.Output(None, metadata=metadata)


def _also_made(job: str, pipeline: Pipeline) -> dg.AssetKey | None:
    """Return the asset that a job makes, too; its page would not know otherwise."""
    if job == "reprocess_dead_letters":
        return asset_key(pipeline, REPROCESSED)
    return compaction_key(pipeline) if job == "compact_keys" else None


def _is_long(value: Any) -> bool:
    return isinstance(value, dg.MarkdownMetadataValue)


def job_of(
    files: PipelineFiles, name: str, config_class: type[dg.Config], run: Callable[..., dg.Output[None]], description: str
) -> dg.JobDefinition:
    """Build a job of one op; the metadata of its output is the outcome."""
    name = files.name(name)
    made = dg.op(name=f"{name}_op", description=description, config_schema=schema_of(config_class, files), retry_policy=RETRY)(run)

    @dg.job(name=name, description=description, executor_def=dg.in_process_executor)
    def control() -> None:
        made()

    return control


def known(files: PipelineFiles, pipeline_id: str) -> Pipeline:
    """Return the pipeline with this id. Raise Failure with the known ids."""
    for pipeline in files.pipelines:
        if pipeline_id in (pipeline.config.pipeline_id, pipeline.key):
            return pipeline
    ids = ", ".join(pipeline.config.pipeline_id for pipeline in files.pipelines) or "none"
    faulty = f"; faulty files: {', '.join(one.path.name for one in files.faulty)}" if files.faulty else ""
    raise dg.Failure(f"unknown pipeline in {files.directory}; known: {ids}{faulty}", allow_retries=False)


def _is_unwanted(jobs: StreamingJobs, pipeline: Pipeline) -> bool:
    """Return True if the pipeline's desired state became `stopped` while this run was in the queue."""
    return jobs.look(pipeline.path, pipeline.config).desired == "stopped"


def _start(jobs: StreamingJobs, pipeline: Pipeline, config: Start, announce: Announce) -> dict[str, Any]:
    names = pipeline.config.topology.names
    # All kinds are the default, and not every pipeline has a leg of each.
    legs = [text for text in config.legs if text in names or text not in KINDS]
    if not legs or not names >= {*legs}:
        raise dg.Failure(f"legs: give one or more of {', '.join(pipeline.config.topology.options)}", allow_retries=False)
    return _started_metadata(jobs.start(pipeline.path, accept=config.accept, legs=legs, announce=announce))


def _stop(jobs: StreamingJobs, pipeline: Pipeline, config: Stop, _: Announce) -> dict[str, Any]:
    # By id: a pipeline whose file is faulty now can still be stopped.
    return {"stopped a runner": jobs.stop_pipeline(pipeline.config.pipeline_id, kill_after=_limit(config.kill_after_seconds))}


def _drain(jobs: StreamingJobs, pipeline: Pipeline, _: OfPipeline, announce: Announce) -> dict[str, Any]:
    return _started_metadata(jobs.drain(pipeline.path, announce=announce))


def _restart(jobs: StreamingJobs, pipeline: Pipeline, config: Restart, announce: Announce) -> dict[str, Any]:
    limit = _limit(config.kill_after_seconds)
    return _started_metadata(jobs.restart(pipeline.path, accept=config.accept, kill_after=limit, announce=announce))


def _reprocess(jobs: StreamingJobs, pipeline: Pipeline, config: Reprocess, _: Announce) -> dict[str, Any]:
    chosen = replace(config.selection(), not_rejected_by=config.not_rejected_by)
    if config.dry_run:
        return _rehearsed(jobs, pipeline, chosen)
    with reprocessing(jobs, pipeline) as work:
        return _taken("entered again", work.enter(chosen))


def _rehearsed(jobs: StreamingJobs, pipeline: Pipeline, chosen: Selection) -> dict[str, Any]:
    with closing(_dead_letters(jobs, pipeline)) as dead_letters, key_state(jobs, pipeline, needs="nothing") as keys:
        found = rehearse(jobs.config(pipeline.path), keys, dead_letters.frames(replace(chosen, states=chosen.states_that_enter)))
    again = {f"rejected again: {one.stage} {one.code} ({one.fingerprint})": one.letters for one in found.rejected}
    counts = {"letters": found.letters, "would pass": found.passed, "duplicates": found.duplicates, "late": found.late}
    ends = {**found.dropped, **({"released from the join": found.released} if found.released else {})}
    return {_NOTHING_CHANGED: True, **counts, **ends, "only an insert can tell": found.refused, **again}


def _dead_letters(jobs: StreamingJobs, pipeline: Pipeline) -> DeadLetters:
    config = jobs.config(pipeline.path)
    return DeadLetters(config, jobs.directory(config.pipeline_id))


def _discard(jobs: StreamingJobs, pipeline: Pipeline, config: Discard, _: Announce) -> dict[str, Any]:
    chosen = config.selection()
    if not config.reason.strip():
        raise dg.Failure("reason: required; it is recorded in the ledger", allow_retries=False)
    with reprocessing(jobs, pipeline) as work:
        return _taken("discarded", work.discard(chosen, config.reason))


def _started_metadata(started: Started) -> dict[str, Any]:
    log = {"log": dg.MetadataValue.path(str(started.log))} if started.log else {}
    state = started.state
    return {
        "state": state.state,
        "pid": state.pid or 0,
        "adopted a runner": started.adopted,
        "lag": state.lag or 0,
        "seconds": round(started.took.total_seconds(), 1),
        **log,
    }


def _taken(done: str, outcome: Outcome) -> dict[str, Any]:
    return {done: outcome.taken, **{f"left: {state}": count for state, count in sorted(outcome.left.items())}}


def _limit(seconds: float | None) -> timedelta | None:
    return timedelta(seconds=seconds) if seconds is not None else None


def _position(text: str) -> Position:
    try:
        return record_position(text)
    except ValueError:
        raise dg.Failure("positions: each must be a sequence and an ordinal, such as 17.3", allow_retries=False) from None
