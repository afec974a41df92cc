"""The process of a function host: its start, one call at a time, its time and memory limits, and its end.

A host has the files of its function in a directory of its own, and of the environment only what a Python process needs: no password that
a pipeline file refers to. It is in a session of its own, so a Ctrl-C for the runner does not reach a function. It ends with its caller.
"""

import atexit
import fcntl
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import IO

import numpy as np
import pyarrow as pa

from pipelines.errors import HaltError
from pipelines.functions.child import ANSWER, FAILED, REQUEST, WRITTEN
from pipelines.functions.code import archive_of, unpack
from pipelines.functions.spark_errors import LOST
from pipelines.functions.spec import PYTHON_DIED, Function

_CHILD = [str(Path(__file__).with_name("child.py"))]
_SPARK_CHILD = ["-m", "pipelines.functions.spark_child"]
_PASSED_ON = ("PATH", "JAVA_HOME", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
_MIB = 1024 * 1024
_ENDING_SECONDS = 5.0
_PIPE_BYTES = _MIB
"""Linux's default for the largest pipe of an unprivileged user."""
Failure = tuple[int, str, str]
"""The number of a row, the code, and the message."""


@dataclass(frozen=True)
class Limits:
    """Limits of a host. `start_seconds`: for its imports. `restart_bytes`: resident memory after a call from which on it is started anew.

    `address_bytes`: address space, beyond which the function's allocations fail; not of a host with a JVM, whose heap is limited.
    `spark_start_seconds`: for a session of Spark and its first job.
    """

    start_seconds: float = 60.0
    spark_start_seconds: float = 180.0
    restart_bytes: int = 1024 * _MIB
    address_bytes: int = 4096 * _MIB


LIMITS = Limits()


class CallFailedError(Exception):
    """A call has raised, or has returned something else than what is declared."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class CallTimeoutError(Exception):
    """A call has taken longer than its limit; the host was killed."""


class HostDiedError(Exception):
    """The host has ended in a call; the message says how."""


@dataclass(frozen=True)
class Answer:
    """The rows that pass, with `child.ROW` first, and the rows that fail, in any order."""

    rows: pa.Table
    failures: list[Failure]


@dataclass(frozen=True)
class _Opened:
    """A process that waits for its function, and the empty directory for the files of that."""

    process: subprocess.Popen[bytes]
    directory: Path

    def close(self) -> None:
        """End the process and remove its files."""
        # The function may have started processes of its own, which are in its session.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._close_pipes()
        shutil.rmtree(self.directory, ignore_errors=True)

    def forget(self) -> None:
        """Let go of the process without ending it: it belongs to the process from which this one was forked."""
        self._close_pipes()
        # Its end is its parent's to wait for.
        self.process.returncode = 0

    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self.process.stdin is not None and self.process.stdout is not None
        return self.process.stdin, self.process.stdout

    def _close_pipes(self) -> None:
        for pipe in self.pipes():
            pipe.close()


_early: list[_Opened] = []


def open_early(count: int) -> None:
    """Start the processes of so many functions by row or batch before their files are known: a process takes 0.1 s for its imports."""
    _early.extend(_opened(_CHILD) for _ in range(count))


def _close_early() -> None:
    while _early:
        _early.pop().close()


def _forget_early() -> None:
    while _early:
        _early.pop().forget()


atexit.register(_close_early)
os.register_at_fork(after_in_child=_forget_early)


def _opened(child: Sequence[str]) -> _Opened:
    directory = Path(mkdtemp(prefix="tallyflow-function-"))
    variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # Neither the order of sets of texts nor, by the number of numpy's threads, the last bits of a sum may differ from host to host.
    variables |= {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
    variables |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1", "TZ": "UTC"}
    command, pipe = [sys.executable, "-s", *child], subprocess.PIPE
    try:
        process = subprocess.Popen(  # noqa: S603
            command, bufsize=0, stdin=pipe, stdout=pipe, env=variables, cwd=directory, start_new_session=True
        )
    except OSError:
        directory.rmdir()
        raise
    opened = _Opened(process, directory)
    try:
        for end in opened.pipes():
            os.set_blocking(end.fileno(), False)
            fcntl.fcntl(end.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        opened.close()
        raise
    return opened


class Host:
    """The host of one function; serves one thread at a time. It starts at its first call, and again after one that has ended it."""

    def __init__(self, function: Function, limits: Limits = LIMITS) -> None:
        self.function, self._limits = function, limits
        self._opened: _Opened | None = None
        self._resident = 0
        self.seconds_per_row = 0.0
        """The pace of the last call that has ended well; zero before the first."""

    @property
    def pid(self) -> int | None:
        return self._opened.process.pid if self._opened else None

    def start(self) -> None:
        """Start the process unless it is up.

        Raise HaltError if the function cannot be imported, or, by batch, fails for a batch of no rows.
        """
        if self._opened is not None:
            return
        try:
            self._open()
        except (CallFailedError, CallTimeoutError, HostDiedError) as error:
            self.close()
            raise HaltError(f"loading function {self.function.reference}: {error}") from None
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        has_spark = self.function.mode == "pyspark"
        opened = self._opened = _opened(_SPARK_CHILD) if has_spark else _early.pop() if _early else _opened(_CHILD)
        unpack(archive_of(self.function.code), opened.directory)
        start = {
            "root": str(opened.directory),
            "function": self.function.reference,
            "mode": self.function.mode,
            "inputs": self.function.input_schema.serialize().to_pybytes().hex(),
            "outputs": self.function.output_schema.serialize().to_pybytes().hex(),
            "makes_several": self.function.makes_several,
            "written": {name: kind for name, kind in self.function.outputs if kind in WRITTEN},
            "address_bytes": 0 if has_spark else self._limits.address_bytes,
        }
        self._exchange([json.dumps(start).encode() + b"\n"], self._limits.spark_start_seconds if has_spark else self._limits.start_seconds)
        if self._resident > self._limits.restart_bytes:
            taken = f"takes {self._resident // _MIB:,} MiB before its first record"
            raise CallFailedError(PYTHON_DIED, f"{taken}, and may take {self._limits.restart_bytes // _MIB:,}")

    def call(self, batch: pa.RecordBatch, alone: bool = False) -> Answer:
        """Call the function for a batch, or, `alone`, for each of its rows as a batch of one row.

        Raise CallFailedError for the whole batch, CallTimeoutError or HostDiedError with the host gone, HaltError if it cannot start.
        """
        self.start()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        payload = memoryview(sink.getvalue())
        try:
            content = self._exchange([REQUEST.pack(alone, len(payload)), payload], self.function.timeout_ms / 1000)
            answer = self._read(content, batch.num_rows)
        except (CallTimeoutError, HostDiedError):
            self.close()
            raise
        if self._resident > self._limits.restart_bytes:
            self.close()
        return answer

    def close(self) -> None:
        """End the process and remove its files."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def forget(self) -> None:
        """Let go of the process without ending it: it belongs to the process from which this one was forked."""
        if self._opened is not None:
            self._opened.forget()
            self._opened = None

    def _exchange(self, request: Sequence[bytes | memoryview], seconds: float) -> memoryview:
        """Send the parts of a request, and return the content of the answer."""
        try:
            status, resident, content = self._answered(request, time.monotonic() + seconds)
        except TimeoutError:
            raise CallTimeoutError(f"takes longer than {seconds:g} s") from None
        if status == FAILED:
            code, message = json.loads(bytes(content))
            if code == LOST:
                raise HaltError(f"calling function {self.function.reference}: it {message}")
            raise CallFailedError(code, message)
        self._resident = resident
        return content

    def _answered(self, request: Sequence[bytes | memoryview], deadline: float) -> tuple[int, int, memoryview]:
        left = [memoryview(part) for part in request]
        # A host that has ended is noticed when its answer is read.
        into, _ = self._pipes()
        while left and self._is_writable(deadline):
            left = _written(into.fileno(), left)
        status, resident, length = ANSWER.unpack(self._received(ANSWER.size, deadline))
        return status, resident, self._received(length, deadline)

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._opened is not None
        return self._opened.pipes()

    def _is_writable(self, deadline: float) -> bool:
        """Wait until the host takes more of a request, True, or has answered. Raise TimeoutError at the deadline."""
        into, out = (pipe.fileno() for pipe in self._pipes())
        return into in _ready({out: select.POLLIN, into: select.POLLOUT}, deadline)

    def _received(self, size: int, deadline: float) -> memoryview:
        """Return the next bytes of the answer."""
        received = memoryview(bytearray(size))
        at, out = 0, self._pipes()[1].fileno()
        while at < size:
            _ready({out: select.POLLIN}, deadline)
            count = os.readv(out, [received[at:]])
            if count == 0:
                raise HostDiedError(self._ending())
            at += count
        return received

    def _read(self, content: memoryview, count: int) -> Answer:
        """Return the answer. Raise HostDiedError for one that our side of the host does not give: the function has changed it."""
        try:
            (size,) = struct.unpack_from("<Q", content)
            with pa.ipc.open_stream(content[8 : 8 + size]) as reader:
                rows = reader.read_all()
            rows.validate(full=True)
            failures = [(int(row), str(code), str(message)) for row, code, message in json.loads(bytes(content[8 + size :]))]
        except (struct.error, pa.ArrowException, ValueError, TypeError) as error:
            raise HostDiedError(f"gives an answer that cannot be read: {type(error).__name__}") from error
        numbers = rows.column(0).to_numpy()
        follows = np.greater_equal if self.function.makes_several else np.greater
        is_sound = rows.schema.names[1:] == self.function.output_schema.names and follows(numbers[1:], numbers[:-1]).all()
        if not is_sound or max([-1, *numbers[-1:], *(row for row, _, _ in failures)]) >= count:
            raise HostDiedError("gives an answer to another question")
        return Answer(rows, failures)

    def _ending(self) -> str:
        assert self._opened is not None
        try:
            code = self._opened.process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            return "closes the pipes of its process"
        return f"ends its process by {signal.Signals(-code).name}" if code < 0 else f"ends its process with exit code {code}"


def _ready(events: Mapping[int, int], deadline: float) -> set[int]:
    """Wait for one of the events by file descriptor; return the descriptors. Raise TimeoutError at the deadline."""
    # Not `select`, which takes no descriptor from 1024 on: a runner has one per segment of the key store.
    poll = select.poll()
    for descriptor, event in events.items():
        poll.register(descriptor, event)
    found = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
    if not found:
        raise TimeoutError
    return {descriptor for descriptor, _ in found}


def _written(pipe: int, left: Sequence[memoryview]) -> list[memoryview]:
    """Write what the pipe takes; return the rest."""
    try:
        count = os.writev(pipe, left)
    except BrokenPipeError:
        # The end is seen when the answer is read.
        return []
    rest = []
    for part in left:
        rest.append(part[count:])
        count -= min(count, len(part))
    return [part for part in rest if len(part)]
