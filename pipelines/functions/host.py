"""The process of a function host: its start, one call at a time, its time and memory limits, and its end.

A host has the files of its function in a directory of its own, and of the environment only what a Python process needs: no password that
a pipeline file refers to. It is in a session of its own, so a Ctrl-C for the runner does not reach a function. It ends with its caller.
"""

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
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import IO

import pyarrow as pa

from pipelines.errors import HaltError
from pipelines.functions.child import ANSWER, FAILED, REQUEST
from pipelines.functions.code import archive_of, unpack
from pipelines.functions.spec import Function

_CHILD = Path(__file__).with_name("child.py")
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
_MIB = 1024 * 1024
_PIPE_BYTES = _MIB
"""Linux's default for the largest pipe of an unprivileged user."""
Failure = tuple[int, str, str]
"""The number of a row, the code, and the message."""


@dataclass(frozen=True)
class Limits:
    """Limits of a host. `start_seconds`: for its imports. `restart_bytes`: resident memory after a call from which on it is started anew.

    `address_bytes`: address space, beyond which the function's allocations fail.
    """

    start_seconds: float = 60.0
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


class Host:
    """The host of one function; serves one thread at a time. It starts at its first call, and again after one that has ended it."""

    def __init__(self, function: Function, limits: Limits = LIMITS) -> None:
        self.function, self._limits = function, limits
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process unless it is up. Raise HaltError if the function cannot be imported."""
        if self._process is not None:
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
        directory = self._directory = Path(mkdtemp(prefix="tallyflow-function-"))
        unpack(archive_of(self.function.code), directory)
        variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        # The order of sets of texts must not differ from process to process.
        variables |= {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1", "TZ": "UTC"}
        command, pipe = [sys.executable, "-s", str(_CHILD)], subprocess.PIPE
        self._process = subprocess.Popen(  # noqa: S603
            command, bufsize=0, stdin=pipe, stdout=pipe, env=variables, cwd=directory, start_new_session=True
        )
        for end in self._pipes():
            os.set_blocking(end.fileno(), False)
            fcntl.fcntl(end.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        start = {
            "root": str(directory),
            "function": self.function.reference,
            "mode": self.function.mode,
            "outputs": self.function.output_schema.serialize().to_pybytes().hex(),
            "address_bytes": self._limits.address_bytes,
        }
        self._exchange(json.dumps(start).encode() + b"\n", self._limits.start_seconds)

    def call(self, batch: pa.RecordBatch, alone: bool = False) -> Answer:
        """Call the function for a batch, or, `alone`, for each of its rows as a batch of one row.

        Raise CallFailedError for the whole batch, CallTimeoutError or HostDiedError with the host gone, HaltError if it cannot start.
        """
        self.start()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        payload = sink.getvalue().to_pybytes()
        try:
            content = self._exchange(REQUEST.pack(alone, len(payload)) + payload, self.function.timeout_ms / 1000)
            return self._read(content, batch.num_rows)
        except (CallTimeoutError, HostDiedError):
            self.close()
            raise

    def close(self) -> None:
        """End the process and remove its files."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._close_pipes()
            self._process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def forget(self) -> None:
        """Let go of the process without ending it: it belongs to the process from which this one was forked."""
        if self._process is not None:
            self._close_pipes()
            # Its end is its parent's to wait for.
            self._process.returncode = 0
        self._process = self._directory = None

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _close_pipes(self) -> None:
        for pipe in self._pipes():
            pipe.close()

    def _exchange(self, request: bytes, seconds: float) -> bytes:
        """Send bytes, and return the content of the answer."""
        into, out = (pipe.fileno() for pipe in self._pipes())
        deadline, left, received, length = time.monotonic() + seconds, memoryview(request), bytearray(), ANSWER.size
        while len(received) < length:
            ready = select.select([out], [into] if left else [], [], max(0.0, deadline - time.monotonic()))
            if not any(ready):
                raise CallTimeoutError(f"takes longer than {seconds:g} s")
            if ready[1]:
                left = left[_written(into, left) :]
            if ready[0]:
                part = os.read(out, 4 * _MIB)
                if not part:
                    raise HostDiedError(self._ending())
                received += part
            if len(received) >= ANSWER.size:
                length = ANSWER.size + ANSWER.unpack_from(received)[2]
        return self._checked(bytes(received))

    def _checked(self, received: bytes) -> bytes:
        status, resident, _ = ANSWER.unpack_from(received)
        content = received[ANSWER.size :]
        if status == FAILED:
            raise CallFailedError(*json.loads(content))
        if resident > self._limits.restart_bytes:
            self.close()
        return content

    def _read(self, content: bytes, count: int) -> Answer:
        """Return the answer. Raise HostDiedError for one that our side of the host does not give: the function has changed it."""
        try:
            (size,) = struct.unpack_from("<Q", content)
            with pa.ipc.open_stream(content[8 : 8 + size]) as reader:
                rows = reader.read_all()
            rows.validate(full=True)
            failures = [(int(row), str(code), str(message)) for row, code, message in json.loads(content[8 + size :])]
        except (struct.error, pa.ArrowException, ValueError, TypeError) as error:
            raise HostDiedError(f"gives an answer that cannot be read: {type(error).__name__}") from error
        numbers = rows.column(0).to_numpy()
        is_sound = rows.schema.names[1:] == self.function.output_schema.names and (numbers[1:] > numbers[:-1]).all()
        if not is_sound or max([-1, *numbers[-1:], *(row for row, _, _ in failures)]) >= count:
            raise HostDiedError("gives an answer to another question")
        return Answer(rows, failures)

    def _ending(self) -> str:
        assert self._process is not None
        code = self._process.wait()
        return f"ends its process by {signal.Signals(-code).name}" if code < 0 else f"ends its process with exit code {code}"


def _written(pipe: int, left: memoryview) -> int:
    try:
        return os.write(pipe, left)
    except BrokenPipeError:
        # The end is seen when the answer is read.
        return len(left)
