"""The tally: per leg its input and the outcomes of it, from the running totals of each chain's last `done`.

ingest    offsets passed  = records written + offsets without a record (gaps) + offsets skipped because they had expired
process   records read    = written + duplicates dropped + dropped by other steps + taken by no sink + rejected (dead letters); where a
          function makes several rows of a record, those behind the first are counted on the left, too
sink      rows read       = rows confirmed by ClickHouse + refused by it + abandoned (dead letters, both) + refused into the fallback
dead_letters  dead letters read = rows confirmed by ClickHouse, of a table of dead letters; that counts none of them as taken
redrive   dead letters    = redriven + discarded + still dead letters

Between two legs: the next leg has read, or still has before it, everything that the legs upstream have written together; process reads the
output of every ingest leg and of redrive. A residue that is not zero is an alarm, not a statistic.

For the ranges done since an instant: the running totals of the last `done` minus those of the last one before the instant, by the server
time of the entries. Two entries per leg are read, however many lie between them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from pipelines.errors import HaltError, RetryableError
from pipelines.protocol.existence import Streams, check_started
from pipelines.protocol.ledger import ChainState, ChainType, Done, Log, Plan, read_chain
from pipelines.protocol.naming import REDRIVE, Names
from pipelines.protocol.outcomes import MADE, REJECTED, counted, written_for
from pipelines.protocol.records import Message
from pipelines.protocol.redrive import DISCARDED, REDRIVEN
from pipelines.protocol.topology import LegId, Topology, chain_of, takes_redriven

Totals = Mapping[str, int]


class TimedLog(Log, Streams, Protocol):
    """A log that finds messages by their server time, and streams by their name."""

    def first_since(self, stream: str, subject: str, instant: datetime) -> Message | None: ...


@dataclass(frozen=True)
class LegTally:
    """One leg's account, since the pipeline began or since an instant.

    `residue` = rows_in + made - accounted; zero unless there is a defect.

    `waiting`: rows that the legs upstream had written and this one had not read, now; `waiting_before`: at the instant.
    `upstream`: these legs. `made`: the rows that functions have made beside the first ones of their records.
    """

    leg: str
    rows_in: int
    outcomes: dict[str, int]
    waiting: int
    has_open_plan: bool
    waiting_before: int = 0
    upstream: tuple[str, ...] = ()
    made: int = 0

    @property
    def residue(self) -> int:
        return self.rows_in + self.made - sum(self.outcomes.values())


@dataclass(frozen=True)
class Tally:
    """The account of a pipeline: its legs in data order, its dead letters, and the imbalance of each stream in rows.

    `since`: None for the whole; with it, `still dead letters` is the increase since the instant.
    """

    legs: tuple[LegTally, ...]
    dead_letters: LegTally
    since: datetime | None = None

    @property
    def residue(self) -> int:
        """The sum of the absolute residues; a leg that has read more than the legs upstream wrote counts, too.

        It does not count while a leg upstream, or redrive, has an open plan: rows of this plan may be written, and read, before its `done`
        counts them.
        """
        ahead = sum(max(0, -leg.waiting) for leg in self.legs if not any(one.has_open_plan for one in self._upstream(leg)))
        return sum(abs(leg.residue) for leg in (*self.legs, self.dead_letters)) + ahead

    def _upstream(self, leg: LegTally) -> list[LegTally]:
        """Return the accounts of the writers of what `leg` reads."""
        reader = LegId.parse(leg.leg)
        legs = [one for one in self.legs if one.leg in leg.upstream]
        return [*legs, self.dead_letters] if takes_redriven(reader) else legs

    def of_kind(self, kind: str) -> list[LegTally]:
        """Return the accounts of the legs of a kind."""
        return [leg for leg in self.legs if LegId.parse(leg.leg).kind == kind]

    @property
    def with_upstream(self) -> list[LegTally]:
        """The accounts of the legs that read a stream, so that rows may wait for them."""
        return [leg for leg in self.legs if LegId.parse(leg.leg).reads]

    def waiting_for(self, kind: str) -> int:
        """Return the rows that wait for the legs of a kind; a leg that is ahead of the legs upstream counts as none."""
        return sum(max(0, leg.waiting) for leg in self.of_kind(kind))


def tally(log: TimedLog, names: Names, topology: Topology, since: datetime | None = None) -> Tally:
    """Read the chains (at most five messages each); return their account.

    Raise HaltError for a pipeline that was never started: it has no streams, and for a `since` before the ledger's beginning. An open plan
    is not counted: its records are in the range that waits. While the pipeline runs, legs are read one after the other, downstream first,
    so a leg never seems to have read more than the legs upstream have written.
    """
    check_started(log, names)
    chains: dict[str, ChainState[Plan, Done]] = {}
    before: dict[str, Totals] = {}
    # Dead letters are taken after they were rejected, and read by process after they were taken: so that chain is read on both sides.
    taken = read_chain(log, names, chain_of(REDRIVE))
    for leg in topology.downstream_first:
        chains[leg] = read_chain(log, names, chain_of(leg))
        before[leg] = _totals_at(log, names, chain_of(leg), since) if since else {}
    return from_chains(topology, chains, taken, before, since)


def from_chains(
    topology: Topology,
    chains: Mapping[str, ChainState[Plan, Done]],
    taken: ChainState[Plan, Done],
    before: Mapping[str, Totals] | None = None,
    since: datetime | None = None,
) -> Tally:
    """Return the tally of chain states by leg, including redrive, minus the running totals `before` an instant.

    `taken` is the chain of redrive as it was before the others were read.
    """
    now, old = {leg: state.totals for leg, state in chains.items()}, before or {}
    legs = []
    for leg in topology.legs:
        totals, earlier = now[leg], old.get(leg, {})
        read, read_before = totals.get(leg.counted_in, 0), earlier.get(leg.counted_in, 0)
        waiting, waiting_before = (_written_for(topology, leg, now) - read, _written_for(topology, leg, old) - read_before)
        if leg.reads is None:
            waiting = waiting_before = 0
        outcomes = counted(leg.kind, _less(totals, earlier))
        has_plan, upstream = chains[leg].plan is not None, topology.upstream(leg)
        made = totals.get(MADE, 0) - earlier.get(MADE, 0)
        legs.append(LegTally(leg, read - read_before, outcomes, waiting, has_plan, waiting_before, upstream, made))
    return Tally(tuple(legs), _dead_letter_tally({**chains, REDRIVE: taken}, old), since)


def _written_for(topology: Topology, leg: LegId, totals: Mapping[str, Totals]) -> int:
    """Return the rows that were written for a leg, by the running totals of the chains."""
    written = sum(written_for(leg, one.kind, totals.get(one, {})) for one in topology.upstream(leg))
    return written + (totals.get(REDRIVE, {}).get(REDRIVEN, 0) if takes_redriven(leg) else 0)


def _dead_letter_tally(chains: Mapping[str, ChainState[Plan, Done]], before: Mapping[str, Totals]) -> LegTally:
    now, old = _DeadLetters.of({leg: state.totals for leg, state in chains.items()}), _DeadLetters.of(before)
    outcomes = {
        "entered again": now.entered - old.entered,
        "discarded": now.discarded - old.discarded,
        "still dead letters": max(0, now.open) - old.open,
    }
    return LegTally(REDRIVE, now.rejected - old.rejected, outcomes, max(0, now.open), chains[REDRIVE].plan is not None, old.open)


@dataclass(frozen=True)
class _DeadLetters:
    rejected: int
    entered: int
    discarded: int

    @classmethod
    def of(cls, totals: Mapping[str, Totals]) -> "_DeadLetters":
        rejected = sum(of_leg.get(REJECTED.total, 0) for of_leg in totals.values())
        taken = totals.get(REDRIVE, {})
        return cls(rejected, taken.get(REDRIVEN, 0), taken.get(DISCARDED, 0))

    @property
    def open(self) -> int:
        return self.rejected - self.entered - self.discarded


def _less(totals: Totals, before: Totals) -> Totals:
    return {name: count - before.get(name, 0) for name, count in totals.items()}


def _totals_at(log: TimedLog, names: Names, kind: ChainType[Any, Any], instant: datetime) -> Totals:
    """Return the running totals of the chain's last `done` before the instant: the first entry since then points at it."""
    stream, subject = names.stream("ledger"), names.chain(kind.leg)
    last = log.last(stream, subject)
    if last is None or last.time < instant:
        return read_chain(log, names, kind).totals
    first = log.first_since(stream, subject, instant)
    if first is None:
        raise RetryableError(f"reading {subject}: the entries since {instant:%Y-%m-%d %H:%M:%S} UTC are not served yet")
    done_at = kind.decode(first).previous_done
    if not done_at:
        return {}
    message = log.get(stream, done_at)
    if message is None:
        raise HaltError(
            f"accounting since {instant:%Y-%m-%d %H:%M:%S} UTC: {subject} holds entries from {first.time:%Y-%m-%d %H:%M:%S} UTC on, "
            "older ones are folded into totals; ask for a later instant, or for the whole without --since"
        )
    totals: Totals = kind.decode_done(message).body.totals
    return totals
