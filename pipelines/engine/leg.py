"""The common part of the legs: an input sets the target, the chain holds the decisions, absent systems are waited for.

A leg works on (done.to, end] in as many plans as needed; then its input names the next end. It belongs to one thread.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, sleep_using_event, stop_when_event_set, wait_exponential_jitter
from tenacity.wait import wait_base

from pipelines.config.settings import settings_digest
from pipelines.connectors.nats.client import JetStream
from pipelines.engine.connections import Connections
from pipelines.engine.inputs import Input, Offset
from pipelines.errors import DataLossError, FencedError, RetryableError
from pipelines.protocol.bodies import InputMark
from pipelines.protocol.codec import Count, Digest, Form, Seconds, Text
from pipelines.protocol.failpoints import reach
from pipelines.protocol.ledger import Chain, D, Entry, P, Totals
from pipelines.protocol.records import Message, digest
from pipelines.protocol.topology import LegId

T = TypeVar("T")


class StoppedError(Exception):
    """The runner was asked to stop while a leg waited for an absent system; the open plan is finished at the next start."""


class ReplanError(Exception):
    """The ranges that were planned are not the ranges to process: the leg begins again at the end of its chain."""


@dataclass
class LegStatus(Form):
    """The state of a leg, as its process reports it, for `status`, `/metrics` and operators.

    `state`: starting, running, waiting, halted or stopped. `warning`: a fault that does not stop the leg. `failure`: the error that halted
    it (`failures.to_failure`). `reached`: the end of its last `done`. `lane_parts`: the parts of its batches that lanes have done.
    `seconds_large`: the part of `seconds_busy` that went into batches large enough for lanes, without those that waited for a system.
    `settings`: the digest of those of the file under which it works.
    """

    state: Text = "starting"
    message: Text = ""
    warning: Text = ""
    failure: Text = ""
    retries: Count = 0
    batches: Count = 0
    lane_parts: Count = 0
    last_batch: dict[Text, Any] = field(default_factory=dict)
    totals: Totals = field(default_factory=dict)
    seconds_busy: Seconds = 0.0
    seconds_large: Seconds = 0.0
    reached: dict[Text, Count] = field(default_factory=dict)
    settings: Digest = ""


class Tenure(Protocol):
    """The right to write for a leg. `lost`: set once another process has it.

    `remaining_seconds`: the time in which nobody else can have it; at zero or less, write nothing that cannot be fenced.
    """

    @property
    def lost(self) -> threading.Event: ...

    @property
    def remaining_seconds(self) -> float: ...


@dataclass(frozen=True)
class LegMeans:
    """What a leg uses beside its connections: the pause before it tries again, and a monotonic clock in seconds."""

    pause: wait_base = field(default_factory=lambda: wait_exponential_jitter(multiplier=0.1, max=15, jitter=0.2))
    clock: Callable[[], float] = time.monotonic


LEG_MEANS = LegMeans()


class Leg(ABC, Generic[P, D]):
    """One leg of the running pipeline; subclasses define its plans and their execution."""

    def __init__(
        self, connections: Connections, chain: Chain[P, D], tenure: Tenure, stop: threading.Event, means: LegMeans = LEG_MEANS
    ) -> None:
        self.connections, self.chain, self.tenure = connections, chain, tenure
        self.name = LegId.parse(chain.leg)
        self.stop, self.means = stop, means
        self.status = LegStatus()
        self._state_at_work = self.status.state
        """The state while nothing is waited for: starting until the leg has begun."""
        self.begun = means.clock()
        """The time after which nothing that works for an earlier process has begun an insert."""

    @abstractmethod
    def open_input(self) -> Input:
        """Return what the leg reads."""

    @abstractmethod
    def covers(self, end: Offset) -> bool:
        """Return True if the chain's last `done` reaches `end`."""

    @abstractmethod
    def propose(self, end: Offset) -> P:
        """Return the next plan towards `end`. Has no effect; may be called again."""

    @abstractmethod
    def execute(self, plan: Entry[P]) -> D:
        """Execute the plan, or the rest of it; return its `done`. May be called again after any failure."""

    @abstractmethod
    def _start_offset(self) -> Offset:
        """Check the state from which the leg continues; return the end of the chain."""

    def begin(self) -> Offset:
        """Take the chain over; return its end, from which the input continues. Wait for systems that are away."""
        self.patiently(self.chain.open)
        self.begun = self.means.clock()
        self.status.totals = dict(self.chain.state.totals)
        start = self.patiently(self.start_offset)
        self.status.reached = dict(start)
        self.status.state = self._state_at_work = "running"
        return start

    def start_offset(self) -> Offset:
        """Return the end of the chain, from which the input continues."""
        return self.chain.unless_overtaken(self._start_offset)

    def close(self) -> None:
        """Close the resources that only this leg uses; the log belongs to the runner."""
        self.connections.close()

    def advance(self, end: Offset) -> None:
        """Work up to `end`. Raise StoppedError if the leg is asked to stop while it waits for a system."""
        while True:
            plan = self.chain.state.plan
            if plan is None:
                self.patiently(self.between_plans)
                if self.covers(end):
                    break
                proposed = self.patiently(lambda: self.propose(end))
                plan = self.patiently(lambda: self.chain.plan(proposed))  # noqa: B023
                reach("leg.after-plan")
            self._finish(plan)
        reach("leg.before-commit")

    def between_plans(self) -> None:
        """Do what needs that no plan is open, before each plan; may be called again after any failure."""

    @property
    def is_between_plans(self) -> bool:
        """Whether the chain has no open plan: what an earlier process has begun is finished."""
        return self.chain.state.plan is None

    def take_settings(self, settings: str) -> None:
        """Work under other settings of the pipeline file from now on. Call it between two batches, on the leg's thread."""
        self.connections.take_settings(settings)
        self.status.settings = settings_digest(settings)

    def show_progress(self) -> None:
        """Show how far the leg is at the system that it reads, for the ordinary tools of that system."""

    def _finish(self, plan: Entry[P]) -> None:
        begun, status, lanes = time.monotonic(), self.status, self.connections.lanes
        retries = status.retries
        lanes.helped, lanes.is_large = 0, False
        executed = self.patiently(lambda: self.execute(plan))
        closing = self.patiently(lambda: self._closing(executed))
        seconds = time.monotonic() - begun
        done = self.patiently(lambda: self.chain.done(replace(closing, seconds=round(seconds, 4)))).body
        status.batches += 1
        status.lane_parts += lanes.helped
        status.seconds_busy += seconds
        if lanes.is_large and status.retries == retries:
            status.seconds_large += seconds
        status.totals, status.reached = dict(done.totals), self._reached(done)
        status.last_batch = {
            "from": done.start,
            "to": done.to,
            "counts": dict(done.counts),
            "seconds": round(seconds, 4),
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }

    def _reached(self, done: D) -> Offset:
        return {"sequence": done.to}

    def _closing(self, done: D) -> D:
        """Return the `done` of `execute` as it is appended; may write the objects to which it refers, and may be called again."""
        return done

    def patiently(self, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it succeeds or fails for good. A system may be away for days: the pause grows to 15 s, without an end."""

        def waiting(state: RetryCallState) -> None:
            self.status.state = "waiting"
            self.status.message = str(state.outcome.exception()) if state.outcome else ""
            self.status.retries += 1

        def guarded() -> T:
            if self.tenure.lost.is_set():
                raise FencedError(f"{self.name}: the lease was lost, another runner has taken this leg over; stop this one")
            return self.chain.unless_overtaken(attempt)

        retrying = Retrying(
            retry=retry_if_exception_type(RetryableError),
            wait=self.means.pause,
            stop=stop_when_event_set(self.stop),
            sleep=sleep_using_event(self.stop),
            before_sleep=waiting,
            reraise=True,
        )
        try:
            result = retrying(guarded)
        except RetryableError as error:
            raise StoppedError(f"{self.name}: stopped while waiting: {error}") from error
        self.status.state, self.status.message = self._state_at_work, ""
        return result


AnyLeg = Leg[Any, Any]


def input_mark(message: Message) -> InputMark:
    """Return the mark of a last input frame for its `done`."""
    return InputMark(message.sequence, message.subject, message.time.isoformat(), digest(message.payload))


def fetch_behind(log: JetStream, mark: InputMark | None, stream: str, subject: str, to: int) -> Iterator[Message]:
    """Yield the messages behind the input of the last `done`, up to sequence `to`, from the first one if there is no `done`.

    Whether that input is still there is seen in the same answer. Raise DataLossError as `check_input` does.
    """
    messages = log.fetch(stream, subject, mark.sequence - 1 if mark else 0, to)
    if mark is None:
        yield from messages
        return
    first = next(messages, None)
    if first is None or first.sequence != mark.sequence or digest(first.payload) != mark.digest:
        # A replica that lags may have answered: the leader decides.
        check_input(log, stream, mark)
        if first is not None and first.sequence > mark.sequence:
            yield first
    yield from messages


def check_input(log: JetStream, stream: str, mark: InputMark | None) -> None:
    """Raise DataLossError if the stream no longer holds the input of the last `done`: it was restored, or lost its tail."""
    if mark is None:
        return
    message = log.get(stream, mark.sequence)
    if message is None or digest(message.payload) != mark.digest:
        found = "nothing" if message is None else "another frame"
        raise DataLossError(
            f"checking {stream}: at sequence {mark.sequence}, confirmed before, there is {found}. The stream was restored from an older "
            "backup or lost its end; restore all streams of this pipeline from one moment, or delete the pipeline and start it anew"
        )
