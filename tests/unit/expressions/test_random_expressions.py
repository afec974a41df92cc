"""Random expressions over random rows: a batch gives what DuckDB gives for each row alone, in values and in failures."""

import math
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.engines import stage_engine

from pipelines.expressions.evaluate import evaluate
from pipelines.expressions.expression import Expression, check
from pipelines.expressions.result_types import VALUE_ERRORS
from pipelines.types.fields import SOURCE_TYPES

FIELDS = {
    "i": "int64",
    "k": "int8",
    "f": "float64",
    "s": "string",
    "t": "string",
    "b": "bool",
    "raw": "bytes",
    "j": "object",
    "a.b": "string",
}
TEXTS = st.sampled_from(
    [
        "",
        "1",
        "-7",
        "12.5",
        "x",
        "9" * 12,
        "9" * 25,
        "2026-01-31",
        "2026-02-30",
        "1e400",
        "nan",
        "true",
        "a,b",
        "%",
        "é",
        "[",
        '{"x": 1}',
        "\x00",
    ]
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.sampled_from([0, 1, -1, 2, 7, 100, 2**31, 2**62, -(2**63), 2**63 - 1]),
    "k": st.integers(-128, 127),
    "f": st.sampled_from([0.0, -0.0, 1.0, -2.5, 1e308, 1e-320, 3.0]),
    "s": TEXTS,
    "t": TEXTS,
    "b": st.booleans(),
    "raw": st.sampled_from([b"", b"a", b"\xff", "é".encode(), b"\x00"]),
    "j": st.sampled_from(['{"x": 1}', '{"x": "2"}', '{"x": [1, "b"]}', '{"y": null}', "{}"]),
    "a.b": TEXTS,
}
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}), min_size=1, max_size=12)
_ENGINE = stage_engine()
_ORACLE = duckdb.connect(config={"threads": 1, "disabled_optimizers": "common_subexpressions"})
"""Evaluates a part where CASE, COALESCE or TRY leads to it, although it stands elsewhere as well."""


def of(*shapes: str, **parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A text of one of the shapes, with each name in braces replaced by one of its part."""
    drawn = st.fixed_dictionaries(parts)
    return st.builds(lambda shape, words: shape.format(**words), st.sampled_from(shapes), drawn)


def grown(text: st.SearchStrategy[str], depth: int) -> dict[str, st.SearchStrategy[str]]:
    """Strategies of expressions by kind, nested up to `depth`."""
    if depth == 0:
        return {
            "int": st.sampled_from(["i", "k", "0", "3", "-2"]),
            "float": st.sampled_from(["f", "1.5", "CAST(k AS DOUBLE)"]),
            "text": text,
            "bool": st.sampled_from(["b", "true", "s IS NULL"]),
            "list": st.sampled_from(["string_split(s, ',')", "[s, t]", "CAST(j -> '$.x' AS VARCHAR[])"]),
        }
    low = grown(text, depth - 1)
    p, q, x, y, c, s, t, m = (low[kind] for kind in ("int", "int", "float", "float", "bool", "text", "text", "list"))
    return {
        "int": p
        | of("({p}) + ({q})", "({p}) * ({q})", "({p}) - ({q})", "({p}) % ({q})", "({p}) // ({q})", "-({p})", "abs({p})", p=p, q=q)
        | of("CAST({s} AS INTEGER)", "CAST({s} AS BIGINT)", "length({s})", "TRY_CAST({s} AS SMALLINT)", "CAST(decode(raw) AS INTEGER)", s=s)
        | of("CASE WHEN {c} THEN {p} ELSE {q} END", "coalesce({p}, {q})", "CASE WHEN {c} THEN {p} END", "nullif({p}, {q})", c=c, p=p, q=q)
        | of("CAST({x} AS INTEGER)", "CAST({p} AS TINYINT)", "CAST(j ->> '$.x' AS INTEGER)", "year(CAST({s} AS DATE))", x=x, p=p, s=s)
        | of("len({m})", "list_sum(list_transform({m}, lambda e: CAST(e AS INTEGER)))", "TRY(CAST({s} AS INTEGER))", m=m, s=s),
        "float": x
        | of("({x}) / ({y})", "({x}) * ({y})", "({x}) + ({y})", "ln({x})", "sqrt({x})", "CAST({s} AS DOUBLE)", x=x, y=y, s=s)
        | of("({p}) / ({q})", "CASE WHEN {c} THEN {x} ELSE {y} END", "round({x}, 1)", "exp({x})", c=c, x=x, y=y, p=p, q=q),
        "text": s
        | of("({s}) || ({t})", "upper({s})", "CAST({p} AS VARCHAR)", "substr({s}, {k}, 2)", "decode(raw)", s=s, t=t, p=p, k=st.just("k"))
        | of(
            "CAST(CAST({s} AS DATE) AS VARCHAR)",
            "({s}) ->> '$.x'",
            "CASE WHEN {c} THEN {s} ELSE {t} END",
            "coalesce({s}, {t})",
            s=s,
            t=t,
            c=c,
        )
        | of(
            "replace({s}, 'x', {t})",
            "CAST(strptime({s}, '%Y-%m-%d') AS VARCHAR)",
            "regexp_extract({s}, '[0-9]+')",
            "({m})[1]",
            s=s,
            t=t,
            m=m,
        )
        | of("split_part({s}, ',', 1)", "CAST(CAST({s} AS DECIMAL(8, 2)) AS VARCHAR)", "chr(CAST({p} AS INTEGER))", s=s, p=p),
        "bool": c
        | of(
            "({p}) > ({q})",
            "({x}) < ({y})",
            "({s}) = ({t})",
            "({p}) BETWEEN 0 AND ({q})",
            "({p}) IN (1, {q})",
            p=p,
            q=q,
            x=x,
            y=y,
            s=s,
            t=t,
        )
        | of("({c}) AND ({p}) > 1", "({c}) OR ({p}) > 1", "NOT ({c})", "({s}) IS NULL", "({p}) IS DISTINCT FROM ({q})", c=c, p=p, q=q, s=s)
        | of("CAST({s} AS BOOLEAN)", "({s}) LIKE ({t})", "starts_with({s}, {t})", "json_valid({s})", "contains({m}, {t})", s=s, t=t, m=m),
        "list": m
        | of(
            "string_split({s}, ',')",
            "list_transform({m}, lambda e: upper(e))",
            "list_filter({m}, lambda e: CAST(e AS INTEGER) > 0)",
            s=s,
            m=m,
        )
        | of("[{s}, {t}]", "CASE WHEN {c} THEN {m} END", "list_concat({m}, [{s}])", s=s, t=t, m=m, c=c),
    }


EXPRESSIONS = st.one_of(*grown(st.sampled_from(["s", "t", '"a.b"', "'1'", "'x'"]), 3).values())


def checked(text: str) -> Expression | None:
    try:
        return check(text, FIELDS, "sql")
    except ValueError as error:
        # A constant part that fails, or kinds that do not fit: the grammar is loose there.
        assert any(words in str(error) for words in ("always fails", "cannot be evaluated")), error
        return None


def alone(expression: Expression, row: pa.Table) -> tuple[Any, str | None]:
    """The value of one row by a statement of its own, and how it fails."""
    _ORACLE.register("one", row)
    try:
        ((value,),) = _ORACLE.execute(f"SELECT {expression.sql} FROM one").fetchall()
    except VALUE_ERRORS:
        return None, "expression_error"
    if isinstance(value, float) and not math.isfinite(value):
        return None, "not_finite"
    return value, None


@settings(max_examples=150)
@given(texts=st.lists(EXPRESSIONS, min_size=1, max_size=3), rows=ROWS)
def test_a_batch_gives_what_each_row_alone_gives(texts: list[str], rows: list[dict[str, Any]]) -> None:
    expressions = [found for text in texts if (found := checked(text))]
    assume(expressions)
    table = pa.Table.from_pylist(rows, pa.schema([(name, SOURCE_TYPES[kind].arrow) for name, kind in FIELDS.items()]))
    result = evaluate(_ENGINE, table, expressions)
    codes = {(failure.index, int(row)): failure.code for failure in result.failed for row in failure.rows}
    for index, expression in enumerate(expressions):
        found = [(repr(value), codes.get((index, row))) for row, value in enumerate(result.values[index].to_pylist())]
        expected = [(repr(value), code) for value, code in (alone(expression, table.slice(row, 1)) for row in range(len(rows)))]
        assert found == expected, expression.sql
        assert result.values[index].type == SOURCE_TYPES[expression.type].arrow


def test_the_oracle_sees_values_and_failures() -> None:
    row = pa.table({"s": ["x"], "f": [0.0], "i": [7]})
    assert [alone(check(text, FIELDS, "sql"), row) for text in ("CAST(s AS INTEGER)", "ln(f)", "i + 1")] == [
        (None, "expression_error"),
        (None, "not_finite"),
        (8, None),
    ]
    assert issubclass(duckdb.ConversionException, VALUE_ERRORS)
