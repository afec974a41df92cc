"""Customization of the assets in your own project, by a subclass or by `translation` of the component."""

from dataclasses import dataclass

import dagster as dg

from dagster_project.assets import stream_names as asset_names
from dagster_project.assets.streams import asset_key
from dagster_project.pipeline_files import Pipeline, PipelineFiles


@dataclass(frozen=True)
class Shown:
    """The subject of a spec: the pipeline, and which of its assets (a name of `stream_names`)."""

    pipeline: Pipeline
    name: str


class TallyflowTranslator:
    """Override `get_asset_spec` to change group, owners, tags, kinds, description, metadata or automation."""

    def get_asset_spec(self, spec: dg.AssetSpec, shown: Shown) -> dg.AssetSpec:
        """Return the spec to show.

        The key and the dependencies must stay: runs report by them. Use `key_prefix` to change keys.
        """
        return spec


def translated(defs: dg.Definitions, files: PipelineFiles, translator: TallyflowTranslator) -> dg.Definitions:
    """Return the definitions with the translator's specs. Raise ValueError for a spec with another key."""
    shown = {asset_key(pipeline, name): Shown(pipeline, name) for pipeline in files.pipelines for name in asset_names.ALL}

    def translate(spec: dg.AssetSpec) -> dg.AssetSpec:
        if spec.key not in shown:
            return spec
        made = translator.get_asset_spec(spec, shown[spec.key])
        if made.key != spec.key:
            raise ValueError(f"translation of {spec.key.to_user_string()}: the key must stay; set key_prefix of the component instead")
        return made

    return defs.map_asset_specs(func=translate)
