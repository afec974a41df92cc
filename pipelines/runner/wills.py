"""The last wills of Python workers: whom the daemon that has forked them tells when they have ended with their executor.

Without its word the runner would wait until their right to the shares has run out: nobody else on their host may be able to tell.
"""

import os
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from tempfile import TemporaryFile

from pipelines.connectors.nats.client import JetStream
from pipelines.engine.line import Gone, NatsLine, Process
from pipelines.engine.run_spec import read_run
from pipelines.errors import TallyflowError
from pipelines.protocol.codec import Form, FormError, Text, from_text, to_text


@dataclass(frozen=True)
class Will(Form):
    """The process that leaves it, and the runner to tell: the text of its run, and its subject; both empty to withdraw the will."""

    process: Process
    run_text: Text = ""
    subject: Text = ""


class Wills:
    """The wills of the processes that are forked from this one, in a file without a name that they share with it."""

    def __init__(self) -> None:
        # Unbuffered and appended to: the lines of several processes stay whole. It is open as long as its processes live.
        self._file = TemporaryFile("ab+", buffering=0)  # noqa: SIM115

    def leave(self, will: Will) -> None:
        """Replace the will of its process. Raise OSError if the disk is full."""
        self._file.write(to_text(will).encode() + b"\n")

    def left(self) -> list[Will]:
        """Return the last will of each process that has not withdrawn it; without those that a full disk has cut."""
        self._file.seek(0)
        found: dict[Process, Will] = {}
        for line in self._file.read().splitlines():
            with suppress(FormError):
                will = from_text(Will, line)
                found[will.process] = will
        return [will for will in found.values() if will.subject]


_here: Wills | None = None
"""The wills that this process shares with the daemon that has forked it; None without one of ours."""


def begin() -> None:
    """Let all processes that are forked from this one from now on leave wills. Where no file can be made there are none."""
    global _here
    with suppress(OSError):
        _here = Wills()


def leave(process: Process, run_text: str, subject: str) -> None:
    """Leave the will of this process, if a daemon of ours is there to read it."""
    if _here is not None:
        with suppress(OSError):
            _here.leave(Will(process, run_text, subject))


def withdraw(process: Process) -> None:
    """Withdraw the will of this process, whose share has ended in good order."""
    leave(process, "", "")


def left_behind() -> list[Will]:
    """Wait until every process that this one has forked has ended, when no thread of them runs any more; return their wills."""
    with suppress(ChildProcessError):
        while True:
            os.wait()
    return _here.left() if _here is not None else []


def tell(wills: Iterable[Will]) -> None:
    """Tell each runner which of its processes have ended. Where it cannot be told, their rights run out by themselves."""
    processes: dict[tuple[str, str], list[Process]] = {}
    for will in wills:
        processes.setdefault((will.run_text, will.subject), []).append(will.process)
    for (run_text, subject), ended in processes.items():
        with suppress(TallyflowError):
            config = read_run(run_text).config
            with closing(JetStream.of(config, "tallyflow-daemon")) as log:
                NatsLine(log, subject).note_gone(Gone(tuple(ended)))
