"""The tally: per leg what went in and where it went, from the running totals of each chain's last `done`.

    ingest    offsets passed  = records written + offsets without a record (gaps) + offsets skipped because they had expired
    process   records read    = rows written + duplicates dropped + rejected (dead letters)
    sink      rows read       = rows confirmed by ClickHouse + refused by it (dead letters)
and between two legs: what one wrote, the next has read or still has before it. A residue that is not zero is an alarm, not a statistic.
"""

from dataclasses import dataclass
from typing import Protocol

from pipelines.ledger import ChainState, Log, read_chain
from pipelines.naming import LEGS, Names


@dataclass(frozen=True)
class LegTally:
    """One leg's account since the pipeline began. `residue` = rows_in - accounted; zero unless something is wrong."""

    leg: str
    rows_in: int
    outcomes: dict[str, int]
    waiting: int
    has_open_plan: bool

    @property
    def residue(self) -> int:
        return self.rows_in - sum(self.outcomes.values())


@dataclass(frozen=True)
class Tally:
    """The account of a pipeline: its legs in data order, and how many rows each seam is out of balance."""

    legs: tuple[LegTally, ...]

    @property
    def residue(self) -> int:
        """Sum of the absolute residues; a leg that has read more than the one before it wrote counts as well."""
        return sum(abs(leg.residue) for leg in self.legs) + sum(max(0, -leg.waiting) for leg in self.legs)


class _Outcomes(Protocol):
    def __call__(self, totals: dict[str, int]) -> dict[str, int]: ...


def _ingest(totals: dict[str, int]) -> dict[str, int]:
    return {
        "written to raw": totals.get("rows_out", 0),
        "offsets without a record": totals.get("offsets_without_record", 0),
        "expired and skipped": totals.get("offsets_skipped", 0),
    }


def _process(totals: dict[str, int]) -> dict[str, int]:
    return {
        "written to out": totals.get("rows_out", 0),
        "duplicates dropped": totals.get("duplicates", 0),
        "dead letters": totals.get("rows_rejected", 0),
    }


def _sink(totals: dict[str, int]) -> dict[str, int]:
    return {"confirmed by ClickHouse": totals.get("rows_out", 0), "dead letters": totals.get("rows_rejected", 0)}


_OUTCOMES: dict[str, _Outcomes] = {"ingest": _ingest, "process": _process, "sink": _sink}
_COUNTED_IN = {"ingest": "offsets", "process": "rows_in", "sink": "rows_in"}


def tally(log: Log, names: Names) -> Tally:
    """Reads the three chains (at most three messages each). Raises HaltError for a pipeline that was never started: it has no streams.

    An open plan is not counted: what it covers is in the range that waits. While the pipeline runs, legs are read one after the other,
    downstream first, so a leg never seems to have read what the one before it has not written.
    """
    stream = names.stream("ledger")
    chains = {leg: read_chain(log, stream, names.chain(leg)) for leg in reversed(LEGS)}
    return from_chains(chains)


def from_chains(chains: dict[str, ChainState]) -> Tally:
    """The tally of chain states by leg."""
    legs = []
    written_before: int | None = None
    for leg in LEGS:
        state = chains[leg]
        totals = dict(state.done.body["totals"]) if state.done else {}
        rows_in = totals.get(_COUNTED_IN[leg], 0)
        waiting = 0 if written_before is None else written_before - rows_in
        legs.append(LegTally(leg, rows_in, _OUTCOMES[leg](totals), waiting, state.plan is not None))
        written_before = totals.get("rows_out", 0)
    return Tally(tuple(legs))
