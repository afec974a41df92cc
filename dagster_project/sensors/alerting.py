"""Alerts for what nobody watches: sensors that send an alert for failed runs and failed checks, once per cause.

A cause is the message with each digit replaced by 0: another check, another reason, or ten times as many is another cause.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import dagster as dg

from dagster_project.assets.stream_names import TABLE, VERIFICATION
from dagster_project.assets.streams import PIPELINE_TAG, asset_key
from dagster_project.assets.verification import CHECK as MATCH
from dagster_project.checks import enabled
from dagster_project.dagster_private import ASSET_CHECK_FAILED, Looked, results_since
from dagster_project.pipeline_files import Pipeline, PipelineFiles
from dagster_project.schedule_status import sensor_status
from dagster_project.sensors import decisions
from resources.alerts import Alert, AlertsResource

_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE]
_RUNS_LOOKED_AT = 20
_NUMBER = re.compile(r"\d[\d,.]*")
_ALL_PIPELINES = "all"


def build(files: PipelineFiles, jobs: Iterable[str]) -> dg.Definitions:
    """Build the alert sensors.

    `jobs`: names of the jobs that exist once, such as `prune_event_log`.
    """
    status, once_only = sensor_status(files), frozenset(jobs)

    @dg.run_failure_sensor(
        name=files.name("alert_failed_runs"),
        default_status=status,
        description="Sends an alert when a run that starts, checks, repairs or prunes has failed; once per cause.",
    )
    def failed_runs(context: dg.RunFailureSensorContext, tallyflow_alerts: AlertsResource) -> dg.SkipReason | None:
        run = context.dagster_run
        pipeline = pipeline_of(files, run, once_only)
        if pipeline is None:
            return dg.SkipReason(f"run {run.run_id} belongs to no pipeline")
        message = failure_message(context.instance, run)
        if message is None:
            return dg.SkipReason("a blocking check has failed; alert_failed_checks sends the alert")
        if cause_of(message) == _cause_before(context.instance, files, run, pipeline, once_only):
            return dg.SkipReason(f"{run.job_name} failed for the same cause as before; alert already sent")
        tallyflow_alerts.send(Alert(pipeline, f"{run.job_name} failed: {message}", f"see run {run.run_id} in Dagster"))
        return None

    @dg.sensor(
        name=files.name("alert_failed_checks"),
        minimum_interval_seconds=60,
        default_status=status,
        description="Sends an alert when a check of a table or of an hour has failed with severity error; once per cause.",
    )
    def failed_checks(context: dg.SensorEvaluationContext, tallyflow_alerts: AlertsResource) -> dg.SensorResult:
        memory = decisions.recalled(ChecksMemory, decisions.read_cursor(context.cursor)) or ChecksMemory()
        messages = []
        for pipeline in files.pipelines:
            failed, memory = newly_failed(context.instance, watched(pipeline), memory)
            if failed:
                tallyflow_alerts.send(Alert(pipeline.config.pipeline_id, "; ".join(failed), _REMEDY))
                messages.append(f"{pipeline.config.pipeline_id}: {'; '.join(failed)}")
        skip = dg.SkipReason("; ".join(messages) or "no check has newly failed")
        return dg.SensorResult(skip_reason=skip, cursor=json.dumps(asdict(memory)))

    return dg.Definitions(sensors=[failed_runs, failed_checks])


_REMEDY = (
    "see the examples on the check's page in Dagster; if rows are missing, launch put_back_missing; if an hour differs, verify it again"
)


@dataclass(frozen=True)
class ChecksMemory:
    """By check the results that were read, and, by check and partition, the cause of the last alert."""

    looked: Mapping[str, Looked] = field(default_factory=dict)
    causes: Mapping[str, str] = field(default_factory=dict)


def watched(pipeline: Pipeline) -> list[dg.AssetCheckKey]:
    """List the checks of the table and of an hour.

    The hour's check alerts about a difference; the table's `verification` check only sums up.
    """
    names = [name for name in enabled(pipeline.config.checks) if name != "verification"]
    table, verification = asset_key(pipeline, TABLE), asset_key(pipeline, VERIFICATION)
    return [*(dg.AssetCheckKey(table, name) for name in names), dg.AssetCheckKey(verification, MATCH)]


def newly_failed(instance: dg.DagsterInstance, keys: list[dg.AssetCheckKey], memory: ChecksMemory) -> tuple[list[str], ChecksMemory]:
    """Return the failures to alert about, and the new memory.

    A check that passes again is forgotten; a warning changes nothing.
    """
    looked, causes = dict(memory.looked), dict(memory.causes)
    failed: list[str] = []
    for key, seen, results in results_since(instance, keys, memory.looked):
        name = key.to_user_string()
        looked[name] = seen
        for partition, result in results:
            label = f"{name} {partition}" if partition else name
            if result.passed:
                causes.pop(label, None)
            elif result.severity is dg.AssetCheckSeverity.ERROR:
                cause = cause_of(result.description or "")
                if causes.get(label) != cause:
                    failed.append(f"check {key.name}{f' of {partition}' if partition else ''} failed: {result.description}")
                causes[label] = cause
    return failed, ChecksMemory(looked, causes)


def cause_of(message: str) -> str:
    """Return the message without the parts that vary: of a number only its length stays."""
    return _NUMBER.sub(lambda found: "0" * sum(one.isdigit() for one in found.group()), message)[:500]


def failure_message(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str | None:
    """Return the message of the run's first failed step; None if only blocking checks have failed."""
    events = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    failures = [one.event_log_entry.dagster_event.step_failure_data for one in events if one.event_log_entry.dagster_event]
    others = [one for one in failures if one.error is None or one.error.cls_name != ASSET_CHECK_FAILED]
    if failures and not others:
        return None
    for one in others:
        if one.user_failure_data and one.user_failure_data.description:
            return str(one.user_failure_data.description)
    errors = [one.error for one in others if one.error]
    if not errors:
        ended = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE).records
        messages = [one.event_log_entry.dagster_event.message for one in ended if one.event_log_entry.dagster_event]
        return str(messages[-1]) if messages and messages[-1] else "the run has ended"
    error = errors[0]
    while error.cause is not None:
        # The cause follows "exceeded max retries".
        error = error.cause
    return str(error.message).strip().removeprefix("dagster._core.definitions.events.Failure: ")


def pipeline_of(files: PipelineFiles, run: dg.DagsterRun, once_only: Iterable[str] = ()) -> str | None:
    """Return the id of the pipeline of a run, by its tag, configuration or assets; None for a run that is not ours."""
    ids = {pipeline.config.pipeline_id for pipeline in files.pipelines}
    for found in (run.tags.get(PIPELINE_TAG), *pipelines_of(run)):
        if found in ids:
            return found
    assets = {*(run.asset_selection or ()), *(key.asset_key for key in run.asset_check_selection or ())}
    for pipeline in files.pipelines:
        begin = asset_key(pipeline, "").path[:-1]
        if any(key.path[: len(begin)] == begin for key in assets):
            return pipeline.config.pipeline_id
    return _ALL_PIPELINES if run.job_name in once_only else None


def pipelines_of(run: dg.DagsterRun) -> list[str]:
    """List the pipeline ids in the configuration of a run."""
    ops: Any = run.run_config.get("ops", {})
    return [str(one["config"]["pipeline"]) for one in ops.values() if "pipeline" in one.get("config", {})]


def _cause_before(
    instance: dg.DagsterInstance, files: PipelineFiles, run: dg.DagsterRun, pipeline: str, once_only: Iterable[str]
) -> str | None:
    """Return the cause of the last earlier run of the same job and pipeline; None if that succeeded, or there was none."""
    record = instance.get_run_record_by_id(run.run_id)
    ended = dg.RunsFilter(job_name=run.job_name, statuses=_ENDED, created_before=record.create_timestamp if record else None)
    for one in instance.get_run_records(ended, limit=_RUNS_LOOKED_AT):
        before = one.dagster_run
        if before.run_id != run.run_id and pipeline_of(files, before, once_only) == pipeline and _same_work(before, run):
            message = failure_message(instance, before) if before.status is dg.DagsterRunStatus.FAILURE else None
            return cause_of(message) if message is not None else None
    return None


def _same_work(one: dg.DagsterRun, other: dg.DagsterRun) -> bool:
    """Return True for the same assets: runs launched from the page are all of one job."""
    return one.asset_selection == other.asset_selection
