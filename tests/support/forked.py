"""Processes of our own code that are forked from one which has imported it: 0.2 s of CPU where a Python of its own takes 1.2 s.

`python -m support.forked` is that one. It takes requests from the socket at its stdin and ends with it. It has one thread, no connection
and no file: what it shares with those it forks is modules. Each is forked by a process between them, which waits for it and reports.
"""

import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

MODULES = (
    "support.plain_runner",
    "pipelines.connectors.sinks.clickhouse",
    "pipelines.connectors.sources.kafka",
    "pipelines.dead_letters.reprocess",
    "pipelines.runner.preflight",
    "pipelines.runner.runner",
    "pipelines.sink.ledger_copier",
)
"""What a runner imports by its end, with all that they import."""
_MAX_REQUEST_BYTES = 1 << 17
_OWN_DIRECTORY = Path(__file__).resolve().parent.parent


class Forked:
    """A process as `subprocess.Popen` makes and shows it, as far as cases use one; `command` is `module:function` and arguments."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        stdout: IO[Any] | int = subprocess.PIPE,
        stderr: IO[Any] | int = subprocess.PIPE,
        umask: int = -1,
        **always: Any,
    ) -> None:
        """`always`: no stdin, a session of its own, and text; PIPE is a file, which `communicate` reads at the end."""
        self.args = command
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._out = _new_file() if stdout == subprocess.PIPE else stdout
        self._err = _new_file() if stderr == subprocess.PIPE else self._out if stderr == subprocess.STDOUT else stderr
        # Each message is one packet.
        self._report, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps({"command": list(command), "environment": dict(env), "directory": str(cwd), "umask": umask})
        with theirs:
            socket.send_fds(_origin(), [request.encode()], [theirs.fileno(), self._out.fileno(), self._err.fileno()])
        self.pid = int(self._report.recv(32))

    def poll(self) -> int | None:
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        said = []
        for file in (self._out, self._err):
            file.seek(0)
            said.append(file.read().decode())
        return said[0], said[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended_within(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and _is_readable(self._report, timeout):
                self.returncode = int(self._report.recv(32))
                self._report.close()
            return self.returncode


def _is_readable(report: socket.socket, timeout: float | None) -> bool:
    # Not select(), which refuses a file number of 1024 and above.
    with selectors.DefaultSelector() as waiting:
        waiting.register(report, selectors.EVENT_READ)
        return bool(waiting.select(timeout))


def _new_file() -> IO[bytes]:
    return os.fdopen(os.memfd_create("said"), "w+b")


@cache
def _origin() -> socket.socket:
    """The socket of this process's own `support.forked`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        subprocess.Popen(
            [sys.executable, "-m", "support.forked"],
            stdin=theirs,
            env={**os.environ, "PYTHONPATH": str(_OWN_DIRECTORY)},
            start_new_session=True,
        )
    return ours


def _serve() -> None:
    """Forks what is asked for until the other end is closed; returns in a process that is to become one of those, as that process."""
    # Those that report are waited for by nobody.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # What a collection of a child touches is copied: 0.4 s of CPU. At a child's end DuckDB calls leaked what is not collected.
    gc.freeze()
    requests = socket.socket(fileno=0)
    while True:
        text, files, *_ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 3)
        if not text:
            os._exit(0)
        if os.fork() == 0:
            requests.detach()
            _fork_and_report(*files)
            return _become(json.loads(text), *files[1:])
        for file in files:
            os.close(file)


def _fork_and_report(report: int, *files: int) -> None:
    """Returns in a child; its parent tells of it and ends with it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(report)
        return
    for file in (0, 1, 2, *files):
        os.close(file)
    os.write(report, b"%d" % pid)
    os.write(report, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _become(request: Mapping[str, Any], *outputs: int) -> None:
    os.setsid()
    os.chdir(request["directory"])
    if request["umask"] >= 0:
        os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, file in enumerate(outputs, 1):
        os.dup2(file, number)
        os.close(file)
    sys.argv = request["command"]
    module, _, function = sys.argv[0].partition(":")
    getattr(import_module(module), function)()


if __name__ == "__main__":
    for name in MODULES:
        import_module(name)
    _serve()
