"""The existence of a pipeline, and the one message for a pipeline that does not exist."""

from typing import Protocol

from pipelines.errors import DataLossError, HaltError
from pipelines.protocol.naming import ROLES, Names


class Stream(Protocol):
    """The facts of a stream: its last sequence, 0 if it never held a message, and its size; `max_bytes` is -1 without a limit."""

    @property
    def last_sequence(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...


class Streams(Protocol):
    """The part of JetStream that is needed: a stream by its name, None if it does not exist."""

    def state(self, stream: str) -> Stream | None: ...


class NeverStartedError(HaltError):
    """A pipeline has no streams: it never ran, or was deleted."""


def never_started(pipeline: str) -> NeverStartedError:
    """Return the error of every command for a pipeline without streams."""
    return NeverStartedError(f"pipeline {pipeline} was never started: it has no streams; start it with `tallyflow run`")


def check_started(log: Streams, names: Names) -> None:
    """Raise NeverStartedError for a pipeline without a ledger; raise DataLossError if another of its streams holds messages.

    In that case the ledger is lost. Empty streams belong to a start that was killed while it created them.
    """
    if log.state(names.stream("ledger")) is not None:
        return
    left = [name for name in map(names.stream, ROLES) if (state := log.state(name)) is not None and state.last_sequence]
    if not left:
        raise never_started(names.pipeline)
    if log.state(names.stream("ledger")) is not None:
        # The first start has created it since.
        return
    raise DataLossError(
        f"pipeline {names.pipeline}: its stream {names.stream('ledger')} does not exist, but {', '.join(left)} still hold messages; "
        "restore all streams from one moment, or delete the pipeline and start it anew"
    )
