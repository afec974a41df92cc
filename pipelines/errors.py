"""The error tree, by what to do next.

    TallyflowError
    ├── ConfigurationError     stop before anything starts; carries every fault with its path
    ├── RetryableError         a system is away or overloaded: back off and wait
    │   └── InsertTooLargeError  the server aborted an insert for its time or memory: a smaller one may pass
    ├── ConflictError          a compare-and-set lost: read the last message again and continue from it
    ├── UndecidedError         records that crash a stage: record them in the plan, then retry the plan
    ├── SampleError            records from which no pipeline file can be made: the message says why
    ├── RefusedError           ClickHouse refuses a block because of its rows: find these, they become dead letters
    └── HaltError              stop the leg; the message says what to do next
        ├── FencedError        another runner holds the pipeline
        ├── ProcessLostError   a process that the runner depends on has exited: start again
        ├── DataLossError      promised positions are missing or have other content
        ├── StateDamagedError  a file of the key store is missing or has other content
        ├── FunctionHaltError  a function hangs, or ends its process, on record after record
        ├── NotSupportedError  the file asks for a stage this release does not run
        └── InvariantError     our own bug: the protocol's guarantee does not hold

Bad records are not exceptions: a stage returns them as `rejected` rows (see `records.REJECTED_SCHEMA`). Any other error is unknown, and an
unknown error is a halt, never a drop. Connectors map their driver's exceptions into this tree, once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.counts import count_of


class TallyflowError(Exception):
    """Base of every error that Tallyflow raises on purpose."""


@dataclass(frozen=True)
class Fault:
    """One fault of a pipeline file: its path (`sources[0].topic`), a message, and where that is (`orders.yaml:12:5`), if that is known."""

    path: str
    message: str
    place: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.place, self.path, self.message)))


class ConfigurationError(TallyflowError):
    """A pipeline file (or a setting) that cannot be used; nothing was started."""

    def __init__(self, subject: str, faults: list[Fault]) -> None:
        self.subject = subject
        self.faults = faults
        lines = "\n".join(f"  - {fault}" for fault in faults)
        super().__init__(f"{subject}: {count_of(len(faults), 'fault')}\n{lines}")


class RetryableError(TallyflowError):
    """The network or a system is away or overloaded; the caller backs off and retries."""


class InsertTooLargeError(RetryableError):
    """The server aborted an insert for the time or the memory that it takes; whether the rows were stored is unknown."""


class HaltError(TallyflowError):
    """The leg must stop: to continue could lose or double an event, or can never succeed. The message has the remedy."""


class FencedError(HaltError):
    """Another runner with a higher epoch writes this pipeline; this runner must write nothing more."""


class ProcessLostError(HaltError):
    """A process that the runner depends on was killed or ran out of memory; the next start resumes where it stopped."""


class DataLossError(HaltError):
    """Positions were removed before they were read, or hold other content than when they were read."""


class StateDamagedError(HaltError):
    """A segment of the key store that the ledger lists is missing or damaged: to continue could let a duplicate through."""


class FunctionHaltError(HaltError):
    """A function of the user's own hangs, or ends its process, on record after record: to find each of them would take too long.

    `stage`: of the dead letters of its records. `times`: as in UndecidedError.
    """

    times: Sequence[tuple[int, int, int, int]] = ()

    def __init__(self, message: str, stage: str) -> None:
        super().__init__(message)
        self.stage = stage


class NotSupportedError(HaltError):
    """The pipeline file is valid but asks for something this release does not run."""


class InvariantError(HaltError):
    """A guarantee of the protocol does not hold: a bug of ours, or a foreign writer on our streams."""


class RefusedError(TallyflowError):
    """ClickHouse refuses a block because of its rows. Parts may be stored all the same: a part is written per partition.

    `row` is the first refused row if the server names it, counted from 0 within the block. `is_whole`: the refusal came before anything was
    written. `is_known`: rows are a known cause of the error; else the table may be the cause, and the error must be seen more than once.
    `alone`: the message if the row were the only one of the block; the same one by default.
    """

    def __init__(self, message: str, row: int | None, is_whole: bool = False, is_known: bool = True, alone: str = "") -> None:
        super().__init__(message)
        self.row, self.is_whole, self.is_known, self._alone = row, is_whole, is_known, alone or message

    @property
    def of_one_row(self) -> str:
        """The message for a row that was refused alone."""
        return (
            self._alone if self.is_known else f"{self._alone}; the error does not say whether a row is its cause, but this row failed alone"
        )


class SampleError(TallyflowError):
    """No pipeline file can be made from the records that `init` has sampled, or it must not be written; nothing was changed."""


class UndecidedError(TallyflowError):
    """A stage crashes on each of these records; nothing beyond the first of them in its bucket was written.

    `records`: (sequence, ordinal, Kafka partition, stage, message) each, and the code unless it is `internal_error`. `is_unwritten`: it is
    known that no earlier attempt has written anything of them, though it may have written other rows of the plan. `times`: the facts of
    the plan's frames by which this attempt has joined, if it went by the records' own times.
    """

    times: Sequence[tuple[int, int, int, int]] = ()

    def __init__(self, message: str, records: Sequence[Sequence[Any]], is_unwritten: bool = False) -> None:
        super().__init__(message)
        self.records, self.is_unwritten = [list(record) for record in records], is_unwritten


class ConflictError(TallyflowError):
    """A compare-and-set lost (JetStream error 10071): the subject's last sequence is not the expected one.

    The writer reads the last message again: it may be its own, stored although the acknowledgement was lost.
    """
