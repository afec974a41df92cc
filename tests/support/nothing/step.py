"""A step that does nothing: what a step has to be, and no more."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa

from pipelines.process.steps import Context, Step
from pipelines.protocol.outcomes import register
from pipelines.protocol.records import StageOutput, empty_rejected

FORGOTTEN = register("nothing", "forgotten by the step that does nothing")


@dataclass(frozen=True)
class Nothing(Step):
    """`field` is one that it would look at."""

    name = "nothing"
    stage = "nothing"
    outcomes = (FORGOTTEN,)

    field: str

    @classmethod
    def of_file(cls, config: Any, fields: Mapping[str, str], units: Mapping[str, str]) -> Self:
        return cls(config.field)

    def fields_read(self) -> frozenset[str]:
        return frozenset({self.field})

    def apply(self, context: Context, rows: pa.Table) -> StageOutput:
        assert self.field in rows.column_names
        return StageOutput(rows, empty_rejected(), {FORGOTTEN.total: 0})


STEP = Nothing
