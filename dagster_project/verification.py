"""Verification by the hour of arrival: the records again, through DuckDB, compared with ClickHouse; one partition per hour.

The verdict is a check of the asset itself, and of the table as long as the hour lies in the period that the table's check looks at.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from dagster_project.failures import errors_as_failures
from dagster_project.pipeline_files import Pipeline, PipelineFiles
from dagster_project.schedule_status import schedule_status
from dagster_project.seam_names import TABLE, VERIFICATION
from dagster_project.seams import asset_key, op_name, spec_behind
from dagster_project.table_checks import RETRY, examples_table
from pipelines.connectors.jetstream import JetStream
from pipelines.verification.result import Verification
from pipelines.verification.run import Request, verify
from resources.streaming_jobs import StreamingJobs

CHECK = "match"
MINUTE_OF_HOUR = 10


def build(files: PipelineFiles) -> dg.Definitions:
    return dg.Definitions.merge(dg.Definitions(), *map(_part, files.pipelines))


def partitions(pipeline: Pipeline, now: datetime) -> dg.HourlyPartitionsDefinition:
    """The hours that the raw stream may still prove: those of its retention, and a day before it, counted from now on.

    An hour is there when it has ended. By event time a record may come later than its hour, but verification goes by arrival.
    """
    first = now.astimezone(UTC) - pipeline.config.resources.nats.stream.max_age - timedelta(days=1)
    return dg.HourlyPartitionsDefinition(start_date=first.replace(hour=0, minute=0, second=0, microsecond=0), timezone="UTC")


def _part(pipeline: Pipeline) -> dg.Definitions:
    asset = _asset(pipeline)
    job = dg.define_asset_job(
        f"verify_{pipeline.key}",
        selection=dg.AssetSelection.assets(asset),
        tags={"tallyflow/pipeline": pipeline.config.pipeline_id},
        description="Compares the hour that has ended with ClickHouse.",
    )
    schedule = dg.build_schedule_from_partitioned_job(
        job, name=f"{job.name}_hourly", minute_of_hour=MINUTE_OF_HOUR, default_status=schedule_status()
    )
    return dg.Definitions(assets=[asset], jobs=[job], schedules=[schedule])


def _asset(pipeline: Pipeline) -> dg.AssetsDefinition:
    text = "The records that arrived in one hour, computed again in DuckDB and compared with the table: counts, checksums, then rows."
    spec = spec_behind(pipeline, VERIFICATION, TABLE, text, partitions(pipeline, datetime.now(UTC)))
    check = dg.AssetCheckSpec(CHECK, asset=spec.key, description="ClickHouse holds what the records of the hour call for.")

    @dg.multi_asset(specs=[spec], check_specs=[check], name=op_name(pipeline, VERIFICATION), retry_policy=RETRY)
    def verification(context: dg.AssetExecutionContext, streaming_jobs: StreamingJobs) -> Iterator[dg.MaterializeResult[Any]]:
        hour = context.partition_time_window
        with errors_as_failures():
            config = streaming_jobs.config(pipeline.path)
            request = Request(streaming_jobs.directory(config.pipeline_id), hour.start, hour.end)
            log = JetStream(config.nats).connect()
            try:
                found = verify(config, log, request)
            finally:
                log.close()
        result = dg.AssetCheckResult(passed=found.is_match, check_name=CHECK, description=said(found), metadata=_faults(found))
        yield dg.MaterializeResult(asset_key=asset_key(pipeline, VERIFICATION), metadata=told(found), check_results=[result])

    return verification


def said(found: Verification) -> str:
    """In a sentence: what differs, or that nothing does."""
    if found.is_match:
        return f"{found.counts.get('rows', 0):,} rows match" if found.sequences else "nothing to compare in this hour"
    return "; ".join(" ".join(filter(None, (f"{one.count:,}", one.kind, one.place, one.column))) for one in found.findings)


def told(found: Verification) -> dict[str, Any]:
    """The numbers that are plotted, what was not proved, and what the table's check reads: `is_match` and `said`."""
    return {
        **dict(found.counts),
        "differences": sum(one.count for one in found.findings),
        "is_match": found.is_match,
        "said": said(found),
        "not proved": "; ".join(one.what for one in found.not_proven) or "nothing",
        "report": dg.MetadataValue.md("\n".join(f"    {line}" for line in found.lines())),
    }


def _faults(found: Verification) -> dict[str, Any]:
    rows = [
        {"place": one.place, "kind": one.kind, "column": one.column or "", **example} for one in found.findings for example in one.examples
    ]
    return {"examples": dg.MetadataValue.md(examples_table(rows))} if rows else {}
