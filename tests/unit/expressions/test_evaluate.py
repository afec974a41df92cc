"""A batch of values: equal to what DuckDB gives for each row alone, with a failure and a message for each row that has none."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from pipelines.expressions import evaluate as evaluate_module
from pipelines.expressions.evaluate import Evaluated, evaluate
from pipelines.expressions.expression import Expression, check
from pipelines.types.duckdb import open_engine
from pipelines.types.engine import Database, Engine
from pipelines.types.fields import SOURCE_TYPES

FIELDS = {"a": "string", "n": "int64", "f": "float64", "tags": "array", "raw": "bytes", "customer.city": "string", "ok": "bool"}
ROWS = [
    {"a": "1", "n": 1, "f": 0.5, "tags": "[1,2]", "raw": b"x", "customer.city": "Graz", "ok": True},
    {"a": "x", "n": 0, "f": 0.0, "tags": "[1,", "raw": b"\xff", "customer.city": None, "ok": False},
    {"a": None, "n": None, "f": None, "tags": None, "raw": None, "customer.city": None, "ok": None},
    {"a": "30", "n": 2**62, "f": -1.0, "tags": '["b"]', "raw": b"", "customer.city": "", "ok": True},
]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with open_engine() as opened:
        yield opened


def table(rows: list[dict[str, Any]] = ROWS) -> pa.Table:
    return pa.Table.from_pylist(rows, pa.schema([(name, SOURCE_TYPES[kind].arrow) for name, kind in FIELDS.items()]))


def checked(*texts: str, wanted: str | None = None) -> list[Expression]:
    return [check(text, FIELDS, "sql", wanted) for text in texts]


def failures(result: Evaluated) -> list[tuple[int, int, str]]:
    return [(failure.index, int(row), failure.code) for failure in result.failed for row in failure.rows]


def messages(result: Evaluated, first: int = 0) -> list[tuple[int, int, str, str]]:
    failed = [(one, row, text) for one in result.failed for row, text in zip(one.rows, one.messages, strict=True)]
    return [(one.index, first + int(row), text, one.code) for one, row, text in failed]


@pytest.mark.parametrize(
    ("text", "values", "failed"),
    [
        ("CAST(a AS INTEGER) + 1", [2, None, None, 31], [1]),
        ("TRY_CAST(a AS INTEGER)", [1, None, None, 30], []),
        ("CASE WHEN n = 0 THEN 7 ELSE CAST(a AS INTEGER) END", [1, 7, None, 30], []),
        ("10 % n", [0, None, None, 10], [1]),
        ("n // n", [1, None, None, 1], [1]),
        ("n + 9223372036854775806", [2**63 - 1, 2**63 - 2, None, None], [3]),
        ("json_extract_string(tags, '$[0]')", ["1", None, None, "b"], [1]),
        ("tags ->> 0", ["1", None, None, "b"], [1]),
        ("CAST(tags AS VARCHAR[])", ['["1","2"]', None, None, '["b"]'], [1]),
        ("CAST(string_split(a, ',') AS INTEGER[])", ["[1]", None, None, "[30]"], [1]),
        ("list_transform(string_split(a, ','), lambda x: CAST(x AS INTEGER))", ["[1]", None, None, "[30]"], [1]),
        ("decode(raw)", ["x", None, None, ""], [1]),
        ("TRY(decode(raw))", ["x", None, None, ""], []),
        ("CAST(a AS INTEGER) + CAST(a AS INTEGER)", [2, None, None, 60], [1]),
        ("length(decode(raw)) + length(decode(raw))", [2, None, None, 0], [1]),
        ("TRY(CAST(a AS INTEGER) + CAST(a AS INTEGER))", [2, None, None, 60], []),
        ("split_part(CAST(CAST(a AS DECIMAL(8, 2)) AS VARCHAR), '.', 1)", ["1", None, None, "30"], [1]),
        ("strptime(a, '%d') IS NOT NULL", [True, None, False, True], [1]),
        ("CAST(CAST(a AS INTEGER) AS VARCHAR) || customer.city", ["1Graz", None, None, "30"], [1]),
        ("CAST(a AS INTEGER) > 5 AND ok", [False, None, None, True], [1]),
        ("ok OR CAST(a AS INTEGER) > 5", [True, None, None, True], [1]),
        ("chr(CAST(n AS INTEGER) - 1) IS NULL", [False, None, True, None], [1, 3]),
        ("1", [1, 1, 1, 1], []),
    ],
)
def test_rows_that_raise_fail_and_others_have_values(engine: Engine, text: str, values: list[Any], failed: list[int]) -> None:
    result = evaluate(engine, table(), checked(text))
    assert (result.values[0].to_pylist(), failures(result)) == (values, [(0, row, "expression_error") for row in failed])


@pytest.mark.parametrize(("text", "failed"), [("1 / n", [1]), ("ln(f)", [1, 3]), ("CAST('inf' AS FLOAT) * f", [0, 1, 3]), ("sqrt(f)", [3])])
def test_floats_that_are_not_finite_fail(engine: Engine, text: str, failed: list[int]) -> None:
    result = evaluate(engine, table(), checked(text))
    assert failures(result) == [(0, row, "not_finite") for row in failed]
    assert [result.values[0][row].as_py() for row in failed] == [None] * len(failed)


@pytest.mark.parametrize(
    ("text", "values", "failed"),
    [
        ("[f / n, 1.0]", ["[0.5,1.0]", None, "[null,1.0]", "[-2.168404344971009e-19,1.0]"], [1]),
        ("{'NaN': f}", ['{"NaN":0.5}', '{"NaN":0.0}', '{"NaN":null}', '{"NaN":-1.0}'], []),
        ("json_array('Infinity', a)", ['["Infinity","1"]', '["Infinity","x"]', '["Infinity",null]', '["Infinity","30"]'], []),
    ],
)
def test_json_with_a_float_not_finite_fails(engine: Engine, text: str, values: list[Any], failed: list[int]) -> None:
    result = evaluate(engine, table(), checked(text))
    assert (result.values[0].to_pylist(), failures(result)) == (values, [(0, row, "not_finite") for row in failed])


def test_integers_beyond_the_wanted_type_fail(engine: Engine) -> None:
    result = evaluate(engine, table(), checked("n", wanted="int8"))
    assert (result.values[0].to_pylist(), failures(result)) == ([1, 0, None, None], [(0, 3, "expression_error")])
    assert result.values[0].type == pa.int8()


def test_each_expression_fails_for_itself(engine: Engine) -> None:
    result = evaluate(engine, table(), checked("CAST(a AS INTEGER)", "n", "10 % n", "ln(f)"))
    assert failures(result) == [(0, 1, "expression_error"), (2, 1, "expression_error"), (3, 1, "not_finite"), (3, 3, "not_finite")]
    assert result.values[1].to_pylist() == [1, 0, None, 2**62]


def test_a_message_names_the_expression_and_its_inputs(engine: Engine) -> None:
    rows = [{**ROWS[1], "a": "x" * 100, "raw": b"\xff\x00"}, {**ROWS[1], "a": "it's"}]
    texts = [" CAST(a\n AS INTEGER)  + n", "length(decode(raw))", "1 / n", "CASE WHEN ok IS NOT NULL THEN CAST(a AS DOUBLE) * f END"]
    found = [failure.messages for failure in evaluate(engine, table(rows), checked(*texts)).failed]
    assert found == [
        [f"CAST(a AS INTEGER) + n fails with a = '{'x' * 37}...', n = 0", "CAST(a AS INTEGER) + n fails with a = 'it's', n = 0"],
        ["length(decode(raw)) fails with raw = 0xff00", "length(decode(raw)) fails with raw = 0xff"],
        ["1 / n is not finite with n = 0"] * 2,
        [
            f"{texts[3]} fails with a = '{'x' * 37}...', f = 0.0, ok = false",
            f"{texts[3]} fails with a = 'it's', f = 0.0, ok = false",
        ],
    ]


def test_a_message_is_short_whatever_is_read(engine: Engine) -> None:
    fields = {f"field_{at}": "string" for at in range(40)}
    rows = pa.table({name: ["long" * 1_000] for name in fields})
    text = f"CAST(concat({', '.join(fields)}) AS INTEGER)"
    (failure,) = evaluate(engine, rows, [check(text, fields, "sql")]).failed
    assert len(failure.messages[0]) < 500
    assert failure.messages[0].endswith(", and 34 more")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_values_and_messages_are_the_same_however_cut(engine: Engine, size: int) -> None:
    expressions = checked("CAST(a AS INTEGER)", "10 % n", "ln(f)", "decode(raw)", "customer.city")
    rows = table(ROWS * 3)
    whole = evaluate(engine, rows, expressions)
    values: list[list[Any]] = [[] for _ in expressions]
    failed = []
    for first in range(0, len(rows), size):
        part = evaluate(engine, rows.slice(first, size), expressions)
        for column, value in zip(values, part.values, strict=True):
            column += value.to_pylist()
        failed += [
            (one.index, first + int(row), text, one.code) for one in part.failed for row, text in zip(one.rows, one.messages, strict=True)
        ]
    assert values == [value.to_pylist() for value in whole.values]
    listed = [(one.index, int(row), text, one.code) for one in whole.failed for row, text in zip(one.rows, one.messages, strict=True)]
    assert sorted(failed) == sorted(listed)


def test_few_rows_that_raise_are_tried_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    real = evaluate_module._tried

    def counted(engine: Engine, rows: pa.Table, expression: Expression) -> Any:
        tried.append(len(rows))
        return real(engine, rows, expression)

    monkeypatch.setattr(evaluate_module, "_tried", counted)
    texts = (
        "CAST(a AS INTEGER) * 2",
        "10 % n",
        "tags ->> 0",
        "strptime(a, '%d') IS NULL",
        "CASE WHEN ok THEN n ELSE CAST(a AS INTEGER) END",
    )
    result = evaluate(engine, table(ROWS * 100), checked(*texts))
    assert tried == [100] * len(texts)
    assert {len(failure.rows) for failure in result.failed} == {100}


def test_instants_are_read_and_given(engine: Engine) -> None:
    rows = pa.table({"seen": pa.array([90_000_000_000, None], pa.timestamp("us", tz="UTC"))})
    fields = {"seen": "timestamp"}
    texts = [("seen", None), ("date_trunc('day', seen)", "timestamp"), ("date_trunc('day', seen)", None)]
    result = evaluate(engine, rows, [check(text, fields, "sql", wanted) for text, wanted in texts])
    days = [datetime(1970, 1, 2, 1, tzinfo=UTC), datetime(1970, 1, 2, tzinfo=UTC), "1970-01-02 00:00:00+00"]
    assert [value.to_pylist() for value in result.values] == [[day, None] for day in days]
    (failure,) = evaluate(engine, rows, [check("CAST(concat(seen) AS INTEGER)", fields, "sql")]).failed[:1]
    assert failure.messages[0] == "CAST(concat(seen) AS INTEGER) fails with seen = 1970-01-02 01:00:00+00:00"


def test_no_rows_and_no_expressions_are_answered(engine: Engine) -> None:
    empty = evaluate(engine, table([]), checked("CAST(a AS INTEGER)", "1"))
    assert ([(value.type, len(value)) for value in empty.values], empty.failed) == ([(pa.int32(), 0), (pa.int32(), 0)], [])
    assert evaluate(engine, table(), []) == Evaluated([], [])


def test_columns_in_several_chunks_are_one_batch(engine: Engine) -> None:
    rows = pa.concat_tables([table(), table()])
    result = evaluate(engine, rows, checked("CAST(a AS INTEGER)", "n"))
    assert [value.to_pylist() for value in result.values] == [[1, None, None, 30] * 2, [1, 0, None, 2**62] * 2]
    assert failures(result) == [(0, 1, "expression_error"), (0, 5, "expression_error")]


def test_a_fault_of_the_engine_is_no_failure_of_rows() -> None:
    with open_engine() as engine:
        engine.connection.close()
        with pytest.raises(duckdb.ConnectionException):
            evaluate(engine, table(), checked("CAST(a AS INTEGER)"))


def test_no_memory_is_no_failure_of_rows() -> None:
    class Exhausted(Engine):
        selects = 0

        def select(self, sql: str, rows: pa.Table) -> list[pa.Array]:
            self.selects += 1
            if self.selects == 1:
                raise duckdb.OutOfMemoryException("Out of Memory Error: failed to allocate")
            return super().select(sql, rows)

    with open_engine() as engine, pytest.raises(duckdb.OutOfMemoryException):
        evaluate(Exhausted(Database(engine.connection), lambda _: None), table(), checked("n"))


def test_a_translated_expression_fails_where_expr_lang_does(engine: Engine) -> None:
    result = evaluate(engine, table(), [check("ok ? int(a) : 0", FIELDS, "expr"), check("n > 0", FIELDS, "expr")])
    assert [value.to_pylist() for value in result.values] == [[1, 0, None, 30], [True, False, None, True]]
    assert [(failure.index, failure.messages) for failure in result.failed] == [
        (0, ["ok ? int(a) : 0 fails with a = null, ok = null"]),
        (1, ["n > 0 fails with n = null"]),
    ]
