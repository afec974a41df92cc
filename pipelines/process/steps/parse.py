"""The first step: raw records to typed fields (`process.parse`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from pipelines.process.parse.step import parse
from pipelines.process.steps import Columns, Context, Rank, Step
from pipelines.process.whole_records import without_lost_rows
from pipelines.protocol.outcomes import REJECTED
from pipelines.protocol.records import REFUSED_ROW_COLUMN, StageOutput, empty_rejected
from pipelines.types.fields import ParsedField, check_fields
from pipelines.types.record_columns import RecordColumn


@dataclass(frozen=True)
class Parse(Step):
    """`fields`: (name, source type) of each field of the JSON; `columns`: those of the record beside it."""

    name = "parse"
    stage = "parse"
    outcomes = (REJECTED,)
    rank = Rank.FIRST

    fields: tuple[tuple[str, str], ...]
    columns: tuple[RecordColumn, ...] = ()

    @classmethod
    def of_source(cls, source: Any) -> Self:
        """Return the step for a source of the file."""
        columns = tuple(RecordColumn(column.name, column.origin, column.header or "", column.type) for column in source.columns)
        return cls(tuple((field.name, field.type) for field in source.schema_fields), columns)

    def encode(self) -> dict[str, Any]:
        """Return the configuration as JSON values: columns only if there are some, so that other programs keep their version."""
        return {name: value for name, value in super().encode().items() if name != "columns" or value}

    @property
    def parsed_fields(self) -> Sequence[ParsedField]:
        return [ParsedField(name, kind) for name, kind in self.fields]

    def columns_out(self, columns_in: Columns) -> Columns:
        if faults := check_fields(self.parsed_fields):
            raise ValueError("; ".join(faults))
        return {**dict(self.fields), **{column.name: column.type for column in self.columns}}

    def apply(self, context: Context, rows: pa.Table) -> StageOutput:
        keep = [name for name in rows.column_names if f"_tf_{name}" in context.carried]
        tried = without_lost_rows(rows) if REFUSED_ROW_COLUMN not in context.carried else StageOutput(rows, empty_rejected())
        parsed = parse(context.engine, tried.accepted, self.parsed_fields, keep, self.columns)
        return StageOutput(parsed.accepted, pa.concat_tables([tried.rejected, parsed.rejected]))


STEP = Parse
