"""Dagster's declarative automation of the publication with its checks, and of the compaction.

A condition decides when an asset is due; the sensor of the directory requests what is due at one moment in one run. So the checks of a
table run in the run of its publication, and a failed blocking check blocks it. Nothing is due before the pipeline was started; what becomes
due before that, or during a run, is made afterwards.
"""

from typing import Any

import dagster as dg

from dagster_project.assets.stream_names import TABLE
from dagster_project.assets.streams import asset_key, compaction_key, published_keys
from dagster_project.pipeline_files import PipelineFiles
from dagster_project.schedule_status import sensor_status

PUBLISHED_AT = "20 * * * *"
COMPACTED_AT = "20 3 * * *"


def due(cron: str) -> dg.AutomationCondition[Any]:
    """Return the condition that is met at these times (UTC), once all inputs exist and no run is making the asset."""
    tick: dg.AutomationCondition[Any] = dg.AutomationCondition.cron_tick_passed(cron, "UTC")
    tick = tick.since_last_handled()
    return tick & ~dg.AutomationCondition.any_deps_missing() & ~dg.AutomationCondition.in_progress()


def build(files: PipelineFiles) -> dg.Definitions:
    if not files.pipelines:
        return dg.Definitions()
    made = [key for pipeline in files.pipelines for key in published_keys(pipeline)]
    made += [key for pipeline in files.pipelines if (key := compaction_key(pipeline))]
    checked = [asset_key(pipeline, TABLE) for pipeline in files.pipelines]
    sensor = dg.AutomationConditionSensorDefinition(
        files.name("automate_pipelines"),
        target=dg.AssetSelection.assets(*made) | dg.AssetSelection.checks_for_assets(*checked),
        default_status=sensor_status(files),
        description="Launches what is due: the checks and the publication of each table every hour, the compaction of its keys every day.",
    )
    return dg.Definitions(sensors=[sensor])
