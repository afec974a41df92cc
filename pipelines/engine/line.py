"""The line between the processes of a run and its runner: what they say, and how it travels over NATS.

A process joins for a share, and reports every second; an answer extends its right to the share.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from socket import gethostname
from typing import Protocol

from pipelines.connectors.nats.client import JetStream
from pipelines.control.processes import ProcessIdentity, start_mark
from pipelines.engine.failures import from_failure, to_failure
from pipelines.engine.leg import LegStatus
from pipelines.errors import HaltError, RetryableError, TallyflowError
from pipelines.protocol.codec import Count, Digest, F, Flag, Form, FormError, Seconds, Text, from_text, to_text

REPORT_EVERY_SECONDS = 1.0
_FAILED = b"!"
"""What an answer begins with that is an error."""


@dataclass(frozen=True)
class Process(Form):
    """A process: the host and its namespace of process ids, the id, and the mark of its start."""

    host: Text
    pid: Count
    mark: Text

    @classmethod
    def own(cls) -> "Process":
        return cls(_place(), os.getpid(), start_mark(os.getpid()) or "")

    def is_dead(self) -> bool:
        """Return True if it is known to have ended; only a process of this host is."""
        return self.host == _place() and not ProcessIdentity(self.pid, self.mark).is_running()

    def __str__(self) -> str:
        return f"{self.host.partition(' ')[0]}:{self.pid}"


@cache
def _place() -> str:
    namespace = ""
    with suppress(OSError):
        # Containers may share a host's name and number their processes on their own.
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return f"{gethostname()} {namespace}"


@dataclass(frozen=True)
class Join(Form):
    """A process asks for a share: this one, or another that nobody works on.

    `release`: the versions with which it works. `gone`: holders of shares that ended on its host, where it can tell. `epoch`: that of the
    query whose task asks. `task`: Spark's id of it.
    """

    share: Count
    process: Process
    release: dict[Text, Text] = field(default_factory=dict)
    gone: tuple[Process, ...] = ()
    epoch: Count = 0
    task: Text = ""


@dataclass(frozen=True)
class Joined(Form):
    """The share: its epochs by leg, or the number of its `lane`; neither while no share is free (ask again), nor if there is no use for it.

    `lanes`: how many the run may have. `held_by`: the processes that have the shares, if none is free. `ended_epoch`, `settings`: as in
    `Answer`.
    """

    share: Count = 0
    epochs: dict[Text, Count] = field(default_factory=dict)
    lane: Count = 0
    lanes: Count = 0
    is_stopping: Flag = False
    held_by: tuple[Process, ...] = ()
    ended_epoch: Count = 0
    settings: Text = ""


@dataclass(frozen=True)
class Report(Form):
    """The state of a share's legs. `notes`: what the runner shall announce.

    `task`: Spark's id of the task that holds the share, empty if none does; it is of this `epoch` of the query. `has_ended`: the process
    does no more for the share. `settings`: the digest of those that the runner has sent last. `gone`: the processes of the last answer's
    `asked` that have ended.
    """

    share: Count
    process: Process
    legs: dict[Text, LegStatus] = field(default_factory=dict)
    notes: tuple[Text, ...] = ()
    task: Text = ""
    epoch: Count = 0
    has_ended: Flag = False
    settings: Digest = ""
    gone: tuple[Process, ...] = ()


@dataclass(frozen=True)
class Answer(Form):
    """For how many seconds from the report on nobody else is given the share; whether to stop, orderly, or at once (`is_replaced`).

    `lanes`: the numbers of the lanes that work. `ended_epoch`: the last epoch of the query that is over; a task of it ends, its share goes
    on. `settings`: of the file since the last reload (`config.settings`), for a share of legs that has not been sent them; else empty.
    `asked`: the processes beside this one, on its host, for whose share another one waits.
    """

    seconds: Seconds = 0.0
    is_stopping: Flag = False
    is_replaced: Flag = False
    lanes: tuple[Count, ...] = ()
    ended_epoch: Count = 0
    settings: Text = ""
    asked: tuple[Process, ...] = ()


@dataclass(frozen=True)
class Gone(Form):
    """Processes that have ended, as the daemon knows that has forked them."""

    processes: tuple[Process, ...] = ()


class Line(Protocol):
    """What a share's process says to its runner. Raises RetryableError if the runner does not answer."""

    def join(self, join: Join) -> Joined: ...

    def report(self, report: Report) -> Answer: ...

    def note_gone(self, gone: Gone) -> Gone: ...

    def on_stop(self, callback: Callable[[], None]) -> None: ...

    def on_border(self, callback: Callable[[], None]) -> None: ...


def serve(coordinator: Line, log: JetStream, subject: str) -> None:
    """Answer the processes of a run over NATS, below `subject`, for as long as the connection is open."""

    def answered(form: type[F], answer: Callable[[F], Form]) -> Callable[[bytes], bytes]:
        def received(payload: bytes) -> bytes:
            try:
                return to_text(answer(from_text(form, payload))).encode()
            except (TallyflowError, FormError) as error:
                failure = error if isinstance(error, TallyflowError) else HaltError(f"answering at {subject}: {error}")
                return _FAILED + to_failure(failure).encode()

        return received

    def notify(what: str) -> None:
        # The answer to the next report says it too.
        with suppress(RetryableError):
            log.notify(f"{subject}.{what}")

    log.serve(f"{subject}.join", answered(Join, coordinator.join))
    log.serve(f"{subject}.report", answered(Report, coordinator.report))
    log.serve(f"{subject}.gone", answered(Gone, coordinator.note_gone))
    coordinator.on_stop(partial(notify, "stop"))
    coordinator.on_border(partial(notify, "border"))


class NatsLine:
    """The line of a process to its runner, over NATS."""

    def __init__(self, log: JetStream, subject: str) -> None:
        self._log, self._subject = log, subject

    def join(self, join: Join) -> Joined:
        return from_text(Joined, self._ask("join", join))

    def report(self, report: Report) -> Answer:
        return from_text(Answer, self._ask("report", report))

    def note_gone(self, gone: Gone) -> Gone:
        return from_text(Gone, self._ask("gone", gone))

    def _ask(self, what: str, form: Form) -> bytes:
        answer = self._log.request(f"{self._subject}.{what}", to_text(form).encode())
        if answer.startswith(_FAILED):
            raise from_failure(answer.removeprefix(_FAILED).decode())
        return answer

    def on_stop(self, callback: Callable[[], None]) -> None:
        self._log.on_message(f"{self._subject}.stop", callback)

    def on_border(self, callback: Callable[[], None]) -> None:
        self._log.on_message(f"{self._subject}.border", callback)


class Held:
    """The right of this process to a share, as the runner's answers extend it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._until = clock, 0.0
        self.lost = threading.Event()

    def extend(self, asked_at: float, seconds: float) -> None:
        """Note an answer to a report that was sent at `asked_at`."""
        self._until = asked_at + seconds

    @property
    def remaining_seconds(self) -> float:
        return 0.0 if self.lost.is_set() else self._until - self._clock()
