"""Two runners of one pipeline, started on purpose: at most one writes."""

import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.pipeline_case import PATIENCE_SECONDS, PipelineCase, family_of, wait_until

from pipelines.control.control import find_runners
from pipelines.protocol.naming import ROLES
from pipelines.testing import LEGS

pytestmark = pytest.mark.crash


def _signal_host(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    """The runner and all that it has started, as when their machine pauses."""
    for one in [*family_of(process), process]:
        # A worker may end by itself between the look and the signal.
        with suppress(psutil.NoSuchProcess):
            one.send_signal(number)


def _ends(case: PipelineCase) -> list[int]:
    """Last sequence of each stream but the ledger's lease: what a fenced runner must not move."""
    log = case.log()
    states = [log.state(case.names.stream(role)) for role in ROLES]
    log.close()
    return [state.last_sequence for state in states if state]


def test_a_second_runner_on_one_home_is_refused(case: PipelineCase) -> None:
    case.create_topic()
    first = case.warm_runner(until_caught_up=False)
    thread = case.in_background(first)
    case.send_events(2000)
    second = case.invoke("run", str(case.file))
    assert second.exit_code == 1
    assert "a runner on this host already holds" in second.stderr
    assert "Traceback" not in second.stderr
    case.send_events(2000)
    case.wait_count(4000)
    first.request_stop()
    thread.join(PATIENCE_SECONDS)
    assert all(leg.failure is None for leg in first.legs.values())
    case.check()


def test_a_paused_runner_is_replaced_and_stops_when_it_wakes(case: PipelineCase, tmp_path: Path) -> None:
    case.create_topic()
    first = case.start()
    case.wait_ready(first)
    case.send_events(3000, bad_every=100)
    other_home = tmp_path / "other-host"
    refused = case.invoke("run", str(case.file), TALLYFLOW_HOME=str(other_home))
    assert refused.exit_code == 1
    assert "on another host holds leg" in refused.stderr
    with case.load():
        case.wait_count(case.count() + 1000)
        _signal_host(first, signal.SIGSTOP)
    case.home = other_home
    case.warm_run()
    case.check()

    case.send_events(1000)
    rows, ends = case.count(), _ends(case)
    _signal_host(first, signal.SIGCONT)
    words = first.communicate(timeout=PATIENCE_SECONDS)[1]
    assert first.returncode == 1, words
    assert re.search(r"another runner( \(epoch \d+\))? has (taken this (pipeline|leg) over|already written)", words.splitlines()[-1]), words
    assert (case.count(), _ends(case)) == (rows, ends), "a fenced runner wrote"
    case.warm_run()
    case.check()


def test_a_runner_per_leg_is_killed_alone_and_the_others_go_on(case: PipelineCase) -> None:
    case.create_topic()
    runners = {leg: case.start("--leg", leg) for leg in LEGS}
    case.send_events(2000, bad_every=100)
    case.wait_count(1980)
    runners["process"].kill()
    runners["process"].wait(PATIENCE_SECONDS)
    case.send_events(2000)
    runners["process"] = case.start("--leg", "process")
    # The killed runner's worker may finish its work before Spark ends it, and the new runner cannot be stopped before it is there.
    wait_until(lambda: len(find_runners(case.names.directory(case.home))) == len(LEGS), "all runners")
    case.wait_count(3980)
    stopped = case.command("stop", str(case.file))
    assert (stopped.returncode, stopped.stdout.strip()) == (0, "stopped")
    assert [runners[leg].wait(PATIENCE_SECONDS) for leg in LEGS] == [0, 0, 0]
    case.check()
