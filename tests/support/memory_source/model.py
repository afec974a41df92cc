"""The model of a source in memory: what the model of a source has to be, and no more."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from pipelines.config.base import Model, Text
from pipelines.config.sources import SchemaField


class MemorySource(Model):
    """One list of records per partition."""

    type: Literal["memory"] = Field(description="Kind of source.")
    topic: Text = Field(description="Name of the lists.")
    source_id: Text = Field(default_factory=lambda fields: str(fields["topic"]), description="Name of the source.")
    schema_fields: tuple[SchemaField, ...] = Field(description="Fields to read from the values.")
    columns: tuple[()] = Field(default=(), description="None.")
    on_data_loss: Literal["halt", "skip"] = Field(default="halt", description="What to do about expired records.")

    @property
    def fields(self) -> dict[str, str]:
        return {field.name: field.type for field in self.schema_fields}

    @property
    def field_names(self) -> Sequence[str]:
        return [field.name for field in self.schema_fields]

    def place(self) -> tuple[object, ...]:
        """Return what two sources must not share: the lists."""
        return (self.topic,)


SOURCE = MemorySource
