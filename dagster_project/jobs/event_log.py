"""Retention of Dagster's own event log, which Dagster keeps forever: a nightly job that deletes a bounded amount.

Deleted: finished runs with their events, events without a run (observations, materializations and check results that sensors report), and
hours of verification that are older than these and the pipeline's retention.
Kept, however old: the newest materialization and observation of every asset, the newest result of every check, and the runs of these.
Works with SQLite and PostgreSQL. Safe to kill and to repeat.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import sqlalchemy as sa
from pydantic import Field
from sqlalchemy.engine import Connection

from dagster_project.assets.verification_hours import forget_hours
from dagster_project.dagster_private import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorage,
    SqlEventLogStorageTable,
)
from dagster_project.pipeline_files import PipelineFiles
from dagster_project.run_config import read_config, schema_of
from dagster_project.schedule_status import schedule_status
from pipelines.counts import count_of

JOB = "prune_event_log"
NO_RUN = ""
"""`run_id` of events without a run (dagster._core.instance.RUNLESS_RUN_ID)."""
_EVENTS = SqlEventLogStorageTable.c
_CHECKS = AssetCheckExecutionsTable.c
_WITHOUT_RUN = ("ASSET_OBSERVATION", "ASSET_MATERIALIZATION", "ASSET_CHECK_EVALUATION", "FRESHNESS_STATE_CHANGE")
_FINISHED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_LOOKED_AT = 5
"""Runs read per run to delete: runs that hold a newest event are kept, and read again by the next tick."""


class Retention(dg.Config):
    """How much is kept, and how much one run deletes at most."""

    keep_days: int = Field(default=14, ge=1, description="Days that runs and events are kept.")
    max_runs: int = Field(default=200, ge=1, description="Most runs to delete at once; the next tick continues.")
    max_events: int = Field(default=20_000, ge=1, description="Most events without a run to delete at once.")


@dataclass(frozen=True)
class Pruned:
    """Numbers of deleted runs, events without a run, and check results without a run."""

    runs: int
    events: int
    check_results: int


def prune(instance: dg.DagsterInstance, before: datetime, max_runs: int, max_events: int) -> Pruned:
    """Delete what ended, or was reported, before the instant (exclusive; aware). Raise Failure for a storage that is not SQL."""
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        raise dg.Failure(f"pruning the event log: {type(storage).__name__} is not an SQL storage; prune it with its own tools")
    with storage.index_connection() as connection:
        kept_events, kept_checks = _newest_events(connection), _newest_checks(connection)
        kept_runs = _runs_of(connection, kept_events)
    runs = _prune_runs(instance, before, max_runs, kept_runs)
    with storage.index_connection() as connection:
        events = _prune_events(connection, before, max_events, kept_events)
        checks = _prune_checks(connection, before, max_events, kept_checks)
    # With SQLite, events without a run are kept a second time, in a file of their own.
    with storage.run_connection(NO_RUN) as connection:
        if connection.dialect.name == "sqlite":
            _prune_copies(connection, before, max_events)
    return Pruned(runs, events, checks)


def _prune_runs(instance: dg.DagsterInstance, before: datetime, limit: int, kept: set[str]) -> int:
    old = dg.RunsFilter(statuses=list(_FINISHED), updated_before=before)
    records = instance.get_run_records(old, limit=limit * _LOOKED_AT, ascending=True, order_by="update_timestamp")
    run_ids = [record.dagster_run.run_id for record in records if record.dagster_run.run_id not in kept][:limit]
    for run_id in run_ids:
        instance.delete_run(run_id)
    return len(run_ids)


def _newest_events(connection: Connection) -> set[int]:
    """Return the newest event of each asset and kind of event."""
    is_of_asset = _EVENTS.dagster_event_type.in_(("ASSET_OBSERVATION", "ASSET_MATERIALIZATION"))
    newest = sa.select(sa.func.max(_EVENTS.id)).where(is_of_asset).group_by(_EVENTS.asset_key, _EVENTS.dagster_event_type)
    return {row[0] for row in connection.execute(newest)}


def _newest_checks(connection: Connection) -> set[int]:
    newest = sa.select(sa.func.max(_CHECKS.id)).group_by(_CHECKS.asset_key, _CHECKS.check_name)
    return {row[0] for row in connection.execute(newest)}


def _runs_of(connection: Connection, events: Iterable[int]) -> set[str]:
    found = connection.execute(sa.select(_EVENTS.run_id).where(_EVENTS.id.in_(sorted(events))))
    checks = sa.select(_CHECKS.run_id).where(_CHECKS.id.in_(sorted(_newest_checks(connection))))
    return {row[0] for row in found} | {row[0] for row in connection.execute(checks)}


def _prune_events(connection: Connection, before: datetime, limit: int, kept: set[int]) -> int:
    going = _ids(connection, _EVENTS.id, _old_without_run(before), kept, limit)
    connection.execute(AssetEventTagsTable.delete().where(AssetEventTagsTable.c.event_id.in_(going)))
    connection.execute(SqlEventLogStorageTable.delete().where(_EVENTS.id.in_(going)))
    return len(going)


def _prune_copies(connection: Connection, before: datetime, limit: int) -> None:
    going = _ids(connection, _EVENTS.id, _old_without_run(before), set(), limit)
    connection.execute(SqlEventLogStorageTable.delete().where(_EVENTS.id.in_(going)))


def _prune_checks(connection: Connection, before: datetime, limit: int, kept: set[int]) -> int:
    old = sa.and_(_CHECKS.run_id == NO_RUN, _CHECKS.create_timestamp < _naive(before))
    going = _ids(connection, _CHECKS.id, old, kept, limit)
    connection.execute(AssetCheckExecutionsTable.delete().where(_CHECKS.id.in_(going)))
    return len(going)


def _old_without_run(before: datetime) -> Any:
    kinds = _EVENTS.dagster_event_type.in_(_WITHOUT_RUN)
    return sa.and_(_EVENTS.run_id == NO_RUN, kinds, _EVENTS.timestamp < _naive(before))


def _ids(connection: Connection, column: Any, where: Any, kept: set[int], limit: int) -> list[int]:
    """List the first ids, without the kept ones.

    These are few: one per asset and kind of event, or per check.
    """
    found = connection.execute(sa.select(column).where(where).order_by(column).limit(limit + len(kept)))
    return [row[0] for row in found if row[0] not in kept][:limit]


def _naive(instant: datetime) -> datetime:
    """Return the instant as Dagster stores it: UTC without a zone."""
    return instant.astimezone(UTC).replace(tzinfo=None)


def build(files: PipelineFiles) -> dg.Definitions:
    @dg.op(name="prune_event_log_op", config_schema=schema_of(Retention))
    def prune_op(context: dg.OpExecutionContext) -> None:
        config = read_config(context, Retention)
        now = datetime.now(UTC)
        before = now - timedelta(days=config.keep_days)
        found = prune(context.instance, before, config.max_runs, config.max_events)
        hours = forget_hours(context.instance, files.pipelines, before, now)
        context.log.info(
            f"deleted before {before:%Y-%m-%d %H:%M} UTC: {count_of(found.runs, 'run')}, {count_of(found.events, 'event')} and "
            f"{count_of(found.check_results, 'check result')} reported by sensors, {count_of(hours, 'hour')} of verification"
        )

    @dg.job(name=JOB, description="Deletes old runs and events of Dagster itself; keeps the newest event of every asset.")
    def prune_event_log() -> None:
        prune_op()

    schedule = dg.ScheduleDefinition(
        name=f"{JOB}_nightly",
        job=prune_event_log,
        cron_schedule="10 4 * * *",
        execution_timezone="UTC",
        default_status=schedule_status(files),
        description=prune_event_log.description,
    )
    return dg.Definitions(jobs=[prune_event_log], schedules=[schedule])
