"""The error tree, by what to do next.

    TallyflowError
    ├── ConfigurationError     stop before anything starts; carries every fault with its path
    ├── RetryableError         a system is away or overloaded: back off and wait
    │   └── InsertTooLargeError  the server gave an insert up for what it takes: a smaller one may pass
    ├── ConflictError          a compare-and-set lost: read the last message again and go on from it
    ├── UndecidedError         records that a stage ends on: put them down in the plan, then try it again
    ├── RefusedError           ClickHouse refuses a block for rows in it: find them, they are dead letters
    └── HaltError              stop the leg; the message says what to do next
        ├── FencedError        another runner holds the pipeline
        ├── ProcessLostError   a process that the runner rests on has ended: start again
        ├── DataLossError      positions that were promised are gone or have other content
        ├── StateDamagedError  a file of the key store is missing or has other content
        ├── NotSupportedError  the file asks for a stage this release does not run
        └── InvariantError     our own bug: the protocol's promise does not hold

Bad records are not exceptions: a stage returns them as `rejected` rows (see `records.REJECTED_SCHEMA`). Whatever is none of
these is unknown, and unknown is a halt, never a drop. Connectors map their driver's exceptions into this tree, once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class TallyflowError(Exception):
    """Base of every error that Tallyflow raises on purpose."""


@dataclass(frozen=True)
class Fault:
    """One fault of a pipeline file: where it is (`sources[0].topic`) and what is wrong with it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigurationError(TallyflowError):
    """A pipeline file (or a setting) that cannot be used; nothing was started."""

    def __init__(self, subject: str, faults: list[Fault]) -> None:
        self.subject = subject
        self.faults = faults
        lines = "\n".join(f"  - {fault}" for fault in faults)
        super().__init__(f"{subject}: {len(faults)} fault{'s' if len(faults) != 1 else ''}\n{lines}")


class RetryableError(TallyflowError):
    """The network or a system is away or overloaded; the caller backs off and tries the same thing again."""


class InsertTooLargeError(RetryableError):
    """The server gave an insert up for the time or the memory that it takes; whether it was stored is unknown."""


class HaltError(TallyflowError):
    """The leg must stop: going on could lose or double an event, or can never succeed. The message names the remedy."""


class FencedError(HaltError):
    """Another runner with a higher epoch writes this pipeline; this one must write nothing more."""


class ProcessLostError(HaltError):
    """A process that the runner rests on has ended, killed or out of memory; the next start goes on where it stood."""


class DataLossError(HaltError):
    """Positions are gone before they were read, or hold other content than when they were read."""


class StateDamagedError(HaltError):
    """A run of the key store that the ledger lists is missing or damaged: going on could let a duplicate through."""


class NotSupportedError(HaltError):
    """The pipeline file is valid but asks for something this release does not run."""


class InvariantError(HaltError):
    """A promise of the protocol does not hold: a bug of ours, or a foreign writer on our streams."""


class RefusedError(TallyflowError):
    """ClickHouse refuses a block because of rows in it. Parts of it may be stored all the same: a part is written per partition.

    `row` is the first of them where the server names it, counted from 0 within the block. `is_whole`: the refusal came before anything
    was written. `is_known`: the error is one that rows cause; else it may as well be the table's, and must be seen more than once.
    """

    def __init__(self, message: str, row: int | None, is_whole: bool = False, is_known: bool = True) -> None:
        super().__init__(message)
        self.row, self.is_whole, self.is_known = row, is_whole, is_known

    @property
    def of_one_row(self) -> str:
        """What a row that was refused alone is told by."""
        return str(self) if self.is_known else f"{self}; the error does not tell whether a row is its cause: this one met it alone"


class UndecidedError(TallyflowError):
    """A stage ends on these records, each by itself; nothing was written that lies beyond the first of them in its bucket.

    `places`: (sequence, ordinal, Kafka partition, stage, message) each.
    """

    def __init__(self, message: str, places: Sequence[Sequence[Any]]) -> None:
        super().__init__(message)
        self.places = [list(place) for place in places]


class ConflictError(TallyflowError):
    """A compare-and-set lost (JetStream error 10071): the subject's last sequence is not the expected one.

    The writer reads the last message again: it may be its own, stored although the acknowledgement was lost.
    """
