"""Pipelines in your own dg project: a `defs.yaml` that names the directory of pipeline files is enough.

type: dagster_project.components.TallyflowPipelines
attributes:
  path: pipelines
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import dagster as dg
from pydantic import Field

from dagster_project.dagster_private import TranslationFn, TranslationFnResolver
from dagster_project.definitions import build_definitions
from dagster_project.pipeline_files import read_pipeline_files
from dagster_project.translator import Shown, TallyflowTranslator, translated

Translation = Annotated[
    TranslationFn[Shown],
    TranslationFnResolver[Shown](lambda shown: {"pipeline": shown.pipeline.config.pipeline_id, "name": shown.name}),
]


class TallyflowPipelines(dg.Component, dg.Model, dg.Resolvable, TallyflowTranslator):
    """Assets, checks, jobs, schedules and sensors of the pipeline files in a directory.

    Two components can coexist if each has its own `key_prefix`. A subclass may override `get_asset_spec`.
    """

    path: str = Field(default=".", description="Directory of pipeline files (YAML or JSON), relative to the defs.yaml.")
    key_prefix: str | Sequence[str] = Field(
        default=(), description="Prefix of asset keys and of the names of jobs, schedules and sensors. Letters, digits and _."
    )
    resources: bool = Field(
        default=True,
        description="Provide the resources streaming_jobs, tallyflow_alerts and tallyflow_spark; false if the project defines them.",
    )
    schedules: Literal["environment", "running", "stopped"] = Field(
        default="environment",
        description="Whether schedules and sensors start enabled; environment: if TALLYFLOW_SCHEDULES is `running`.",
    )
    prune_event_log: bool = Field(
        default=False, description="Provide the job that deletes old runs and events of the whole Dagster instance; in one component only."
    )
    translation: Translation | None = Field(
        default=None, description="Changes to each asset spec. Has `spec`, `pipeline` (its id) and `name` (of the asset)."
    )

    def get_asset_spec(self, spec: dg.AssetSpec, shown: Shown) -> dg.AssetSpec:
        return self.translation(spec, shown) if self.translation else spec

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the definitions without starting anything.

        A faulty file is listed with its faults; the other files work.
        """
        directory = (Path(context.path) / self.path).resolve()
        prefix = (self.key_prefix,) if isinstance(self.key_prefix, str) else tuple(self.key_prefix)
        found = read_pipeline_files(directory, skip=frozenset({"defs.yaml", "defs.yml"}), key_prefix=prefix)
        files = replace(found, is_scheduled=_IS_SCHEDULED[self.schedules])
        return translated(build_definitions(files, with_resources=self.resources, prunes=self.prune_event_log), files, self)


_IS_SCHEDULED = {"environment": None, "running": True, "stopped": False}
