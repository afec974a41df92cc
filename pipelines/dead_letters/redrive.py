"""Takes dead letters, beside the running pipeline or without one: plans, then frames on the raw stream, then `done`.

It is no Spark leg: dead letters are few, and a command takes them. The protocol is that of the legs. A record's subject is
`raw.<source>.redrive.<partition>` of its original source and partition, in the order of (plan, place in the plan), so a plan that was
killed half-way continues after the last record found there.
"""

import base64
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from pipelines.connectors.nats.client import fetch_whole
from pipelines.errors import DataLossError, FencedError, RetryableError
from pipelines.protocol.append import Appender, last_position
from pipelines.protocol.bodies import REDRIVE_CHAIN, RedriveDone, RedrivePlan
from pipelines.protocol.failpoints import reach
from pipelines.protocol.ledger import Chain
from pipelines.protocol.naming import REDRIVE, Names
from pipelines.protocol.positions import Position, SourcePartition
from pipelines.protocol.records import FRAMING, HEADER_BYTES, HEADER_PARTITION, HEADER_TOPIC, Framing, decode_frame, describe_frame
from pipelines.protocol.redrive import (
    DISCARD,
    ENTER,
    MAX_PLAN_DEAD_LETTERS,
    STATE_AFTER,
    RowRanges,
    Rows,
    Taken,
    batches,
    by_source,
    count,
    records_of_dead_letters,
    rows_of,
)

Action = Literal["enter", "discard"]
LAG_SECONDS = 5.0
"""Longest wait for a follower; a follower of a sound cluster lags by milliseconds."""


_PLACE = "place"
"""Column of a dead letter's place in its plan, ascending."""


def shares(dead_letters: pa.Table) -> Iterator[tuple[SourcePartition, pa.Table]]:
    """Yield the dead letters of each partition of each source, in the order of their first ones."""
    for of_source in by_source(dead_letters):
        source = of_source.column("source")[0].as_py()
        for partition in pc.unique(of_source.column("_tf_partition")).to_pylist():
            yield SourcePartition(source, partition), of_source.filter(pc.equal(of_source.column("_tf_partition"), partition))


def taken(log: Any, names: Names, lag_seconds: float = LAG_SECONDS, is_finished: bool = False) -> Taken:
    """Return the dead letters that all plans so far have named, including an open one; with `is_finished` without that.

    If a plan were missed, its dead letters would be redriven twice. Raise as the log does, and RetryableError if a replica lags for longer
    than `lag_seconds`.
    """
    stream, subject = names.stream("ledger"), names.chain(REDRIVE)
    last = log.last(stream, subject) if log.state(stream) is not None else None
    if last is None:
        return Taken.of([])
    retrying = Retrying(
        retry=retry_if_exception_type(RetryableError), stop=stop_after_delay(lag_seconds), wait=wait_fixed(lag_seconds / 50), reraise=True
    )
    messages = retrying(lambda: list(fetch_whole(log, stream, subject, 0, last.sequence)))
    bodies = [REDRIVE_CHAIN.decode(message).body for message in messages]
    finished = max((body.to for body in bodies if isinstance(body, RedriveDone)), default=0)
    return Taken.of(body for body in bodies if isinstance(body, RedrivePlan) and not (is_finished and body.to > finished))


class Redrive:
    """Takes dead letters for the holder of the lease. `chain` is opened; an open plan of an earlier holder is finished at once."""

    def __init__(
        self,
        log: Any,
        names: Names,
        chain: Chain[RedrivePlan, RedriveDone],
        framing: Framing = FRAMING,
        plan_letters: int = MAX_PLAN_DEAD_LETTERS,
    ) -> None:
        """Create and finish the open plan. `plan_letters`: the most dead letters of one plan."""
        self._log: Any = log
        self._names, self._chain = names, chain
        self._framing, self._plan_letters = framing, plan_letters
        if chain.state.plan is not None:
            self._finish(chain.state.plan.body)

    def enter(self, wanted: Iterable[tuple[int, Rows]]) -> int:
        """Redrive dead letters, as (dlq sequence, ascending rows), that no plan has taken yet; return their number.

        Raise RetryableError if NATS is away or a stream has no room, FencedError if another holder took over; then the next holder finishes
        the open plan.
        """
        return self._take(wanted, ENTER)

    def discard(self, wanted: Iterable[tuple[int, Rows]], reason: str) -> int:
        """Mark dead letters as discarded; return their number. They stay in the dlq stream until it purges them. Raise as `enter`."""
        return self._take(wanted, DISCARD, reason=reason)

    def enter_edited(self, row_ranges: RowRanges, records: bytes) -> int:
        """Redrive the dead letters at `row_ranges` with the content of `records`, a frame of dead letters in their order."""
        return self._plan(row_ranges, ENTER, records=base64.b64encode(records).decode())

    def _take(self, wanted: Iterable[tuple[int, Rows]], action: Action, reason: str = "") -> int:
        return sum(self._plan(row_ranges, action, reason) for row_ranges in batches(wanted, self._plan_letters))

    def _plan(self, row_ranges: RowRanges, action: Action, reason: str = "", records: str = "") -> int:
        number = self._chain.state.to or 0
        dead_letters = tuple((sequence, tuple(ranges)) for sequence, ranges in row_ranges)
        plan = RedrivePlan(start=number, to=number + 1, action=action, letters=dead_letters, reason=reason, records=records)
        self._chain.plan(plan)
        reach("redrive.after-plan")
        self._finish(plan)
        return count(row_ranges)

    def _finish(self, plan: RedrivePlan) -> None:
        if plan.action == ENTER:
            # A newer holder finishes the plan, too, and its dead letters may be purged behind that.
            self._chain.unless_overtaken(lambda: self._append(plan))
            reach("redrive.after-publish")
        self._chain.done(RedriveDone(start=plan.start, to=plan.to, counts={STATE_AFTER[plan.action]: count(plan.letters)}))

    def _append(self, plan: RedrivePlan) -> None:
        """Write the records that the plan's subjects do not hold yet."""
        appenders: dict[SourcePartition, Appender[Position]] = {}
        for portion in self._portions(plan):
            for key, share in shares(portion):
                if key not in appenders:
                    limit = Position.end_of(plan.to)
                    stream, subject = self._names.stream("raw"), self._names.redriven(*key)
                    appenders[key] = Appender(self._log, stream, subject, last_position, limit, framing=self._framing)
                _append_share(appenders[key], plan.to, share, key.partition)

    def _portions(self, plan: RedrivePlan) -> Iterator[pa.Table]:
        """Yield the plan's dead letters with their places, one stored frame at a time."""
        if plan.records:
            yield _placed(decode_frame(base64.b64decode(plan.records)), 0)
            return
        stream, first = self._names.stream("dlq"), 0
        for sequence, ranges in plan.letters:
            message = self._log.get(stream, sequence)
            if message is None:
                raise DataLossError(
                    f"reading dead letters: an open plan needs frame {sequence} of {stream}, which is missing; restore the stream from a "
                    "backup"
                )
            dead_letters = decode_frame(message.payload, describe_frame(message)).take(pa.array(rows_of(ranges)))
            yield _placed(dead_letters, first)
            first += dead_letters.num_rows


def _placed(dead_letters: pa.Table, first: int) -> pa.Table:
    return dead_letters.append_column(_PLACE, pa.array(np.arange(first, first + dead_letters.num_rows)))


def _append_share(appender: Appender[Position], number: int, share: pa.Table, partition: int) -> None:
    """Append records of one partition of a source after the subject's tail; records that another attempt has written are left out."""
    records, ordinals = records_of_dead_letters(share), share.column(_PLACE).to_numpy()
    headers = {HEADER_TOPIC: share.column("_tf_topic")[0].as_py(), HEADER_PARTITION: str(partition)}
    while True:
        tail = appender.tail.position
        if tail is not None and tail.sequence > number:
            raise FencedError(
                f"appending dead letters of plan {number}: another command already appends those of plan {tail.sequence}; it has finished "
                f"plan {number}, too"
            )
        if tail is not None and tail.sequence == number:
            here = int(np.searchsorted(ordinals, tail.ordinal, side="right"))
            records, ordinals = records.slice(here), ordinals[here:]
        done = 0
        for part, payload in appender.framing.cut(records):
            first, last = (Position(number, int(ordinals[at])) for at in (done, done + part.num_rows - 1))
            if appender.append(payload, first, last, part.num_rows, {**headers, HEADER_BYTES: str(part.nbytes)}) is None:
                break
            reach("redrive.between-frames")
            done += part.num_rows
        else:
            return
