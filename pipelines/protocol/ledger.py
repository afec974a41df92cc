"""The ledger: one chain of small JSON entries per leg, appended only by compare-and-set, and the leg's commit log.

`open` says that a runner with a new epoch takes the chain over; from then on every append of an older runner loses. `plan` stands before
the first effect of a range and `done` after the last one; `from` is the previous `to`. An open plan is finished first, exactly as
planned; a leg that must decide more on the way appends it again with what it has decided. Every entry points at the chain's last `done`
and open `plan`, so the state is read in at most three gets, whatever the length. A `done` carries running totals, so the tally of a leg is
its last `done`.

Why the ledger and not Spark's checkpoint is the commit point: reference/protocol.md section 1.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pipelines.errors import ConflictError, DataLossError, FencedError, HaltError, InvariantError, RetryableError
from pipelines.protocol.records import Message

Json = Any


class Log(Protocol):
    """What the protocol needs of JetStream; `connectors.jetstream.JetStream` and `testing.MemoryLog` provide it."""

    def publish(self, subject: str, payload: bytes, headers: dict[str, str], expected: int) -> int: ...

    def last(self, stream: str, subject: str) -> Message | None: ...

    def get(self, stream: str, sequence: int) -> Message | None: ...


@dataclass(frozen=True)
class Entry:
    """One entry of a chain. `sequence` is its place in the ledger stream, 0 before it is appended."""

    kind: str
    epoch: int
    body: Mapping[str, Json] = field(default_factory=dict)
    previous_done: int = 0
    open_plan: int = 0
    sequence: int = 0

    def encode(self) -> bytes:
        record = {"kind": self.kind, "epoch": self.epoch, "previous_done": self.previous_done, "open_plan": self.open_plan, **self.body}
        return json.dumps(record, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def decode(cls, message: Message) -> "Entry":
        """Raises HaltError for a message that is no entry: whoever may publish on the ledger can write it."""
        try:
            record = json.loads(message.payload)
            kind, *numbers = (record.pop(name) for name in ("kind", "epoch", "previous_done", "open_plan"))
            if not isinstance(kind, str) or not all(type(number) is int and 0 <= number < message.sequence for number in numbers[1:]):
                raise ValueError("its kind or its references are none")
            if type(numbers[0]) is not int or numbers[0] < 0:
                raise ValueError("its epoch is none")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise HaltError(
                f"reading {message.subject} at {message.sequence}: no entry of a ledger ({type(error).__name__}); only Tallyflow may write "
                "to its streams: see who else may publish there, and restore them from a backup of one moment"
            ) from error
        return cls(kind, numbers[0], record, numbers[1], numbers[2], message.sequence)


@dataclass(frozen=True)
class ChainState:
    """Where a chain stands: its last sequence and epoch, the last `done`, and the plan that is not done yet."""

    sequence: int = 0
    epoch: int = 0
    done: Entry | None = None
    plan: Entry | None = None

    @property
    def to(self) -> Json:
        """End of the last done range; None before the first."""
        return self.done.body["to"] if self.done else None


def read_chain(log: Log, stream: str, subject: str) -> ChainState:
    """State of the chain on `subject`, without joining it. Raises DataLossError when an entry it points at is gone."""
    while True:
        message = log.last(stream, subject)
        if message is None:
            return ChainState()
        try:
            return _state_at(log, stream, subject, Entry.decode(message))
        except DataLossError:
            # The chain may have gone on meanwhile, and its older part may have been purged.
            newer = log.last(stream, subject)
            if newer is None or newer.sequence == message.sequence:
                raise


def _state_at(log: Log, stream: str, subject: str, last: Entry) -> ChainState:
    done_at = last.sequence if last.kind == "done" else last.previous_done
    plan_at = last.sequence if last.kind == "plan" else last.open_plan

    def fetch(sequence: int) -> Entry | None:
        if sequence == 0 or sequence == last.sequence:
            return last if sequence else None
        entry = log.get(stream, sequence)
        if entry is None:
            raise DataLossError(
                f"reading the chain {subject}: entry {sequence} is gone from {stream}; restore the stream from a backup of the same moment"
            )
        return Entry.decode(entry)

    return ChainState(last.sequence, last.epoch, fetch(done_at), fetch(plan_at))


class Chain:
    """One leg's chain, for the runner that holds `epoch`. Not safe for several threads."""

    def __init__(self, log: Log, stream: str, subject: str, epoch: int) -> None:
        self._log, self._stream, self._subject, self._epoch = log, stream, subject, epoch
        self.state = ChainState()

    def open(self) -> ChainState:
        """Takes the chain over: appends `open{epoch}`, behind whatever is there. It does not close an open plan.

        Raises FencedError when a runner with a higher epoch was here first.
        """
        while True:
            self.state = read_chain(self._log, self._stream, self._subject)
            if self.state.epoch > self._epoch:
                raise self._fenced(self.state.epoch)
            try:
                self._append(Entry("open", self._epoch, {}, self._done_at, self.state.plan.sequence if self.state.plan else 0))
            except ConflictError:
                continue
            return self.state

    def check_epoch(self) -> None:
        """Raises FencedError when a runner with a higher epoch has opened the chain."""
        found = read_chain(self._log, self._stream, self._subject)
        if found.epoch > self._epoch:
            raise self._fenced(found.epoch)

    @property
    def _done_at(self) -> int:
        return self.state.done.sequence if self.state.done else 0

    def plan(self, start: Json, to: Json, **body: Json) -> Entry:
        """Appends a plan for the range from `start` (the last `to`) to `to`; there must be no open plan."""
        if self.state.plan is not None:
            raise InvariantError(f"planning on {self._subject}: the plan at {self.state.plan.sequence} is still open")
        entry = self._decide(Entry("plan", self._epoch, {"from": start, "to": to, **body}, self._done_at))
        self.state = replace(self.state, plan=entry)
        return entry

    def done(self, totals: Mapping[str, int], **body: Json) -> Entry:
        """Closes the open plan; `totals` are this range's counts, added to the running ones of the last `done`."""
        plan = self.state.plan
        if plan is None:
            raise InvariantError(f"closing a plan on {self._subject}: none is open")
        before = self.state.done.body["totals"] if self.state.done else {}
        running = {name: before.get(name, 0) + totals.get(name, 0) for name in {*before, *totals}}
        closing = {"from": plan.body["from"], "to": plan.body["to"], "counts": dict(totals), "totals": running, **body}
        entry = self._decide(Entry("done", self._epoch, closing, self._done_at))
        self.state = replace(self.state, done=entry, plan=None)
        return entry

    def amend(self, **body: Json) -> Entry:
        """Appends the open plan again with these parts replaced: a decision on the way, which stands before its effect as the plan did."""
        plan = self.state.plan
        if plan is None:
            raise InvariantError(f"amending a plan on {self._subject}: none is open")
        entry = self._decide(Entry("plan", self._epoch, {**plan.body, **body}, self._done_at))
        self.state = replace(self.state, plan=entry)
        return entry

    def restate(self, **body: Json) -> Entry:
        """Appends the last `done` again with these parts replaced. Its range and its totals stay, and so does an open plan behind it."""
        before, plan = self.state.done, self.state.plan
        if before is None:
            raise InvariantError(f"restating on {self._subject}: nothing is done yet")
        entry = self._decide(Entry("done", self._epoch, {**before.body, **body}, before.sequence, plan.sequence if plan else 0))
        self.state = replace(self.state, done=entry)
        return entry

    def _decide(self, entry: Entry) -> Entry:
        """Appends a decision of ours; losing the compare-and-set to anyone else's entry means that we are not the writer any more."""
        try:
            return self._append(entry)
        except ConflictError as conflict:
            found = read_chain(self._log, self._stream, self._subject)
            raise self._fenced(found.epoch) from conflict

    def _append(self, entry: Entry) -> Entry:
        """One compare-and-set append. An unknown outcome is resolved by reading what the last entry is: ours, or still the old one."""
        payload = entry.encode()
        expected = self.state.sequence
        while True:
            try:
                sequence = self._log.publish(self._subject, payload, {}, expected)
                break
            except (ConflictError, RetryableError) as error:
                message = self._log.last(self._stream, self._subject)
                found = message.sequence if message else 0
                if message is not None and found > expected and message.payload == payload:
                    sequence = found
                    break
                if isinstance(error, ConflictError) or found > expected:
                    raise ConflictError(f"appending to {self._subject}: expected {expected}, found {found}") from error
                raise
        self.state = replace(self.state, sequence=sequence, epoch=entry.epoch)
        return replace(entry, sequence=sequence)

    def _fenced(self, epoch: int) -> FencedError:
        return FencedError(
            f"writing to {self._subject}: another runner (epoch {epoch}) has taken this pipeline over, ours is {self._epoch}; "
            "stop this one, the other goes on where it stood"
        )
