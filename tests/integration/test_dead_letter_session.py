"""docs/dead-letters.md is a session that works as it stands: every command is run, every line of output that it shows comes."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pipeline_case import PipelineCase

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "dead-letters.md"
CHANGING = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ UTC", "TIME"),
    (r"partition \d+ offset \d+,? \(?raw position [\d.]+\)?", "PLACE"),
    (r"\b[\d,]+ of [\d,]+ records were", "SHARE were"),
    (r"\d+\.\.\d+", "RANGE"),
)
"""What differs from one run to the next: times, and which record a group names as its example."""


def steps() -> Iterator[tuple[str, list[str]]]:
    """(command, lines that it shows) of the page's console blocks, in order."""
    command, shown = "", []
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                if command:
                    yield command, shown
                command, shown = line[2:], []
            elif line.strip():
                shown.append(line)
    yield command, shown


def plain(text: str) -> str:
    text = " ".join(text.split())
    for pattern, name in CHANGING:
        text = re.sub(pattern, name, text)
    return text


def run(case: PipelineCase, command: str, environment: dict[str, str]) -> str:
    """What the command says. Runs go without Spark, and statements by the test's own client: neither changes what is shown."""
    words = shlex.split(command)
    if words[0] == "curl":
        case.client().command(words[-1])
        return ""
    if words[0] == "tallyflow":
        reported = case.invoke(*words[1:], **environment)
        return reported.stdout + reported.stderr
    ended = subprocess.run(words, capture_output=True, text=True, env=case.environment(**environment), timeout=240)
    return ended.stdout + ended.stderr


def test_a_broken_column_is_seen_mended_and_proven(case: PipelineCase, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"ORDERS_PIPELINE": case.pipeline, "ORDERS_TOPIC": case.topic, "ORDERS_TABLE": case.table}
    environment = {"COLUMNS": "200", **names}
    monkeypatch.chdir(case.directory)
    (case.directory / "examples").symlink_to(ROOT / "examples")
    for command, shown in steps():
        if command.startswith("eval"):
            continue
        answer = run(case, command.replace(" orders ", f" {case.table} "), environment)
        for name, stands_for in ((case.pipeline, "orders-demo"), (case.topic, "orders"), (case.table, "orders")):
            answer = answer.replace(name, stands_for)
        rest = plain(answer)
        for line in shown:
            assert plain(line) in rest, f"{command} did not show {line!r} but {answer}"
            rest = rest[rest.index(plain(line)) + len(plain(line)) :]
