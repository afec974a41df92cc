"""Expressions in steps: stored with the types of the fields that they read, checked again wherever they are read back, evaluated.

In: rows with the fields. Out: a column per expression; a row on which one fails is rejected, with the expression and its inputs in the
message. Kept: nothing. Guarantee: the value of a row is a function of that row alone.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.expressions.evaluate import EXPRESSION_ERROR, evaluate
from pipelines.expressions.expression import Expression, Language, check
from pipelines.process.rejections import Rejections
from pipelines.protocol.records import StageOutput
from pipelines.types.engine import Engine
from pipelines.types.vectors import to_mask


class Stored(NamedTuple):
    """An expression as a program holds it. `inputs`: (field, source type) of each field that it reads; `type`: that of its value."""

    text: str
    language: Language
    inputs: tuple[tuple[str, str], ...]
    type: str

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.inputs)

    @property
    def expression(self) -> Expression:
        """The checked expression: a program may come from the ledger. Raise ValueError for one that does not check."""
        return check(self.text, dict(self.inputs), self.language, self.type)

    def check_inputs(self, columns: Mapping[str, str]) -> None:
        """Raise ValueError unless `columns` has the fields, with their types."""
        for name, kind in self.inputs:
            if columns.get(name) != kind:
                raise ValueError(f"{self.text!r} reads {name!r} as {kind}, which is {columns.get(name, 'no field')}")


def stored(text: str, fields: Mapping[str, str], language: Language | None, wanted: str | None) -> Stored:
    """Return the expression `text` over `fields`. Raise ValueError for one that does not check."""
    found = check(text, fields, language, wanted)
    return Stored(text, found.language, tuple((name, fields[name]) for name in found.fields), found.type)


def computed(
    engine: Engine, rows: pa.Table, expressions: Sequence[Stored], rejections: Rejections, fields: Sequence[str | None] = (None,)
) -> list[pa.Array]:
    """Return a column per expression; note the rows on which one fails. `fields`: the field that a dead letter names, for each."""
    found = evaluate(engine, rows, [one.expression for one in expressions])
    for failure in found.failed:
        rejections.note_each(failure.rows, failure.code, fields[failure.index], failure.messages)
    return found.values


def where(engine: Engine, rows: pa.Table, condition: Stored, stage: str) -> StageOutput:
    """Return the rows for which a condition is true, and those on which it fails, rejected by `stage`.

    In SQL a null is not true; in expr-lang it is an error.
    """
    rejections = Rejections(stage, rows.num_rows)
    (values,) = computed(engine, rows, [condition], rejections)
    if condition.language == "expr" and values.null_count:
        message = f"{condition.text} gives nil, which is no condition"
        rejections.note(to_mask(pc.is_null(values)), EXPRESSION_ERROR, None, message)
    stays = to_mask(values) & rejections.open
    rejected = rejections.split(rows, rows).rejected
    return StageOutput(rows if stays.all() else rows.filter(pa.array(stays)), rejected)
