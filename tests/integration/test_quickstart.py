"""docs/quickstart.md works as it stands: every command is run, every line of output that it shows comes."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pipeline_case import PipelineCase

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "quickstart.md"
CHANGING = ((r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\.\d+( UTC)?", "TIME"), (r"[0-9.]+ s\b", "SECONDS"))
"""What differs from one run to the next."""


def steps() -> Iterator[tuple[str, list[str]]]:
    """(command, lines that it shows) of the page's console blocks, in order."""
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.rstrip("\n").split("\n")
            yield command, [line for line in shown if line.strip()]


def plain(text: str) -> str:
    text = " ".join(text.split())
    for pattern, name in CHANGING:
        text = re.sub(pattern, name, text)
    return text


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
    (case.directory / "examples").symlink_to(ROOT / "examples")
    for command, shown in steps():
        if command.startswith("export "):
            monkeypatch.setenv(*command.removeprefix("export ").split("="))
            continue
        if command.startswith("eval "):
            # The servers of the tests are those that `tallyflow env` would name.
            continue
        answer = run(case, command)
        rest = plain(answer)
        for line in shown:
            assert plain(line) in rest, f"{command} did not show {line!r} but {answer}"
            rest = rest[rest.index(plain(line)) + len(plain(line)) :]
    assert case.client().query("SELECT count() FROM shop_clicks").result_rows == [(5000,)]
