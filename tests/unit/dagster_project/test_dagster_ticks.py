"""What a tick, and a run of checks, makes of systems that are silent or away: the others are seen all the same, and an end is told once."""

import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_project import checks as table_checks
from dagster_project.checks import results
from dagster_project.pipeline_files import Pipeline
from dagster_project.sensors import side_by_side
from dagster_project.sensors.observation import RUNNING, Reported, Seen, ended_as
from dagster_project.sensors.side_by_side import look_at_all
from pipelines.control.job_state import JobState
from pipelines.errors import HaltError, RetryableError, TallyflowError
from pipelines.proof.checks.evaluate import CheckResult


def pipeline(name: str) -> Pipeline:
    config: Any = SimpleNamespace(pipeline_id=name)
    return Pipeline(Path(name), config)


def test_a_pipeline_that_is_silent_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "WITHIN", timedelta(seconds=1))
    released = threading.Event()

    def look(one: Pipeline) -> str:
        if one.key == "silent":
            released.wait()
        if one.key == "away":
            raise RetryableError("NATS did not answer")
        return one.key

    found = {one.key: answer for one, answer in look_at_all([pipeline(name) for name in ("silent", "away", "here")], look)}
    # What hangs does not keep the code server from ending.
    assert [one.daemon for one in threading.enumerate() if one.name == "tick"] == [True]
    released.set()
    assert found["here"] == "here"
    reported = {name: str(answer) for name, answer in found.items() if isinstance(answer, TallyflowError)}
    assert reported == {"silent": "no answer within 1 s", "away": "NATS did not answer"}


def test_each_check_stands_alone_and_passing_faults_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_checks, "PAUSES", (0.0, 0.0))
    asked: list[str] = []
    logged: list[str] = []

    def evaluate(name: str) -> CheckResult:
        asked.append(name)
        if name == "never started":
            raise HaltError("pipeline p was never started")
        if name == "away" or (name == "away for a moment" and asked.count(name) < 3):
            raise RetryableError("ClickHouse did not answer")
        if name == "faulty":
            raise KeyError("secret-7d1f")
        return CheckResult(name, success="well")

    names = ["away", "never started", "faulty", "away for a moment", "here"]
    found = {one.check: one for one in results(names, evaluate, logged.append)}
    assert {name: one.passed for name, one in found.items()} == {
        "never started": False,
        "faulty": False,
        "here": True,
        "away for a moment": True,
        "away": False,
    }
    assert found["away"].message == "could not be checked: ClickHouse did not answer"
    assert not found["away"].is_mild
    assert asked.count("away") == 3
    assert (asked.count("never started"), asked.count("faulty")) == (1, 1)
    assert "secret" not in found["faulty"].message
    assert "KeyError" in logged[0]


def stopped(state: Any) -> Seen:
    return Seen(JobState("p", state, "last words"), None, state)


def test_an_end_is_reported_once() -> None:
    reported = ended_as(stopped("stopped"), Reported(state=RUNNING))
    assert reported == {"state": "stopped", "message": "last words"}
    assert ended_as(stopped("stopped"), Reported(state="stopped")) == {}
    assert ended_as(stopped("halted"), Reported(state="stopped"))["state"] == "halted"
    assert ended_as(stopped("stopped"), Reported()) == {}
    assert ended_as(Seen(None, None, "not seen in time"), Reported(state=RUNNING)) == {}
    assert ended_as(Seen(JobState("p", "waiting", pid=1), None), Reported(state=RUNNING)) == {}
