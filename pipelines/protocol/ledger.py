"""The ledger: one chain of small JSON entries per leg, appended only by compare-and-set, and the leg's commit log.

With `open` a runner with a new epoch takes the chain over; from then on every append of an older runner loses. `plan` precedes the first
effect of a range and `done` follows the last one; `from` is the previous `to`. An open plan is finished first, exactly as planned. If a leg
must decide more on the way, it appends the plan again with its decisions. Every entry points at the chain's last `done` and open `plan`, so
the state is read in at most three gets, whatever the length. A `done` carries running totals, so the tally of a leg is its last `done`.

Why the ledger and not Spark's checkpoint is the commit point: reference/protocol.md section 1.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from pipelines.errors import ConflictError, DataLossError, FencedError, HaltError, InvariantError, RetryableError, TallyflowError
from pipelines.protocol.codec import Count, F, Form, FormError, Seconds, Text, from_record, from_text, to_record
from pipelines.protocol.naming import Names
from pipelines.protocol.records import Message

FORMAT = 3
"""Format of the entries: raised when a release writes other fields, or gives them another meaning."""
Totals = dict[Text, Count]
DONE_MARK = b'"kind":"done"'
"""In every entry that is a `done`, and in no other."""


class Append(NamedTuple):
    """A message to append to its subject iff `expected` is the last sequence there; 0: the subject is empty."""

    subject: str
    payload: bytes
    headers: dict[str, str]
    expected: int


Outcome = int | TallyflowError
"""What has become of an append: the new sequence, or the error that `Log.publish` would raise."""


def outcome_of(append: Callable[[], int]) -> Outcome:
    """Return the new sequence that an append gives, or the error that it raises."""
    try:
        return append()
    except TallyflowError as error:
        return error


class Log(Protocol):
    """The part of JetStream that the protocol needs; `connectors.jetstream.JetStream` and `testing.MemoryLog` provide it."""

    def publish(self, subject: str, payload: bytes, headers: dict[str, str], expected: int) -> int: ...

    def publish_all(self, appends: Sequence[Append]) -> list[Outcome]: ...

    def last(self, stream: str, subject: str) -> Message | None: ...

    def get(self, stream: str, sequence: int) -> Message | None: ...


@dataclass(frozen=True)
class Open(Form):
    """A runner with a new epoch has taken the chain over."""

    KIND: ClassVar[str] = "open"


@dataclass(frozen=True, kw_only=True)
class Plan(Form):
    """The common part of every plan: its range."""

    KIND: ClassVar[str] = "plan"
    start: Any
    to: Any


@dataclass(frozen=True, kw_only=True)
class Done(Form):
    """The common part of every `done`: the range of its plan, its counts, and running `totals`, which the chain adds up."""

    KIND: ClassVar[str] = "done"
    start: Any
    to: Any
    counts: Totals = field(default_factory=dict)
    totals: Totals = field(default_factory=dict)
    seconds: Seconds = 0.0


B_co = TypeVar("B_co", bound=Open | Plan | Done, covariant=True)
P = TypeVar("P", bound=Plan)
T = TypeVar("T")
D = TypeVar("D", bound=Done)
P_co = TypeVar("P_co", bound=Plan, covariant=True)
D_co = TypeVar("D_co", bound=Done, covariant=True)


@dataclass(frozen=True)
class Entry(Generic[B_co]):
    """One entry of a chain. `sequence` is its place in the ledger stream, 0 before it is appended."""

    epoch: int
    body: B_co
    previous_done: int = 0
    open_plan: int = 0
    sequence: int = 0

    @property
    def kind(self) -> str:
        """`open`, `plan` or `done`."""
        return self.body.KIND

    def encode(self) -> bytes:
        """Encode the entry. Raise InvariantError for a body that could not be read again: it would halt its leg for good."""
        body = to_record(self.body)
        try:
            if from_record(type(self.body), body) != self.body:
                raise FormError("decoding it gives another body")
        except FormError as error:
            raise InvariantError(f"writing a {type(self.body).__name__}: {error}; nothing was written. Report this with the log") from error
        envelope = {"format": FORMAT, "kind": self.kind, "epoch": self.epoch}
        references = {"previous_done": self.previous_done, "open_plan": self.open_plan}
        return json.dumps({**body, **envelope, **references}, separators=(",", ":"), sort_keys=True).encode()


@dataclass(frozen=True)
class ChainType(Generic[P_co, D_co]):
    """The chain of a leg: the types of its plans and its `done` entries. `leg`: the leg's id, or the kind for all chains of a kind."""

    leg: str
    plan: type[P_co]
    done: type[D_co]

    def decode(self, message: Message) -> Entry[Open | P_co | D_co]:
        """Decode an entry. Raise HaltError for a message that is no entry of this chain, or an entry of another release.

        Anyone with the right to publish on the ledger can write such a message. For another release the error names the next step.
        """
        try:
            record = json.loads(message.payload)
            _check_format(message, record.pop("format", 1))
            kind, epoch, *references = (record.pop(name) for name in ("kind", "epoch", "previous_done", "open_plan"))
            if not all(type(number) is int and 0 <= number < message.sequence for number in references):
                raise FormError("its references are no earlier sequences")
            if type(epoch) is not int or epoch < 0:
                raise FormError("its epoch is not a number of 0 or more")
            forms: dict[str, type[Open | P_co | D_co]] = {"open": Open, "plan": self.plan, "done": self.done}
            body = from_record(forms[kind], record)
        except FormError as error:
            if error.unknown:
                raise HaltError(
                    f"reading {_describe(message)}: it has fields that this release does not know ({', '.join(error.unknown)[:200]}), so a "
                    "newer release has written it. Start that release; to return to this one, undo there the change that needs the "
                    "fields, and let the pipeline catch up"
                ) from error
            raise _foreign(message, str(error)) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _foreign(message, type(error).__name__) from error
        return Entry(epoch, body, references[0], references[1], message.sequence)

    def decode_done(self, message: Message) -> Entry[D_co]:
        """Decode an entry that must be a `done`: another entry refers to it as one."""
        return self._decode_as(message, self.done)

    def decode_plan(self, message: Message) -> Entry[P_co]:
        """Decode an entry that must be a plan: another entry refers to it as one."""
        return self._decode_as(message, self.plan)

    def _decode_as(self, message: Message, form: type[B_co]) -> Entry[B_co]:
        found = self.decode(message)
        if not isinstance(found.body, form):
            raise _foreign(message, f"its kind is {found.kind}, but another entry refers to it as {form.KIND}")
        return Entry(found.epoch, found.body, found.previous_done, found.open_plan, found.sequence)


def _check_format(message: Message, found: object) -> None:
    if type(found) is not int or found < 1:
        raise FormError("its format is not a number of 1 or more")
    if found > FORMAT:
        raise HaltError(
            f"reading {_describe(message)}: a newer release has written it (format {found}, this release reads {FORMAT}); start the newer "
            "release, only it can finish the open plan"
        )
    if found < FORMAT:
        raise HaltError(
            f"reading {_describe(message)}: an earlier release has written it (format {found}, this release reads {FORMAT}); continue with "
            "the earlier release, or delete the pipeline (`tallyflow delete`) and start it anew"
        )


def _describe(message: Message) -> str:
    return f"{message.subject} at {message.sequence}"


def _foreign(message: Message, reason: str) -> HaltError:
    return HaltError(
        f"reading {_describe(message)}: no entry of a ledger ({reason}); only Tallyflow may write to its streams: find the other writer, "
        "revoke its rights, and restore the streams from a backup of one moment"
    )


def stored_form(form: type[F], message: Message) -> F:
    """Return a ledger entry outside the chains. Raise HaltError for a message that does not match `form`."""
    try:
        return from_text(form, message.payload)
    except FormError as error:
        raise _foreign(message, str(error)) from error


@dataclass(frozen=True)
class ChainState(Generic[P_co, D_co]):
    """The state of a chain: its last sequence and epoch, the last `done`, and the plan that is not done yet."""

    sequence: int = 0
    epoch: int = 0
    done: Entry[D_co] | None = None
    plan: Entry[P_co] | None = None

    @property
    def to(self) -> Any:
        """End of the last done range; None before the first."""
        return self.done.body.to if self.done else None

    @property
    def totals(self) -> Totals:
        """The running totals of the last `done`; none before the first."""
        return self.done.body.totals if self.done else {}


def read_chain(log: Log, names: Names, kind: ChainType[P, D]) -> ChainState[P, D]:
    """Read the state of a leg's chain, without joining it. Raise DataLossError if an entry to which it points is missing."""
    stream, subject = names.stream("ledger"), names.chain(kind.leg)
    while True:
        message = log.last(stream, subject)
        if message is None:
            return ChainState()
        try:
            return _state_at(log, stream, kind, message)
        except DataLossError:
            # The chain may have advanced meanwhile, and its older part may have been purged.
            newer = log.last(stream, subject)
            if newer is None or newer.sequence == message.sequence:
                raise


def _state_at(log: Log, stream: str, kind: ChainType[P, D], last: Message) -> ChainState[P, D]:
    entry = kind.decode(last)
    done_at = entry.sequence if entry.kind == Done.KIND else entry.previous_done
    plan_at = entry.sequence if entry.kind == Plan.KIND else entry.open_plan

    def fetch(sequence: int) -> Message:
        message = last if sequence == last.sequence else log.get(stream, sequence)
        if message is None:
            raise DataLossError(
                f"reading the chain {last.subject}: entry {sequence} is missing from {stream}; restore all streams from a backup of one "
                "moment"
            )
        if message.subject != last.subject:
            raise _foreign(last, f"it refers to {message.subject}")
        return message

    done = kind.decode_done(fetch(done_at)) if done_at else None
    plan = kind.decode_plan(fetch(plan_at)) if plan_at else None
    return ChainState(entry.sequence, entry.epoch, done, plan)


class Chain(Generic[P, D]):
    """One leg's chain, for the runner that holds `epoch`. Not thread-safe."""

    def __init__(self, log: Log, names: Names, kind: ChainType[P, D], epoch: int) -> None:
        self._log, self._names, self._kind, self._epoch = log, names, kind, epoch
        self._stream, self._subject = names.stream("ledger"), names.chain(kind.leg)
        self.leg = kind.leg
        self.state: ChainState[P, D] = ChainState()

    def open(self) -> ChainState[P, D]:
        """Take the chain over: append `open{epoch}` after the last entry. It does not close an open plan.

        Raise FencedError if a runner with a higher epoch came first.
        """
        while True:
            self.state = self._read()
            if self.state.epoch > self._epoch:
                raise self._fenced(self.state.epoch)
            try:
                self._append(Entry(self._epoch, Open(), self._done_at, self.state.plan.sequence if self.state.plan else 0))
            except ConflictError:
                continue
            return self.state

    def _read(self) -> ChainState[P, D]:
        return read_chain(self._log, self._names, self._kind)

    def check_epoch(self) -> None:
        """Raise FencedError if a runner with a higher epoch has opened the chain."""
        found = self._read()
        if found.epoch > self._epoch:
            raise self._fenced(found.epoch)

    def unless_overtaken(self, attempt: Callable[[], T]) -> T:
        """Return the result of `attempt`; if it fails because a newer runner has taken over, raise FencedError instead.

        A newer runner merges segments and purges the frames that it has processed, so the attempt may fail in any way.
        """
        try:
            return attempt()
        except HaltError:
            self.check_epoch()
            raise

    @property
    def _done_at(self) -> int:
        return self.state.done.sequence if self.state.done else 0

    def plan(self, plan: P) -> Entry[P]:
        """Append a plan, whose range starts at the last `to`; there must be no open one."""
        if self.state.plan is not None:
            raise InvariantError(f"planning on {self._subject}: the plan at {self.state.plan.sequence} is still open")
        entry = self._decide(Entry(self._epoch, plan, self._done_at))
        self.state = replace(self.state, plan=entry)
        return entry

    def done(self, done: D) -> Entry[D]:
        """Close the open plan, of the same range; its `counts` are added to the running totals of the last `done`."""
        plan = self._open_plan("closing")
        self._check_range("closing", done, plan.body)
        before = self.state.totals
        totals = {name: before.get(name, 0) + done.counts.get(name, 0) for name in {*before, *done.counts}}
        entry = self._decide(Entry(self._epoch, replace(done, totals=totals), self._done_at))
        self.state = replace(self.state, done=entry, plan=None)
        return entry

    def amend(self, plan: P) -> Entry[P]:
        """Append the open plan again with a further decision; the decision precedes its effect, as the plan did."""
        self._open_plan("amending")
        entry = self._decide(Entry(self._epoch, plan, self._done_at))
        self.state = replace(self.state, plan=entry)
        return entry

    def restate(self, done: D) -> Entry[D]:
        """Append the last `done` again with other parts. Its range stays, and so does an open plan after it."""
        before, plan = self.state.done, self.state.plan
        if before is None:
            raise InvariantError(f"restating on {self._subject}: nothing is done yet")
        self._check_range("restating", done, before.body)
        entry = self._decide(Entry(self._epoch, done, before.sequence, plan.sequence if plan else 0))
        self.state = replace(self.state, done=entry)
        return entry

    def _open_plan(self, doing: str) -> Entry[P]:
        if self.state.plan is None:
            raise InvariantError(f"{doing} a plan on {self._subject}: none is open")
        return self.state.plan

    def _check_range(self, doing: str, done: D, of: Plan | Done) -> None:
        if (done.start, done.to) != (of.start, of.to):
            raise InvariantError(f"{doing} on {self._subject}: the range is {of.start} to {of.to}, not {done.start} to {done.to}")

    def _decide(self, entry: Entry[B_co]) -> Entry[B_co]:
        """Append our decision; losing the compare-and-set to another runner's entry means that we are fenced."""
        try:
            return self._append(entry)
        except ConflictError as conflict:
            raise self._fenced(self._read().epoch) from conflict

    def _append(self, entry: Entry[B_co]) -> Entry[B_co]:
        """Append one entry by compare-and-set. An unknown outcome is resolved by reading the last entry: ours, or still the old one."""
        payload, expected = entry.encode(), self.state.sequence
        try:
            sequence = self._log.publish(self._subject, payload, {}, expected)
        except (ConflictError, RetryableError) as error:
            message = self._log.last(self._stream, self._subject)
            sequence = message.sequence if message else 0
            is_advanced = sequence > expected
            if message is None or not is_advanced or message.payload != payload:
                if isinstance(error, ConflictError) or is_advanced:
                    raise ConflictError(f"appending to {self._subject}: expected {expected}, found {sequence}") from error
                raise
        self.state = replace(self.state, sequence=sequence, epoch=entry.epoch)
        return replace(entry, sequence=sequence)

    def _fenced(self, epoch: int) -> FencedError:
        return FencedError(
            f"writing to {self._subject}: another runner (epoch {epoch}) has taken this pipeline over, ours is {self._epoch}; "
            "stop this runner, the other one continues its work"
        )
