"""The tally: per leg its input and the outcomes of it, from the running totals of each chain's last `done`.

ingest    offsets passed  = records written + offsets without a record (gaps) + offsets skipped because they had expired
process   records read    = rows written + duplicates dropped + dropped by other steps + rejected (dead letters)
sink      rows read       = rows confirmed by ClickHouse + refused by it + abandoned (dead letters, both)
redrive   dead letters    = redriven + discarded + still dead letters

Between two legs: the next leg has read, or still has before it, everything that one has written; process reads the output of ingest and
redrive. A residue that is not zero is an alarm, not a statistic.

For the ranges done since an instant: the running totals of the last `done` minus those of the last one before the instant, by the server
time of the entries. Two entries per leg are read, however many lie between them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Protocol

from pipelines.errors import HaltError, RetryableError
from pipelines.protocol.bodies import CHAINS
from pipelines.protocol.existence import Streams, check_started
from pipelines.protocol.ledger import ChainState, ChainType, Done, Log, Plan, read_chain
from pipelines.protocol.naming import LEGS, REDRIVE, Names
from pipelines.protocol.outcomes import REJECTED, counted
from pipelines.protocol.records import Message
from pipelines.protocol.redrive import DISCARDED, REDRIVEN

Totals = Mapping[str, int]


class TimedLog(Log, Streams, Protocol):
    """A log that finds messages by their server time, and streams by their name."""

    def first_since(self, stream: str, subject: str, instant: datetime) -> Message | None: ...


@dataclass(frozen=True)
class LegTally:
    """One leg's account, since the pipeline began or since an instant. `residue` = rows_in - accounted; zero unless there is a defect.

    `waiting`: rows that the leg before had written and this one had not read, now; `waiting_before`: at the instant.
    """

    leg: str
    rows_in: int
    outcomes: dict[str, int]
    waiting: int
    has_open_plan: bool
    waiting_before: int = 0

    @property
    def residue(self) -> int:
        return self.rows_in - sum(self.outcomes.values())


@dataclass(frozen=True)
class Tally:
    """The account of a pipeline: its legs in data order, its dead letters, and the imbalance of each stream in rows.

    `since`: None for the whole; with it, `still dead letters` is the increase since the instant.
    """

    legs: tuple[LegTally, ...]
    letters: LegTally
    since: datetime | None = None

    @property
    def residue(self) -> int:
        """The sum of the absolute residues; a leg that has read more than the one before it wrote counts, too.

        It does not count while the leg before it, or redrive, has an open plan: rows of this plan may be written, and read, before its
        `done` counts them.
        """
        ahead = [max(0, -leg.waiting) for before, leg in pairwise(self.legs) if not before.has_open_plan]
        if self.letters.has_open_plan:
            del ahead[0]
        return sum(abs(leg.residue) for leg in (*self.legs, self.letters)) + sum(ahead)


_COUNTED_IN = {"ingest": "offsets", "process": "rows_in", "sink": "rows_in"}


def tally(log: TimedLog, names: Names, since: datetime | None = None) -> Tally:
    """Read the chains (at most five messages each); return their account.

    Raise HaltError for a pipeline that was never started: it has no streams, and for a `since` before the ledger's beginning. An open plan
    is not counted: its records are in the range that waits. While the pipeline runs, legs are read one after the other, downstream first,
    so a leg never seems to have read more than the leg before it has written.
    """
    check_started(log, names)
    chains: dict[str, ChainState[Plan, Done]] = {}
    before: dict[str, Totals] = {}
    # Dead letters are taken after they were rejected, and read by process after they were taken: so that chain is read on both sides.
    taken = read_chain(log, names, CHAINS[REDRIVE])
    for leg in ("sink", "process", REDRIVE, "ingest"):
        chains[leg] = read_chain(log, names, CHAINS[leg])
        before[leg] = _totals_at(log, names, CHAINS[leg], since) if since else {}
    return from_chains(chains, taken, before, since)


def from_chains(
    chains: Mapping[str, ChainState[Plan, Done]],
    taken: ChainState[Plan, Done],
    before: Mapping[str, Totals] | None = None,
    since: datetime | None = None,
) -> Tally:
    """Return the tally of chain states by leg, including redrive, minus the running totals `before` an instant.

    `taken` is the chain of redrive as it was before the others were read.
    """
    legs = []
    written = written_before = 0
    for leg in LEGS:
        state, old = chains[leg], (before or {}).get(leg, {})
        totals = state.totals
        read, read_before = totals.get(_COUNTED_IN[leg], 0), old.get(_COUNTED_IN[leg], 0)
        waiting, waiting_before = (0, 0) if leg == LEGS[0] else (written - read, written_before - read_before)
        outcomes = counted(leg, _less(totals, old))
        legs.append(LegTally(leg, read - read_before, outcomes, waiting, state.plan is not None, waiting_before))
        written, written_before = totals.get("rows_out", 0), old.get("rows_out", 0)
        if leg == "ingest":
            written += chains[REDRIVE].totals.get(REDRIVEN, 0)
            written_before += (before or {}).get(REDRIVE, {}).get(REDRIVEN, 0)
    return Tally(tuple(legs), _letters({**chains, REDRIVE: taken}, before or {}), since)


def _letters(chains: Mapping[str, ChainState[Plan, Done]], before: Mapping[str, Totals]) -> LegTally:
    now, old = _Letters.of({leg: state.totals for leg, state in chains.items()}), _Letters.of(before)
    outcomes = {
        "entered again": now.entered - old.entered,
        "discarded": now.discarded - old.discarded,
        "still dead letters": max(0, now.open) - old.open,
    }
    return LegTally(REDRIVE, now.rejected - old.rejected, outcomes, max(0, now.open), chains[REDRIVE].plan is not None, old.open)


@dataclass(frozen=True)
class _Letters:
    rejected: int
    entered: int
    discarded: int

    @classmethod
    def of(cls, totals: Mapping[str, Totals]) -> "_Letters":
        rejected = sum(totals.get(leg, {}).get(REJECTED.total, 0) for leg in ("process", "sink"))
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
