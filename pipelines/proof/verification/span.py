"""The raw frames of a verification: hours of arrival as sequences of the raw stream, by the entries of the process leg's ledger.

The ledger holds for each frame its arrival and its configuration, and the end of the sink's confirmation. Purged frames cannot be proved;
entries and frames reach back to the same range.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby

from pipelines.connectors.nats.client import JetStream, fetch_whole
from pipelines.process import stage_config
from pipelines.process.arrivals import microseconds
from pipelines.process.program import Program
from pipelines.process.steps.join import Join
from pipelines.proof.readers.streams import read_frames
from pipelines.proof.verification.reference import Bounds
from pipelines.proof.verification.remade import Part, Remade, overlaid, read_remade
from pipelines.protocol.bodies import NEVER, NOTHING, PROCESS_CHAIN, ClockReset, ProcessDone, ProcessState, Watermarks
from pipelines.protocol.existence import check_started
from pipelines.protocol.ledger import read_chain
from pipelines.protocol.naming import Names
from pipelines.protocol.positions import Position, first_position, from_differences, last_position
from pipelines.protocol.purge import read_purged
from pipelines.protocol.records import HEADER_FIRST, Message, instant
from pipelines.protocol.topology import LegId, Topology

_CLOCKS_APART_US = 60_000_000
"""Largest step back of the times of a stream."""


@dataclass(frozen=True)
class Plan:
    """A range that the process leg has done: raw sequences from `first` to `to`, the watermarks up to there.

    `version`: of its configuration; `lookups`: the snapshots of its look-up tables.
    """

    first: int
    to: int
    version: str
    watermarks: Watermarks = NOTHING
    lookups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class History:
    """The ledger's account of the frames that raw still holds. `sequences` and `arrivals_us` ascend, one entry per frame.

    `is_whole`: they reach back to the first frame of the pipeline. `confirmed_to`: rows of all frames up to there are confirmed by the
    sink. `remade`: ranges whose rows were made anew since, in the order in which that was done.
    """

    plans: Sequence[Plan]
    sequences: Sequence[int]
    arrivals_us: Sequence[int]
    confirmed_to: int
    is_whole: bool
    resets: Sequence[ClockReset] = ()
    remade: Sequence[Remade] = ()

    def since(self, arrival_us: int) -> int:
        """Return the first sequence that arrived at this time or later; the one after the last if none did."""
        index = bisect_left(self.arrivals_us, arrival_us)
        return self.sequences[index] if index < len(self.sequences) else self.last + 1

    def first_since(self, since: datetime | None) -> int:
        """Return the first sequence that arrived at an instant or later, None for the first of all; as `since`."""
        return self.since(microseconds(since)) if since else (self.sequences[0] if self.sequences else 1)

    def arrival_us(self, sequence: int) -> int:
        """Return the arrival of the first frame from `sequence` on; of the last frame if none follows."""
        return self.arrivals_us[min(bisect_left(self.sequences, sequence), len(self.sequences) - 1)]

    @property
    def last(self) -> int:
        return self.sequences[-1] if self.sequences else 0

    def frames(self, first: int, last: int) -> Sequence[int]:
        """Return the sequences of the frames between two, both inclusive."""
        return self.sequences[bisect_left(self.sequences, first) : bisect_right(self.sequences, last)]

    @property
    def readable(self) -> list[Plan]:
        """The plans behind which every frame is there. A purge to make room, or one that was killed, has gone further than the ledger's."""
        first = self.sequences[0] if self.sequences else 1
        return [plan for plan in self.plans if plan.to >= first - 1]

    def segments(self, first: int, last: int) -> Iterator[tuple[int, int, str]]:
        """Yield (first sequence, last sequence, version) of the stretches with one configuration."""
        inside = [plan for plan in self.plans if max(plan.first, first) <= min(plan.to, last)]
        for version, group in groupby(inside, key=lambda plan: plan.version):
            plans = list(group)
            yield max(plans[0].first, first), min(plans[-1].to, last), version

    def rows_made(self, first: int, last: int) -> list[Part]:
        """Return (first sequence, last sequence, version) of the stretches whose rows the table has under one configuration.

        As `segments`, but for rows that were made anew under a later configuration.
        """
        return overlaid(self.segments(first, last), self.remade)

    def parts(self, first: int, last: int) -> Iterator[tuple[int, int, str, Mapping[str, str]]]:
        """Yield (first sequence, last sequence, version, snapshots of look-up tables) of the stretches with the same of both."""
        inside = [plan for plan in self.plans if max(plan.first, first) <= min(plan.to, last)]
        for (version, _), group in groupby(inside, key=lambda plan: (plan.version, sorted(plan.lookups.items()))):
            plans = list(group)
            yield max(plans[0].first, first), min(plans[-1].to, last), version, plans[0].lookups

    def after(self, floor: int) -> "History":
        """Return the history of the frames after raw sequence `floor`, as if the others were purged."""
        if floor < (self.sequences[0] if self.sequences else 1):
            return self
        index = bisect_right(self.sequences, floor)
        plans = [plan for plan in self.plans if plan.to > floor]
        return replace(self, plans=plans, sequences=self.sequences[index:], arrivals_us=self.arrivals_us[index:], is_whole=False)

    def up_to(self, sequence: int) -> "History":
        """Return the history of the frames up to a raw sequence that ended a range, as if process had done no more."""
        index = bisect_right(self.sequences, sequence)
        plans = [plan for plan in self.plans if plan.to <= sequence]
        return replace(self, plans=plans, sequences=self.sequences[:index], arrivals_us=self.arrivals_us[:index])


@dataclass(frozen=True)
class Span:
    """Raw sequences, inclusive: `first` to `last` are compared, and raw is read from `read_from` on.

    From `first_replayed` on the reference finds the copies itself; the table shows which records before that were accepted. `before`: the
    watermarks before `read_from`. `behind`: with a join, frames are read up to this raw sequence, behind `last`, to see what they decide.
    `purged_us`, of a join: the arrival of the last record before `read_from`, at most, and `unread_us`, by the records' own times, the
    newest one there; None if no record there matters.
    """

    first: int
    last: int
    read_from: int
    first_replayed: int
    before: Watermarks = NOTHING
    behind: int = 0
    purged_us: int | None = None
    unread_us: int | None = None

    @property
    def read_to(self) -> int:
        return max(self.last, self.behind)

    @property
    def is_seeded(self) -> bool:
        return self.first_replayed > self.read_from

    @property
    def bounds(self) -> Bounds:
        first_replayed = first_position(self.first_replayed) if self.is_seeded else 0
        return Bounds(first_position(self.first), last_position(self.last), first_replayed, self.before)


def read_history(log: JetStream, names: Names, topology: Topology, sink: LegId, since: datetime | None) -> History:
    """Read the ledger, with the confirmation of one sink: all, or, by arrival, from a window before `since` on, and one range before that.

    Raise HaltError for a pipeline that was never started, RetryableError while NATS is away.
    """
    check_started(log, names)
    ledger = names.stream("ledger")
    # The sink first: its confirmed rows were processed before.
    own = read_chain(log, names, sink.chain).to or 0
    fed = topology.refuser_of(sink) or sink
    confirmed = own if fed == sink else read_chain(log, names, fed.chain).to or 0
    chain = read_chain(log, names, PROCESS_CHAIN)
    raw = log.state(names.stream("raw"))
    below = max(read_purged(log, names, "raw").below, raw.first_sequence if raw else 1)
    plans: dict[int, Plan] = {}
    arrivals: dict[int, int] = {}
    confirmed_to = 0
    after = _entries_after(log, names, chain, since)
    for entry in map(PROCESS_CHAIN.decode, fetch_whole(log, ledger, names.chain(PROCESS_CHAIN.leg), after, chain.sequence)):
        body = entry.body
        if not isinstance(body, ProcessDone):
            continue
        if body.to > body.start:
            plans[body.to] = Plan(body.start + 1, body.to, body.config, body.watermarks, body.lookups)
            frames = enumerate(from_differences(body.arrivals), start=body.start + 1)
            arrivals |= {sequence: at for sequence, at in frames if sequence >= below}
        if body.ends.get(fed.input_role, 0) <= confirmed:
            confirmed_to = body.to
    if fed != sink:
        # Of the rows that were refused up to there, the fallback may not have confirmed some.
        confirmed_to = min([confirmed_to, *(_before(frame) for frame in read_frames(log, names, sink.input_role) if frame.sequence > own)])
    in_order = sorted(arrivals.items())
    is_whole = bool(in_order) and in_order[0][0] == 1
    resets = chain.done.body.clock_resets if chain.done else ()
    return History(
        sorted(plans.values(), key=lambda plan: plan.to),
        [s for s, _ in in_order],
        [at for _, at in in_order],
        confirmed_to,
        is_whole,
        resets,
        read_remade(log, names),
    )


def _before(frame: Message) -> int:
    """Return the raw sequence before that of the first row of an out frame."""
    return Position.parse(frame.headers[HEADER_FIRST]).sequence - 1


def _entries_after(log: JetStream, names: Names, chain: ProcessState, since: datetime | None) -> int:
    """Return the ledger sequence after which the entries are needed. An entry is written after its frames have arrived."""
    if since is None or chain.done is None:
        return 0
    config = stage_config.load(log, names, chain.done.body.config)
    if config.dedup.time_field or config.side_dedups or (config.join and config.join.is_timed):
        return 0
    window_us = config.join.windows.right_us if config.join else config.dedup.window_us
    needed_from = instant(max(0, microseconds(since) - window_us - _CLOCKS_APART_US))
    first = log.first_since(names.stream("ledger"), names.chain(PROCESS_CHAIN.leg), needed_from)
    # The range before reaches back to frames that nothing needs any more, so that its frames do not look like the rest of a purge.
    before = PROCESS_CHAIN.decode(first).previous_done if first else chain.done.sequence
    return max(0, before - 1)


def span_of(history: History, since: datetime | None, until: datetime | None, config: Program, same_dedup_from: int) -> Span | None:
    """Return the span of the frames that arrived from `since` (inclusive) to `until` (exclusive), as far as the sink has confirmed them.

    None if there is no such frame. `same_dedup_from`: as the function of that name.
    """
    first = history.first_since(since)
    last = history.confirmed_to if until is None else min(history.confirmed_to, history.since(microseconds(until)) - 1)
    if not history.frames(first, last):
        return None
    return span_between(history, first, last, config, same_dedup_from)


def span_between(history: History, first: int, last: int, config: Program, same_dedup_from: int) -> Span:
    """Return the span of the frames from `first` to `last`, both inclusive, of which there is at least one."""
    if config.join is not None:
        if config.join.is_timed:
            return _of_join_by_time(history, first, last, config.join, has_dedups=bool(config.side_dedups))
        return _of_join(history, first, last, config.join, has_dedups=bool(config.side_dedups))
    if not config.dedup.key:
        return Span(first, last, first, first)
    if config.dedup.time_field:
        return _by_event(history, first, last, config, same_dedup_from)
    return _by_arrival(history, first, last, config.dedup.window_us, same_dedup_from)


def _of_join(history: History, first: int, last: int, join: Join, has_dedups: bool) -> Span:
    """Return the span of a join by arrival.

    Right records up to one right window before the range may be joined with its left ones. Frames behind it decide what becomes of them, up
    to the first one at which all their windows have ended; those that process has not done are not there.
    """
    oldest = history.sequences[0]
    # No output shows which right records were accepted, so the copies are found from the first record on.
    read_from = oldest if has_dedups else min(first, history.since(history.arrival_us(first) - join.windows.right_us + 1))
    behind = history.since(history.arrivals_us[bisect_right(history.sequences, last) - 1] + join.windows.left_us)
    purged_us = None if history.is_whole or read_from > oldest else history.arrivals_us[0]
    return Span(first, last, read_from, read_from, behind=min(behind, history.last), purged_us=purged_us)


def _of_join_by_time(history: History, first: int, last: int, join: Join, has_dedups: bool) -> Span:
    """Return the span of a join by the records' own times. Only plans hold the watermark.

    A record that is not late is never older than the watermark, so right records up to a right window before it do not matter. Frames
    behind the range decide what becomes of its left records, up to the plan behind which all their windows have ended.
    """
    windows, readable = join.windows, history.readable
    before = [plan for plan in readable if plan.to < first]
    start_us = before[-1].watermarks.combined_us if before else NEVER
    ended = [plan for plan in before if NEVER < plan.watermarks.newest_us <= start_us - windows.right_us]
    newest_us = next((plan.watermarks.newest_us for plan in history.plans if plan.to >= last), NEVER)
    over = [plan.to for plan in history.plans if plan.to >= last and plan.watermarks.combined_us >= newest_us + windows.left_us]
    behind = min(over, default=history.last)
    if ended and not has_dedups:
        return Span(first, last, ended[-1].to + 1, ended[-1].to + 1, ended[-1].watermarks, behind)
    if history.is_whole:
        return Span(first, last, history.sequences[0], history.sequences[0], behind=behind)
    # Purged: what came before is known from the oldest plan on only.
    oldest = readable[0]
    begin = oldest.to + 1
    unread_us = None if oldest.watermarks.newest_us == NEVER else oldest.watermarks.newest_us
    return Span(max(first, begin), last, begin, begin, oldest.watermarks, behind, history.arrival_us(begin), unread_us)


def _by_arrival(history: History, first: int, last: int, window_us: int, same_dedup_from: int) -> Span:
    """Return the span if copies are found by arrival.

    All originals of copies in the range are in the range or one window before it. At most one record of a key was accepted there; earlier
    records decide which one, so the table shows it. If the window reaches back to the first frame of all, there is nothing before.
    """
    read_from, first_replayed = history.since(history.arrival_us(first) - window_us + 1), first
    if read_from <= history.sequences[0]:
        purged_us = history.arrivals_us[0]
        first_replayed = history.sequences[0] if history.is_whole else max(first, history.since(purged_us + window_us))
    return Span(first, last, read_from, _settled(first_replayed, same_dedup_from))


def _by_event(history: History, first: int, last: int, config: Program, same_dedup_from: int) -> Span:
    """Return the span if copies are found by event time: a record expires once the combined watermark has passed its window.

    Only plans hold the watermark.
    """
    expiry_us = config.dedup.lateness_us + config.dedup.window_us
    readable = history.readable
    before = [plan for plan in readable if plan.to < first]
    combined_us = before[-1].watermarks.combined_us if before else NEVER
    newest = [(plan, plan.watermarks.newest_us) for plan in before]
    expired = [plan for plan, newest_us in newest if newest_us == NEVER or newest_us <= combined_us - expiry_us]
    if history.is_whole and not expired:
        return Span(first, last, 1, _settled(1, same_dedup_from))
    if expired:
        return Span(first, last, expired[-1].to + 1, _settled(first, same_dedup_from), expired[-1].watermarks)
    # Purged: the newest time of the purged part is known from the oldest plan on only.
    oldest = readable[0]
    settled = [plan.to + 1 for plan in readable if plan.watermarks.combined_us - expiry_us >= oldest.watermarks.newest_us]
    return Span(
        max(first, oldest.to + 1),
        last,
        oldest.to + 1,
        _settled(max(first, min(settled, default=last + 1)), same_dedup_from),
        oldest.watermarks,
    )


def _settled(first_replayed: int, same_dedup_from: int) -> int:
    return max(first_replayed, same_dedup_from) if same_dedup_from > 1 else first_replayed


def dedup_settings(config: Program) -> tuple[object, ...]:
    """Return the settings that decide which records are copies. Two configurations with equal settings drop the same records."""
    return config.dedup.key, config.dedup.window_us, config.dedup.time_field, config.dedup.lateness_us


def same_dedup_from(history: History, configs: Mapping[str, Program], config: Program) -> int:
    """Return the first sequence from which dedup was configured as in `config`, the last configuration; 1 if always."""
    others = [plan.to for plan in history.plans if dedup_settings(configs[plan.version]) != dedup_settings(config)]
    return others[-1] + 1 if others else 1


def load_configs(log: JetStream, names: Names, sink: LegId, history: History) -> dict[str, Program]:
    """Return the configurations of the plans, and of rows made anew, by version, as a sink sees them; raise as `stage_config.load`."""
    versions = {plan.version for plan in history.plans} | {version for *_, version in history.rows_made(0, history.last)}
    return {version: stage_config.load(log, names, version).seen_from(sink) for version in versions}


def is_open(until: datetime, now: datetime, clock: datetime) -> bool:
    """Return whether a range that has ended at `now`, by this host's clock, has not ended by the clock of NATS, which arrivals follow."""
    return clock < until <= now


def arrivals_of(history: History, span: Span) -> tuple[datetime, datetime]:
    """Return the arrivals of the first and the last frame, both inclusive."""
    return instant(history.arrival_us(span.first)), instant(history.arrivals_us[bisect_right(history.sequences, span.last) - 1])
