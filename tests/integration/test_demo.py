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
    command = [sys.executable, "-m", "pipelines.cli", "demo", "--count", "2000", "--bad-share", "0.01", *options]
    # At the home of the session's servers: it finds them running, and leaves them so.
    environment = {**os.environ, "TALLYFLOW_HOME": str(stack.home)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd=directory)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


ACCOUNTED = "All {} records accounted for, exactly once. Dropped as they must be: {} duplicates, {} filtered records."


@pytest.mark.crash
def test_a_demo_with_spark_accounts_for_all_after_a_kill(running_stack: LocalStack, tmp_path: Path) -> None:
    shown = demo(running_stack, tmp_path, "--example", "orders", "--kill")
    assert "the runner ended with -9; " in shown
    assert ACCOUNTED.format("2,000", "199", "0") in shown


@pytest.mark.crash
@pytest.mark.usefixtures("plain_commands")
@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("clickstream", ("2,000", "134", "699")),
        ("restaurants", ("2,000", "199", "0")),
        ("customers", ("2,400", "199", "0")),
        ("fraud", ("2,000", "48", "1,496")),
    ],
)
def test_each_example_accounts_for_all_after_a_kill(case: PipelineCase, name: str, figures: tuple[str, ...]) -> None:
    home = str(case.stack.home)
    shown = case.invoke("demo", "--count", "2000", "--bad-share", "0.01", "--example", name, "--kill", TALLYFLOW_HOME=home)
    assert shown.exit_code == 0, shown.output
    assert "the runner ended with -9; " in shown.stdout
    assert ACCOUNTED.format(*figures) in shown.stdout
