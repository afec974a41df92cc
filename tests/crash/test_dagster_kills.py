"""Dagster's processes and the runner that it started, killed one after the other, under load: a real `dagster dev` and a real runner."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from dagster_graphql import DagsterGraphQLClient, DagsterGraphQLClientError
from requests import RequestException
from support.pipeline_case import PipelineCase, kill, wait_until, with_text

from pipelines.control.control import find_runners

pytestmark = pytest.mark.crash
ROOT = Path(__file__).resolve().parents[2]
CODE_SERVER, DAEMON, RUN_WORKER = "api grpc", "_daemon", "spawn_main"


class Dagster:
    """`dagster dev` over the file of a case; its history lies in `home`, so that another one goes on with it."""

    def __init__(self, case: PipelineCase, home: Path) -> None:
        self._case, self._home = case, home
        home.mkdir(exist_ok=True)
        shutil.copy(ROOT / "dagster_project" / "dagster.yaml", home)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        words = ["-m", "dagster", "dev", "-h", "127.0.0.1", "-p", str(self._port), "-m", "dagster_project.definitions"]
        environment = case.environment(DAGSTER_HOME=str(home), TALLYFLOW_PIPELINES=str(case.directory), DAGSTER_DISABLE_TELEMETRY="yes")
        with (home / "dev.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words], env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._client = wait_until(self._connected, "Dagster's web server")

    def _connected(self) -> DagsterGraphQLClient | None:
        assert self.process.poll() is None, (self._home / "dev.log").read_text()[-4000:]
        try:
            return DagsterGraphQLClient("127.0.0.1", port_number=self._port)
        except (DagsterGraphQLClientError, RequestException):
            return None

    def launch(self, job: str, **config: Any) -> str:
        """Id of the new run."""
        run_config = {"ops": {f"{job}_op": {"config": {"pipeline": self._case.pipeline, **config}}}}

        def submitted() -> str | None:
            try:
                return self._client.submit_job_execution(job, run_config=run_config)
            except DagsterGraphQLClientError as error:
                # The code location is still being loaded.
                print(error)
                return None

        return str(wait_until(submitted, f"a run of {job}"))

    def status(self, run: str) -> str:
        return str(self._client.get_run_status(run).value)

    def members(self, words: str) -> list[psutil.Process]:
        """Live processes of this Dagster, which all share its session, by their command lines."""
        found = []
        for one in psutil.process_iter(["pid"]):
            try:
                if os.getsid(one.pid) == self.process.pid:
                    found.append(one)
            except ProcessLookupError:
                continue
        return with_text(found, words)

    def end(self) -> None:
        for one in self.members(""):
            one.kill()
        self.process.wait(60)


@contextmanager
def dagster(case: PipelineCase, home: Path) -> Iterator[Dagster]:
    made = Dagster(case, home)
    try:
        yield made
    finally:
        made.end()
        print((home / "dev.log").read_text()[-6000:])


def _runners(case: PipelineCase) -> list[int]:
    return [one["pid"] for one in find_runners(case.names.directory(case.home))]


def _goes_on(case: PipelineCase) -> None:
    """Events sent from now on arrive."""
    case.wait_count(case.good + 300)


@pytest.fixture
def started(case: PipelineCase, tmp_path: Path) -> Iterator[PipelineCase]:
    case.create_topic()
    yield case
    for pid in _runners(case):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not _runners(case), "the end of the runner")


def test_the_stream_survives_kills_of_dagster_and_of_itself(started: PipelineCase, tmp_path: Path) -> None:
    case = started
    home = tmp_path / "dagster"
    with dagster(case, home) as first:
        run = first.launch("start_pipeline")
        wait_until(lambda: first.status(run) == "SUCCESS", "a started pipeline")
        (pid,) = _runners(case)
        with case.load():
            _goes_on(case)
            # The runner: the daemon's sensor starts it again.
            os.kill(pid, signal.SIGKILL)
            second = wait_until(lambda: [one for one in _runners(case) if one != pid], "another runner")
            _goes_on(case)
            # The code server.
            for one in first.members(CODE_SERVER):
                kill(one)
            _goes_on(case)
            assert _runners(case) == second
            # The daemon; `dagster dev` ends without it.
            for one in first.members(DAEMON):
                kill(one)
            _goes_on(case)
            assert _runners(case) == second
    with dagster(case, home) as again, case.load():
        # The run worker, in the middle of a restart: what it had launched, or what the sensor starts, is one runner.
        again.launch("restart_pipeline")
        for one in wait_until(lambda: again.members(RUN_WORKER), "a run worker"):
            kill(one)
        wait_until(lambda: (case.ask() or {}).get("ready"), "a ready runner")
        _goes_on(case)
        assert len(_runners(case)) == 1
    assert case.invoke("stop", str(case.file)).exit_code == 0
    case.warm_run()
    case.check()
