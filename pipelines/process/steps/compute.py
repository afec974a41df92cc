"""The step that computes fields from the fields before it: beside them, or, for GlassFlow's stateless transform, in their place."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import pyarrow as pa

from pipelines.process.computed import Stored, computed, stored
from pipelines.process.rejections import Rejections
from pipelines.process.steps import Columns, Context, Step
from pipelines.protocol.outcomes import REJECTED
from pipelines.protocol.records import StageOutput
from pipelines.types.fields import ParsedField, check_fields


class Output(NamedTuple):
    """A computed field, and its value."""

    name: str
    value: Stored


@dataclass(frozen=True)
class Compute(Step):
    """`keeps_fields`: the other fields stay."""

    name = "compute"
    stage = "compute"
    outcomes = (REJECTED,)

    outputs: tuple[Output, ...]
    keeps_fields: bool = True

    @classmethod
    def of_file(cls, config: Any, fields: Mapping[str, str], units: Mapping[str, str]) -> Self:
        outputs = [Output(asked.name, stored(asked.text, fields, config.language, asked.type)) for asked in config.expressions()]
        return cls(tuple(outputs), config.keeps_fields)

    def __post_init__(self) -> None:
        """Raise ValueError for names and expressions that may not be placed in a statement: a writer to the ledger must not decide one."""
        if faults := check_fields([ParsedField(one.name, one.value.expression.type) for one in self.outputs]):
            raise ValueError("; ".join(faults))

    def fields_read(self) -> frozenset[str]:
        return frozenset[str]().union(*(one.value.fields for one in self.outputs))

    def columns_out(self, columns_in: Columns) -> Columns:
        for one in self.outputs:
            one.value.check_inputs(columns_in)
        return {**(columns_in if self.keeps_fields else {}), **{one.name: one.value.type for one in self.outputs}}

    def apply(self, context: Context, rows: pa.Table) -> StageOutput:
        rejections = Rejections(self.stage, rows.num_rows)
        values = computed(context.engine, rows, [one.value for one in self.outputs], rejections, [one.name for one in self.outputs])
        columns = {name: rows.column(name) for name in rows.column_names if self.keeps_fields or name.startswith("_tf_")}
        return rejections.split(rows, pa.table(columns | {one.name: value for one, value in zip(self.outputs, values, strict=True)}))


STEP = Compute
