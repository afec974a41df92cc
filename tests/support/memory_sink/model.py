"""The model of a sink in memory: what the model of a sink has to be, and no more."""

from datetime import timedelta
from typing import Literal

from pydantic import Field

from pipelines.config.base import Model, Text
from pipelines.config.sinks import ColumnMapping, SinkModel


class Place(Model):
    """Where the table is."""

    database: Text = Field(default="db", description="Database of the table.")


class MemorySink(SinkModel):
    """One table of this process."""

    type: Literal["memory"] = Field(description="Kind of sink.")
    connection_params: Place = Field(default=Place(), description="Where the table is.")
    table: Text = Field(description="Name of the table.")
    mapping: tuple[ColumnMapping, ...] = Field(description="The fields and their columns.")
    max_insert_time: timedelta = Field(default=timedelta(seconds=60), description="How long one insert may take.")
    delivery: Literal["exactly_once"] = Field(default="exactly_once", description="The table drops a repeated insert.")
    existing_rows: Literal["refuse"] = Field(default="refuse", description="What the first start does about rows.")


SINK = MemorySink
