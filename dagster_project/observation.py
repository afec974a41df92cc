"""What Dagster knows of a running pipeline: its numbers, once a minute, from a sensor that starts nothing.

An observation per seam would be five events a minute: there is one, of the table, with the numbers of all seams that people look at first.
When nothing waits, a materialization of the table says so every five minutes, which is what Dagster's freshness goes by. A seam of which
Dagster knows another version than the one that runs, or none, is reported once as materialized (`versions`).
"""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from dagster_project.decisions import read_cursor, recalled
from dagster_project.numbers import Account, nothing_waits, numbers, read_account
from dagster_project.pipeline_files import Pipeline, PipelineFiles
from dagster_project.schedule_status import is_running
from dagster_project.seam_names import DEAD_LETTERS, DEDUP, RAW, TABLE
from dagster_project.seams import REPORTED_EVERY, asset_key, seams
from dagster_project.versions import Tags, Version, is_known, known_tags, tags_of_seams, topic_versions
from pipelines.errors import TallyflowError
from pipelines.job_state import JobState
from pipelines.runners import file_version, find_runners
from resources.streaming_jobs import StreamingJobs

EVERY = timedelta(seconds=60)
Event = dg.AssetMaterialization | dg.AssetObservation
_ALSO = {DEAD_LETTERS: ("still_there", "dead_letters_percent"), DEDUP: ("keys", "duplicates_percent"), RAW: ("stream_bytes",)}
"""Numbers of other seams that the table's observation carries, with the seam's name in front."""


@dataclass(frozen=True)
class Seen:
    """A pipeline as one look found it. `account` is None where there is none yet, or NATS is away; `said` is why.

    `version` is None where the runner does not tell.
    """

    state: JobState | None
    account: Account | None
    said: str = ""
    version: Version | None = None


def look(pipeline: Pipeline, jobs: StreamingJobs) -> Seen:
    """Never raises for a system that is away: the others are still to be reported."""
    try:
        config = jobs.config(pipeline.path)
        state = jobs.look(pipeline.path, config)
    except TallyflowError as error:
        return Seen(None, None, str(error))
    if not state.is_alive:
        return Seen(state, None, state.state)
    try:
        account = read_account(config, state.lag)
        version = file_version(find_runners(jobs.directory(config.pipeline_id)))
        return Seen(state, account, version=Version(account.stream_id, version) if version and account.stream_id else None)
    except TallyflowError as error:
        return Seen(state, None, str(error))


def observed(seen: Seen, seam_names: list[str]) -> dict[str, Any]:
    """The table's metadata: at most 12 numbers that are plotted, and the state."""
    if seen.state is None or seen.account is None:
        return {}
    told: dict[str, Any] = dict(numbers(seen.account, TABLE))
    for seam, names in _ALSO.items():
        if seam in seam_names:
            found = numbers(seen.account, seam)
            told |= {f"{seam}/{name}": found[name] for name in names if name in found}
    return {**told, "state": seen.state.state, "message": seen.state.message or "none"}


def is_reported(account: Account, last: float | None, now: datetime) -> bool:
    """Whether the table is to be reported as fresh: nothing waits, and the last report (seconds since 1970) is long enough ago."""
    return nothing_waits(account) and (last is None or now.timestamp() - last >= REPORTED_EVERY.total_seconds())


def _of_streams(pipeline: Pipeline, account: Account, unknown: Mapping[str, Tags]) -> list[Event]:
    """Materializations of the seams that Dagster knows in another version than the one that runs, or not at all."""
    return [
        dg.AssetMaterialization(asset_key(pipeline, seam.name), description="it runs", metadata=numbers(account, seam.name), tags=tags)
        for seam in seams(pipeline)
        if (tags := unknown.get(seam.name)) is not None
    ]


def _of_table(pipeline: Pipeline, seen: Seen, tags: Tags | None, is_due: bool) -> Event:
    key, metadata = asset_key(pipeline, TABLE), observed(seen, [seam.name for seam in seams(pipeline)])
    if not is_due or seen.account is None:
        return dg.AssetObservation(key, metadata=metadata)
    description = "nothing waits" if nothing_waits(seen.account) else "it runs"
    return dg.AssetMaterialization(key, description=description, metadata=metadata, tags=tags)


def build(files: PipelineFiles) -> dg.Definitions:
    if not files.pipelines:
        return dg.Definitions()

    @dg.sensor(
        name="observe_pipelines",
        minimum_interval_seconds=int(EVERY.total_seconds()),
        default_status=dg.DefaultSensorStatus.RUNNING if is_running() else dg.DefaultSensorStatus.STOPPED,
        description="Reports the numbers of running pipelines, once a minute. Starts and stops nothing.",
    )
    def observe(context: dg.SensorEvaluationContext, streaming_jobs: StreamingJobs) -> dg.SensorResult:
        now = datetime.now(UTC)
        with ThreadPoolExecutor(8, "observe") as pool:
            found = [*pool.map(lambda pipeline: look(pipeline, streaming_jobs), files.pipelines)]
        reported = recalled(dict[str, float], read_cursor(context.cursor)) or {}
        known, topics = known_tags(context.instance, files.pipelines), topic_versions(context.instance, files.pipelines)
        events: list[Event] = []
        cursor: dict[str, float] = {}
        quiet = []
        for pipeline, seen in zip(files.pipelines, found, strict=True):
            if seen.account is None:
                quiet.append(f"{pipeline.config.pipeline_id}: {seen.said}")
                continue
            tags = tags_of_seams(pipeline, seen.version, topics) if seen.version else {}
            unknown = {name for name, wanted in tags.items() if not is_known(wanted, known.get(asset_key(pipeline, name), {}))}
            last = reported.get(pipeline.key)
            is_quiet = is_reported(seen.account, last, now)
            is_due = is_quiet or TABLE in unknown
            events += _of_streams(pipeline, seen.account, {name: tags[name] for name in unknown - {TABLE}})
            events.append(_of_table(pipeline, seen, tags.get(TABLE) if is_due else None, is_due))
            cursor |= {pipeline.key: now.timestamp()} if is_quiet else {pipeline.key: last} if last is not None else {}
        skip = dg.SkipReason("; ".join(quiet) or "reported") if not events else None
        return dg.SensorResult(asset_events=events, cursor=json.dumps(cursor), skip_reason=skip)

    return dg.Definitions(sensors=[observe])
