"""The values of checked expressions over the columns of a batch, and the rows that fail."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.expressions.expression import Expression
from pipelines.expressions.messages import messages
from pipelines.expressions.result_types import NO_FIELDS, VALUE_ERRORS
from pipelines.expressions.screening import raising_sql
from pipelines.types.engine import Engine
from pipelines.types.fields import SOURCE_TYPES
from pipelines.types.vectors import Mask, to_mask, without

EXPRESSION_ERROR, NOT_FINITE = "expression_error", "not_finite"


@dataclass(frozen=True)
class Failure:
    """Rows for which the expression of this index has no value.

    `code`: EXPRESSION_ERROR or NOT_FINITE. `messages`: one per row; the message of a row depends on that row alone.
    """

    index: int
    rows: npt.NDArray[np.int64]
    messages: list[str]
    code: str


@dataclass(frozen=True)
class Evaluated:
    """The value of each expression in the Arrow type of its source type, null where a row failed; and what failed."""

    values: list[pa.Array]
    failed: list[Failure]


def evaluate(engine: Engine, rows: pa.Table, expressions: Sequence[Expression]) -> Evaluated:
    """Evaluate `expressions` over `rows`, which has a column per field that they read.

    A row fails if DuckDB raises for that row alone, or if its value is a float that is not finite.
    """
    names = sorted({name for expression in expressions for name in expression.fields})
    table = _table(rows, names)
    try:
        columns = engine.select(_select(*expressions), table)
        failing = [np.zeros(len(rows), dtype=bool)] * len(expressions)
    except VALUE_ERRORS:
        answers = [_screened(engine, _table(rows, expression.fields), expression) for expression in expressions]
        columns, failing = [answer[0] for answer in answers], [answer[1] for answer in answers]
    values, failed = [], []
    for index, (expression, column, bad) in enumerate(zip(expressions, columns, failing, strict=True)):
        wire = SOURCE_TYPES[expression.type].arrow
        value = column if column.type == wire else column.cast(wire)
        infinite = to_mask(pc.invert(pc.is_finite(value))) if pa.types.is_floating(wire) else np.zeros(len(rows), dtype=bool)
        values.append(without(value, infinite))
        for code, mask in ((EXPRESSION_ERROR, bad), (NOT_FINITE, infinite)):
            if mask.any():
                at = np.flatnonzero(mask)
                failed.append(Failure(index, at, messages(expression, rows.take(pa.array(at)), code), code))
    return Evaluated(values, failed)


def _select(*expressions: Expression) -> str:
    # The SQL of an expression is written from a checked tree.
    return f"SELECT {', '.join(expression.sql for expression in expressions)} FROM _tf_values"  # noqa: S608


def _table(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the columns `names`; for none of them a column that only counts the rows."""
    return rows.select(list(names)) if names else pa.table({NO_FIELDS: pa.nulls(len(rows), pa.string())})


def _screened(engine: Engine, table: pa.Table, expression: Expression) -> tuple[pa.Array, Mask]:
    """Return the values of one expression, null where it raises, and the rows where it does."""
    try:
        (values,) = engine.select(_select(expression), table)
    except VALUE_ERRORS:
        return _tried(engine, table, expression)
    return values, np.zeros(len(table), dtype=bool)


def _tried(engine: Engine, table: pa.Table, expression: Expression) -> tuple[pa.Array, Mask]:
    """Evaluate row by row where DuckDB raises."""
    if NO_FIELDS not in table.column_names:
        table = table.append_column(NO_FIELDS, pa.array(["error"] * len(table), pa.string()))
    sql = f"SELECT t IS NULL, t.v FROM (SELECT TRY(struct_pack(v := {raising_sql(expression.sql)})) AS t FROM _tf_values)"  # noqa: S608
    failed, values = engine.select(sql, table)
    return values, to_mask(failed)
