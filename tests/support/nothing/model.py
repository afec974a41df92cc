"""The model of a transform that does nothing."""

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from pipelines.config.base import FieldPath, Location, Text
from pipelines.config.transform_model import TransformConfig, TransformModel


class NothingConfig(TransformConfig):
    """What it would look at."""

    field: FieldPath = Field(description="A field of the source.")

    def fields_read(self) -> Iterable[tuple[Location, Sequence[str]]]:
        yield ("field",), [self.field]


class NothingTransform(TransformModel):
    """Does nothing."""

    type: Literal["nothing"] = Field(description="Kind of transform.")
    source_id: Text | None = Field(default=None, description="The source it applies to.")
    config: NothingConfig = Field(description="What it would look at.")


TRANSFORM = NothingTransform
