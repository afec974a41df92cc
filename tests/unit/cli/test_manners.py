"""Manners of the command: a default file, the version, completion, and examples that parse."""

import os
import shlex
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pipelines.cli.__main__ import main
from pipelines.cli.app import app
from pipelines.cli.examples import EXAMPLES, commands_of
from pipelines.config.docs import EXAMPLE

WIDE = {"COLUMNS": "200", "TALLYFLOW_PIPELINE": ""}


def test_every_command_has_examples_and_no_other_has() -> None:
    assert {words for words, _ in commands_of(app)} == {*EXAMPLES}


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_an_example_parses(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("orders.yaml", "orders.tests.yaml", "edited.yaml", "edited.jsonl", "sample.ndjson"):
        Path(name).touch()
    words = shlex.split(line.removeprefix('eval "$(').removesuffix(')"').partition(" > ")[0])
    assert words[0] == "tallyflow"
    command, arguments = typer.main.get_command(app), words[1:]
    context = None
    while hasattr(command, "commands"):
        context = command.context_class(command, parent=context)
        _, command, arguments = command.resolve_command(context, arguments)
    assert command.make_context(command.name, list(arguments)).command is command


@pytest.mark.parametrize("words", EXAMPLES)
def test_help_shows_the_examples(words: str) -> None:
    shown = CliRunner().invoke(app, [*words.split(), "--help"], env=WIDE)
    assert shown.exit_code == 0
    lines = [line.strip() for line in shown.stdout.splitlines()]
    assert lines[lines.index("Examples:") + 1 :][: len(EXAMPLES[words])] == list(EXAMPLES[words])


def test_the_version_is_that_of_the_package() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.stdout) == (0, f"tallyflow {version('tallyflow')}\n")


@pytest.mark.parametrize(("given", "threads"), [(None, "1"), ("4", "4")])
def test_numpy_starts_no_threads_that_nobody_asks_for(given: str | None, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    if given:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", given)
    monkeypatch.setattr(os, "umask", lambda mask: mask)
    seen = list[str | None]()
    monkeypatch.setattr("pipelines.cli.app.app", lambda: seen.append(os.environ.get("OPENBLAS_NUM_THREADS")))
    main()
    assert seen == [threads]


def test_completion_is_offered_for_a_shell() -> None:
    shown = CliRunner().invoke(app, [], env={"_TALLYFLOW_COMPLETE": "source_bash"}, prog_name="tallyflow")
    assert "_TALLYFLOW_COMPLETE=complete_bash" in shown.stdout
    words = {"_TALLYFLOW_COMPLETE": "complete_bash", "COMP_WORDS": "tallyflow sta", "COMP_CWORD": "1"}
    assert CliRunner().invoke(app, [], env=words, prog_name="tallyflow").stdout.split() == ["status", "state"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with what is no pipeline file."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"a.tests.yaml": "pipeline_id: no\n", "compose.yaml": "services: {}\n", "b.json": '{"x": "pipeline_id"}'}.items():
        Path(name).write_text(text)
    return tmp_path


def ddl(*arguments: str, **environment: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["ddl", *arguments], env={**WIDE, **environment})
    return found.exit_code, " ".join(found.output.replace("│", "").split())


def test_the_only_pipeline_file_here_is_the_default(here: Path) -> None:
    Path("mine.yaml").write_text(EXAMPLE)
    code, shown = ddl()
    assert (code, "CREATE TABLE" in shown) == (0, True)


def test_a_json_file_may_be_the_only_one(here: Path) -> None:
    Path("mine.json").write_text('{"version": "v3", "pipeline_id": "mine"}')
    code, shown = ddl()
    assert (code, "mine.json: " in shown) == (2, True)


def test_without_one_pipeline_file_the_choice_is_named(here: Path) -> None:
    assert ddl()[0] == 2
    assert "name the pipeline file: there is none in this directory" in ddl()[1]
    for name in ("one.yaml", "two.yml"):
        Path(name).write_text(EXAMPLE)
    assert "name one of one.yaml, two.yml, or set TALLYFLOW_PIPELINE" in ddl()[1]


def test_the_variable_names_the_file_and_an_argument_wins(here: Path) -> None:
    for name in ("one.yaml", "two.yaml"):
        Path(name).write_text(EXAMPLE)
    Path("none.yaml").write_text("pipeline_id: 7\n")
    assert ddl(TALLYFLOW_PIPELINE="one.yaml")[0] == 0
    assert ddl("none.yaml", TALLYFLOW_PIPELINE="one.yaml")[0] == 2
    assert ddl(TALLYFLOW_PIPELINE="lost.yaml")[0] == 2
