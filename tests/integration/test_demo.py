"""The demo, as a new user runs it, with fewer events."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.pipeline_case import PATIENCE_SECONDS

from resources.local.stack import LocalStack

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def test_the_demo_accounts_for_all_and_drops_only_the_copies(running_stack: LocalStack, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipelines.cli", "demo", "--count", "6000", "--bad-share", "0.01"]
    # At the home of the session's servers: it finds them running, and leaves them so.
    environment = {**os.environ, "TALLYFLOW_HOME": str(running_stack.home)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "All 6,000 records accounted for, exactly once." in ended.stdout
    assert "copies produced were dropped." in ended.stdout
