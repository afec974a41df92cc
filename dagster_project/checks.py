"""Checks of each pipeline's tables, and the publications that they hold back.

A failed blocking check stops what depends on the table in the same run only: so the job `publish_<pipeline>` makes the checks and then the
publication. What depends on `published` sees checked rows; what depends on the table itself does not wait for any check.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster import AssetCheckSeverity

from dagster_project.assets.stream_names import PUBLISHED, TABLE, VERIFICATION, published_name, table_name
from dagster_project.assets.streams import PIPELINE_TAG, asset_key, op_name, published_keys, spec_behind
from dagster_project.assets.verification_hours import HOUR, begin_of_hour, hours_without_verdict, key_of
from dagster_project.failures import RETRY, errors_as_failures
from dagster_project.jobs.repairs import note_pipeline
from dagster_project.numbers import ROW_COUNT, numbers, read_account
from dagster_project.pipeline_files import Pipeline, PipelineFiles
from dagster_project.report_metadata import examples_metadata
from dagster_project.sensors.automation import PUBLISHED_AT, due
from pipelines.config import Check, Checks
from pipelines.errors import RetryableError, TallyflowError
from pipelines.proof.checks.evaluate import VERIFIED_AFTER, CheckResult, Hours, VerifiedHour
from pipelines.proof.checks.run import Look
from resources.streaming_jobs import StreamingJobs

_SEVERITIES = {"warn": AssetCheckSeverity.WARN, "error": AssetCheckSeverity.ERROR}
_VERIFICATIONS_AT_ONCE = 100
PAUSES = (2.0, 5.0)
"""Seconds until a check is repeated whose system is away."""


def build(files: PipelineFiles) -> dg.Definitions:
    jobs = [
        dg.define_asset_job(
            f"publish_{pipeline.label}",
            selection=dg.AssetSelection.checks_for_assets(asset_key(pipeline, TABLE)) | dg.AssetSelection.assets(*published_keys(pipeline)),
            description="Checks the tables, and publishes them unless a blocking check has failed.",
            tags={PIPELINE_TAG: pipeline.config.pipeline_id},
        )
        for pipeline in files.pipelines
    ]
    return dg.Definitions(
        assets=[_published(pipeline) for pipeline in files.pipelines],
        asset_checks=[_checks(pipeline) for pipeline in files.pipelines if enabled(pipeline.config.checks)],
        jobs=jobs,
    )


def enabled(checks: Checks) -> list[str]:
    """Return the names of the checks that the file leaves enabled, in their order."""
    return [name for name in Checks.model_fields if _check(checks, name).enabled]


def _check(checks: Checks, name: str) -> Check:
    check: Check = getattr(checks, name)
    return check


def _checks(pipeline: Pipeline) -> dg.AssetChecksDefinition:
    table, checks = asset_key(pipeline, TABLE), pipeline.config.checks

    @dg.multi_asset_check(
        specs=[
            dg.AssetCheckSpec(
                name,
                asset=table,
                description=type(checks).model_fields[name].description,
                blocking=_check(checks, name).holds_back,
                automation_condition=due(PUBLISHED_AT),
                metadata={key: str(value) for key, value in _check(checks, name).model_dump(mode="json").items()},
            )
            for name in enabled(checks)
        ],
        name=f"{pipeline.label}_checks",
        can_subset=True,
    )
    def run(context: dg.AssetCheckExecutionContext, streaming_jobs: StreamingJobs) -> Iterator[dg.AssetCheckResult]:
        note_pipeline(context, pipeline)
        selected = {key.name for key in context.selected_asset_check_keys}
        with errors_as_failures(), _look(streaming_jobs, pipeline) as look:
            verified = _verified(context.instance, pipeline) if "verification" in selected else None
            names = [name for name in enabled(checks) if name in selected]
            for result in results(names, lambda name: look.check(name, verified), context.log.error):
                yield asset_check_result(result, _check(checks, result.check), table)

    return run


def _look(jobs: StreamingJobs, pipeline: Pipeline) -> Look:
    config = jobs.config(pipeline.path)
    return Look(config, jobs.directory(config.pipeline_id))


def results(names: Sequence[str], evaluate: Callable[[str], CheckResult], log: Callable[[str], None]) -> Iterator[CheckResult]:
    """Yield a result per check, even if others fail.

    A check that cannot be made fails with the reason. If the cause may pass by itself, the check is first repeated after the others, once
    for each of `PAUSES`.
    """
    left = list(names)
    for pause in (*PAUSES, None):
        waiting = []
        for name in left:
            try:
                result = evaluate(name)
            except RetryableError as error:
                if pause is not None:
                    waiting.append(name)
                    continue
                result = CheckResult.unknown(name, str(error))
            except TallyflowError as error:
                result = CheckResult.unknown(name, str(error))
            except Exception as error:
                log(f"check {name}: {traceback.format_exc()}")
                result = CheckResult.unknown(name, f"{type(error).__name__}, a bug of Tallyflow; report it with the log of this run")
            yield result
        left = waiting
        if not left:
            return
        if pause is not None:
            time.sleep(pause)


def asset_check_result(result: CheckResult, check: Check, asset: dg.AssetKey) -> dg.AssetCheckResult:
    """Return the result for Dagster's page, with the severity that the file gives the check."""
    metadata: dict[str, Any] = {**result.facts, **examples_metadata(result.examples)}
    if result.not_evaluated:
        metadata["not evaluated"] = result.not_evaluated
    severity = AssetCheckSeverity.WARN if result.is_mild else _SEVERITIES[check.severity]
    return dg.AssetCheckResult(
        passed=result.passed, asset_key=asset, check_name=result.check, severity=severity, description=result.message, metadata=metadata
    )


def _verified(instance: dg.DagsterInstance, pipeline: Pipeline) -> Hours:
    """Return the newest verification of each hour within the period of the check, and the hours of that period without one."""
    now = datetime.now(UTC)
    since = now - pipeline.config.checks.verification.over
    records_since = dg.AssetRecordsFilter(asset_key=asset_key(pipeline, VERIFICATION), after_timestamp=since.timestamp())
    newest: dict[str, VerifiedHour] = {}
    for event in _materializations(instance, records_since):
        if event.partition is not None:
            facts = {name: value.value for name, value in event.metadata.items()}
            summary = (bool(facts.get("is_match")), str(facts.get("summary", "")), bool(facts.get("is_proven", True)))
            newest.setdefault(event.partition, VerifiedHour(event.partition, *summary))
    due = key_of(now - VERIFIED_AFTER)
    missed = [hour for hour in hours_without_verdict(instance, pipeline, begin_of_hour(since) + HOUR) if hour <= due]
    return Hours(sorted(newest.values(), key=lambda one: one.hour), missed)


def _materializations(instance: dg.DagsterInstance, wanted: dg.AssetRecordsFilter) -> Iterator[dg.AssetMaterialization]:
    """Yield all materializations of the wanted records, the newest first."""
    cursor, has_more = None, True
    while has_more:
        found = instance.fetch_materializations(wanted, limit=_VERIFICATIONS_AT_ONCE, cursor=cursor)
        yield from (record.asset_materialization for record in found.records if record.asset_materialization is not None)
        cursor, has_more = found.cursor, found.has_more


def _published(pipeline: Pipeline) -> dg.AssetsDefinition:
    """Build the publications of all tables. Each depends on the first table, too: the checks, which look at all tables, belong to it."""
    text = "The checked part of the table. Let assets that need checked rows depend on this one."
    sinks = {published_name(leg): leg for leg in pipeline.config.topology.tables}
    made = [spec_behind(pipeline, name, table_name(leg), text, automation=due(PUBLISHED_AT)) for name, leg in sinks.items()]
    specs = [
        spec.replace_attributes(deps=[*spec.deps, asset_key(pipeline, TABLE)]) if leg.name else spec
        for spec, leg in zip(made, sinks.values(), strict=True)
    ]

    @dg.multi_asset(specs=specs, name=op_name(pipeline, PUBLISHED), retry_policy=RETRY, can_subset=True)
    def published(context: dg.AssetExecutionContext, streaming_jobs: StreamingJobs) -> Iterator[dg.MaterializeResult[Any]]:
        note_pipeline(context, pipeline)
        with errors_as_failures():
            account = read_account(streaming_jobs.config(pipeline.path), None)
        for name, leg in sinks.items():
            key, to = asset_key(pipeline, name), account.confirmed_to[leg]
            if key in context.selected_asset_keys:
                metadata = {ROW_COUNT: numbers(account, table_name(leg))[ROW_COUNT], "confirmed_to": to}
                yield dg.MaterializeResult(asset_key=key, metadata=metadata, data_version=dg.DataVersion(str(to)))

    return published
