"""Whether a pipeline is there at all, and the one way of saying that it is not."""

from typing import Protocol

from pipelines.errors import DataLossError, HaltError
from pipelines.protocol.naming import ROLES, Names


class Stream(Protocol):
    """What is asked of a stream: its last sequence, 0 of one that never held a message."""

    @property
    def last_sequence(self) -> int: ...


class Streams(Protocol):
    """What is asked of JetStream: a stream, None where there is none of that name."""

    def state(self, stream: str) -> Stream | None: ...


class NeverStartedError(HaltError):
    """A pipeline has no streams: it never ran, or was deleted."""


def never_started(pipeline: str) -> NeverStartedError:
    """What every command says of such a pipeline."""
    return NeverStartedError(f"pipeline {pipeline} was never started: nothing is known of it; start it with `tallyflow run`")


def check_started(log: Streams, names: Names) -> None:
    """Raises NeverStartedError for a pipeline without a ledger; DataLossError when another stream of it holds messages: the ledger is lost.

    Empty streams are those of a start that was killed while it made them.
    """
    if log.state(names.stream("ledger")) is not None:
        return
    left = [name for name in map(names.stream, ROLES) if (state := log.state(name)) is not None and state.last_sequence]
    if not left:
        raise never_started(names.pipeline)
    if log.state(names.stream("ledger")) is not None:
        # The first start has made it since.
        return
    raise DataLossError(
        f"pipeline {names.pipeline}: its stream {names.stream('ledger')} is gone, and {', '.join(left)} still there; "
        "restore all streams from one moment, or delete the pipeline and start it anew"
    )
