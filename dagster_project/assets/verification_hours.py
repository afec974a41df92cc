"""The partitions of verification: the hours that have ended and in which records arrived, as far as raw reaches back.

Dagster keeps them as dynamic partitions: a pipeline shows only hours with records, and a reload of the code location changes none. The
sensor `list_hours_to_verify` and the schedules add hours; `prune_event_log` removes old ones.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import dagster as dg

from dagster_project.assets.stream_names import VERIFICATION
from dagster_project.assets.streams import asset_key
from dagster_project.dagster_private import get_current_datetime
from dagster_project.pipeline_files import Pipeline, PipelineFiles
from dagster_project.schedule_status import sensor_status
from dagster_project.sensors.side_by_side import look_at_all
from pipelines.config import PipelineConfig
from pipelines.connectors.nats.client import JetStream
from pipelines.errors import TallyflowError
from pipelines.protocol.naming import Names
from pipelines.protocol.purge import read_purged
from pipelines.protocol.tally import TimedLog
from resources.streaming_jobs import StreamingJobs

HOUR = timedelta(hours=1)
EVERY = timedelta(minutes=5)
_KEY = "%Y-%m-%d-%H:%M"
"""The format of Dagster's keys of hourly partitions."""
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


def partitions(pipeline: Pipeline) -> dg.DynamicPartitionsDefinition:
    return dg.DynamicPartitionsDefinition(name=partitions_name(pipeline))


def partitions_name(pipeline: Pipeline) -> str:
    return f"{pipeline.label}_verification_hours"


def key_of(hour: datetime) -> str:
    return hour.astimezone(UTC).strftime(_KEY)


def hour_of(key: str) -> datetime:
    """Return the start of the hour of a partition. Raise Failure for a key that is not an hour."""
    try:
        found = datetime.strptime(key, _KEY).replace(tzinfo=UTC)
    except ValueError:
        found = None
    if found is None or found.minute:
        raise dg.Failure(f"partition {key!r} is not an hour such as 2026-01-31-12:00 (UTC)", allow_retries=False)
    return found


def begin_of_hour(instant: datetime) -> datetime:
    return instant.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def hours_with_records(log: TimedLog, names: Names, now: datetime) -> Iterator[datetime]:
    """Yield the ended hours in which frames arrived, ascending; hours that are partly purged are left out.

    One read per hour.

    Yields nothing for a pipeline that was never started. Raises RetryableError while NATS is away.
    """
    stream = names.stream("raw")
    if log.state(stream) is None:
        return
    purged = read_purged(log, names, "raw").since
    instant, end = begin_of_hour(purged) + HOUR if purged else _BEGINNING, begin_of_hour(now)
    while instant < end:
        message = log.first_since(stream, names.subjects("raw"), instant)
        if message is None or message.time >= end:
            return
        yield begin_of_hour(message.time)
        instant = begin_of_hour(message.time) + HOUR


def hours_to_list(instance: dg.DagsterInstance, pipeline: Pipeline, config: PipelineConfig, now: datetime) -> list[str]:
    """List the missing partitions, ascending: hours with records."""
    return hours_not_listed(instance, pipeline, hours_seen(config, now))


def hours_seen(config: PipelineConfig, now: datetime) -> set[str]:
    """Return the keys of the hours with records. Raise RetryableError while NATS is away."""
    with closing(JetStream.of(config)) as log:
        return {key_of(hour) for hour in hours_with_records(log.connect(), Names(config.pipeline_id), now)}


def hours_not_listed(instance: dg.DagsterInstance, pipeline: Pipeline, seen: set[str]) -> list[str]:
    """List those of these hours that are no partitions yet, ascending."""
    return sorted(seen - {*instance.get_dynamic_partitions(partitions_name(pipeline))})


def hours_without_verdict(instance: dg.DagsterInstance, pipeline: Pipeline, since: datetime) -> list[str]:
    """List the partitions from the instant on that are not verified yet, ascending."""
    verified = instance.get_materialized_partitions(asset_key(pipeline, VERIFICATION))
    listed = instance.get_dynamic_partitions(partitions_name(pipeline))
    return sorted(key for key in listed if key >= key_of(since) and key not in verified)


def forget_hours(instance: dg.DagsterInstance, pipelines: Iterable[Pipeline], before: datetime, now: datetime) -> int:
    """Delete the hours before the instant that are older than the pipeline's retention and have no verdict; return how many."""
    count = 0
    for pipeline in pipelines:
        name = partitions_name(pipeline)
        limit = key_of(min(before, now - pipeline.config.resources.nats.stream.max_age) - HOUR)
        verified = instance.get_materialized_partitions(asset_key(pipeline, VERIFICATION))
        old = [key for key in instance.get_dynamic_partitions(name) if key < limit and key not in verified]
        for key in old:
            instance.delete_dynamic_partition(name, key)
        count += len(old)
    return count


def build(files: PipelineFiles) -> dg.Definitions:
    if not files.pipelines:
        return dg.Definitions()

    @dg.sensor(
        name=files.name("list_hours_to_verify"),
        minimum_interval_seconds=int(EVERY.total_seconds()),
        default_status=sensor_status(files),
        description="Adds ended hours in which records arrived to the partitions of verification.",
    )
    def list_hours(context: dg.SensorEvaluationContext, streaming_jobs: StreamingJobs) -> dg.SensorResult:
        requests, messages = [], []
        now = get_current_datetime()
        for pipeline, seen in look_at_all(files.pipelines, lambda one: hours_seen(streaming_jobs.config(one.path), now)):
            if isinstance(seen, TallyflowError):
                messages.append(f"{pipeline.config.pipeline_id}: {seen}")
                continue
            missing = hours_not_listed(context.instance, pipeline, seen)
            if missing:
                requests.append(partitions(pipeline).build_add_request(missing))
                messages.append(f"{pipeline.config.pipeline_id}: {', '.join(missing)}")
        return dg.SensorResult(dynamic_partitions_requests=requests, skip_reason=dg.SkipReason("; ".join(messages) or "no new hour"))

    return dg.Definitions(sensors=[list_hours])
