"""One writer per leg: a file lock on this host, and an epoch on the ledger's `lease.<leg>` subject taken by compare-and-set.

A runner takes the leases of all legs that it runs, or none. The file lock makes a restart after kill -9 immediate (the kernel drops the
lock of a dead process); the epoch keeps out other hosts and paused runners. Whoever sees a higher epoch than its own writes nothing more.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from filelock import FileLock, Timeout

from pipelines.errors import ConflictError, FencedError, HaltError, RetryableError
from pipelines.protocol.codec import Count, Flag, Form, Text, to_text
from pipelines.protocol.ledger import Log, stored_form
from pipelines.protocol.naming import Names
from pipelines.protocol.records import Message

TTL_SECONDS = 10.0
RENEW_EVERY_SECONDS = 2.0
INSERT_MAX_EXECUTION_SECONDS = 6
"""An insert starts only with more lease left than this, and one that was sent has reached ClickHouse by then; ClickHouse cannot fence one
that is late. Not how long it runs: `max_execution_time` does not bind what a part takes to be written (7.8 s of 1 s, measured, 26.9)."""


@dataclass(frozen=True)
class Holder(Form):
    """What the lease subject says: who holds it. `place` is the id of a state directory; the same place means the same host's files."""

    epoch: Count
    place: Text
    runner: Text
    released: Flag = False
    beat: Count = 0
    """Tells one renewal from the next."""

    def encode(self, beat: int) -> bytes:
        return to_text(replace(self, beat=beat)).encode()

    @classmethod
    def decode(cls, message: Message) -> "Holder":
        return stored_form(cls, message)


def leg_lock(directory: Path, leg: str) -> FileLock:
    """The lock that the runner of a leg holds on this host; the kernel drops that of a dead process."""
    return FileLock(directory / f"lock-{leg}", thread_local=False)


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
        self.holder = Holder(0, self._place(), f"{socket.gethostname()}:{os.getpid()}")
        self.lost = threading.Event()

    def _place(self) -> str:
        """Id of this state directory, made on first use."""
        path = self._directory / "place"
        if not path.exists():
            self._directory.mkdir(parents=True, exist_ok=True)
            made = path.with_name(f"place-{uuid4().hex}")
            made.write_text(uuid4().hex)
            with suppress(FileExistsError):
                # Whole or not at all, and the first of several runners decides.
                path.hardlink_to(made)
            made.unlink()
        return path.read_text()

    def acquire(self) -> int:
        """Takes the lease and returns the new epoch.

        At once if it is free, was released, or its holder ran on this state directory (we hold its file lock, so it is dead); from
        another host only after it has not been renewed for the TTL. Raises FencedError when a live runner holds it.
        """
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise FencedError(
                f"starting: a runner on this host already holds leg {self._leg} in {self._directory}; `tallyflow status` shows it, "
                "`tallyflow stop` ends it"
            ) from error
        while True:
            found = self._log.last(self._stream, self._subject)
            if found is not None and not self._may_take(found):
                self._lock.release()
                raise FencedError(
                    f"starting: runner {Holder.decode(found).runner} on another host holds leg {self._leg}; stop it there, "
                    f"or wait {TTL_SECONDS:.0f} s after it died and start again"
                )
            self._sequence = found.sequence if found else 0
            epoch = (Holder.decode(found).epoch if found else 0) + 1
            self.holder = Holder(epoch, self.holder.place, self.holder.runner)
            try:
                self._publish()
            except ConflictError:
                continue
            self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
            self._thread.start()
            return epoch

    def _may_take(self, found: Message) -> bool:
        holder = Holder.decode(found)
        if holder.released or holder.place == self.holder.place:
            return True
        deadline = self._clock() + TTL_SECONDS
        while self._clock() < deadline:
            self._wait(0.5)
            now = self._log.last(self._stream, self._subject)
            if now is not None and now.sequence != found.sequence:
                return Holder.decode(now).released
        return True

    def _publish(self) -> None:
        """One renewal; the time that counts is the one before it was sent."""
        sent = self._clock()
        self._beat += 1
        payload = self.holder.encode(self._beat)
        try:
            self._sequence = self._log.publish(self._subject, payload, {}, self._sequence)
        except ConflictError:
            # A renewal of ours may have been stored although its acknowledgement was lost.
            found = self._log.last(self._stream, self._subject)
            if found is None or not self._is_mine(Holder.decode(found)):
                raise
            self._sequence = self._log.publish(self._subject, payload, {}, found.sequence)
        self._expires = sent + TTL_SECONDS

    def _is_mine(self, found: Holder) -> bool:
        mine = self.holder
        return (found.epoch, found.place, found.runner) == (mine.epoch, mine.place, mine.runner)

    def _keep(self) -> None:
        while not self._stopped.wait(RENEW_EVERY_SECONDS):
            if not self.renew():
                return

    def renew(self) -> bool:
        """Renews once; False when the lease is lost for good. A server that is away is waited for: the epoch decides, not the clock."""
        try:
            self._publish()
        except RetryableError:
            # The publish may have been stored: the next renewal must expect whatever is ours there now.
            self._resync()
        except (ConflictError, HaltError):
            # Taken over, or refused for a reason that will not pass: without renewals nobody may write on, so the legs must hear of it.
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
        """How long nobody else may have taken over; zero or less means: write nothing that cannot be fenced."""
        return 0.0 if self.lost.is_set() else self._expires - self._clock()

    def abandon(self) -> None:
        """Stops renewing without giving back: what the lease protects is about to go. The file lock stays until the process ends."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def release(self) -> None:
        """Gives the lease back, so that another host need not wait."""
        self.abandon()
        if not self.lost.is_set() and self.holder.epoch:
            self.holder = Holder(self.holder.epoch, self.holder.place, self.holder.runner, released=True)
            try:
                self._publish()
            except (RetryableError, ConflictError):
                # The TTL does the same, later.
                self.lost.set()
        self._lock.release()


def acquire_all(log: Log, names: Names, directory: Path, legs: Sequence[str]) -> dict[str, Lease]:
    """The leases of `legs`, all or none, side by side: each may wait for the TTL. Raises what the first refused one raised."""
    leases = {leg: Lease(log, names, directory, leg) for leg in legs}
    with ThreadPoolExecutor(len(leases), "acquire") as waiting:
        outcomes = {leg: waiting.submit(lease.acquire) for leg, lease in leases.items()}
    refused = [outcome.exception() for outcome in outcomes.values() if outcome.exception() is not None]
    if refused:
        for leg, outcome in outcomes.items():
            if outcome.exception() is None:
                leases[leg].release()
        assert refused[0] is not None
        raise refused[0]
    return leases
