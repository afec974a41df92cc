"""Checks of each pipeline's table, and the publication that they hold back.

A failed blocking check stops what depends on the table in the same run only: so the job `publish_<pipeline>` makes the checks and then the
publication. What depends on `published` sees checked rows; what depends on the table itself does not wait for any check.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster import AssetCheckSeverity

from dagster_project.assets.stream_names import PUBLISHED, TABLE, VERIFICATION
from dagster_project.assets.streams import PIPELINE_TAG, asset_key, op_name, spec_behind
from dagster_project.assets.verification_hours import HOUR, begin_of_hour, hours_without_verdict, key_of
from dagster_project.failures import RETRY, errors_as_failures
from dagster_project.jobs.repairs import note_pipeline
from dagster_project.numbers import ROW_COUNT, numbers, read_account
from dagster_project.pipeline_files import Pipeline, PipelineFiles
from dagster_project.sensors.automation import PUBLISHED_AT, due
from pipelines.config import Check, Checks
from pipelines.errors import RetryableError, TallyflowError
from pipelines.proof.checks.judge import NAMES, VERIFIED_AFTER, Hours, Verdict, Verified
from pipelines.proof.checks.run import Look
from resources.streaming_jobs import StreamingJobs

_SEVERITIES = {"warn": AssetCheckSeverity.WARN, "error": AssetCheckSeverity.ERROR}
_VERIFICATIONS_AT_ONCE = 100
PAUSES = (2.0, 5.0)
"""Seconds until a check is made again whose system is away."""


def build(files: PipelineFiles) -> dg.Definitions:
    jobs = [
        dg.define_asset_job(
            f"publish_{pipeline.label}",
            selection=dg.AssetSelection.checks_for_assets(asset_key(pipeline, TABLE))
            | dg.AssetSelection.assets(asset_key(pipeline, PUBLISHED)),
            description="Checks the table; publishes it unless a blocking check has failed.",
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
    """Names of the checks that the file leaves on, in their order."""
    return [name for name in NAMES if _check(checks, name).enabled]


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
        with errors_as_failures(), Look(streaming_jobs.config(pipeline.path)) as look:
            verified = _verified(context.instance, pipeline) if "verification" in selected else None
            wanted = [name for name in enabled(checks) if name in selected]
            for verdict in verdicts(wanted, lambda name: look.verdict(name, verified), context.log.error):
                yield result(verdict, _check(checks, verdict.check), table)

    return run


def verdicts(names: Sequence[str], judge: Callable[[str], Verdict], log: Callable[[str], None]) -> Iterator[Verdict]:
    """One of each check, whatever becomes of the others. One that cannot be made is a failed one with the reason; where that may pass by
    itself, it is made again first, once for each of `PAUSES`, behind the others.
    """
    left = list(names)
    for pause in (*PAUSES, None):
        waiting = []
        for name in left:
            try:
                verdict = judge(name)
            except RetryableError as error:
                if pause is not None:
                    waiting.append(name)
                    continue
                verdict = Verdict.unknown(name, str(error))
            except TallyflowError as error:
                verdict = Verdict.unknown(name, str(error))
            except Exception as error:
                log(f"check {name}: {traceback.format_exc()}")
                verdict = Verdict.unknown(name, f"{type(error).__name__}, a fault of Tallyflow itself; the run's log has it")
            yield verdict
        left = waiting
        if not left:
            return
        if pause is not None:
            time.sleep(pause)


def result(verdict: Verdict, check: Check, asset: dg.AssetKey) -> dg.AssetCheckResult:
    """The verdict with the severity that the file gives the check."""
    metadata: dict[str, Any] = dict(verdict.facts)
    if verdict.not_judged:
        metadata["not judged"] = verdict.not_judged
    if verdict.examples:
        metadata["examples"] = dg.MetadataValue.md(examples_table(verdict.examples))
    severity = AssetCheckSeverity.WARN if verdict.is_mild else _SEVERITIES[check.severity]
    return dg.AssetCheckResult(
        passed=verdict.passed, asset_key=asset, check_name=verdict.check, severity=severity, description=verdict.said, metadata=metadata
    )


def examples_table(examples: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of rows that need not have the same keys."""
    columns = list(dict.fromkeys(name for example in examples for name in example))
    lines = [columns, ["---"] * len(columns), *([str(example.get(name, "")) for name in columns] for example in examples)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines)


def _verified(instance: dg.DagsterInstance, pipeline: Pipeline) -> Hours:
    """The newest verification of each hour that was verified within the period of the check, and the hours of that period without one."""
    now = datetime.now(UTC)
    since = now - pipeline.config.checks.verification.over
    wanted = dg.AssetRecordsFilter(asset_key=asset_key(pipeline, VERIFICATION), after_timestamp=since.timestamp())
    newest: dict[str, Verified] = {}
    for event in _materializations(instance, wanted):
        if event.partition is not None:
            facts = {name: value.value for name, value in event.metadata.items()}
            told = (bool(facts.get("is_match")), str(facts.get("said", "")), bool(facts.get("is_proven", True)))
            newest.setdefault(event.partition, Verified(event.partition, *told))
    due = key_of(now - VERIFIED_AFTER)
    missed = [hour for hour in hours_without_verdict(instance, pipeline, begin_of_hour(since) + HOUR) if hour <= due]
    return Hours(sorted(newest.values(), key=lambda one: one.hour), missed)


def _materializations(instance: dg.DagsterInstance, wanted: dg.AssetRecordsFilter) -> Iterator[dg.AssetMaterialization]:
    """All of them, the newest first."""
    cursor, has_more = None, True
    while has_more:
        found = instance.fetch_materializations(wanted, limit=_VERIFICATIONS_AT_ONCE, cursor=cursor)
        yield from (record.asset_materialization for record in found.records if record.asset_materialization is not None)
        cursor, has_more = found.cursor, found.has_more


def _published(pipeline: Pipeline) -> dg.AssetsDefinition:
    text = "The table as far as it was checked. Let what needs checked rows depend on this."

    spec = spec_behind(pipeline, PUBLISHED, TABLE, text, automation=due(PUBLISHED_AT))

    @dg.multi_asset(specs=[spec], name=op_name(pipeline, PUBLISHED), retry_policy=RETRY)
    def published(context: dg.AssetExecutionContext, streaming_jobs: StreamingJobs) -> dg.MaterializeResult[Any]:
        note_pipeline(context, pipeline)
        with errors_as_failures():
            account = read_account(streaming_jobs.config(pipeline.path), None)
        metadata = {ROW_COUNT: numbers(account, TABLE)[ROW_COUNT], "confirmed_to": account.confirmed_to}
        return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(str(account.confirmed_to)))

    return published
