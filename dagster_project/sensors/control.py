"""Sensors that keep the pipelines running and send alerts: thin, around `decisions`. None starts a JVM or blocks for long.

The memory of a sensor is its cursor: JSON by pipeline key.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg

from dagster_project.assets.stream_names import DEAD_LETTERS, RAW
from dagster_project.assets.streams import PIPELINE_TAG, asset_key
from dagster_project.jobs.control import IF_WANTED_TAG, control_jobs
from dagster_project.pipeline_files import Pipeline, PipelineFiles, read_pipeline_files
from dagster_project.schedule_status import sensor_status
from dagster_project.sensors import decisions
from dagster_project.sensors.alerting import pipelines_of
from dagster_project.sensors.decisions import DeadLetters, DeadLettersMemory, Decision, FileSeen, LagMemory, Trouble
from dagster_project.sensors.side_by_side import look_at_all
from pipelines.config import PipelineConfig, run_digest
from pipelines.config.load import read_text
from pipelines.connectors.nats.client import JetStream
from pipelines.control.control import find_runners, stage_config_version
from pipelines.control.job_state import JobState
from pipelines.control.reload import reload_runners
from pipelines.counts import count_of
from pipelines.errors import HaltError, TallyflowError
from pipelines.protocol.naming import Names
from pipelines.protocol.tally import tally
from resources.alerts import Alert, AlertsResource
from resources.streaming_jobs import StreamingJobs

T = TypeVar("T")
KILL_AFTER_SECONDS = 30.0
LONGEST_CONTROL = timedelta(minutes=30)
"""Covers a start with all its retries, and some minutes in the queue.

A drain may take longer; its pipeline's desired state is `stopped`.
"""
_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_IF_WANTED = {IF_WANTED_TAG: "yes"}
_CONTROLS = ("start_pipeline", "stop_pipeline", "drain_pipeline", "restart_pipeline")


def build(files: PipelineFiles) -> dg.Definitions:
    """Build the control jobs, and the sensors that launch them."""
    status = sensor_status(files)
    control = control_jobs(files)
    jobs = [control[name] for name in ("start_pipeline", "restart_pipeline", "reprocess_dead_letters")]

    @dg.sensor(
        name=files.name("keep_pipelines_running"),
        jobs=jobs[:2],
        minimum_interval_seconds=30,
        # Acts only on pipelines whose desired state is `running`.
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Restarts a runner that died, replaces one that does not answer or is stuck, and sends an alert for a halt.",
    )
    def keep_running(
        context: dg.SensorEvaluationContext, streaming_jobs: StreamingJobs, tallyflow_alerts: AlertsResource
    ) -> dg.SensorResult:
        tick = _Tick(context, files, tallyflow_alerts)
        busy = _busy(context, files)
        for pipeline, state in tick.look(lambda pipeline: _state(pipeline, streaming_jobs)):
            streaming_jobs.bound_logs(pipeline.config.pipeline_id)
            if pipeline.config.pipeline_id in busy:
                tick.keep(pipeline, "a run is working on it")
                continue
            decision, trouble = decisions.health(state, tick.memory(pipeline, Trouble), tick.now, pipeline.config.alerts)
            requests = [_restart(pipeline, state, decision, trouble)] if decision.action in ("start", "restart") and trouble else []
            tick.decided(pipeline, decision, trouble, requests=requests)
        return tick.result()

    @dg.sensor(
        name=files.name("watch_lag"),
        minimum_interval_seconds=60,
        default_status=status,
        description="Sends an alert when a pipeline falls behind its topic.",
    )
    def watch_lag(context: dg.SensorEvaluationContext, streaming_jobs: StreamingJobs, tallyflow_alerts: AlertsResource) -> dg.SensorResult:
        tick = _Tick(context, files, tallyflow_alerts)
        for pipeline, state in tick.look(lambda pipeline: _state(pipeline, streaming_jobs)):
            decision, memory = decisions.lag(state.lag, tick.memory(pipeline, LagMemory), tick.now, pipeline.config.alerts)
            tick.decided(pipeline, decision, memory, RAW, {"lag_offsets": state.lag or 0})
        return tick.result()

    @dg.sensor(
        name=files.name("watch_dead_letters"),
        job=jobs[2],
        minimum_interval_seconds=60,
        default_status=status,
        description="Redrives dead letters once when the pipeline runs with a new configuration; sends an alert for the others.",
    )
    def watch_dead_letters(
        context: dg.SensorEvaluationContext, streaming_jobs: StreamingJobs, tallyflow_alerts: AlertsResource
    ) -> dg.SensorResult:
        tick = _Tick(context, files, tallyflow_alerts)
        for pipeline, dead_letters in tick.look(lambda pipeline: look_at_dead_letters(pipeline, streaming_jobs, tick.now)):
            before = tick.memory(pipeline, DeadLettersMemory) or DeadLettersMemory()
            decision, memory = decisions.on_dead_letters(dead_letters, before, tick.now, pipeline.config.alerts)
            requests = [_reprocess(pipeline, dead_letters)] if decision.action == "reprocess" else []
            tick.decided(pipeline, decision, memory, DEAD_LETTERS, {"still_there": dead_letters.waiting}, requests)
        return tick.result()

    @dg.sensor(
        name=files.name("watch_pipeline_files"),
        job=jobs[1],
        minimum_interval_seconds=60,
        default_status=status,
        description="Alerts on new, changed and faulty files; reloads or restarts a changed pipeline if `restart_on_change` is set.",
    )
    def watch_files(
        context: dg.SensorEvaluationContext, streaming_jobs: StreamingJobs, tallyflow_alerts: AlertsResource
    ) -> dg.SensorResult:
        before = decisions.recalled(dict[str, str], decisions.read_cursor(context.cursor))
        seen, by_path = _files_now(files, streaming_jobs, before or {})
        changes = decisions.changed_files(seen, before)
        requests = []
        for path, change in changes.items():
            pipeline = by_path.get(path)
            name = pipeline.config.pipeline_id if pipeline else path
            if pipeline and change == "changed" and streaming_jobs.restart_on_change and _needs_restart(pipeline, streaming_jobs):
                # A file may return to earlier content.
                key = f"changed:{pipeline.key}:{seen[path].digest}:{pipeline.path.stat().st_mtime_ns}"
                requests.append(_request("restart_pipeline", pipeline, {}, key, _IF_WANTED))
            faults = f": {seen[path].faults}" if change == "faulty" else ""
            tallyflow_alerts.send(Alert(name, f"pipeline file {path} is {change}{faults}", _FILE_REMEDIES[change]))
        listed = "; ".join(f"{path} is {change}" for path, change in changes.items())
        skip = None if requests else dg.SkipReason(listed or f"{count_of(len(seen), 'file')}, unchanged")
        return dg.SensorResult(requests, skip_reason=skip, cursor=json.dumps({path: one.mark for path, one in seen.items()}))

    return dg.Definitions(jobs=[*control.values()], sensors=[keep_running, watch_lag, watch_dead_letters, watch_files])


class _Tick:
    """One evaluation of a sensor: looks at all pipelines in parallel, collects the decisions, and remembers."""

    def __init__(self, context: dg.SensorEvaluationContext, files: PipelineFiles, alerts: AlertsResource) -> None:
        self._files, self._alerts, self._log = files, alerts, context.log
        self._before = decisions.read_cursor(context.cursor) or {}
        self._memory: dict[str, Any] = {}
        self._messages: list[str] = []
        self._requests: list[dg.RunRequest] = []
        self._events: list[dg.AssetObservation] = []
        self.now = datetime.now(UTC).timestamp()

    def look(self, look: Callable[[Pipeline], T]) -> list[tuple[Pipeline, T]]:
        """Return what `look` found per pipeline that answered in time; the others keep their memory."""
        found = []
        for pipeline, one in look_at_all(self._files.pipelines, look):
            if isinstance(one, TallyflowError):
                self.keep(pipeline, str(one))
            else:
                found.append((pipeline, one))
        return found

    def memory(self, pipeline: Pipeline, kind: type[T]) -> T | None:
        return decisions.recalled(kind, self._before.get(pipeline.key))

    def keep(self, pipeline: Pipeline, why: str) -> None:
        """Keep the memory of a pipeline about which nothing is decided now."""
        self._messages.append(f"{pipeline.config.pipeline_id}: {why}")
        if pipeline.key in self._before:
            self._memory[pipeline.key] = self._before[pipeline.key]

    def decided(
        self,
        pipeline: Pipeline,
        decision: Decision,
        memory: Trouble | LagMemory | DeadLettersMemory | None,
        asset_name: str = "",
        numbers: Mapping[str, int] | None = None,
        requests: list[dg.RunRequest] | None = None,
    ) -> None:
        self._messages.append(f"{pipeline.config.pipeline_id}: {decision.why}")
        if memory is not None:
            self._memory[pipeline.key] = asdict(memory)
        self._requests += requests or []
        if decision.action == "alert":
            self._alerts.send(Alert(pipeline.config.pipeline_id, decision.what, decision.remedy))
            if asset_name:
                self._events.append(dg.AssetObservation(asset_key(pipeline, asset_name), description=decision.what, metadata=numbers))

    def result(self) -> dg.SensorResult:
        summary = "; ".join(self._messages) or "no pipelines"
        if self._requests:
            self._log.info(summary)
        # Dagster calls a tick without a run skipped, even if it has reported something.
        skip = None if self._requests else dg.SkipReason(summary)
        return dg.SensorResult(self._requests, skip_reason=skip, asset_events=self._events, cursor=json.dumps(self._memory))


_FILE_REMEDIES = {
    "new": "reload the code location in Dagster, then launch start_pipeline",
    "changed": "reload the code location, then launch restart_pipeline, or run `tallyflow apply`: a running pipeline keeps its old "
    "configuration until then",
    decisions.CHANGED_BESIDE: "reload the code location; a running pipeline needs no restart",
    "faulty": "correct the file; `tallyflow validate` lists its faults",
    "deleted": "reload the code location; if the pipeline is running, stop it with `tallyflow stop`, or restore the file",
}


def look_at_dead_letters(pipeline: Pipeline, jobs: StreamingJobs, now: float) -> DeadLetters:
    """Read the dead letters from NATS, and the version from the runner's directory.

    Zero for a pipeline that was never started. Raises RetryableError while NATS is away.
    """
    config: PipelineConfig = jobs.config(pipeline.path)
    names = Names(config.pipeline_id)
    runners = find_runners(jobs.directory(config.pipeline_id))
    with closing(JetStream.of(config)) as log:
        if log.connect().state(names.stream("ledger")) is None:
            return DeadLetters(0, 0, timedelta(), None)
        waiting = tally(log, names, config.topology).dead_letters.waiting
        stream = log.state(names.stream("dlq"))
        first = log.get(names.stream("dlq"), stream.first_sequence) if stream and stream.messages else None
    oldest = timedelta(seconds=max(0.0, now - first.time.timestamp())) if first else timedelta()
    version = stage_config_version(runners[0]) if runners else None
    return DeadLetters(waiting, stream.last_sequence if stream else 0, oldest, version)


def _busy(context: dg.SensorEvaluationContext, files: PipelineFiles) -> set[str]:
    """Return the ids of the pipelines that an unfinished run of ours is starting or stopping.

    A run that is much older than such work takes is ignored: its worker was killed, or it is stuck in the queue.
    """
    since = datetime.now(UTC) - LONGEST_CONTROL
    unfinished = (dg.RunsFilter(job_name=files.name(name), statuses=_UNFINISHED, created_after=since) for name in _CONTROLS)
    runs = (run for one in unfinished for run in context.instance.get_runs(one))
    return {pipeline_id for run in runs for pipeline_id in pipelines_of(run)}


def _restart(pipeline: Pipeline, state: JobState, decision: Decision, trouble: Trouble) -> dg.RunRequest:
    key = f"{decision.action}:{pipeline.key}:{trouble.since:.0f}:{decision.number}"
    if decision.action == "start":
        legs = [pipeline.config.topology.option(leg) for leg in state.missing]
        return _request("start_pipeline", pipeline, {"legs": legs}, key, _IF_WANTED)
    return _request("restart_pipeline", pipeline, {"kill_after_seconds": KILL_AFTER_SECONDS}, key, _IF_WANTED)


def _reprocess(pipeline: Pipeline, dead_letters: DeadLetters) -> dg.RunRequest:
    config = {"everything": True, "not_rejected_by": dead_letters.config_version}
    return _request(
        "reprocess_dead_letters", pipeline, config, f"dlq:{pipeline.key}:{dead_letters.config_version}:{dead_letters.last_sequence}"
    )


def _request(plain: str, pipeline: Pipeline, config: dict[str, Any], key: str, tags: Mapping[str, str] | None = None) -> dg.RunRequest:
    pipeline_id, job = pipeline.config.pipeline_id, "_".join((*pipeline.key_prefix, plain))
    run_config = {"ops": {f"{job}_op": {"config": {"pipeline": pipeline_id, **config}}}}
    return dg.RunRequest(run_key=key, job_name=job, run_config=run_config, tags={PIPELINE_TAG: pipeline_id, **(tags or {})})


def _files_now(files: PipelineFiles, jobs: StreamingJobs, before: Mapping[str, str]) -> tuple[dict[str, FileSeen], dict[str, Pipeline]]:
    """Read every file with its digests and faults, and the sound files' pipelines by path.

    `before`: the marks of the last look.
    """
    now = read_pipeline_files(files.directory, jobs.environment(), files.skip, files.key_prefix)
    faults = {str(one.path): one.message for one in now.faulty}
    paths = [path for path in (*(one.path for one in now.pipelines), *(one.path for one in now.faulty)) if path.is_file()]
    seen = {str(path): _seen(path, faults.get(str(path), ""), before.get(str(path), "")) for path in paths}
    return seen, {str(pipeline.path): pipeline for pipeline in now.pipelines}


def _seen(path: Path, faults: str, mark: str) -> FileSeen:
    text = path.read_bytes()
    digest = hashlib.sha256(text).hexdigest()[:16]
    if faults:
        return FileSeen(digest, faults)
    run, _, known = mark.partition("/")
    return FileSeen(digest, run=run if run and known == digest else run_digest(text.decode()))


def _needs_restart(pipeline: Pipeline, jobs: StreamingJobs) -> bool:
    """Let the runners of a pipeline take its changed file; return whether they live and do not, because it needs more than a reload."""
    state = _state(pipeline, jobs)
    if not state.is_alive or state.state == "halted":
        return state.is_alive
    try:
        reload_runners(jobs.directory(pipeline.config.pipeline_id), read_text(pipeline.path), patience=timedelta())
    except HaltError:
        return True
    return False


def _state(pipeline: Pipeline, jobs: StreamingJobs) -> JobState:
    return jobs.look(pipeline.path, pipeline.config)
