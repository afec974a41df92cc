"""Outputs that are arrays, objects, maps and decimals: the text that the parser makes of such a value, or a failure of its row alone."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.functions.calls import Hosts
from pipelines.functions.child import RowsError, text_of
from pipelines.functions.spec import Function
from pipelines.process.steps.parse import parse
from pipelines.protocol.records import HEADERS_TYPE, INSTANT, OVERSIZE_TYPE, POSITION_FIELDS
from pipelines.types.duckdb import open_engine
from pipelines.types.fields import ParsedField

Write = Callable[..., Function]
DECIMAL = "from decimal import Decimal\n"


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def made(write: Write, hosts: Hosts, kind: str, source: str, mode: str, rows: int = 1) -> tuple[list[Any], list[tuple[int, str, str]]]:
    called = hosts.call(write(DECIMAL + source, mode=mode, outputs=(("x", kind),)), ids(*range(rows)))
    return called.outputs.column("x").to_pylist(), list(called.failures)


def each(values: Iterable[str]) -> str:
    """The source of a function that returns one value for each record, by its number: a host takes longer to start than to call."""
    return f"def f(record):\n    return {{'x': [{', '.join(f'lambda: {value}' for value in values)}][record['id']]()}}\n"


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (
            "array",
            {
                "[1, None, 'é', 2.5, True]": '[1,null,"é",2.5,true]',
                "({'a': (1, 2)},)": '[{"a":[1,2]}]',
                "'[1,  {\"a\" : 1.0}]'": '[1,{"a":1.0}]',
                "None": None,
            },
        ),
        ("object", {"{'a': {'b': []}, 'c': Decimal('1.50')}": '{"a":{"b":[]},"c":"1.50"}'}),
        ("map", {"{}": "{}"}),
        ("decimal", {"Decimal('1.50')": "1.50", "Decimal('1E+3')": "1000", "12": "12", "'-0.125'": "-0.125", "None": None}),
    ],
)
def test_a_value_of_a_dict_becomes_text(write: Write, hosts: Hosts, kind: str, texts: dict[str, str | None]) -> None:
    assert made(write, hosts, kind, each(texts), "row", rows=len(texts)) == ([*texts.values()], [])


COLUMNS: list[tuple[str, str, list[str | None]]] = [
    ("array", "pa.array([[1, None], [], None])", ["[1,null]", "[]", None]),
    ("array", "pa.array([[{'a': 1}], [{'a': None}], []])", ['[{"a":1}]', '[{"a":null}]', "[]"]),
    ("object", "pa.array([{'a': 'x', 'b': [1]}, None, {'a': None, 'b': None}])", ['{"a":"x","b":[1]}', None, '{"a":null,"b":null}']),
    ("map", "pa.array([[('k', 1)], [], None], pa.map_(pa.string(), pa.int64()))", ['{"k":1}', "{}", None]),
    ("array", "pa.array(['[1]', None, '[ ]'])", ["[1]", None, "[]"]),
    ("decimal", "pa.array([Decimal('1.50'), None, Decimal('-2')], pa.decimal128(9, 2))", ["1.50", None, "-2.00"]),
    ("decimal", "pa.array([1, None, -3])", ["1", None, "-3"]),
    ("object", "pa.nulls(3)", [None, None, None]),
]


@pytest.mark.parametrize(("kind", "column", "texts"), COLUMNS)
def test_a_column_of_a_batch_becomes_text(shared: tuple[Write, Hosts], kind: str, column: str, texts: list[str | None]) -> None:
    """One host returns the columns of all cases."""
    write, hosts = shared
    columns = ", ".join(f"'x{number}': {one}.slice(0, len(batch))" for number, (_, one, _) in enumerate(COLUMNS))
    outputs = tuple((f"x{number}", one) for number, (one, _, _) in enumerate(COLUMNS))
    called = hosts.call(write(f"{DECIMAL}def f(batch):\n    return pa.record_batch({{{columns}}})\n", outputs=outputs), ids(*range(3)))
    found = called.outputs.column(f"x{COLUMNS.index((kind, column, texts))}")
    assert (found.to_pylist(), called.failures) == (texts, [])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "array",
            {
                "{'a': 1}": "returns 'x' as dict {'a': 1}, no array",
                "'[1'": "returns 'x' as text '[1' that is no JSON",
                "[float('nan')]": "something that holds nan, which JSON has not",
                "'[NaN]'": "something that holds NaN, which JSON has not",
                "'[1e400]'": "something that holds inf, which JSON has not",
                "[{1, 2}]": "something that holds set {1, 2}, which JSON has not",
                "['\\ud800']": "returns 'x' with text that is not UTF-8",
            },
        ),
        (
            "object",
            {
                "[1]": "returns 'x' as list [1], no object",
                '\'{"a": 1, "a": 2}\'': "returns 'x' as JSON with a key twice",
                "{1: 'a'}": "an object with the key 1, which is no text",
            },
        ),
        ("map", {"'[1]'": "returns 'x' as str '[1]', no map"}),
        (
            "decimal",
            {
                "1.5": "returns 'x' as float 1.5, no decimal",
                "True": "returns 'x' as bool True, no decimal",
                "'seven'": "returns 'x' as str 'seven', no decimal",
                "Decimal('NaN')": "no decimal",
                "Decimal('1E+1000000')": "no decimal",
            },
        ),
    ],
)
def test_another_form_fails_its_row_alone(write: Write, hosts: Hosts, kind: str, words: dict[str, str]) -> None:
    values = [value for other in words for value in ("None", other)] + ["None"]
    texts, failures = made(write, hosts, kind, each(values), "row", rows=len(values))
    assert texts == [None] * (len(words) + 1)
    assert [(number, code) for number, code, _ in failures] == [(number, "python_rows") for number in range(1, len(values), 2)]
    assert [wanted for wanted, (_, _, message) in zip(words.values(), failures, strict=True) if wanted not in message] == []


def test_a_text_of_a_batch_that_is_no_json_fails_its_row_alone(write: Write, hosts: Hosts) -> None:
    texts = ["[1]", "[1", '{"a": 1}', None]
    column = "pa.array([texts[n] for n in batch['id'].to_pylist()], pa.string())"
    source = f"def f(batch):\n    texts = {texts}\n    return pa.record_batch({{'x': {column}}})\n"
    found, failures = made(write, hosts, "array", source, "batch", rows=4)
    assert found == ["[1]", None]
    assert [(number, code) for number, code, _ in failures] == [(1, "python_rows"), (2, "python_rows")]


@pytest.mark.parametrize(("kind", "column"), [("array", "struct"), ("object", "list<"), ("decimal", "double"), ("map", "bool")])
def test_a_column_of_another_type_is_found_at_load(write: Write, hosts: Hosts, kind: str, column: str) -> None:
    types = {"struct": "pa.struct([('a', pa.int64())])", "list<": "pa.list_(pa.int64())", "double": "pa.float64()", "bool": "pa.bool_()"}
    source = f"def f(batch):\n    return pa.record_batch({{'x': pa.nulls(len(batch), {types[column]})}})\n"
    with pytest.raises(ValueError, match=rf"returns 'x' as {column}.*, no {kind}"):
        hosts.check(write(source, outputs=(("x", kind),)))


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(-1e15, 1e15)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.lists(JSON_VALUES, max_size=4))
def test_text_reads_back_as_the_value(value: list[Any]) -> None:
    text = text_of(value, "x", "array")
    assert text is not None
    assert json.loads(text) == value
    assert text_of(text, "x", "array") == text


def test_text_is_what_the_parser_makes_of_the_same_value() -> None:
    value = [1, None, {"é": ["\u2028", "a\\b", 2.5, -0.0, 12345678901234567890]}, True, ""]
    records = pa.table(
        {
            "key": pa.nulls(1, pa.binary()),
            "value": [json.dumps({"x": value}).encode()],
            "headers": pa.nulls(1, HEADERS_TYPE),
            "timestamp": pa.nulls(1, INSTANT),
            "oversize": pa.nulls(1, OVERSIZE_TYPE),
            **{field.name: pa.nulls(1, field.type) for field in POSITION_FIELDS},
        }
    )
    with open_engine() as engine:
        parsed = parse(engine, records, [ParsedField("x", "array")]).accepted
    assert parsed.column("x").to_pylist() == [text_of(value, "x", "array")]


def test_a_value_nested_without_end_fails() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises((RowsError, RecursionError)):
        text_of(value, "x", "array")
