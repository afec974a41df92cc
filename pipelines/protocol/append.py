"""The position rule: a writer appends rows to a subject in position order, and only rows beyond the last position there.

With compare-and-set on the subject's last sequence, a replay, another batch boundary, a second attempt of a task, even a forgotten second
runner can only write the same rows or nothing. The rule applies to raw frames (position: Kafka offset), out frames and dead letters
(position: raw sequence, ordinal, emit; of rows of a join the same of their causes).
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from pipelines.errors import ConflictError, FencedError, InvariantError, RetryableError
from pipelines.protocol.ledger import Append, Log, Outcome
from pipelines.protocol.positions import Position, beyond, first_and_last
from pipelines.protocol.records import FRAMING, HEADER_BYTES, HEADER_FIRST, HEADER_LAST, HEADER_ROWS, Framing, Message


class Comparable(Protocol):
    def __lt__(self, other: Any) -> bool: ...


P = TypeVar("P", bound=Comparable)
T = TypeVar("T")


@dataclass(frozen=True)
class Tail(Generic[P]):
    """End of a subject: its last sequence (0: empty) and the last position it covers (None: empty)."""

    sequence: int
    position: P | None


@dataclass(frozen=True)
class Written(Generic[P]):
    """One frame on the subject: positions inclusive, rows, sequence, encoded bytes."""

    first: P
    last: P
    rows: int
    sequence: int
    bytes: int


Appending = Generator[Append, int, T]
"""Work that appends frames, one after another: it is sent the new sequence of each, or thrown the error of its append."""


def together(log: Log, work: Iterable[Appending[T]]) -> list[T]:
    """Do several such works at once, each on subjects of its own; return their results.

    Raise what one of them raises: when each frame that was sent has its answer, and before the next ones are sent.
    """
    begun = list(work)
    results: dict[int, T] = {}
    steps: dict[int, Callable[[], Append]] = {number: partial(next, one) for number, one in enumerate(begun)}
    while steps:
        waiting: dict[int, Append] = {}
        for number, step in steps.items():
            try:
                waiting[number] = step()
            except StopIteration as end:
                results[number] = end.value
        outcomes = zip(waiting, log.publish_all([*waiting.values()]) if waiting else (), strict=True)
        steps = {number: partial(_answer, begun[number], outcome) for number, outcome in outcomes}
    return [results[number] for number in range(len(begun))]


def _answer(work: Appending[Any], outcome: Outcome) -> Append:
    """Tell the work what has become of its append; return the next one."""
    return work.send(outcome) if isinstance(outcome, int) else work.throw(outcome)


class Appender(Generic[P]):
    """Appends to one subject. `tail` may be a remembered tail: a stale one loses the compare-and-set and is read again.

    `limit`: the last position (inclusive) that this writer's range may cover; a tail beyond it means that a newer runner is writing.
    `position_of`: returns the last position that a stored message covers. `framing`: how rows become the frames that are appended.
    """

    def __init__(
        self,
        log: Log,
        stream: str,
        subject: str,
        position_of: Callable[[Message], P],
        limit: P,
        tail: Tail[P] | None = None,
        framing: Framing = FRAMING,
    ) -> None:
        self.log, self._stream, self._subject = log, stream, subject
        self._position_of, self._limit = position_of, limit
        self._tail, self.framing = tail, framing

    @property
    def known_tail(self) -> Tail[P] | None:
        """The tail as this writer knows it, without reading; None if it was neither given nor needed."""
        return self._tail

    @property
    def tail(self) -> Tail[P]:
        if self._tail is None:
            self._tail = self.read_tail()
        return self._tail

    def read_tail(self) -> Tail[P]:
        message = self.log.last(self._stream, self._subject)
        return Tail(0, None) if message is None else Tail(message.sequence, self._position_of(message))

    def append(self, payload: bytes, first: P, last: P, rows: int, headers: dict[str, str] | None = None) -> Written[P] | None:
        """Do `appending` by itself."""
        (written,) = together(self.log, [self.appending(payload, first, last, rows, headers)])
        return written

    def appending(
        self, payload: bytes, first: P, last: P, rows: int, headers: dict[str, str] | None = None
    ) -> "Appending[Written[P] | None]":
        """Append one frame for positions `first`..`last`, unless the subject already reaches `last`; then return None.

        Return None, too, if the subject reaches beyond `first` but not to `last` (a frame of another attempt, cut elsewhere): the caller
        cuts the rest anew after `tail.position`. A publish with an unknown outcome is resolved by reading the tail.
        """
        tail = self.tail
        if tail.position is not None and not tail.position < first:
            return None
        stamped = {HEADER_FIRST: str(first), HEADER_LAST: str(last), HEADER_ROWS: str(rows), **(headers or {})}
        try:
            sequence = yield Append(self._subject, payload, stamped, tail.sequence)
        except (ConflictError, RetryableError) as error:
            self._tail = newest = self.read_tail()
            if newest.sequence == tail.sequence:
                if isinstance(error, RetryableError):
                    raise
                raise InvariantError(f"appending to {self._subject}: refused at its own last sequence {tail.sequence}") from error
            self._check_advance(tail, newest)
            return None
        self._tail = Tail(sequence, last)
        return Written(first, last, rows, sequence, len(payload))

    def _check_advance(self, before: Tail[P], after: Tail[P]) -> None:
        if after.position is None or (before.position is not None and not before.position < after.position):
            raise InvariantError(
                f"appending to {self._subject}: a foreign message stands at {after.sequence}; only Tallyflow may write here"
            )
        if self._limit < after.position:
            raise FencedError(
                f"appending to {self._subject}: another runner has already written beyond {self._limit}, up to {after.position}"
            )


def last_position(message: Message) -> Position:
    return Position.parse(message.headers[HEADER_LAST])


def append_rows(
    appender: Appender[Position], table: pa.Table, headers: dict[str, str] | None = None, beside: Sequence[str] = ()
) -> list[Written[Position]]:
    """Do `appending_rows` by itself."""
    (written,) = together(appender.log, [appending_rows(appender, table, headers, beside)])
    return written


def appending_rows(
    appender: Appender[Position], table: pa.Table, headers: dict[str, str] | None = None, beside: Sequence[str] = ()
) -> Appending[list[Written[Position]]]:
    """Append the rows of a table, in the order of its positions, that the subject does not hold yet; return the frames written now.

    `headers` are set on each frame, besides the headers that name the covered positions. `beside`: columns that are not written.
    """
    written: list[Written[Position]] = []
    if table.num_rows == 0:
        return written
    rest = beyond(table, appender.tail.position)
    while rest.num_rows:
        done = 0
        for part, payload in appender.framing.cut(rest.drop_columns([*beside])):
            first, last = first_and_last(rest.slice(done, part.num_rows))
            done += part.num_rows
            frame = yield from appender.appending(payload, first, last, part.num_rows, {**(headers or {}), HEADER_BYTES: str(part.nbytes)})
            if frame is None:
                break
            written.append(frame)
        else:
            return written
        rest = beyond(rest, appender.tail.position)
    return written
