"""Pipelines in a dg project of your own: a `defs.yaml` that names the directory of pipeline files is enough.

type: dagster_project.components.TallyflowPipelines
attributes:
  path: pipelines
"""

from pathlib import Path

import dagster as dg
from pydantic import Field

from dagster_project.definitions import build_definitions
from dagster_project.pipeline_files import read_pipeline_files


class TallyflowPipelines(dg.Component, dg.Model, dg.Resolvable):
    """Assets, checks, jobs, schedules and sensors of the pipeline files in a directory."""

    path: str = Field(default=".", description="Directory of pipeline files (YAML or JSON), from that of the defs.yaml on.")

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Starts nothing. A faulty file is listed with its faults and takes nothing else down."""
        directory = (Path(context.path) / self.path).resolve()
        return build_definitions(read_pipeline_files(directory, skip=frozenset({"defs.yaml", "defs.yml"})))
