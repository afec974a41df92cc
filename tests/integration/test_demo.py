"""The demo, as a new user runs it, with fewer events."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase

from resources.local.stack import LocalStack

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def demo(stack: LocalStack, directory: Path, *options: str) -> str:
    """Return what a demo with few events prints; it has ended with 0."""
    command = [sys.executable, "-m", "pipelines.cli", "demo", "--count", "6000", "--bad-share", "0.01", *options]
    # At the home of the session's servers: it finds them running, and leaves them so.
    environment = {**os.environ, "TALLYFLOW_HOME": str(stack.home)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd=directory)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


ACCOUNTED = "All {} records accounted for, exactly once. Dropped as they must be: {} duplicates, {} filtered records."


def test_a_demo_accounts_for_all_after_a_kill(running_stack: LocalStack, tmp_path: Path) -> None:
    shown = demo(running_stack, tmp_path, "--example", "fraud", "--kill")
    assert "the runner ended with -9; " in shown
    assert ACCOUNTED.format("6,000", "141", "4,490") in shown


@pytest.mark.usefixtures("plain_commands")
@pytest.mark.parametrize(
    ("name", "options", "figures"),
    [
        ("orders", (), ("6,000", "617", "0")),
        ("clickstream", ("--kill",), ("6,000", "417", "2,044")),
        ("restaurants", ("--kill",), ("6,000", "617", "0")),
        ("customers", ("--kill",), ("6,400", "617", "0")),
    ],
)
def test_each_example_accounts_for_all_that_it_sends(
    case: PipelineCase, name: str, options: tuple[str, ...], figures: tuple[str, ...]
) -> None:
    home = str(case.stack.home)
    shown = case.invoke("demo", "--count", "6000", "--bad-share", "0.01", "--example", name, *options, TALLYFLOW_HOME=home)
    assert shown.exit_code == 0, shown.output
    assert ("the runner ended with -9; " in shown.stdout) == bool(options)
    assert ACCOUNTED.format(*figures) in shown.stdout
