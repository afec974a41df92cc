"""What is made by itself once it is due: Dagster's declarative automation, of the publication with its checks and of the compaction.

A condition says when; the sensor of the directory looks, and asks for what is due at one moment in one run. So the checks of a table are
made in the run of its publication, and a failed blocking one holds it back. Nothing is due before the pipeline was started; what became
due then, or while a run of it was at work, is made afterwards.
"""

from typing import Any

import dagster as dg

from dagster_project.assets.stream_names import COMPACTION, PUBLISHED, TABLE
from dagster_project.assets.streams import asset_key, has_dedup
from dagster_project.pipeline_files import PipelineFiles
from dagster_project.schedule_status import sensor_status

PUBLISHED_AT = "20 * * * *"
COMPACTED_AT = "20 3 * * *"


def due(cron: str) -> dg.AutomationCondition[Any]:
    """At these times (UTC), as soon as all that it is made of is there and no run makes it."""
    tick: dg.AutomationCondition[Any] = dg.AutomationCondition.cron_tick_passed(cron, "UTC")
    tick = tick.since_last_handled()
    return tick & ~dg.AutomationCondition.any_deps_missing() & ~dg.AutomationCondition.in_progress()


def build(files: PipelineFiles) -> dg.Definitions:
    if not files.pipelines:
        return dg.Definitions()
    made = [asset_key(pipeline, PUBLISHED) for pipeline in files.pipelines]
    made += [asset_key(pipeline, COMPACTION) for pipeline in files.pipelines if has_dedup(pipeline)]
    checked = [asset_key(pipeline, TABLE) for pipeline in files.pipelines]
    sensor = dg.AutomationConditionSensorDefinition(
        files.name("automate_pipelines"),
        target=dg.AssetSelection.assets(*made) | dg.AssetSelection.checks_for_assets(*checked),
        default_status=sensor_status(files),
        description="Asks for what is due: the checks and the publication of each table every hour, the compaction of its keys every day.",
    )
    return dg.Definitions(sensors=[sensor])
