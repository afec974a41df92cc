"""Purging of a pipeline's streams: delivered frames are purged when they are older than the retention, or to make room.

A leg purges its input in steps of its own `done` entries: the newest one that may be the oldest kept one is the **floor**. Below its `to`
frames are purged from the stream, below its plan entries are purged from the chain, so stream and chain always reach back to the same
range. Kept in any case: the last message of every subject (a resume point), the frame at `done.to` (its digest is verified), raw frames of
out rows that are not confirmed yet (ClickHouse may refuse such a row, and its dead letter is made of the raw record), raw frames of left
records that wait in a join (for the same reason), raw frames of rows that are out of the table to be made anew, and raw frames that ingest
has not confirmed (it reads them back to count them). The extent of a purge is on the ledger before anything is purged.

A purge names a sequence below an existing `done`, and `done` never steps back. So every purge, however late, even from a runner that was
fenced, removes only messages that were allowed to be purged when it was decided.
"""

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Protocol

from pydantic import AwareDatetime

from pipelines.errors import ConflictError
from pipelines.protocol.bodies import PROCESS_CHAIN, REDRIVE_CHAIN, REPROCESS_CHAIN, IngestDone, IngestPlan, ProcessDone, RedrivePlan
from pipelines.protocol.codec import Count, Flag, Form, to_text
from pipelines.protocol.existence import Stream, Streams
from pipelines.protocol.failpoints import reach
from pipelines.protocol.ledger import ChainState, Done, Log, Plan, read_chain, stored_form
from pipelines.protocol.naming import REDRIVE, Names, is_redriven, is_tick
from pipelines.protocol.positions import Position
from pipelines.protocol.records import HEADER_FIRST, HEADER_LAST, HEADER_OLDEST, Message, instant
from pipelines.protocol.stream_limits import MAX_FRAME_BYTES, ROOM_BYTES
from pipelines.protocol.topology import RAW, LegId, Topology

ENTRIES_PER_CALL = 20_000
"""Limit of the chain entries that one call reads: some seconds for a chain that was never folded, so that a stop need not wait long."""


class PurgeLog(Log, Streams, Protocol):
    """The part of JetStream that purging needs beyond the protocol's own reads."""

    def fetch(self, stream: str, subject: str, after: int, to: int) -> Iterator[Message]: ...

    def extent(self, stream: str) -> Stream | None: ...

    def subjects(self, stream: str, subject: str) -> dict[str, int]: ...

    def purge(self, stream: str, subject: str, below: int) -> None: ...


def bytes_before_purge(limit: int) -> int:
    """Return the bytes that a stream with this limit may hold before it is purged early. The rest is ingest's reserve of raw."""
    return max(0, limit - max(limit // 5, ROOM_BYTES))


def bytes_free_for_redrive(raw: Stream) -> int:
    """Return the bytes of dead letters that may be put back onto raw now without taking the room that ingest needs."""
    return sys.maxsize if raw.max_bytes <= 0 else max(0, bytes_before_purge(raw.max_bytes) - raw.bytes)


def is_full(stream: Stream) -> bool:
    """Return True if a frame of the largest size would be refused."""
    return 0 < stream.max_bytes < stream.bytes + MAX_FRAME_BYTES


@dataclass(frozen=True)
class Purged(Form):
    """The extent of a stream's purge: `below` is the first sequence that was not purged.

    Below it only the last messages of quiet subjects are left, and raw frames of ingest's open plan until ingest has confirmed them.
    `since`: the oldest time of the rest, by the clock of the leg that reads it. `is_early`: before the retention, to make room.
    """

    below: Count = 0
    since: AwareDatetime | None = None
    is_early: Flag = False

    def encode(self) -> bytes:
        return to_text(self).encode()

    @classmethod
    def decode(cls, message: Message) -> "Purged":
        return stored_form(cls, message)


def read_purged(log: Log, names: Names, role: str) -> Purged:
    """Read the extent of a stream's purge; it is empty for a stream that was never purged."""
    message = log.last(names.stream("ledger"), names.purged(role))
    return Purged.decode(message) if message else Purged()


def purge_dead_letters(log: PurgeLog, names: Names, may_go: Mapping[str, int]) -> None:
    """Purge dead letters below a sequence by subject, never a subject's last one: the caller knows that nothing needs them.

    The call is safe to repeat, and to kill: a purge that was written down and not finished is finished by the next purge of the same
    extent.
    """
    if not may_go:
        return
    _decide(log, names, "dlq", Purged(max(may_go.values())))
    for subject, below in may_go.items():
        last = log.last(names.stream("dlq"), subject)
        if last is not None:
            log.purge(names.stream("dlq"), subject, min(below, last.sequence))


def redrive_entries_that_may_go(log: PurgeLog, names: Names, max_age: timedelta) -> int:
    """Return the sequence below which the chain of redrive is not needed, 0 if nothing may be purged.

    A plan is kept as long as a dead letter that it names. As in every chain the last `plan` and `done` stay, and so do entries younger than
    `max_age` by the clock of the chain itself.
    """
    stream, subject = names.stream("ledger"), names.chain(REDRIVE)
    chain = read_chain(log, names, REDRIVE_CHAIN)
    newest = log.get(stream, chain.done.sequence) if chain.done else None
    below = 0
    for message in islice(log.fetch(stream, subject, 0, newest.sequence - 1 if newest else 0), ENTRIES_PER_CALL):
        entry = REDRIVE_CHAIN.decode(message)
        if newest is None or message.time > newest.time - max_age:
            break
        if isinstance(entry.body, RedrivePlan) and any(log.get(names.stream("dlq"), sequence) for sequence, _ in entry.body.letters):
            break
        if entry.kind == "done":
            below = entry.sequence + 1
    return below


def fold_redrive(log: PurgeLog, names: Names, below: int) -> None:
    """Purge entries of the chain of redrive.

    Call it before frames of dead letters are purged: the entries of these frames are left to a later call. A replica that still serves such
    a frame must not be asked while no plan names its dead letters any more.
    """
    if below:
        log.purge(names.stream("ledger"), names.chain(REDRIVE), below)


def purge_lease(log: PurgeLog, names: Names, leg: str) -> None:
    """Purge all entries of a lease but the last."""
    last = log.last(names.stream("ledger"), names.lease(leg))
    if last is not None:
        log.purge(names.stream("ledger"), names.lease(leg), last.sequence)


def _decide(log: Log, names: Names, role: str, purged: Purged) -> None:
    """Write down the extent of a purge before it starts, unless it is known already or another runner writes it now."""
    subject, stream = names.purged(role), names.stream("ledger")
    before = log.last(stream, subject)
    if purged.below <= (Purged.decode(before).below if before else 0):
        return
    with suppress(ConflictError):
        log.publish(subject, purged.encode(), {}, before.sequence if before else 0)
    reach("purge.after-decision")


@dataclass(frozen=True)
class _Floor:
    """The `done` whose range is the last that may be purged, its time, and the sequence of the first ledger entry that stays."""

    done: Done
    time: datetime
    first_entry: int


class Purge:
    """The purge of one leg, for the runner that holds its lease. Not thread-safe, but for `max_age`.

    It raises the errors of the log; a purge that was begun is finished by the next call, in this process or another.
    """

    def __init__(
        self,
        log: PurgeLog,
        names: Names,
        topology: Topology,
        leg: LegId,
        max_age: timedelta,
        entries_per_call: int = ENTRIES_PER_CALL,
    ) -> None:
        self._log, self._names, self._topology, self._leg, self.max_age = log, names, topology, leg, max_age
        self._entries_per_call = entries_per_call
        self._ledger = names.stream("ledger")
        self._role, self._chain = leg.purges, leg.chain
        self._is_process = leg == topology.process
        self._first_entry = 0
        self._purged_below = 0
        self._last_seen: dict[str, int] = {}

    def by_age(self) -> None:
        """Purge messages older than the retention, and their entries on the ledger."""
        self._advance(0)
        own = [self._names.lease(self._leg)] + ([self._names.purged(self._role)] if self._role else [])
        for subject in [*own, self._names.compaction()] if self._is_process else own:
            self._purge_subject(self._ledger, subject, sys.maxsize)
        if self._is_process:
            self._purge_run_lists()

    def for_room(self) -> None:
        """Purge the oldest delivered messages while the stream is nearly full; do nothing while there is room."""
        if self._role is None:
            return
        extent = self._log.extent(self._names.stream(self._role))
        if extent is None or extent.max_bytes <= 0:
            return
        wanted = bytes_before_purge(extent.max_bytes)
        if extent.bytes > wanted:
            # By the mean size of messages not purged yet; quiet subjects hold few others. The next call purges what this estimate misses.
            held = extent.last_sequence - max(0, read_purged(self._log, self._names, self._role).below - 1)
            self._advance(extent.last_sequence - held * wanted * 3 // (extent.bytes * 4))

    def _advance(self, crowded_out: int) -> None:
        """Move the floor as far as allowed. `crowded_out`: frames up to this sequence are purged whatever their age."""
        chain = read_chain(self._log, self._names, self._chain)
        if chain.done is None:
            return
        newest = self._log.get(self._ledger, chain.done.sequence)
        if newest is None:
            # The chain has advanced and was folded since: another runner is at work.
            return
        now = _clock(chain.done.body, newest)
        limit, anywhere = self._limits(chain.done.body.to if self._role else 1)
        if isinstance(chain.done.body, ProcessDone):
            kept_from = self._last_not_needed(chain.done.body)
            limit, anywhere = min(limit, kept_from), min(anywhere, kept_from)
        floor = self._floor(chain.done.sequence, limit, now - self.max_age, crowded_out)
        if self._role:
            _decide(self._log, self._names, self._role, self._decision(floor, min(anywhere, crowded_out), now))
            # Whoever decided it, at any time: a runner may have died before it purged.
            self._purge_frames(self._role, read_purged(self._log, self._names, self._role).below)
        if floor is None:
            return
        if isinstance(floor.done, ProcessDone):
            self._purge_duplicates(floor.done)
        # An open plan may precede the last `done`, if that was restated.
        first = min(floor.first_entry, chain.plan.sequence if chain.plan else floor.first_entry)
        self._purge_subject(self._ledger, self._names.chain(self._leg), first)
        self._first_entry = first

    def _last_not_needed(self, done: ProcessDone) -> int:
        """Return the last raw sequence before what waits in a join, and before rows that are out of the table to be made anew."""
        waiting = done.waiting.sequence - 1 if done.waiting is not None else sys.maxsize
        plan = read_chain(self._log, self._names, REPROCESS_CHAIN).plan
        return min(waiting, plan.body.first - 1 if plan else sys.maxsize)

    def _decision(self, floor: _Floor | None, for_room: int, now: datetime) -> Purged:
        """Return the extent of the purge; to make room it need not end at the end of a range.

        A range may hold frames of a plan of ingest that waits for this very room.
        """
        to = floor.done.to if floor else 0
        if for_room > to:
            return Purged(for_room, now, is_early=True)
        return Purged(to, floor.time, floor.time > now - self.max_age) if floor else Purged()

    def _floor(self, last: int, limit: int, too_old: datetime, crowded_out: int) -> _Floor | None:
        """Return the newest `done` that may be the floor, None if it is the present one. A long chain is read in several calls."""
        floor, plan = None, 0
        entries = self._log.fetch(self._ledger, self._names.chain(self._leg), max(0, self._first_entry - 1), last)
        for message in islice(entries, self._entries_per_call):
            entry = self._chain.decode(message)
            if isinstance(entry.body, Plan):
                plan = entry.sequence
            if not isinstance(entry.body, Done):
                continue
            time, to = _clock(entry.body, message), entry.body.to if self._role else 1
            if to > limit or (time > too_old and to > crowded_out):
                break
            floor = _Floor(entry.body, time, plan or entry.sequence)
            plan = 0
        return None if floor is None or floor.first_entry == self._first_entry else floor

    def _limits(self, to: int) -> tuple[int, int]:
        """Return the last sequence that is kept for its age only: at the end of a range, and anywhere.

        `to`: the end of the last range. Out rows of a range follow the rows of earlier ranges, and rows of its buckets are in any order:
        all unconfirmed rows come from the range of the first unconfirmed row, or a later one; with several sinks the lowest one counts.
        Frames that an ingest leg has not confirmed follow all frames that it has confirmed, so ranges end there. Dead letters that were
        redriven after that may fill the stream, and then ingest cannot continue. So the second limit is the end of the last processed
        range, and `_purge_frames` spares ingest's own frames.
        """
        if self._topology.refuser_of(self._leg):
            to = self._with_raw(to)
        if not self._is_process:
            return to, to
        covered, anywhere = min(to, _confirmed_by_ingest(self._ingests().values())), to
        for sink in self._topology.sinks:
            first = self._first_unconfirmed(sink)
            if first is not None:
                covered, anywhere = min(covered, first), 0
        return covered, anywhere

    def _with_raw(self, to: int) -> int:
        """Return the last sequence of a fallback's stream, at most `to`, before the first row whose raw frame is there.

        Verification takes from that stream which records were refused, as long as it can read these records.
        """
        role, raw = self._leg.input_role, read_purged(self._log, self._names, RAW)
        after = max(0, read_purged(self._log, self._names, role).below - 1)
        for frame in self._log.fetch(self._names.stream(role), self._names.subjects(role), after, to):
            if Position.parse(frame.headers[HEADER_LAST]).sequence >= raw.below:
                return frame.sequence - 1
        return to

    def _first_unconfirmed(self, sink: LegId) -> int | None:
        """Return the raw sequence before the first row that a sink has not confirmed; 0 if it is unknown now, None without such a row."""
        assert sink.reads is not None
        stream, confirmed = self._names.stream(sink.reads), read_chain(self._log, self._names, sink.chain).to or 0
        written = self._log.state(stream)
        if written is None or written.last_sequence <= confirmed:
            return None
        if self._topology.refuser_of(sink):
            # One chunk of the refusing sink may hold several ranges, and writes them bucket by bucket.
            frames = self._log.fetch(stream, self._names.subjects(sink.reads), confirmed, written.last_sequence)
            return min((Position.parse(frame.headers[HEADER_FIRST]).sequence - 1 for frame in frames), default=0)
        waiting = self._log.get(stream, confirmed + 1)
        if waiting is None:
            # The sink has confirmed and purged it since.
            return 0
        oldest = waiting.headers.get(HEADER_OLDEST)
        return (int(oldest) if oldest else Position.parse(waiting.headers[HEADER_FIRST]).sequence) - 1

    def _ingests(self) -> dict[LegId, ChainState[IngestPlan, IngestDone]]:
        """Read the chains of the ingest legs."""
        return {leg: read_chain(self._log, self._names, leg.chain) for leg in self._topology.upstream(self._leg)}

    def _purge_frames(self, role: str, below: int) -> None:
        if below <= self._purged_below:
            return
        stream = self._names.stream(role)
        # Read after the decision, when its frames were stored: without an open plan of ingest all of them are confirmed.
        ingests = self._ingests() if self._is_process else {}
        for subject in self._log.subjects(stream, self._names.subjects(role)):
            is_of_ingest = bool(ingests) and not is_tick(subject)
            needed = _needed_by_ingest(ingests[self._topology.ingest_of(subject)], subject) if is_of_ingest else below
            self._purge_subject(stream, subject, min(below, needed))
        if all(ingest.plan is None for ingest in ingests.values()):
            self._purged_below = below

    def _purge_duplicates(self, floor: ProcessDone) -> None:
        """Purge the copies that were kept of the ranges up to the floor; no code of ours reads them."""
        stream = self._names.stream("duplicates")
        for subject in self._log.subjects(stream, self._names.subjects("duplicates")):
            self._purge_subject(stream, subject, floor.ends.get("duplicates", 0) + 1)

    def _purge_run_lists(self) -> None:
        """Purge pages that the last `done` does not need: pages of an older one, or of one that was never appended."""
        done = read_chain(self._log, self._names, PROCESS_CHAIN).done
        reference = done.body.runs if done else None
        if reference:
            self._purge_subject(self._names.stream("runs"), self._names.run_lists(), reference.first)

    def _purge_subject(self, stream: str, subject: str, below: int) -> None:
        """Purge the subject's messages below `below`, but never its last one."""
        if self._last_seen.get(subject, 0) < below:
            last = self._log.last(stream, subject)
            if last is None:
                return
            self._last_seen[subject] = last.sequence
        self._log.purge(stream, subject, min(below, self._last_seen[subject]))


def _confirmed_by_ingest(ingests: Collection[ChainState[IngestPlan, IngestDone]]) -> int:
    """Return the raw sequence up to which the ingest legs have confirmed their frames.

    A leg without an open plan has confirmed all that it has written: only the others hold the sequence back.
    """
    newest = [max((tail.sequence for tail in one.done.body.tails.values()), default=0) if one.done else 0 for one in ingests]
    held = [sequence for sequence, one in zip(newest, ingests, strict=True) if one.plan is not None]
    return min(held, default=max(newest, default=0))


def _needed_by_ingest(ingest: ChainState[IngestPlan, IngestDone], raw_subject: str) -> int:
    """Return the first sequence that ingest may still read on a raw subject; it never reads redriven dead letters."""
    if is_redriven(raw_subject):
        return sys.maxsize
    tail = ingest.done.body.tails.get(raw_subject.rpartition(".")[2]) if ingest.done else None
    return tail.sequence if tail else 1


def _clock(done: Done, message: Message) -> datetime:
    """Return the time by which a range's age is measured.

    For process it is the arrival of its last frame, as for windows; for the others it is the time of the entry. It is never the wall clock:
    a pipeline that stands still keeps its messages.
    """
    if isinstance(done, ProcessDone):
        return instant(done.clock_us)
    return message.time
