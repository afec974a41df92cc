"""The step that drops the records for which a condition is not true. In SQL a null is not true; in expr-lang it is an error."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.expressions.evaluate import EXPRESSION_ERROR
from pipelines.process.computed import Stored, computed, stored
from pipelines.process.rejections import Rejections
from pipelines.process.steps import Columns, Context, Step
from pipelines.protocol.outcomes import REJECTED, register
from pipelines.protocol.records import StageOutput
from pipelines.types.vectors import to_mask

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
        rejections = Rejections(self.stage, rows.num_rows)
        (values,) = computed(context.engine, rows, [self.condition], rejections)
        if self.condition.language == "expr" and values.null_count:
            message = f"{self.condition.text} gives nil, which is no condition"
            rejections.note(to_mask(pc.is_null(values)), EXPRESSION_ERROR, None, message)
        stays = to_mask(pc.fill_null(values, False))
        passed = rejections.split(rows, rows)
        if rejections.any:
            stays = stays[rejections.open]
        accepted = passed.accepted if stays.all() else passed.accepted.filter(pa.array(stays))
        return StageOutput(accepted, passed.rejected, {FILTERED.total: passed.accepted.num_rows - accepted.num_rows})


STEP = Filter
