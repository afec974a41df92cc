"""How a runner ends: every step is made, whatever another one meets."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from pipelines.config import parse
from pipelines.config.docs import EXAMPLE
from pipelines.errors import RetryableError
from pipelines.runner.runner import Runner, RunOptions


@pytest.mark.parametrize("failing", ["stop", "close", "release"])
def test_a_failed_step_of_the_end_stops_no_other_step(failing: str, tmp_path: Path) -> None:
    made: list[str] = []
    reported: list[str] = []

    def step(name: str) -> None:
        made.append(name)
        if name == failing:
            raise RetryableError("NATS did not answer")

    runner = Runner(
        parse(EXAMPLE, name="example", environment={}), EXAMPLE, tmp_path, RunOptions(), lambda *pipeline: None, reported.append
    )
    runner.sources = {"ingest": SimpleNamespace(close=lambda: step("close"))}
    runner.leases = {"ingest": SimpleNamespace(release=lambda: step("release"))}
    runner.log = SimpleNamespace(close=lambda: step("log"))
    runner._epochs = SimpleNamespace(stop=lambda: step("stop"))
    runner._shut_down()
    assert made == ["stop", "close", "release", "log"]
    assert reported == ["while stopping: RetryableError: NATS did not answer"]
    assert runner.stop_requested.is_set()
