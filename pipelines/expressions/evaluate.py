"""The values of checked expressions over the columns of a batch, and the rows that fail."""

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.expressions.expression import Expression
from pipelines.expressions.messages import cut, messages
from pipelines.expressions.result_types import NO_FIELDS, VALUE_ERRORS, first_sentence
from pipelines.expressions.screening import screened_sql
from pipelines.types.engine import Engine
from pipelines.types.fields import SOURCE_TYPES, SourceType
from pipelines.types.vectors import Mask, to_mask, without

EXPRESSION_ERROR, NOT_FINITE = "expression_error", "not_finite"
_MAX_REASON = 200
_FLOAT_WORDS = "(?i)nan|inf"
_STRING = r'"(?:[^"\\]|\\.)*"'


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
    if not expressions:
        return Evaluated([], [])
    names = sorted({name for expression in expressions for name in expression.fields})
    table = _table(rows, names)
    try:
        columns = engine.select(_select(", ".join(expression.sql for expression in expressions)), table)
        failing = [np.zeros(len(rows), dtype=bool)] * len(expressions)
    except VALUE_ERRORS:
        answers = [_slowly(engine, _table(rows, expression.fields), expression) for expression in expressions]
        columns, failing = [answer[0] for answer in answers], [answer[1] for answer in answers]
    values, failed = [], []
    for index, (expression, column, bad) in enumerate(zip(expressions, columns, failing, strict=True)):
        wire = SOURCE_TYPES[expression.type].arrow
        value = column if column.type == wire else column.cast(wire)
        infinite = _not_finite(value, SOURCE_TYPES[expression.type])
        values.append(without(value, infinite))
        for code, mask in ((EXPRESSION_ERROR, bad), (NOT_FINITE, infinite)):
            if mask.any():
                at = np.flatnonzero(mask)
                failed.append(Failure(index, at, messages(expression, rows.take(pa.array(at)), code), code))
    return Evaluated(values, failed)


def raised(engine: Engine, row: pa.Table, expression: Expression) -> str:
    """Return what DuckDB says is wrong with one row, in at most 200 characters; empty if the expression has a value there."""
    try:
        engine.select(_select(expression.sql), _table(row, expression.fields))
    except VALUE_ERRORS as error:
        return cut(first_sentence(error), _MAX_REASON)
    return ""


def _table(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the columns `names`; for none of them a column that only counts the rows."""
    return rows.select(list(names)) if names else pa.table({NO_FIELDS: pa.nulls(len(rows), pa.bool_())})


def _not_finite(values: pa.Array, kind: SourceType) -> Mask:
    """Return the rows whose value is a float that is not finite, or JSON text that has one: DuckDB writes it as NaN or Infinity."""
    if kind.is_float:
        return to_mask(pc.invert(pc.is_finite(values)))
    found = np.zeros(len(values), dtype=bool)
    if kind.is_json_text:
        found = to_mask(pc.match_substring_regex(values, _FLOAT_WORDS))
        # The words may stand within a string.
        outside = pc.replace_substring_regex(values.filter(pa.array(found)), _STRING, '""')
        found[found] = to_mask(pc.match_substring_regex(outside, _FLOAT_WORDS))
    return found


def _slowly(engine: Engine, table: pa.Table, expression: Expression) -> tuple[pa.Array, Mask]:
    """Return the values of one expression, null where it raises, and the rows where it does."""
    try:
        (values,) = engine.select(_select(expression.sql), table)
    except VALUE_ERRORS:
        return _screened(engine, table, expression)
    return values, np.zeros(len(table), dtype=bool)


def _screened(engine: Engine, table: pa.Table, expression: Expression) -> tuple[pa.Array, Mask]:
    """Screen all rows, and try the suspected ones; try all rows if the screening raises."""
    items = screened_sql(expression.sql)
    if items is None:
        return _tried(engine, table, expression)
    try:
        values, suspected = engine.select(_select(items), table)
    except (*VALUE_ERRORS, duckdb.BinderException):
        # A guard may not fit the types of its operands.
        return _tried(engine, table, expression)
    failing = to_mask(suspected)
    tried, failed = _tried(engine, table.filter(suspected), expression)
    failing[failing] = failed
    return pc.replace_with_mask(values, suspected, tried), failing


def _tried(engine: Engine, table: pa.Table, expression: Expression) -> tuple[pa.Array, Mask]:
    """Evaluate row by row where DuckDB raises."""
    failed, values = engine.select(_select("t IS NULL, t.v", f"({_select(f'{expression.tried} AS t')})"), table)
    return values, to_mask(failed)


def _select(items: str, source: str = "_tf_values") -> str:
    # The SQL of an expression is written from a checked tree.
    return f"SELECT {items} FROM {source}"  # noqa: S608
