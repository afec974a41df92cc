"""docs/quickstart.md works as it stands: every command is run, every line of output that it shows comes."""

import os
import shlex
from pathlib import Path

import pytest
from support.pipeline_case import PipelineCase
from support.quickstart import assert_shown, steps

pytestmark = pytest.mark.integration


def run(case: PipelineCase, command: str) -> str:
    """What the command says; a run goes without Spark, and a statement by the test's own client."""
    words = shlex.split(command)
    if words[0] == "curl":
        case.client().command(Path(words[-1].removeprefix("@")).read_text().rstrip(";\n"))
        return ""
    assert words[0] == "tallyflow"
    ended = case.invoke(*words[1:], COLUMNS="160", CLICKSTREAM_TOPIC=os.environ["CLICKSTREAM_TOPIC"])
    assert ended.exit_code == 0, ended.output
    return ended.stdout + ended.stderr


def test_the_quickstart_works_as_it_stands(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(case.directory)
    for command, shown in steps():
        if command.startswith("export "):
            monkeypatch.setenv(*command.removeprefix("export ").split("="))
            continue
        if command.startswith("eval "):
            # The servers of the tests are those that `tallyflow env` would name.
            continue
        assert_shown(command, shown, run(case, command))
    assert case.client().query("SELECT count() FROM shop_clicks").result_rows == [(5000,)]
