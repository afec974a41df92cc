"""The reason of DuckDB for which an expression fails on the record of a dead letter, found when somebody looks at it.

A dead letter names the expression and its inputs only: DuckDB raises for one row of a batch, 0.3 ms each, too much where records are
rejected by the thousand. In: a dead letter, and the program that rejected it. Nothing is kept, and no value reaches a log.
"""

from typing import Any

import pyarrow as pa

from pipelines.dead_letters.dry_run import frames_of_dead_letters
from pipelines.expressions.evaluate import EXPRESSION_ERROR, raised
from pipelines.process.arrivals import records_of
from pipelines.process.computed import Stored
from pipelines.process.program import Program
from pipelines.process.steps import Step, pass_through
from pipelines.process.steps.compute import Compute
from pipelines.process.steps.filter import Filter
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Engine


def reason_of(engine: Engine, program: Program, dead_letter: pa.Table) -> str:
    """Return why the expression that a dead letter names fails on its record, empty if none of the program fails before a join.

    `dead_letter`: one row of `dead_letter_rows.DEAD_LETTER_SCHEMA`.
    """
    row: dict[str, Any] = dead_letter.to_pylist()[0]
    if row["code"] != EXPRESSION_ERROR:
        return ""
    (frame,) = frames_of_dead_letters([dead_letter], [])
    rows = records_of(frame.message, frame.arrival_us)
    lane = program.lanes[program.sources.index(row["source"])]
    # Of a left record nothing tells which right one it had met.
    behind = () if program.join is not None else program.shared
    for step in (*lane.steps, *behind):
        before, rows = rows, pass_through([(step, frozenset())], program.context(engine), rows, open_engine).accepted
        if not rows.num_rows:
            return "; ".join(filter(None, (raised(engine, before, one.expression) for one in _named(step, row["field"]))))
    return ""


def _named(step: Step, field: str | None) -> list[Stored]:
    """Return the expressions of a step that a dead letter with this field means."""
    if isinstance(step, Filter):
        return [step.condition]
    return [one.value for one in step.outputs if one.name == field] if isinstance(step, Compute) else []
