"""Retention of a running pipeline's streams, from a thread beside its legs: purge by age and by size.

A leg's runner purges what that leg reads (`purge.Purge`), so a process per leg works as well. Nothing waits for a purge: the status shows a
failure, and it is retried. A leg that has halted purges nothing: the messages may be evidence.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from pipelines.connectors.nats.client import JetStream
from pipelines.engine.coordinator import LegView
from pipelines.errors import TallyflowError
from pipelines.protocol.naming import Names
from pipelines.protocol.purge import Purge, Purged, is_full, read_purged
from pipelines.protocol.topology import LegId, Topology
from pipelines.runner.rounds import Rounds, reached

LOOK_EVERY_SECONDS = 2.0
PURGE_AT_MOST_EVERY = timedelta(minutes=1)


@dataclass(frozen=True)
class StreamFacts:
    """The state of a stream, as the status shows it."""

    role: str
    stream: str
    bytes: int
    max_bytes: int
    is_full: bool
    purged: Purged

    @property
    def advice(self) -> str:
        """The state of the stream and what to do about it, in a sentence; empty while all is well."""
        extent = f"{self.role} stream {self.stream}, {self.bytes:,} of {self.max_bytes:,} bytes"
        if self.is_full:
            return (
                f"{extent}, is full: its writer waits, nothing is lost. Space is freed once the sink has confirmed its messages: see why "
                f"that takes long, or raise the limit with `nats stream edit {self.stream} --max-bytes=...`"
            )
        if self.purged.is_early:
            return f"{extent}, was purged early to free space, up to {self.purged.since:%Y-%m-%d %H:%M:%S} UTC"
        return ""


class DeadLetterRetention:
    """Expires old dead letters by calling `expire` at intervals of a twentieth of `max_age`, and at most every minute."""

    def __init__(self, expire: Callable[[], None], max_age: timedelta) -> None:
        self._expire = expire
        self._every_seconds = max(PURGE_AT_MOST_EVERY, max_age / 20).total_seconds()
        self._due = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the next look expires dead letters."""
        return time.monotonic() >= self._due

    def look(self) -> None:
        if self.is_due:
            self._due = time.monotonic() + self._every_seconds
            self._expire()


class Retention(Rounds):
    """The thread. `facts`, and `failure` (why the last attempt failed, else empty), may be read by any thread."""

    def __init__(
        self,
        log: JetStream,
        names: Names,
        topology: Topology,
        legs: Mapping[LegId, LegView],
        max_age: timedelta,
        dead_letters: "DeadLetterRetention | None",
        every_seconds: float = LOOK_EVERY_SECONDS,
    ) -> None:
        self.facts: tuple[StreamFacts, ...] = ()
        self._log, self._names, self._topology, self._legs = log, names, topology, legs
        self._purges = {leg: Purge(log, names, topology, leg, max_age) for leg in legs}
        self.failure = ""
        self._due = 0.0
        self.keep(max_age, dead_letters)
        super().__init__("retention", every_seconds, self.look, self._seen)

    def keep(self, max_age: timedelta, dead_letters: "DeadLetterRetention | None") -> None:
        """Keep messages for so long, and dead letters as said, from the next round on. For any thread."""
        for purge in self._purges.values():
            purge.max_age = max_age
        # A short retention is kept to a twentieth of it.
        self._every_seconds = min(PURGE_AT_MOST_EVERY, max_age / 20).total_seconds()
        self._dead_letters = dead_letters if self._topology.process in self._legs else None
        self._due = 0.0

    @property
    def _is_due(self) -> bool:
        return time.monotonic() >= self._due

    def _seen(self) -> Hashable | None:
        """Return how far the legs are while the streams can only change with that: nothing is due, full or wrong."""
        is_due = self._is_due or ((dead_letters := self._dead_letters) is not None and dead_letters.is_due)
        is_well = self.facts and not self.failure and not any(facts.is_full for facts in self.facts)
        return reached(self._topology, self._legs) if is_well and not is_due else None

    def look(self) -> None:
        """Run one round: purge by age if due, free space if it is short, and note the state of the streams."""
        is_due = self._is_due
        if is_due:
            self._due = time.monotonic() + self._every_seconds
        try:
            for name, purge in self._purges.items():
                leg = self._legs[name]
                if leg.failure is None and not leg.lease.lost.is_set():
                    if is_due:
                        purge.by_age()
                    purge.for_room()
            if (dead_letters := self._dead_letters) is not None:
                dead_letters.look()
            self.facts = tuple(self._facts())
            self.failure = ""
        except TallyflowError as error:
            self.failure = str(error)

    def _facts(self) -> Iterator[StreamFacts]:
        used = {role for leg in self._legs for role in (leg.reads, *self._topology.writes(leg))}
        for role in (role for role in self._topology.roles_between if role in used):
            stream = self._names.stream(role)
            state = self._log.extent(stream)
            if state is not None:
                purged = read_purged(self._log, self._names, role)
                yield StreamFacts(role, state.name, state.bytes, state.max_bytes, is_full(state), purged)
