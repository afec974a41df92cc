"""docs/types.md and `tallyflow types` say what the conversions do."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.cli.app import app
from pipelines.process.steps.mapping.columns import targets_of
from pipelines.process.steps.mapping.convert import FLOAT_TARGETS, INSTANT_TARGETS, INTEGER_TARGETS, STRING_TARGETS
from pipelines.process.steps.mapping.docs import TARGET, named, render
from pipelines.process.steps.mapping.matrix import COLUMNS, FORMS, matrix
from pipelines.types.columns import parse_type
from pipelines.types.fields import SOURCE_TYPES
from pipelines.types.time_formats import check_format, is_format

PAGE = Path(__file__).parents[3] / TARGET


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `python -m pipelines.process.steps.mapping.docs`"


def test_the_matrix_has_every_conversion_and_no_other() -> None:
    pairs = {(pair.source, pair.column) for pair in matrix()}
    assert pairs == {(source, column) for source in SOURCE_TYPES for column in targets_of(source)}
    assert {*COLUMNS} >= STRING_TARGETS | FLOAT_TARGETS | INTEGER_TARGETS | INSTANT_TARGETS
    assert {column for _, column in pairs} == {*COLUMNS}
    named_by_forms = {(source, column) for form in FORMS for source in form.sources for column in form.columns}
    assert named_by_forms == pairs


def test_types_and_formats_of_the_forms_are_sound() -> None:
    for form in FORMS:
        for column in form.columns:
            assert parse_type(form.column_type(column)).name == column
        if is_format(form.notation):
            check_format(form.notation)


def test_integers_are_named_as_ranges_and_others_one_by_one() -> None:
    assert named(["Int8", "Int16", "Int32", "Int64", "Int128", "Int256", "Float32"]) == "Int8 to Int256, Float32"
    assert named(["Int8", "Int16"]) == "Int8, Int16"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["types", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_the_command_shows_a_pair_with_its_forms() -> None:
    code, shown = run("string", "--column", "DateTime")
    assert code == 0
    assert "format %d/%m/%Y" in shown
    assert "unit s" in shown


def test_the_command_says_that_a_pair_is_not_there() -> None:
    assert run("bool", "--column", "UInt8") == (1, "a bool cannot become UInt8\n")


@pytest.mark.parametrize(
    ("arguments", "message"), [(["text"], "no source type 'text'"), (["--column", "Nothing"], "no column type 'Nothing'")]
)
def test_an_unknown_type_is_named(arguments: list[str], message: str) -> None:
    code, shown = run(*arguments)
    assert code == 2
    assert message in shown


def test_the_json_has_an_entry_for_each_form_of_each_pair() -> None:
    code, shown = run("--json")
    assert code == 0
    entries = json.loads(shown)
    assert len(entries) == sum(len(pair.forms) for pair in matrix())
    assert {"field": "bool", "column": "Bool", "form": "true or false", "lost": "nothing"} in entries
