"""The common part of the legs: a Spark batch sets the target, the chain holds the decisions, absent systems are waited for.

Spark calls `on_batch` on a thread of the driver. It works on (done.to, end] in as many plans as needed, and returns only when done.to has
reached `end`; otherwise Spark would commit work that was never done.
"""

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession
from tenacity import RetryCallState, Retrying, retry_if_exception_type, sleep_using_event, stop_when_event_set, wait_exponential_jitter
from tenacity.wait import wait_base

from pipelines.connectors.nats.client import JetStream
from pipelines.engine.connections import Connections
from pipelines.engine.execute import Tasks, leg_tasks
from pipelines.errors import DataLossError, FencedError, HaltError, RetryableError
from pipelines.protocol.bodies import InputMark
from pipelines.protocol.failpoints import reach
from pipelines.protocol.lease import Lease
from pipelines.protocol.ledger import Chain, D, Entry, P
from pipelines.protocol.records import Message, digest
from pipelines.protocol.topology import LegId

T = TypeVar("T")


class StoppedError(Exception):
    """The runner was asked to stop while a leg waited for an absent system; the open plan is finished at the next start."""


class ReplanError(Exception):
    """The ranges that Spark has planned are not the ranges to process: the query ends, and a new one begins at the end of the chain."""


@dataclass
class LegStatus:
    """The state of a leg, for `status`, `/metrics` and operators.

    `state`: starting, running, waiting, halted or stopped. `warning`: a fault that does not stop the leg.
    """

    state: str = "starting"
    message: str = ""
    warning: str = ""
    retries: int = 0
    batches: int = 0
    last_batch: dict[str, Any] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    seconds_busy: float = 0.0


@dataclass(frozen=True)
class LegMeans:
    """What a leg uses beside its connections: its Spark tasks, the pause before it tries again, and a monotonic clock in seconds."""

    tasks: Callable[[SparkSession, str], Tasks] = leg_tasks
    pause: wait_base = field(default_factory=lambda: wait_exponential_jitter(multiplier=0.1, max=15, jitter=0.2))
    clock: Callable[[], float] = time.monotonic


LEG_MEANS = LegMeans()


class Leg(ABC, Generic[P, D]):
    """One leg of the running pipeline; subclasses define its plans and their execution."""

    def __init__(
        self,
        connections: Connections,
        chain: Chain[P, D],
        lease: Lease,
        run_path: Path,
        stop: threading.Event,
        means: LegMeans = LEG_MEANS,
    ) -> None:
        self.connections, self.chain, self.lease = connections, chain, lease
        self.name = LegId.parse(chain.leg)
        self.run_path, self.stop, self.means = str(run_path), stop, means
        self.status = LegStatus(totals=dict(chain.state.totals))
        self.begun = means.clock()
        """The time at which this start took the leg over; earlier starts have written nothing since."""
        self.failure: HaltError | None = None
        self.working = threading.Lock()
        """Held while a batch is processed; the runner takes it to stop between batches."""

    @abstractmethod
    def covers(self, end: dict[str, int]) -> bool:
        """Return True if the chain's last `done` reaches `end`, an offset of the leg's Data Source."""

    @abstractmethod
    def propose(self, end: dict[str, int]) -> P:
        """Return the next plan towards `end`. Has no effect; may be called again."""

    @abstractmethod
    def execute(self, session: SparkSession, plan: Entry[P]) -> D:
        """Execute the plan, or the rest of it; return its `done`. May be called again after any failure."""

    @abstractmethod
    def _start_offset(self) -> dict[str, int]:
        """Check the state from which the leg continues; return the end of the chain."""

    def start_offset(self) -> dict[str, int]:
        """Return the first offset for the Data Source: the end of the chain."""
        return self._unless_overtaken(self._start_offset)

    def _unless_overtaken(self, attempt: Callable[[], T]) -> T:
        """Return the result of `attempt`; if it fails because a newer runner has taken over, raise FencedError instead.

        A newer runner merges segments and purges the frames that it has processed, so the attempt may fail in any way.
        """
        try:
            return attempt()
        except HaltError:
            self.chain.check_epoch()
            raise

    def close(self) -> None:
        """Close the resources that only this leg uses; the log belongs to the runner."""
        self.connections.close()

    def on_batch(self, frame: DataFrame, batch: int, checkpoint: Path) -> None:
        """Handle a batch: the `foreachBatch` function. Raise what ends the query: StoppedError, or the HaltError kept in `failure`."""
        # Never waits for the lock: only a stopping runner holds it, and that runner waits for Spark to return this very call.
        if self.stop.is_set() or not self.working.acquire(blocking=False):
            raise StoppedError(f"{self.name}: the runner is stopping")
        try:
            self.advance(frame.sparkSession, planned_end(checkpoint, batch))
            reach("leg.before-commit")
        except HaltError as error:
            self.failure = error
            self.status.state, self.status.message = "halted", str(error)
            raise
        finally:
            self.working.release()

    def advance(self, session: SparkSession, end: dict[str, int]) -> None:
        while True:
            plan = self.chain.state.plan
            if plan is None:
                if self.covers(end):
                    return
                proposed = self.patiently(lambda: self.propose(end))
                plan = self.patiently(lambda: self.chain.plan(proposed))  # noqa: B023
                reach("leg.after-plan")
            self._finish(session, plan)

    def _finish(self, session: SparkSession, plan: Entry[P]) -> None:
        begun = time.monotonic()
        executed = self.patiently(lambda: self.execute(session, plan))
        closing = self.patiently(lambda: self._closing(executed))
        seconds = time.monotonic() - begun
        done = self.patiently(lambda: self.chain.done(replace(closing, seconds=round(seconds, 4)))).body
        status = self.status
        status.batches += 1
        status.seconds_busy += seconds
        status.totals = dict(done.totals)
        status.last_batch = {
            "from": done.start,
            "to": done.to,
            "counts": dict(done.counts),
            "seconds": round(seconds, 4),
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }

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
            if self.lease.lost.is_set():
                raise FencedError(f"{self.name}: the lease was lost, another runner has taken this leg over; stop this one")
            return self._unless_overtaken(attempt)

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
        self.status.state, self.status.message = "running", ""
        return result


AnyLeg = Leg[Any, Any]


def planned_end(checkpoint: Path, batch: int) -> dict[str, int]:
    """Return the end that Spark planned for a batch, from the query's offset log: version line, metadata line, one offset per source."""
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    end: dict[str, int] = json.loads(lines[2])
    return end


def input_mark(message: Message) -> InputMark:
    """Return the mark of a last input frame for its `done`."""
    return InputMark(message.sequence, message.subject, message.time.isoformat(), digest(message.payload))


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
