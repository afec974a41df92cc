"""Launch configuration: a launch may set the values of fields, and nothing else.

Dagster lets the configuration of a run name environment variables of the code server (`{env: NAME}`) in place of most values, and set every
field of every resource: the addresses that passwords are sent to, files that Spark executes. Anyone who may launch runs, or read their
errors, could read these. So ops take plain values, pipelines are chosen from a list, and resources are sealed.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, TypeVar

import dagster as dg

from dagster_project.dagster_private import initialized
from dagster_project.pipeline_files import PipelineFiles

C = TypeVar("C", bound=dg.Config)
_PLAIN: tuple[tuple[Any, Any], ...] = ((dg.StringSource, dg.String), (dg.IntSource, dg.Int), (dg.BoolSource, dg.Bool))
"""Types that also take `{env: NAME}`, and the types that do not."""


def schema_of(config_class: type[dg.Config], files: PipelineFiles | None = None) -> dict[str, dg.Field]:
    """Build `config_schema` from the class, each field with its plain type; `pipeline` is one of the ids in `files`."""
    fields = {name: _plain_field(one) for name, one in config_class.to_fields_dict().items()}
    if files is not None and files.pipelines and "pipeline" in fields:
        ids = [pipeline.config.pipeline_id for pipeline in files.pipelines]
        # Dagster treats two lists of one name as the same.
        name = f"pipeline_id_{sha256(' '.join(ids).encode()).hexdigest()[:8]}"
        chosen = dg.Enum(name, [dg.EnumValue(one) for one in ids])
        fields["pipeline"] = dg.Field(chosen, description=fields["pipeline"].description)
    return fields


def read_config(context: dg.OpExecutionContext | dg.AssetExecutionContext, config_class: type[C]) -> C:
    """Read the run configuration of an op whose schema is `schema_of` the class."""
    own = context.op_execution_context if isinstance(context, dg.AssetExecutionContext) else context
    return config_class(**own.op_config)


def sealed(resource: Any) -> dg.ResourceDefinition:
    """Return the resource without fields that a launch could set; `dg.EnvVar` in it is read when a run begins."""
    if not isinstance(resource, dg.ConfigurableResource):
        return resource if isinstance(resource, dg.ResourceDefinition) else dg.ResourceDefinition.hardcoded_resource(resource)

    @dg.resource(config_schema={}, description=type(resource).__doc__)
    def made(context: dg.InitResourceContext) -> Iterator[Any]:
        with initialized(resource, context) as ready:
            yield ready

    return made


def sealed_resources(resources: Mapping[str, Any]) -> dict[str, dg.ResourceDefinition]:
    return {name: sealed(resource) for name, resource in resources.items()}


def _plain_field(field: dg.Field) -> dg.Field:
    kind = _plain(field.config_type)
    if field.default_provided:
        return dg.Field(kind, description=field.description, is_required=False, default_value=field.default_value)
    return dg.Field(kind, description=field.description, is_required=field.is_required)


def _plain(kind: Any) -> Any:
    if isinstance(kind, dg.Noneable):
        return dg.Noneable(_plain(kind.inner_type))
    if isinstance(kind, dg.Array):
        return dg.Array(_plain(kind.inner_type))
    return next((plain for source, plain in _PLAIN if kind is source), kind)
