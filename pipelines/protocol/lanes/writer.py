"""A lane's writer of one subject: the position rule, compare-and-set, and the epoch of the writer on every frame.

Unlike `append.Appender` it knows no limit: no plan bounds what an earlier attempt may still write. In its place the frames carry epochs: no
writer appends behind a frame of a higher epoch, so the epochs of a subject ascend. A `fence` is a frame without rows that repeats the last
position; after it no earlier attempt appends. Without a fence an earlier attempt may append the same rows, which does no harm.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic

from pipelines.errors import ConflictError, FencedError, InvariantError, RetryableError
from pipelines.protocol.append import P, Tail, Written
from pipelines.protocol.ledger import Log
from pipelines.protocol.naming import stream_of_subject
from pipelines.protocol.records import HEADER_FIRST, HEADER_LAST, HEADER_ROWS, HEADER_RUN, Message


@dataclass(frozen=True)
class LaneTail(Tail[P], Generic[P]):
    """The end of a subject, with the headers of its last frame and the epoch of that frame's writer."""

    headers: Mapping[str, str]
    epoch: int


class LaneWriter(Generic[P]):
    """Appends to one subject under an epoch. `zero`: the position before the first one, for the fence of an empty subject."""

    def __init__(self, log: Log, subject: str, epoch: int, parse: Callable[[str], P], zero: P) -> None:
        self._log, self._stream, self._subject = log, stream_of_subject(subject), subject
        self._epoch, self._parse, self._zero = epoch, parse, zero
        self._tail: LaneTail[P] | None = None

    @property
    def tail(self) -> LaneTail[P]:
        """The end of the subject as this writer knows it; a stale one loses the compare-and-set and is read again."""
        return self._tail or self.read_tail()

    def read_tail(self) -> LaneTail[P]:
        """Read the end of the subject. Raise FencedError if a later attempt has written there."""
        message = self._log.last(self._stream, self._subject)
        if message is None:
            self._tail = LaneTail(0, None, {}, 0)
            return self._tail
        epoch = epoch_of(message)
        if epoch > self._epoch:
            raise FencedError(
                f"appending to {self._subject}: a lane of epoch {epoch} has taken this pipeline over, ours is {self._epoch}; stop this one"
            )
        self._tail = LaneTail(message.sequence, self._parse(message.headers[HEADER_LAST]), message.headers, epoch)
        return self._tail

    def append(self, payload: bytes, first: P, last: P, rows: int, headers: Mapping[str, str]) -> Written[P] | None:
        """Append one frame for positions `first`..`last`; return None if the subject reaches `first` already.

        The caller then cuts the rest anew behind `tail.position`. A publish with an unknown outcome is resolved by reading the tail.
        """
        tail = self.tail
        if tail.position is not None and not tail.position < first:
            return None
        sequence = self._publish(payload, first, last, rows, headers)
        return None if sequence is None else Written(first, last, rows, sequence, len(payload))

    def fence(self) -> LaneTail[P]:
        """Exclude earlier attempts, and publishes of our own that are still under way; return the end, which only we move from now on."""
        while True:
            tail = self.read_tail()
            last = self._zero if tail.position is None else tail.position
            if self._publish(b"", last, last, 0, tail.headers) is not None:
                return self.tail

    def _publish(self, payload: bytes, first: P, last: P, rows: int, headers: Mapping[str, str]) -> int | None:
        """Publish behind the tail; return None, with the tail read again, if something else stands there."""
        tail = self.tail
        own = {HEADER_FIRST: str(first), HEADER_LAST: str(last), HEADER_ROWS: str(rows), HEADER_RUN: str(self._epoch)}
        stamped = {**headers, **own}
        try:
            sequence = self._log.publish(self._subject, payload, stamped, tail.sequence)
        except (ConflictError, RetryableError) as error:
            if self.read_tail().sequence == tail.sequence:
                if isinstance(error, RetryableError):
                    raise
                raise InvariantError(f"appending to {self._subject}: refused at its own last sequence {tail.sequence}") from error
            return None
        self._tail = LaneTail(sequence, last, stamped, self._epoch)
        return sequence


def epoch_of(message: Message) -> int:
    """Return the epoch of a frame's writer."""
    return int(message.headers[HEADER_RUN])
