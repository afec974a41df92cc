"""Numbers of the running pipelines, reported to Dagster once a minute by a sensor that starts nothing.

One observation per asset would be five events a minute, so there is one, of the table, with the most important numbers of all assets.
While nothing waits before any leg, a materialization of out reports this every five minutes: Dagster's freshness reads materializations
only. The table is not materialized for this: Dagster would show every check of it as not evaluated. An asset whose running version Dagster
does not know is reported once as materialized (`versions`).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from dagster_project.assets.stream_names import DEAD_LETTERS, DEDUP, JOIN, OUT, RAW, TABLE, table_name
from dagster_project.assets.streams import REPORTED_EVERY, asset_key, stream_assets
from dagster_project.numbers import ROW_COUNT, Account, nothing_waits, numbers, read_account, without_row_count
from dagster_project.pipeline_files import Pipeline, PipelineFiles
from dagster_project.schedule_status import sensor_status
from dagster_project.sensors.decisions import read_cursor, recalled
from dagster_project.sensors.side_by_side import look_at_all
from dagster_project.versions import Tags, Version, is_known, known_tags, tags_of_assets, topic_versions
from pipelines.control.control import file_version, find_runners
from pipelines.control.job_state import JobState
from pipelines.counts import count_of
from pipelines.errors import TallyflowError
from resources.streaming_jobs import StreamingJobs

EVERY = timedelta(seconds=60)
Event = dg.AssetMaterialization | dg.AssetObservation
_ALSO = {
    DEAD_LETTERS: ("still_there", "dead_letters_percent"),
    DEDUP: ("keys", "duplicates_percent"),
    JOIN: ("entries", "waiting_records"),
    RAW: ("stream_bytes",),
}
"""Numbers of other assets that the table's observation carries, prefixed with the asset's name."""


@dataclass(frozen=True)
class Seen:
    """A pipeline at one look. `account` is None before the first start or while NATS is away; `reason` says why.

    `version` is None if the runner does not report it.
    """

    state: JobState | None
    account: Account | None
    reason: str = ""
    version: Version | None = None


def look(pipeline: Pipeline, jobs: StreamingJobs) -> Seen:
    """Look at one pipeline.

    Never raises for a system that is away: the other pipelines must still be reported.
    """
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


def observed(seen: Seen, asset_names: list[str]) -> dict[str, Any]:
    """Return the table's metadata: at most 12 plotted numbers, and the state."""
    if seen.state is None or seen.account is None:
        return {}
    shown: dict[str, Any] = dict(numbers(seen.account, TABLE))
    for asset, names in _ALSO.items():
        if asset in asset_names:
            found = numbers(seen.account, asset)
            shown |= {f"{asset}/{name}": found[name] for name in names if name in found}
    return {**shown, "state": seen.state.state, "message": seen.state.message or "none"}


@dataclass(frozen=True)
class Reported:
    """The memory of a pipeline: when out was last reported as fresh (seconds since 1970), and the last reported state."""

    fresh: float | None = None
    state: str = ""


RUNNING = "running"
"""The remembered state of a live pipeline, whatever it is doing."""


def ended_as(seen: Seen, before: Reported) -> dict[str, Any]:
    """Return the table's metadata, once, for a pipeline that was reported as running and has stopped or halted since; else {}."""
    if seen.state is None or seen.state.is_alive or before.state in ("", seen.state.state):
        return {}
    return {"state": seen.state.state, "message": seen.state.message or "none"}


def _summary(account: Account) -> str:
    table = numbers(account, TABLE)
    lag = "unknown" if account.lag is None else f"{account.lag:,}"
    return f"reported {count_of(int(table[ROW_COUNT]), 'row')}, {table['waiting_rows']:,} waiting, lag {lag}"


def is_reported(account: Account, last: float | None, now: datetime) -> bool:
    """Return True if out is due to be reported as fresh: nothing waits, and the last report (seconds since 1970) is old enough."""
    return nothing_waits(account) and (last is None or now.timestamp() - last >= REPORTED_EVERY.total_seconds())


def _events(pipeline: Pipeline, seen: Seen, account: Account, materialized: Mapping[str, Tags | None]) -> Iterator[Event]:
    """Yield the materializations of the assets in `materialized`, with these tags, and the observations of the tables."""
    description = "nothing waits" if nothing_waits(account) else "running"
    for asset in stream_assets(pipeline):
        if asset.name in materialized:
            metadata, tags = without_row_count(numbers(account, asset.name)), materialized[asset.name]
            yield dg.AssetMaterialization(asset_key(pipeline, asset.name), description=description, metadata=metadata, tags=tags)
    names = [asset.name for asset in stream_assets(pipeline)]
    yield dg.AssetObservation(asset_key(pipeline, TABLE), metadata=observed(seen, names))
    for name in map(table_name, pipeline.config.topology.tables[1:]):
        yield dg.AssetObservation(asset_key(pipeline, name), metadata=dict(numbers(account, name)))


def build(files: PipelineFiles) -> dg.Definitions:
    if not files.pipelines:
        return dg.Definitions()

    @dg.sensor(
        name=files.name("observe_pipelines"),
        minimum_interval_seconds=int(EVERY.total_seconds()),
        default_status=sensor_status(files),
        description="Reports the numbers of running pipelines, once a minute. Starts and stops nothing.",
    )
    def observe(context: dg.SensorEvaluationContext, streaming_jobs: StreamingJobs) -> dg.SensorResult:
        now = datetime.now(UTC)
        reported = recalled(dict[str, Reported], read_cursor(context.cursor)) or {}
        known, topics = known_tags(context.instance, files.pipelines), topic_versions(context.instance, files.pipelines)
        events: list[Event] = []
        cursor: dict[str, Reported] = {}
        messages = []
        for pipeline, found in look_at_all(files.pipelines, lambda one: look(one, streaming_jobs)):
            seen = found if isinstance(found, Seen) else Seen(None, None, str(found))
            before = reported.get(pipeline.key, Reported())
            if seen.account is None:
                messages.append(f"{pipeline.config.pipeline_id}: {seen.reason}")
                ended = ended_as(seen, before)
                if ended:
                    events.append(dg.AssetObservation(asset_key(pipeline, TABLE), metadata=ended))
                cursor[pipeline.key] = Reported(before.fresh, ended["state"]) if ended else before
                continue
            messages.append(f"{pipeline.config.pipeline_id}: {_summary(seen.account)}")
            tags = tags_of_assets(pipeline, seen.version, topics) if seen.version else {}
            last = before.fresh
            is_due = is_reported(seen.account, last, now)
            materialized: dict[str, Tags | None] = {OUT: tags.get(OUT)} if is_due else {}
            materialized |= {
                name: wanted for name, wanted in tags.items() if not is_known(wanted, known.get(asset_key(pipeline, name), {}))
            }
            events += _events(pipeline, seen, seen.account, materialized)
            cursor[pipeline.key] = Reported(now.timestamp() if is_due else last, RUNNING)
        # Dagster calls a tick without a run skipped: the reason lists what was reported.
        return dg.SensorResult(
            asset_events=events,
            cursor=json.dumps({key: asdict(one) for key, one in cursor.items()}),
            skip_reason=dg.SkipReason("; ".join(messages)),
        )

    return dg.Definitions(sensors=[observe])
