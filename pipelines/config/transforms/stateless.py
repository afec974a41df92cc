"""The model of GlassFlow's stateless transform: each record is replaced by its computed fields."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from pipelines.config.base import Expression, Faults, FieldPath, Model, Text, repeated, theirs
from pipelines.config.sources import FieldType
from pipelines.config.transform_model import SOURCE_ID, Asked, ExpressionConfig, TransformModel


class StatelessOutput(Model):
    """One field of the new record."""

    expression: Expression = theirs(..., "Expression over the fields of the record before.")
    output_name: FieldPath = theirs(..., "Name of the new field.")
    output_type: Literal[FieldType, "[]string"] = theirs(..., "Type of the new field.")


class StatelessConfig(ExpressionConfig):
    """The fields of the new record."""

    keeps_fields = False

    transforms: Annotated[tuple[StatelessOutput, ...], Field(min_length=1)] = theirs(
        ..., "The fields of the new record; other fields are dropped."
    )

    def expressions(self) -> Iterable[Asked]:
        for index, output in enumerate(self.transforms):
            kind = "array" if output.output_type == "[]string" else output.output_type
            yield Asked(("transforms", index, "expression"), output.expression, output.output_name, kind)

    def faults(self) -> Faults:
        for index, name in repeated(output.output_name for output in self.transforms):
            yield ("transforms", index, "output_name"), f"the name {name!r} is given twice"
        for index, output in enumerate(self.transforms):
            if output.output_name.startswith("_tf_"):
                yield ("transforms", index, "output_name"), "names that start with _tf_ are reserved"


class StatelessTransform(TransformModel):
    """Replaces each record by a new one, computed from it."""

    step = "compute"
    computes = True
    is_of_glassflow = True

    type: Literal["stateless"] = theirs(..., "Kind of transform.")
    source_id: Text | None = theirs(None, SOURCE_ID)
    config: StatelessConfig = theirs(..., "The fields of the new record.")


TRANSFORM = StatelessTransform
