"""`tallyflow dagster` ends what it has started, in a bounded time, whatever that is doing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import psutil
import pytest

from pipelines.cli.dagster import _end, _undisturbed

ENDS_WHEN_ASKED = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
print(flush=True)
signal.sigwait({signal.SIGINT})
sys.exit(7)
"""
DEAF = "import signal, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); time.sleep(600)"
"""A process that Ctrl-C does not end; one that has ended by itself leaves another such."""
LEAVES_ONE = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {DEAF!r}])"


def started(code: str) -> "subprocess.Popen[bytes]":
    """In a session of its own, and at work."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def session(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    return [one for one in psutil.process_iter() if _runs_in(one, process.pid)]


def _runs_in(one: psutil.Process, session: int) -> bool:
    """Whether it does; one that ends between two questions does not."""
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        return os.getsid(one.pid) == session and one.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture(params=[DEAF, LEAVES_ONE], ids=["deaf", "leaves one behind"])
def deaf(request: pytest.FixtureRequest) -> Iterator["subprocess.Popen[bytes]"]:
    process = started(request.param)
    if request.param is LEAVES_ONE:
        process.wait()
    yield process
    for one in session(process):
        one.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_what_does_not_end_when_asked_is_killed_and_named(deaf: "subprocess.Popen[bytes]", capfd: pytest.CaptureFixture[str]) -> None:
    (left,) = session(deaf)
    _end(deaf, timedelta(seconds=0.1))
    assert session(deaf) == []
    assert f"Dagster did not stop within 0 s; killing process {left.pid}." in capfd.readouterr().err


def test_what_ends_when_asked_is_not_killed(capfd: pytest.CaptureFixture[str]) -> None:
    process = started(ENDS_WHEN_ASKED)
    _end(process)
    assert process.returncode == 7
    assert capfd.readouterr().err == ""
    assert process.stdout is not None
    process.stdout.close()


def test_what_ends_during_a_look_is_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    process = started(ENDS_WHEN_ASKED)
    found = psutil.process_iter

    def slowly() -> Iterator[psutil.Process]:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return found()

    monkeypatch.setattr(psutil, "process_iter", slowly)
    _end(process)
    assert process.returncode == 7
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_another_signal_does_not_cut_the_end_short(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with _undisturbed():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
