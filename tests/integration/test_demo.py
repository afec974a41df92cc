"""The demo, as a new user runs it, with fewer events."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.pipeline_case import PATIENCE_SECONDS

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


def test_the_demo_accounts_for_all_and_drops_only_the_copies(running_stack: LocalStack, tmp_path: Path) -> None:
    shown = demo(running_stack, tmp_path)
    assert "All 6,000 records accounted for, exactly once. Dropped as they must be: 617 duplicates, 0 filtered records." in shown


@pytest.mark.parametrize(
    ("name", "records", "duplicates", "filtered"),
    [
        ("fraud", "6,000", "141", "4,490"),
        ("clickstream", "6,000", "417", "2,044"),
        ("restaurants", "6,000", "617", "0"),
        ("customers", "6,400", "617", "0"),
    ],
)
def test_a_demo_accounts_for_all_after_a_kill(
    running_stack: LocalStack, tmp_path: Path, name: str, records: str, duplicates: str, filtered: str
) -> None:
    shown = demo(running_stack, tmp_path, "--example", name, "--kill")
    assert "the runner ended with -9; " in shown
    counts = f"{duplicates} duplicates, {filtered} filtered records"
    assert f"All {records} records accounted for, exactly once. Dropped as they must be: {counts}." in shown
