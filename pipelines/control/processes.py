"""Processes that outlive the command that started them, and signals that never reach another process.

A process is identified by its pid *and* the moment the kernel started it, so a reused pid is not mistaken for it.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import psutil

from pipelines.private import OWNER_ONLY

Popen = Callable[..., "subprocess.Popen[bytes]"]
POLL_SECONDS = 0.02
_LAST_THREAD_SECONDS = 30.0

# Children of this process: they stay zombies until it asks for their exit status.
_CHILDREN: dict[int, "subprocess.Popen[bytes]"] = {}
_EXIT_CODES: dict["ProcessIdentity", int] = {}


@dataclass(frozen=True)
class ProcessIdentity:
    """A pid and the mark of its start, which together are never reused (the mark names the boot and the clock tick)."""

    pid: int
    start: str

    @property
    def since(self) -> datetime | None:
        """The time at which the process started (UTC), or None if it has ended."""
        if not self.is_running():
            return None
        try:
            return datetime.fromtimestamp(psutil.Process(self.pid).create_time(), UTC)
        except psutil.NoSuchProcess:
            return None

    def is_running(self) -> bool:
        """Return whether this very process lives; a zombie does not."""
        child = _CHILDREN.get(self.pid)
        if child is not None and child.poll() is not None:
            _EXIT_CODES[self] = child.returncode
            # Another thread may have noticed it, too.
            _CHILDREN.pop(self.pid, None)
        return start_mark(self.pid) == self.start

    def exit_code(self) -> int | None:
        """Return the exit code of a child of this process that has ended; None for any other process."""
        child = _CHILDREN.get(self.pid)
        if child is not None and not self.is_running():
            # A process is a zombie from the end of its main thread on, and has an exit status when its last thread has ended.
            child.wait(_LAST_THREAD_SECONDS)
            self.is_running()
        return _EXIT_CODES.get(self)

    def rss_bytes(self) -> int | None:
        """Return the resident memory of the process and its children, or None if it has ended."""
        if not self.is_running():
            return None
        try:
            process = psutil.Process(self.pid)
            return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
        except psutil.NoSuchProcess:
            return None

    def send(self, number: signal.Signals) -> None:
        """Signal the process; do nothing if it has ended, even if its pid was reused."""
        if not hasattr(os, "pidfd_open"):
            if self.is_running():
                os.kill(self.pid, number)
            return
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            # The descriptor pins the process, so the check and the signal concern the same one.
            if self.is_running():
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return
        finally:
            os.close(descriptor)

    def wait_ended(self, timeout: timedelta) -> bool:
        """Return whether the process has ended within `timeout`."""
        deadline = time.monotonic() + timeout.total_seconds()
        while self.is_running():
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def stop(self, patience: timedelta) -> None:
        """End the process with SIGTERM, and with SIGKILL after `patience`; return after it has ended."""
        self.send(signal.SIGTERM)
        if not self.wait_ended(patience):
            self.kill()

    def kill(self) -> None:
        """End the process with SIGKILL; return after it has ended. Raise TimeoutError if the kernel holds it for 30 s."""
        self.send(signal.SIGKILL)
        if not self.wait_ended(timedelta(seconds=30)):
            raise TimeoutError(f"killing process {self.pid}: still there 30 s after SIGKILL")


def identify(pid: int) -> ProcessIdentity | None:
    start = start_mark(pid)
    return None if start is None else ProcessIdentity(pid, start)


def spawn(
    command: Sequence[str], environment: Mapping[str, str], directory: Path, output: Path, popen: Popen = subprocess.Popen
) -> ProcessIdentity:
    """Start a detached process: own session, no terminal, no open files of ours; only this user can read the files that it creates.

    Its stdout and stderr are written to `output`, which is truncated, then appended to, so that it may be truncated again while the process
    writes. Raise OSError if the program cannot be started.
    """
    with output.open("wb"), output.open("ab") as log:
        child = popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=dict(environment),
            start_new_session=True,
            umask=OWNER_ONLY,
        )
    _CHILDREN[child.pid] = child
    # A child that has ended already is a zombie until it is polled, so it still has its start mark.
    return ProcessIdentity(child.pid, start_mark(child.pid, zombie=True) or "ended at once")


def stop_with_input() -> None:
    """Send SIGTERM to this process when its standard input ends: the process at the other end of the pipe has ended, or was killed."""

    def read_to_end() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read_to_end, name="input", daemon=True).start()


def host_mark() -> str:
    """Return a mark that changes with every start of the host, or of the container of this process."""
    # If the first process is hidden from other users (hidepid), the mark is the boot alone.
    return start_mark(1) or (start_mark(os.getpid()) or "").partition("/")[0]


def start_mark(pid: int, *, zombie: bool = False) -> str | None:
    """Return the time at which the kernel started `pid`, as a mark that does not move with the wall clock; None if it has ended.

    The mark does not repeat after a boot. `psutil.Process.create_time` adds the boot's wall-clock time, so it moves when the clock is set;
    a mark on disk must not.
    """
    try:
        # proc(5): field 2 is the name in parentheses and may hold anything, field 3 is the state, field 22 the start in ticks since boot.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        boot = _boot_mark()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in "ZX" and not zombie:
        return None
    return f"{boot}/{fields[19]}"


@cache
def _boot_mark() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
