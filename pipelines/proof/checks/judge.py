"""The verdicts. Pure: facts in, one `Verdict` per check out; thresholds are those of the pipeline file."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pipelines.proof.audit.report import Finding
from pipelines.protocol.tally import Tally

NAMES = (
    "conservation",
    "duplicates",
    "gaps",
    "verification",
    "freshness",
    "dead_letters",
    "schema_drift",
    "views",
    "insert_window",
)
"""In the order of the pipeline file's `checks`."""
VERIFIED_AFTER = timedelta(minutes=90)
"""From the beginning of an hour of arrival on: the hour itself, the schedule's minute of the next one, and time for the run."""


@dataclass(frozen=True)
class Verdict:
    """What one check says. `facts` are numbers and short texts; `examples` name the first faults, by position where they have one.

    `is_mild`: a failure that is worth a warning only, whatever the severity of the check. `not_judged`: what was not compared, and why.
    """

    check: str
    passed: bool
    said: str
    facts: dict[str, int | float | str] = field(default_factory=dict)
    examples: tuple[dict[str, Any], ...] = ()
    is_mild: bool = False
    not_judged: str = ""

    @classmethod
    def unknown(cls, check: str, why: str) -> "Verdict":
        """Of a check that could not be made, as a system is away: a failure, for nobody knows."""
        return cls(check, False, f"could not be checked: {why}", not_judged=why)


def conservation(tally: Tally) -> Verdict:
    """Every leg has accounted for what it has read, and has read what the one before it wrote."""
    legs = (*tally.legs, tally.letters)
    facts: dict[str, int | float | str] = {"residue": tally.residue}
    facts |= {f"residue of {leg.leg}": leg.residue for leg in legs}
    facts |= {f"waiting before {leg.leg}": leg.waiting for leg in tally.legs[1:]}
    if tally.residue == 0:
        return Verdict("conservation", True, "as the ledger tells it, every event is accounted for", facts)
    bad = [f"{leg.leg} {leg.residue:+,}" for leg in legs if leg.residue]
    bad += [f"{leg.leg} has read {-leg.waiting:,} rows more than were written" for leg in tally.legs if leg.waiting < 0]
    return Verdict(
        "conservation", False, f"as the ledger tells it, {tally.residue:,} events are not accounted for: {'; '.join(bad)}", facts
    )


@dataclass(frozen=True)
class Positions:
    """Rows of the pipeline's topic in the table, the positions that they have, and how many positions have more than one row.

    `foreign`: rows of another topic, or of none. `settled`: how many of the positions lie in raw frames whose rows are all confirmed.
    """

    rows: int
    positions: int
    doubled: int
    examples: tuple[dict[str, Any], ...] = ()
    foreign: int = 0
    settled: int = 0


@dataclass(frozen=True)
class RepeatedKeys:
    """Pairs of rows with one key less than the window apart; `is_more`: these are not all."""

    pairs: tuple[dict[str, Any], ...]
    is_more: bool


def duplicates(positions: Positions | None, keys: RepeatedKeys | None, not_judged: str = "") -> Verdict:
    """`positions` and `keys` are None where the table does not tell them; `not_judged` says why."""
    facts: dict[str, int | float | str] = {}
    said = []
    examples: list[dict[str, Any]] = []
    if positions is not None:
        facts |= {"rows": positions.rows, "doubled positions": positions.doubled}
        examples += positions.examples
        if positions.doubled:
            said.append(f"{positions.doubled:,} positions are in the table more than once")
    if keys is not None:
        facts["repeated keys"] = len(keys.pairs)
        examples += keys.pairs
        if keys.pairs:
            said.append(f"{'at least ' if keys.is_more else ''}{len(keys.pairs):,} rows repeat a key within the window")
    return Verdict("duplicates", not said, "; ".join(said) or "no row is there twice", facts, tuple(examples), not_judged=not_judged)


@dataclass(frozen=True)
class Confirmed:
    """Rows that ClickHouse has confirmed, before and after the table was counted. The second includes a chunk that is being inserted."""

    before: int
    after: int


@dataclass(frozen=True)
class Held:
    """Positions that the table holds, or rows where it has no position columns, and rows that are of no record of the topic (`foreign`).

    `confirmed`: as many of them as are of rows that were confirmed before the table was counted; None where these cannot be told from rows
    of a chunk that is being inserted. `removes`: what in the table's definition removes rows; empty for nothing.
    """

    count: int
    is_by_position: bool
    foreign: int = 0
    removes: str = ""
    confirmed: int | None = None


def gaps(confirmed: Confirmed, held: Held, findings: Sequence[Finding] = ()) -> Verdict:
    """As many rows, each position once, as the sink has confirmed, and no others. `findings` are those of an audit, made if not.

    Rows of a chunk that is being inserted never make up for a row that is missing: where the two cannot be told apart, nothing is judged.
    """
    facts: dict[str, int | float | str] = {"confirmed": confirmed.before, "found": held.count}
    if held.is_by_position:
        facts["rows of no record of the topic"] = held.foreign
    examples = tuple(
        {"seam": one.seam, "kind": one.kind, "count": one.count, **example} for one in findings for example in one.examples or ({},)
    )
    what = "positions" if held.is_by_position else "rows"
    not_judged = "" if held.is_by_position else "the table has no position columns: rows were counted"
    is_still = confirmed.before == confirmed.after
    of_confirmed = held.count if is_still else held.confirmed
    if of_confirmed is not None and not is_still:
        facts["found of the confirmed"] = of_confirmed
    # Rows of an open chunk among them: at most so many are of what was confirmed.
    at_most = held.count if of_confirmed is None else min(of_confirmed, held.count)
    said = []
    if at_most < confirmed.before:
        removed = f", and {held.removes} removes rows: leave the check out if it shall" if held.removes else ""
        said.append(f"{confirmed.before - at_most:,} of {confirmed.before:,} confirmed rows are missing{removed}")
    if held.count > confirmed.after:
        said.append(f"{held.count - confirmed.after:,} {what} more than the {confirmed.after:,} that were confirmed")
    elif at_most > confirmed.before and of_confirmed is not None:
        said.append(f"{at_most - confirmed.before:,} {what} more than the {confirmed.before:,} that were confirmed before")
    if held.foreign:
        said.append(f"{held.foreign:,} rows are of no record of the topic: another writer has made them")
    if not said and of_confirmed is None:
        why = f"{held.count:,} {what}, {confirmed.before:,} confirmed: a chunk was being inserted, whose rows cannot be told from these"
        return Verdict("gaps", False, f"not judged: {why}", facts, is_mild=True, not_judged="; ".join(filter(None, (not_judged, why))))
    return Verdict("gaps", not said, "; ".join(said) or f"{at_most:,} {what}, as confirmed", facts, examples, not_judged=not_judged)


@dataclass(frozen=True)
class Behind:
    """Records that wait: in the streams (rows, and for how long the first of them), and in Kafka, by how long."""

    rows: int
    oldest: timedelta
    offsets: int
    offsets_past_warn: int
    offsets_past_fail: int


def freshness(behind: Behind, warn_after: timedelta, fail_after: timedelta) -> Verdict:
    """Nothing waits for long. A topic without new records is fresh."""
    facts: dict[str, int | float | str] = {
        "rows waiting in streams": behind.rows,
        "first of them waits for seconds": round(behind.oldest.total_seconds(), 3),
        "offsets waiting in Kafka": behind.offsets,
    }
    if behind.oldest >= fail_after or behind.offsets_past_fail:
        return Verdict("freshness", False, f"records wait for {_seconds(fail_after)} or longer", facts)
    if behind.oldest >= warn_after or behind.offsets_past_warn:
        return Verdict("freshness", False, f"records wait for {_seconds(warn_after)} or longer", facts, is_mild=True)
    return Verdict("freshness", True, "nothing waits for long", facts)


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():,.0f} s"


def dead_letters(tally: Tally, max_percent: float) -> Verdict:
    """`tally` is that of the period to judge, or of the whole. Letters that entered again or were discarded count no more: the
    pipeline heals. Which letter was taken the totals do not say; of the period's at most so many are left as are left of all.
    """
    read = tally.legs[1].rows_in
    rejected = tally.letters.rows_in
    left = min(rejected, tally.letters.waiting)
    percent = 100 * left / read if read else 0.0
    facts: dict[str, int | float | str] = {
        "records": read,
        "dead letters": rejected,
        "percent": round(percent, 4),
        "still there": left,
    }
    said = f"{left:,} of {read:,} records are dead letters ({percent:.2f} %); {rejected:,} had become some"
    return Verdict("dead_letters", percent <= max_percent, said, facts)


def schema_drift(faults: Sequence[str], additional: Sequence[str], missing_positions: Sequence[str]) -> Verdict:
    """`additional`: columns that the mapping does not fill; `missing_positions`: position columns that are not there. None is a fault."""
    facts: dict[str, int | float | str] = {"faults": len(faults), "columns that the mapping does not fill": ", ".join(additional) or "none"}
    facts["position columns that are not there"] = ", ".join(missing_positions) or "none"
    said = f"the table does not fit the mapping: {'; '.join(faults)}" if faults else "the columns are those of the mapping"
    return Verdict("schema_drift", not faults, said, facts, tuple({"fault": fault} for fault in faults))


@dataclass(frozen=True)
class ViewSum:
    """What a view's target adds up to, the rows of the table before and after it was added up, and how many rows were being inserted.

    `total` is None where it cannot be compared, `reason` says why.
    """

    table: str
    total: int | None
    rows_before: int
    rows_after: int
    reason: str = ""
    inserting: int = 0

    @property
    def is_even(self) -> bool:
        return self.total is None or self.rows_before - self.inserting <= self.total <= self.rows_after + self.inserting

    @property
    def is_clear(self) -> bool:
        """Whether it is even without what was being inserted."""
        return self.total is None or self.rows_before <= self.total <= self.rows_after


def views(sums: Sequence[ViewSum]) -> Verdict:
    """Each view that can be compared adds up to the rows of the table."""
    facts: dict[str, int | float | str] = {"views": len(sums)}
    facts |= {f"total of {one.table}": one.total for one in sums if one.total is not None}
    uneven = [one for one in sums if not one.is_even]
    said = "; ".join(f"{one.table} adds up to {one.total:,}, the table has {one.rows_before:,} rows" for one in uneven)
    if any(one.total is not None and one.total < one.rows_before for one in uneven):
        said += "; rows from before a view was made are not in it until they are inserted by hand"
    compared = sum(one.total is not None for one in sums)
    unclear = [f"{one.table}: it differs by no more rows than are being inserted" for one in sums if one.is_even and not one.is_clear]
    not_judged = "; ".join([*(f"{one.table}: {one.reason}" for one in sums if one.total is None), *unclear])
    return Verdict("views", not uneven, said or f"{compared} of {len(sums)} views compared, all even", facts, not_judged=not_judged)


def insert_window(tokens: Sequence[tuple[str, int]], min_tokens: int) -> Verdict:
    """`tokens`: by table, how many insert tokens it remembers."""
    short = [f"{table} remembers {count:,}" for table, count in tokens if count < min_tokens]
    said = f"{'; '.join(short)}; {min_tokens:,} are wanted" if short else f"every table remembers at least {min_tokens:,} insert tokens"
    return Verdict("insert_window", not short, said, {f"tokens of {table}": count for table, count in tokens})


@dataclass(frozen=True)
class Verified:
    """The newest verification of one hour: whether it found no difference, what it said, and whether every row of it was explained."""

    hour: str
    is_match: bool
    said: str
    is_proven: bool = True


@dataclass(frozen=True)
class Hours:
    """What Dagster knows of the period to judge: one verification per hour that was verified, and hours with records (their keys) that were
    due by `VERIFIED_AFTER` and were not.
    """

    newest: Sequence[Verified] = ()
    missed: Sequence[str] = ()


def _hour(instant: datetime) -> datetime:
    return instant.replace(minute=0, second=0, microsecond=0)


def verification(hours: Hours, first_arrival: datetime | None, now: datetime) -> Verdict:
    """`first_arrival`: of the records of the period to judge."""
    newest, missed = hours.newest, hours.missed
    facts: dict[str, int | float | str] = {"hours verified": len(newest), "hours that differ": sum(not one.is_match for one in newest)}
    facts["hours missed"] = len(missed)
    differing = [one for one in newest if not one.is_match]
    if differing:
        said = f"{len(differing)} of {len(newest)} verified hours differ: {', '.join(one.hour for one in differing)}"
        return Verdict("verification", False, said, facts, tuple({"hour": one.hour, "found": one.said} for one in differing))
    partly = [one for one in newest if not one.is_proven]
    if partly:
        said = f"{len(partly)} of {len(newest)} verified hours are not proven: {', '.join(one.hour for one in partly)}; verify them again"
        return Verdict("verification", False, said, facts, tuple({"hour": one.hour, "found": one.said} for one in partly), is_mild=True)
    if missed:
        said = f"{len(missed)} hours with records were not verified: {', '.join(missed)}; verify them, a backfill of the missing ones does"
        return Verdict("verification", False, said, facts, is_mild=True)
    if not newest and (first_arrival is None or now < _hour(first_arrival) + VERIFIED_AFTER):
        return Verdict("verification", True, "no hour with records was due to be verified yet", facts, not_judged="the first hour")
    if not newest:
        return Verdict("verification", False, "no hour was verified; switch the schedule on, or leave the check out", facts, is_mild=True)
    return Verdict("verification", True, f"{len(newest)} verified hours match", facts)
