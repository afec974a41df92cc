"""One writer per leg: a file lock on this host, and an epoch on the ledger's `lease.<leg>` subject taken by compare-and-set.

A runner takes the leases of all legs that it runs, or none. The file lock makes a restart after kill -9 immediate (the kernel drops the
lock of a dead process); the epoch fences other hosts and paused runners. A runner that sees a higher epoch than its own stops writing.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import methodcaller
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from filelock import FileLock, Timeout

from pipelines.errors import ConflictError, FencedError, HaltError, RetryableError
from pipelines.protocol.codec import Count, Flag, Form, Text, to_text
from pipelines.protocol.ledger import Log, stored_form
from pipelines.protocol.naming import Names, leg_token
from pipelines.protocol.records import Message

Leg = TypeVar("Leg", bound=str)
"""The id of a leg, or the name of work beside the legs that needs a lease."""
TTL_SECONDS = 10.0
RENEW_EVERY_SECONDS = 2.0
PATIENCE_SECONDS = 3.0
"""A holder that is alive renews its lease within this time."""
INSERT_MAX_EXECUTION_SECONDS = 6
"""An insert starts only if more of the lease is left than this; a sent insert has reached ClickHouse by then.

ClickHouse cannot fence a late insert. This is no bound of an insert's duration: `max_execution_time` does not limit the time to write a
part (7.8 s of 1 s, measured, 26.9).
"""


@dataclass(frozen=True)
class Holder(Form):
    """The holder of a lease, on its subject. `place` is the id of a state directory; the same place means the same host's files."""

    epoch: Count
    place: Text
    runner: Text
    released: Flag = False
    beat: Count = 0
    """Distinguishes one renewal from the next."""

    def encode(self, beat: int) -> bytes:
        return to_text(replace(self, beat=beat)).encode()

    @classmethod
    def decode(cls, message: Message) -> "Holder":
        return stored_form(cls, message)


def leg_lock(directory: Path, leg: str) -> FileLock:
    """Return the lock that the runner of a leg holds on this host; the kernel drops the lock of a dead process."""
    return FileLock(directory / f"lock-{leg_token(leg)}", thread_local=False)


class Lease:
    """One leg's lease, held from `acquire` to `release`; renewed by a thread of its own every 2 s."""

    def __init__(
        self,
        log: Log,
        names: Names,
        directory: Path,
        leg: str,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._log, self._stream, self._subject = log, names.stream("ledger"), names.lease(leg)
        self._directory, self._leg = directory, leg
        self._clock, self._wait = clock, wait
        self._lock = leg_lock(directory, leg)
        self._sequence = 0
        self._beat = 0
        self._expires = 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._publishing = threading.Lock()
        self.holder = Holder(0, self._place(), f"{socket.gethostname()}:{os.getpid()}")
        self.lost = threading.Event()

    def _place(self) -> str:
        """Return the id of this state directory, made on first use."""
        path = self._directory / "place"
        if not path.exists():
            self._directory.mkdir(parents=True, exist_ok=True)
            made = path.with_name(f"place-{uuid4().hex}")
            made.write_text(uuid4().hex)
            with suppress(FileExistsError):
                # The file appears complete or not at all, and the first of several runners decides.
                path.hardlink_to(made)
            made.unlink()
        return path.read_text()

    def acquire(self) -> int:
        """Take the lease and return the new epoch.

        The lease is taken at once if it is free, was released, or its holder ran on this state directory (we hold its file lock, so it is
        dead). It is taken from another host only after it has not been renewed for the TTL. Raise FencedError if a live runner holds it,
        RetryableError if NATS does not answer: nothing is held then, and what was stored without an answer is no obstacle to the next
        start from here.
        """
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise FencedError(
                f"starting: a runner on this host already holds leg {self._leg} in {self._directory}; `tallyflow status` shows it, "
                "`tallyflow stop` ends it"
            ) from error
        try:
            epoch = self._take()
        except BaseException:
            self._lock.release()
            raise
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()
        return epoch

    def _take(self) -> int:
        """Return the epoch with which the lease is ours now. Raise FencedError if a live runner holds it."""
        while True:
            newest = self._log.last(self._stream, self._subject)
            if newest is not None and not self._may_take(newest):
                raise FencedError(
                    f"starting: runner {Holder.decode(newest).runner} on another host holds leg {self._leg}; stop it there, "
                    f"or wait {TTL_SECONDS:.0f} s after it died and start again"
                )
            self._sequence = newest.sequence if newest else 0
            epoch = (Holder.decode(newest).epoch if newest else 0) + 1
            self.holder = Holder(epoch, self.holder.place, self.holder.runner)
            with suppress(ConflictError):
                self._publish()
                return epoch

    def _may_take(self, newest: Message) -> bool:
        holder = Holder.decode(newest)
        if holder.released or holder.place == self.holder.place:
            return True
        deadline = self._clock() + TTL_SECONDS
        while self._clock() < deadline:
            self._wait(0.5)
            renewal = self._log.last(self._stream, self._subject)
            if renewal is not None and renewal.sequence != newest.sequence:
                return Holder.decode(renewal).released
        return True

    def _publish(self) -> None:
        """Publish one renewal; the time before it was sent counts."""
        sent = self._clock()
        self._beat += 1
        payload = self.holder.encode(self._beat)
        try:
            self._sequence = self._log.publish(self._subject, payload, {}, self._sequence)
        except ConflictError:
            # One of our renewals may have been stored although its acknowledgement was lost.
            found = self._log.last(self._stream, self._subject)
            if found is None or not self._is_mine(Holder.decode(found)):
                raise
            self._sequence = self._log.publish(self._subject, payload, {}, found.sequence)
        self._expires = sent + TTL_SECONDS

    def _is_mine(self, found: Holder) -> bool:
        """Return whether an entry is ours, perhaps one from before `raise_epoch`: a process name is not used twice at a time."""
        mine = self.holder
        return found.epoch <= mine.epoch and (found.place, found.runner) == (mine.place, mine.runner)

    def raise_epoch(self) -> int:
        """Take the lease again under the next epoch, so that what still writes under the present one is fenced; return the epoch.

        Raise RetryableError if the outcome is unknown, FencedError if another runner holds the lease.
        """
        with self._publishing:
            self.holder = replace(self.holder, epoch=self.holder.epoch + 1)
            try:
                self._publish()
            except RetryableError:
                self._resync()
                raise
            except ConflictError as error:
                self.lost.set()
                raise FencedError(f"{self._leg}: the lease was lost, another runner has taken this leg over; stop this one") from error
            return self.holder.epoch

    def _keep(self) -> None:
        while not self._stopped.wait(RENEW_EVERY_SECONDS):
            if not self.renew():
                return

    def renew(self) -> bool:
        """Renew once; return False if the lease is lost for good.

        If the server is away, the next renewal tries again: the epoch decides, not the clock.
        """
        try:
            with self._publishing:
                self._publish()
        except RetryableError:
            # The publish may have been stored: the next renewal must expect our newest entry there.
            self._resync()
        except (ConflictError, HaltError):
            # Taken over, or refused for a permanent reason: without renewals no leg may write any more, so the legs must be notified.
            self.lost.set()
            return False
        return True

    def _resync(self) -> None:
        try:
            found = self._log.last(self._stream, self._subject)
        except RetryableError:
            return
        if found is not None and self._is_mine(Holder.decode(found)):
            self._sequence = found.sequence

    @property
    def remaining_seconds(self) -> float:
        """The time in which no other runner can have taken over; at zero or less, write nothing that cannot be fenced."""
        return 0.0 if self.lost.is_set() else self._expires - self._clock()

    def abandon(self) -> None:
        """Stop renewing without a release: the state that the lease protects is about to be deleted.

        The file lock stays until the process ends.
        """
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def release(self) -> None:
        """Release the lease, so that another host need not wait."""
        self.abandon()
        if not self.lost.is_set() and self.holder.epoch:
            self.holder = Holder(self.holder.epoch, self.holder.place, self.holder.runner, released=True)
            try:
                self._publish()
            except (RetryableError, ConflictError):
                # The TTL has the same effect, later.
                self.lost.set()
        self._lock.release()


def acquire_all(
    log: Log,
    names: Names,
    directory: Path,
    legs: Sequence[Leg],
    while_waiting: Callable[[], object] | None = None,
    patience: float = PATIENCE_SECONDS,
) -> dict[Leg, Lease]:
    """Take the leases of `legs`, all or none, in parallel: each may wait for the TTL. Raise the error of the first refused one.

    `while_waiting`: called on this thread, once, if after `patience` seconds none is refused and one is still waited for: its holder is
    probably dead. This host's locks are held by then. What it raises is raised here, and no lease is kept.
    """
    leases = {leg: Lease(log, names, directory, leg) for leg in legs}
    with ThreadPoolExecutor(len(leases), "acquire") as taking:
        outcomes = {leg: taking.submit(lease.acquire) for leg, lease in leases.items()}
        failures: list[BaseException] = []
        waiting = wait(outcomes.values(), patience, FIRST_EXCEPTION)
        if while_waiting is not None and waiting.not_done and not any(map(Future.exception, waiting.done)):
            try:
                while_waiting()
            except BaseException as error:
                failures.append(error)
    failures += [error for error in map(Future.exception, outcomes.values()) if error is not None]
    if failures:
        release_all([leases[leg] for leg, outcome in outcomes.items() if outcome.exception() is None])
        raise failures[0]
    return leases


def release_all(leases: Collection[Lease]) -> None:
    """Release leases in parallel: where NATS does not answer, each waits for it."""
    if leases:
        with ThreadPoolExecutor(len(leases), "release") as giving:
            list(giving.map(methodcaller("release"), leases))
