"""The outcomes of everything that a leg reads: the one registry, by kind of leg, and their counting among the totals of a `done`.

Every account of records reads it: tally, rebuild, audit, checks, metrics. For each leg, the number of records read, and of the rows made
beside them, is the sum of its outcomes. The steps of the process leg register their own outcomes (`register`). The totals of these begin
with DROPPED, so that a reader that does not know a step still counts its records, and labels them with the step's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass

DROPPED = "dropped."
"""Prefix of the total of every outcome that a step registers."""


@dataclass(frozen=True)
class Outcome:
    """One outcome of a record. `total` names it among the running totals; `label` names it in reports.

    `less`: a total that is counted in `total`, too, and has an outcome of its own. `is_rare`: it has no line while its count is zero.
    """

    total: str
    label: str
    less: str = ""
    is_rare: bool = False

    def count(self, totals: Mapping[str, int]) -> int:
        """Return the number of records with this outcome."""
        return totals.get(self.total, 0) - (totals.get(self.less, 0) if self.less else 0)


RAW_ROWS = Outcome("rows_out", "written to raw")
WRITTEN = Outcome("rows_out", "written to out")
DUPLICATE = Outcome("duplicates", "duplicates dropped")
REJECTED = Outcome("rows_rejected", "dead letters")
CONFIRMED = Outcome("rows_out", "confirmed by ClickHouse")
DIVERTED = Outcome("rows_diverted", "refused into the fallback", is_rare=True)
"""Rows that ClickHouse refused and that the sink has written to the stream of its fallback."""
ABANDONED = Outcome("rejected.sink.abandoned", "abandoned (dead letters)", is_rare=True)
"""Rows abandoned by `tallyflow plan abandon`: dead letters, too."""

WAITING = Outcome("waited", "waiting in the join", less="waited_no_more", is_rare=True)
"""Left records that a join has stored, less those that have met a right one, or whose window has ended, since."""

BY_KIND: dict[str, list[Outcome]] = {
    "ingest": [RAW_ROWS, Outcome("offsets_without_record", "offsets without a record"), Outcome("offsets_skipped", "expired and skipped")],
    "process": [WRITTEN, DUPLICATE, WAITING, REJECTED],
    "sink": [CONFIRMED, Outcome(REJECTED.total, REJECTED.label, less=ABANDONED.total), ABANDONED, DIVERTED],
    "dead_letters": [CONFIRMED],
}
"""The outcomes by kind of leg, in their order in reports."""


THEN_DROPPED = "then_dropped"
"""The total of the records that dedup has accepted and a step behind it has dropped; each is counted by its outcome, too."""
MADE = "rows_made"
"""The total of the rows that process has written beside the first ones of their records: a function has made several rows of these."""
ROUTED = "routed."
"""Prefix of the totals of the process leg that count what it has written for a sink leg; a record may be in several of them."""


def routed_to(leg: str) -> str:
    """Return the total of the rows that process has written for a sink leg, where sinks differ in what they take."""
    return ROUTED + leg


def written_for(reader: str, writer: str, totals: Mapping[str, int]) -> int:
    """Return the rows that a leg of the kind `writer` has written for the leg `reader`, by its running totals.

    Those for a table of dead letters are its dead letters.
    """
    if reader.partition(":")[0] == "dead_letters":
        return totals.get(REJECTED.total, 0)
    return totals.get(DIVERTED.total, 0) if writer == "sink" else totals.get(routed_to(reader), totals.get(WRITTEN.total, 0))


def register(name: str, label: str) -> Outcome:
    """Add an outcome of the process leg for a step; `name` ends its total.

    Raise TypeError for a name or a label that is taken.
    """
    made = Outcome(DROPPED + name, label, is_rare=True)
    if any(made.total == known.total or label == known.label for known in BY_KIND["process"]):
        raise TypeError(f"registering outcome {name!r} ({label}): there is one of this name or label already")
    BY_KIND["process"].insert(-1, made)
    return made


def check_registered(step: str, outcomes: tuple[Outcome, ...]) -> None:
    """Raise TypeError for an unregistered outcome: its records would be missing from every account."""
    for outcome in outcomes:
        if outcome not in BY_KIND["process"]:
            raise TypeError(f"step {step!r}: its outcome {outcome.label!r} is not registered (protocol.outcomes.register)")


def of(kind: str) -> tuple[Outcome, ...]:
    """Return the outcomes of a kind of leg, in their order in reports."""
    return tuple(BY_KIND[kind])


def counted(kind: str, totals: Mapping[str, int]) -> dict[str, int]:
    """Return the outcomes of the records that the leg read, by label, including outcomes of unknown steps."""
    known = [(outcome, outcome.count(totals)) for outcome in of(kind)]
    counts = {outcome.label: count for outcome, count in known if count or not outcome.is_rare}
    totals_known = {outcome.total for outcome in of(kind)}
    for name in sorted(totals.keys() - totals_known):
        if name.startswith(DROPPED) and totals[name]:
            counts[label_of(name)] = totals[name]
    return counts


def label_of(total: str) -> str:
    """Return the label of the outcome that a step has registered under a total, of a step that is unknown here its name."""
    known = {outcome.total: outcome.label for outcome in BY_KIND["process"]}
    return known.get(total, f"dropped by {total.removeprefix(DROPPED)}")


def residue(kind: str, read: int, totals: Mapping[str, int]) -> int:
    """Return the number of `read` records that are not accounted for; zero unless there is a defect."""
    return read + totals.get(MADE, 0) - sum(counted(kind, totals).values())
