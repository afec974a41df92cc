"""The first step: raw records to typed fields (`process.parse`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from pipelines.process.parse.step import parse
from pipelines.process.steps import Columns, Context, Rank, Step
from pipelines.protocol.outcomes import REJECTED
from pipelines.protocol.records import StageOutput
from pipelines.types.fields import ParsedField, check_fields


@dataclass(frozen=True)
class Parse(Step):
    """`fields`: (name, source type) each."""

    name = "parse"
    stage = "parse"
    outcomes = (REJECTED,)
    rank = Rank.FIRST

    fields: tuple[tuple[str, str], ...]

    @property
    def parsed_fields(self) -> Sequence[ParsedField]:
        return [ParsedField(name, kind) for name, kind in self.fields]

    def columns_out(self, columns_in: Columns) -> Columns:
        if faults := check_fields(self.parsed_fields):
            raise ValueError("; ".join(faults))
        return dict(self.fields)

    def apply(self, context: Context, rows: pa.Table) -> StageOutput:
        keep = [name for name in rows.column_names if f"_tf_{name}" in context.carried]
        return parse(context.engine, rows, self.parsed_fields, keep)


STEP = Parse
