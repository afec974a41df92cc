"""The step that drops the records for which a condition is not true. In SQL a null is not true; in expr-lang it is an error."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from pipelines.process.computed import Stored, stored, where
from pipelines.process.steps import Columns, Context, Step
from pipelines.protocol.outcomes import REJECTED, register
from pipelines.protocol.records import StageOutput

FILTERED = register("filter", "dropped by filter")


@dataclass(frozen=True)
class Filter(Step):
    """`condition`: its value is a bool."""

    name = "filter"
    stage = "filter"
    outcomes = (FILTERED, REJECTED)

    condition: Stored

    @classmethod
    def of_file(cls, config: Any, fields: Mapping[str, str], units: Mapping[str, str]) -> Self:
        (asked,) = config.expressions()
        return cls(stored(asked.text, fields, config.language, asked.type))

    def __post_init__(self) -> None:
        """Raise ValueError for a condition that may not be placed in a statement: a writer to the ledger must not decide one."""
        if self.condition.expression.type != "bool":
            raise ValueError(f"{self.condition.text!r} is no condition")

    def fields_read(self) -> frozenset[str]:
        return self.condition.fields

    def columns_out(self, columns_in: Columns) -> Columns:
        self.condition.check_inputs(columns_in)
        return columns_in

    def apply(self, context: Context, rows: pa.Table) -> StageOutput:
        judged = where(context.engine, rows, self.condition, self.stage)
        dropped = rows.num_rows - judged.accepted.num_rows - judged.rejected.num_rows
        return StageOutput(judged.accepted, judged.rejected, {FILTERED.total: dropped})


STEP = Filter
