import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipelines.control.processes import ProcessIdentity, identify, spawn
from resources.local.processes import HOME_MARK, NAME_MARK, find_marked

SLEEPER = [sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)"]
STUBBORN = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"]


@pytest.fixture
def started() -> Iterator[list[ProcessIdentity]]:
    identities: list[ProcessIdentity] = []
    yield identities
    for identity in identities:
        identity.kill()


def start(command: list[str], directory: Path, started: list[ProcessIdentity]) -> ProcessIdentity:
    output = directory / "console.log"
    identity = spawn(command, {**os.environ, HOME_MARK: str(directory), NAME_MARK: "sleeper"}, directory, output)
    started.append(identity)
    deadline = time.monotonic() + 20
    while "ready" not in output.read_text():
        assert identity.is_running() and time.monotonic() < deadline, output.read_text()
        time.sleep(0.01)
    return identity


def test_process_is_detached_and_known_by_pid_and_start(tmp_path: Path, started: list[ProcessIdentity]) -> None:
    identity = start(SLEEPER, tmp_path, started)
    assert os.getsid(identity.pid) == identity.pid
    assert identify(identity.pid) == identity
    assert identity.since is not None and abs(datetime.now(UTC) - identity.since) < timedelta(minutes=1)
    assert (identity.rss_bytes() or 0) > 1_000_000


def test_reused_pid_is_never_signalled(tmp_path: Path, started: list[ProcessIdentity]) -> None:
    stranger = start(SLEEPER, tmp_path, started)
    ours = ProcessIdentity(stranger.pid, "another-boot/12345")
    assert not ours.is_running()
    ours.send(signal.SIGKILL)
    ours.stop(timedelta(seconds=5))
    ours.kill()
    assert not stranger.wait_ended(timedelta(milliseconds=200))


def test_reused_pid_is_never_signalled_without_descriptors(
    tmp_path: Path, started: list[ProcessIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    stranger = start(SLEEPER, tmp_path, started)
    ProcessIdentity(stranger.pid, "another-boot/12345").kill()
    assert not stranger.wait_ended(timedelta(milliseconds=200))
    stranger.kill()
    assert not stranger.is_running()


def test_stop_kills_what_ignores_the_polite_signal(tmp_path: Path, started: list[ProcessIdentity]) -> None:
    identity = start(STUBBORN, tmp_path, started)
    identity.stop(timedelta(milliseconds=100))
    assert not identity.is_running()
    assert identity.since is None
    assert identity.rss_bytes() is None


def test_ended_child_is_not_left_as_a_zombie(tmp_path: Path, started: list[ProcessIdentity]) -> None:
    identity = start(SLEEPER, tmp_path, started)
    os.kill(identity.pid, signal.SIGKILL)
    assert identity.wait_ended(timedelta(seconds=10))
    with pytest.raises(ProcessLookupError):
        os.kill(identity.pid, 0)


class SeenByTwo(subprocess.Popen[bytes]):
    """A child whose end another thread notices between this thread's question and what it does about the answer."""

    other: ProcessIdentity | None = None

    def poll(self) -> int | None:
        code = super().poll()
        if code is not None and self.other is not None:
            other, self.other = self.other, None
            assert not other.is_running()
        return code


def test_an_end_may_be_noticed_by_two_threads_at_once(tmp_path: Path) -> None:
    children: list[SeenByTwo] = []

    def popen(*arguments: Any, **options: Any) -> SeenByTwo:
        children.append(SeenByTwo(*arguments, **options))
        return children[0]

    identity = spawn(SLEEPER, os.environ, tmp_path, tmp_path / "console.log", popen)
    children[0].other = identity
    children[0].kill()
    assert identity.wait_ended(timedelta(seconds=30))
    assert identity.exit_code() == -signal.SIGKILL


def test_marked_process_is_found_without_its_pid_file(tmp_path: Path, started: list[ProcessIdentity]) -> None:
    identity = start(SLEEPER, tmp_path, started)
    assert find_marked(tmp_path, "sleeper") == [identity]
    assert find_marked(tmp_path, "other") == []
    assert find_marked(tmp_path / "elsewhere", "sleeper") == []


def test_missing_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        spawn([str(tmp_path / "absent")], dict(os.environ), tmp_path, tmp_path / "console.log")
