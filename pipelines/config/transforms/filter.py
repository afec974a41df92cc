"""The model of the filter."""

from collections.abc import Iterable
from typing import Literal

from pipelines.config.base import Expression, Text, theirs
from pipelines.config.transform_model import SOURCE_ID, Asked, ExpressionConfig, TransformModel


class FilterConfig(ExpressionConfig):
    """Which records stay."""

    expression: Expression = theirs(
        ..., "Condition over the fields; records for which it is true stay. A record on which it fails becomes a dead letter."
    )

    def expressions(self) -> Iterable[Asked]:
        yield Asked(("expression",), self.expression, type="bool")


class FilterTransform(TransformModel):
    """Keeps the records for which an expression is true; the others are counted as filtered."""

    is_of_glassflow = True

    type: Literal["filter"] = theirs(..., "Kind of transform.")
    source_id: Text | None = theirs(None, SOURCE_ID)
    config: FilterConfig = theirs(..., "Which records stay.")


TRANSFORM = FilterTransform
