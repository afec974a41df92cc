"""Keeps the streams of a running pipeline within their retention and their limits, from a thread beside its legs.

A leg's runner purges what that leg reads (`purge.Purge`), so it works as well when each leg has a process of its own. Nothing waits for
it: what fails is told in the status and tried again. A leg that has halted purges nothing: what it halted over may be evidence.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from pipelines.connectors.nats.client import JetStream
from pipelines.engine.leg import AnyLeg
from pipelines.errors import TallyflowError
from pipelines.protocol.naming import Names
from pipelines.protocol.purge import Purge, Purged, is_full, read_purged
from pipelines.runner.rounds import Rounds

LOOK_EVERY_SECONDS = 2.0
PURGE_AT_MOST_EVERY = timedelta(minutes=1)
_USES = {"ingest": ("raw",), "process": ("raw", "out"), "sink": ("out",)}


@dataclass(frozen=True)
class StreamFacts:
    """A stream as the status shows it."""

    role: str
    stream: str
    bytes: int
    max_bytes: int
    is_full: bool
    purged: Purged

    @property
    def advice(self) -> str:
        """What people should know of it and do; empty while all is well."""
        extent = f"{self.role} stream {self.stream}, {self.bytes:,} of {self.max_bytes:,} bytes"
        if self.is_full:
            return (
                f"{extent}, is full: its writer waits, nothing is lost. Room is made when the sink has confirmed what it holds: see why "
                f"that takes long, or raise the limit with `nats stream edit {self.stream} --max-bytes=...`"
            )
        if self.purged.is_early:
            return f"{extent}, was purged before its retention to make room, up to {self.purged.since:%Y-%m-%d %H:%M:%S} UTC"
        return ""


class LetterRetention:
    """Lets old dead letters go, by calling `expire` now and then: to a twentieth of `max_age`, and at most every minute."""

    def __init__(self, expire: Callable[[], None], max_age: timedelta) -> None:
        self._expire = expire
        self._every_seconds = max(PURGE_AT_MOST_EVERY, max_age / 20).total_seconds()
        self._due = 0.0

    def look(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every_seconds
            self._expire()


class Retention(Rounds):
    """The thread. `facts`, and `failure` (why the last attempt failed, empty if it did not), may be read by any thread."""

    def __init__(
        self, log: JetStream, names: Names, legs: Mapping[str, AnyLeg], max_age: timedelta, letters: "LetterRetention | None"
    ) -> None:
        self.facts: tuple[StreamFacts, ...] = ()
        self._log, self._names, self._legs = log, names, legs
        self._purges = {leg: Purge(log, names, leg, max_age) for leg in legs}
        self.failure = ""
        # A short retention is kept to a twentieth of it.
        self._every_seconds = min(PURGE_AT_MOST_EVERY, max_age / 20).total_seconds()
        self._due = 0.0
        self._letters = letters if "process" in legs else None
        super().__init__("retention", LOOK_EVERY_SECONDS, self.look)

    def look(self) -> None:
        """One round: purges by age if that is due, makes room where it is short, and takes down how the streams stand."""
        is_due = time.monotonic() >= self._due
        if is_due:
            self._due = time.monotonic() + self._every_seconds
        try:
            for name, purge in self._purges.items():
                leg = self._legs[name]
                if leg.failure is None and not leg.lease.lost.is_set():
                    if is_due:
                        purge.by_age()
                    purge.for_room()
            if self._letters is not None:
                self._letters.look()
            self.facts = tuple(self._facts())
            self.failure = ""
        except TallyflowError as error:
            self.failure = str(error)

    def _facts(self) -> Iterator[StreamFacts]:
        for role in sorted({role for leg in self._legs for role in _USES[leg]}, reverse=True):
            stream = self._names.stream(role)
            state = self._log.state(stream)
            if state is not None:
                purged = read_purged(self._log, self._names, role)
                yield StreamFacts(role, stream, state.bytes, state.max_bytes, is_full(state), purged)
