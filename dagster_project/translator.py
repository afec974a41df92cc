"""How a project of yours shows the assets of a pipeline: what a subclass, or `translation` of the component, makes of each spec."""

from dataclasses import dataclass

import dagster as dg

from dagster_project.assets import stream_names as seam_names
from dagster_project.assets.streams import asset_key
from dagster_project.pipeline_files import Pipeline, PipelineFiles


@dataclass(frozen=True)
class Shown:
    """What a spec is of: the pipeline, and which of its assets, a name of `seam_names`."""

    pipeline: Pipeline
    name: str


class TallyflowTranslator:
    """Override `get_asset_spec` to change group, owners, tags, kinds, description, metadata or automation."""

    def get_asset_spec(self, spec: dg.AssetSpec, shown: Shown) -> dg.AssetSpec:
        """The spec as it is to be shown. Its key and what it is made of must stay: runs report by them; `key_prefix` changes keys."""
        return spec


def translated(defs: dg.Definitions, files: PipelineFiles, translator: TallyflowTranslator) -> dg.Definitions:
    """The definitions with the translator's specs. Raises ValueError for one with another key."""
    shown = {asset_key(pipeline, name): Shown(pipeline, name) for pipeline in files.pipelines for name in seam_names.ALL}

    def translate(spec: dg.AssetSpec) -> dg.AssetSpec:
        if spec.key not in shown:
            return spec
        made = translator.get_asset_spec(spec, shown[spec.key])
        if made.key != spec.key:
            raise ValueError(f"translation of {spec.key.to_user_string()}: the key must stay; set key_prefix of the component instead")
        return made

    return defs.map_asset_specs(func=translate)
