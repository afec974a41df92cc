"""An expression of the pipeline file: its text, checked at load, becomes SQL that is ready to evaluate.

In: the text, and the fields that it may read, by name with their source types. Out: an `Expression`, or ValueError with one sentence.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Language = Literal["sql", "expr"]

_LOOKS_LIKE_EXPR = re.compile(r"""==|&&|\|\||"|\?.*:|\bnil\b|\b(?:contains|matches|startsWith|endsWith)\b""", re.DOTALL)


@dataclass(frozen=True)
class Expression:
    """A checked expression. Its value for a row depends on the row alone.

    `text`: as the file has it. `sql`: one scalar DuckDB expression over columns that are named as the fields, in the Arrow types of their
    source types. `fields`: the fields read, sorted. `type`: the source type of the value, a key of `types.fields.SOURCE_TYPES`.
    """

    text: str
    language: Language
    sql: str
    fields: tuple[str, ...]
    type: str

    @property
    def tried(self) -> str:
        """SQL of a struct whose only member `v` is the value; null where the expression raises."""
        if not self.fields:
            return f"struct_pack(v := {self.sql})"
        # DuckDB 2.0 evaluates what an expression has twice before it evaluates TRY, but for what is within CASE.
        name = self.fields[0].replace('"', '""')
        return f"TRY(CASE WHEN concat(CAST(\"{name}\" AS VARCHAR), '.') <> '' THEN struct_pack(v := {self.sql}) END)"


def check(text: str, fields: Mapping[str, str], language: Language | None = None, wanted: str | None = None) -> Expression:
    """Check `text` over `fields`, their source types by name, and return the expression.

    `language` None: SQL if that is sound, else expr-lang. `wanted`: the source type that the value must have; None: as inferred.
    Raises ValueError: one sentence that states the fault, its place and the remedy.
    """
    return _check(text, tuple(fields.items()), language, wanted)


@lru_cache(maxsize=1024)
def _check(text: str, known: tuple[tuple[str, str], ...], language: Language | None, wanted: str | None) -> Expression:
    """Return what `check` returns: a check takes milliseconds, and the file, the program and each worker ask for the same."""
    fields = dict(known)
    if language == "sql":
        return _check_sql(text, fields, wanted)
    if language == "expr":
        return _check_expr(text, fields, wanted)
    try:
        return _check_sql(text, fields, wanted)
    except ValueError as error:
        sql_fault = str(error)
    try:
        return _check_expr(text, fields, wanted)
    except ValueError as error:
        expr_fault = str(error)
    faults = [f"as SQL: {sql_fault}", f"as expr-lang: {expr_fault}"]
    raise ValueError("; ".join(reversed(faults) if _LOOKS_LIKE_EXPR.search(text) else faults))


def _check_sql(text: str, fields: Mapping[str, str], wanted: str | None) -> Expression:
    # DuckDB takes time to import, and most pipeline files have no expression.
    from pipelines.expressions.sql import check_sql

    checked = check_sql(text, fields, wanted)
    return Expression(text, "sql", checked.sql, checked.fields, checked.type)


def _check_expr(text: str, fields: Mapping[str, str], wanted: str | None) -> Expression:
    from pipelines.expressions.expr_lang.translate import translate
    from pipelines.expressions.sql import check_sql

    checked = check_sql(translate(text, fields), fields, wanted, is_translated=True)
    return Expression(text, "expr", checked.sql, checked.fields, checked.type)
