"""The model of computed fields: the record keeps its other fields."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from pipelines.config.base import Expression, Faults, FieldPath, Model, Text, ours, repeated
from pipelines.config.sources import FieldType, Unit
from pipelines.config.transform_model import SOURCE_ID, Asked, ExpressionConfig, TransformModel


class ComputedField(Model):
    """One computed field."""

    name: FieldPath = ours(..., "Name of the field; it replaces a field of this name.")
    expression: Expression = ours(
        ..., "Value, computed from the fields before this transform. A record on which it fails becomes a dead letter."
    )
    type: Literal[FieldType, "decimal"] | None = ours(None, "Type of the value. Default: the type of the expression.")
    unit: Unit | None = ours(None, "Unit since 1970 of a number that becomes a DateTime or DateTime64. Default: `s`.")


class ComputeConfig(ExpressionConfig):
    """The computed fields."""

    fields: Annotated[tuple[ComputedField, ...], Field(min_length=1)] = ours(..., "The computed fields; all other fields stay.")

    def expressions(self) -> Iterable[Asked]:
        for index, field in enumerate(self.fields):
            yield Asked(("fields", index, "expression"), field.expression, field.name, field.type, field.unit)

    def faults(self) -> Faults:
        for index, name in repeated(field.name for field in self.fields):
            yield ("fields", index, "name"), f"the name {name!r} is given twice"
        for index, field in enumerate(self.fields):
            if field.name.startswith("_tf_"):
                yield ("fields", index, "name"), "names that start with _tf_ are reserved"


class ComputeTransform(TransformModel):
    """Adds fields that are computed from each record."""

    computes = True

    type: Literal["compute"] = ours(..., "Kind of transform.")
    source_id: Text | None = ours(None, SOURCE_ID)
    config: ComputeConfig = ours(..., "The computed fields.")


TRANSFORM = ComputeTransform
