"""The checks: facts in, one `CheckResult` each out. Pure; thresholds come from the pipeline file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from pipelines.proof.report import Finding, Kind, Severity
from pipelines.protocol.tally import Tally
from pipelines.protocol.topology import PROCESS

VERIFIED_AFTER = timedelta(minutes=90)
"""The time, from the beginning of an hour of arrival, after which its verification is due.

It covers the hour itself, the schedule's minute of the next one, and time for the run.
"""
Facts = dict[str, int | float | str]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check; it passes without a finding.

    `facts`: numbers and short texts. `success`: the message of a check that passes. `not_evaluated`: the parts that were not compared, and
    why.
    """

    check: str
    facts: Facts = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    success: str = ""
    not_evaluated: str = ""

    @classmethod
    def together(cls, results: "Mapping[str, CheckResult]") -> "CheckResult":
        """Return the results of one check for the tables of all sinks, by the ids of these, as one: names are followed by the id."""
        (first, *others) = results.values()
        if not others:
            return first
        facts = {f"{name} ({sink})": value for sink, result in results.items() for name, value in result.facts.items()}
        findings = [
            replace(finding, message=f"{sink}: {finding.message}") for sink, result in results.items() for finding in result.findings
        ]

        def all_of(text: Callable[[CheckResult], str]) -> str:
            return "; ".join(f"{sink}: {text(result)}" for sink, result in results.items() if text(result))

        return cls(first.check, facts, findings, all_of(lambda one: one.success), all_of(lambda one: one.not_evaluated))

    @classmethod
    def unknown(cls, check: str, why: str) -> "CheckResult":
        """Return a failure: the check could not be made, as a system is away."""
        return cls(check, findings=[_fault(check, f"could not be checked: {why}")], not_evaluated=why)

    @property
    def passed(self) -> bool:
        return not self.findings

    @property
    def message(self) -> str:
        return "; ".join(finding.message for finding in self.findings) or self.success

    @property
    def examples(self) -> list[dict[str, Any]]:
        """Return the first faults, by position where they have one."""
        return [{**example} for finding in self.findings for example in finding.examples]

    @property
    def is_mild(self) -> bool:
        """Whether the failure is worth a warning only, whatever the severity of the check in the file."""
        return not self.passed and all(finding.severity == "warning" for finding in self.findings)


def _fault(
    check: str,
    message: str,
    kind: Kind = "different",
    count: int = 1,
    examples: Sequence[dict[str, Any]] = (),
    severity: Severity = "error",
) -> Finding:
    return Finding(check, kind, count, None, examples, message, severity)


def conservation(tally: Tally) -> CheckResult:
    """Check that every leg has accounted for all it has read, and has read all that the leg before it wrote."""
    legs = (*tally.legs, tally.dead_letters)
    facts: Facts = {"residue": tally.residue}
    facts |= {f"residue of {leg.leg}": leg.residue for leg in legs}
    facts |= {f"waiting before {leg.leg}": leg.waiting for leg in tally.with_upstream}
    if tally.residue == 0:
        return CheckResult("conservation", facts, success="by the ledger, every event is accounted for")
    bad = [f"{leg.leg} {leg.residue:+,}" for leg in legs if leg.residue]
    bad += [f"{leg.leg} has read {-leg.waiting:,} rows more than were written" for leg in tally.legs if leg.waiting < 0]
    message = f"by the ledger, {tally.residue:,} events are not accounted for: {'; '.join(bad)}"
    return CheckResult("conservation", facts, [_fault("conservation", message, count=abs(tally.residue))])


@dataclass(frozen=True)
class PositionCounts:
    """Rows of the pipeline's topic in the table, their positions, and the number of positions with more than one row.

    `foreign`: rows of another topic, or of none. `settled`: the number of positions in raw frames whose rows are all confirmed.
    """

    rows: int
    positions: int
    doubled: int
    examples: tuple[dict[str, Any], ...] = ()
    foreign: int = 0
    settled: int = 0


@dataclass(frozen=True)
class RepeatedKeys:
    """Pairs of rows with one key less than the window apart; `is_more`: there are more pairs."""

    pairs: tuple[dict[str, Any], ...]
    is_more: bool


def duplicates(positions: PositionCounts | None, keys: RepeatedKeys | None, not_evaluated: str = "") -> CheckResult:
    """Check that no row is duplicated. `positions` and `keys` are None if the table cannot show them; `not_evaluated` gives the reason."""
    facts: Facts = {}
    findings = []
    if positions is not None:
        facts |= {"rows": positions.rows, "doubled positions": positions.doubled}
        if positions.doubled:
            message = f"{positions.doubled:,} positions are in the table more than once"
            findings.append(_fault("duplicates", message, "doubled", positions.doubled, positions.examples))
    if keys is not None:
        facts["repeated keys"] = len(keys.pairs)
        if keys.pairs:
            message = f"{'at least ' if keys.is_more else ''}{len(keys.pairs):,} rows repeat a key within the window"
            findings.append(_fault("duplicates", message, "doubled", len(keys.pairs), keys.pairs))
    return CheckResult("duplicates", facts, findings, "no row is duplicated", not_evaluated)


@dataclass(frozen=True)
class Confirmed:
    """Rows that ClickHouse has confirmed, before and after the table was counted. The second includes a chunk that is being inserted."""

    before: int
    after: int


@dataclass(frozen=True)
class Held:
    """Positions that the table holds, or rows if it has no position columns; `foreign` rows belong to no record of the topic.

    `confirmed`: the part of them that was confirmed before the table was counted; None if it cannot be distinguished from rows of a chunk
    that is being inserted. `removes`: the part of the table's definition that removes rows; empty for none.
    """

    count: int
    is_by_position: bool
    foreign: int = 0
    removes: str = ""
    confirmed: int | None = None


def gaps(confirmed: Confirmed, held: Held, named: Sequence[Finding] = ()) -> CheckResult:
    """Check that the table holds as many rows, each position once, as the sink has confirmed, and no others.

    `named`: the findings of an audit, if one was made. Rows of a chunk that is being inserted never make up for a missing row: if the two
    cannot be distinguished, the result is a warning.
    """
    facts: Facts = {"confirmed": confirmed.before, "found": held.count}
    if held.is_by_position:
        facts["rows of no record of the topic"] = held.foreign
    what = "positions" if held.is_by_position else "rows"
    not_evaluated = "" if held.is_by_position else "the table has no position columns: rows were counted"
    is_still = confirmed.before == confirmed.after
    of_confirmed = held.count if is_still else held.confirmed
    if of_confirmed is not None and not is_still:
        facts["found of the confirmed"] = of_confirmed
    # They may include rows of an open chunk: at most this many are confirmed rows.
    at_most = held.count if of_confirmed is None else min(of_confirmed, held.count)
    findings = _gaps_found(confirmed, held, at_most, of_confirmed is not None, what)
    if not findings and of_confirmed is None:
        why = f"{held.count:,} {what}, {confirmed.before:,} confirmed: some may be rows of a chunk that was being inserted; check again"
        unclear = _fault("gaps", f"not evaluated: {why}", severity="warning")
        return CheckResult("gaps", facts, [unclear], not_evaluated="; ".join(filter(None, (not_evaluated, why))))
    if findings:
        findings[0] = replace(findings[0], examples=[row for one in named for row in one.rows()])
    return CheckResult("gaps", facts, findings, f"{at_most:,} {what}, as confirmed", not_evaluated)


def _gaps_found(confirmed: Confirmed, held: Held, at_most: int, is_clear: bool, what: str) -> list[Finding]:
    """Return the missing, excess or foreign rows. `at_most`: this many of the rows are confirmed ones."""
    findings = []
    if missing := max(0, confirmed.before - at_most):
        removed = f", and {held.removes} removes rows: disable this check if that is intended" if held.removes else ""
        findings.append(_fault("gaps", f"{missing:,} of {confirmed.before:,} confirmed rows are missing{removed}", "missing", missing))
    if extra := max(0, held.count - confirmed.after):
        findings.append(_fault("gaps", f"{extra:,} {what} more than the {confirmed.after:,} that were confirmed", "extra", extra))
    elif is_clear and (early := max(0, at_most - confirmed.before)):
        findings.append(_fault("gaps", f"{early:,} {what} more than the {confirmed.before:,} that were confirmed before", "extra", early))
    if held.foreign:
        message = f"{held.foreign:,} rows belong to no record of the topic: another writer inserted them"
        findings.append(_fault("gaps", message, "extra", held.foreign))
    return findings


@dataclass(frozen=True)
class Behind:
    """Records that wait: in the streams (rows, and the age of the oldest), and in Kafka, by age."""

    rows: int
    oldest: timedelta
    offsets: int
    offsets_past_warn: int
    offsets_past_fail: int


def freshness(behind: Behind, warn_after: timedelta, fail_after: timedelta) -> CheckResult:
    """Check that no record waits for longer than the limits. A topic without new records is fresh."""
    facts: Facts = {
        "rows waiting in streams": behind.rows,
        "seconds that the oldest row waits": round(behind.oldest.total_seconds(), 3),
        "offsets waiting in Kafka": behind.offsets,
    }
    findings = []
    if behind.oldest >= fail_after or behind.offsets_past_fail:
        findings.append(_fault("freshness", f"records have waited for {_seconds(fail_after)} or longer"))
    elif behind.oldest >= warn_after or behind.offsets_past_warn:
        findings.append(_fault("freshness", f"records have waited for {_seconds(warn_after)} or longer", severity="warning"))
    return CheckResult("freshness", facts, findings, f"no record has waited for {_seconds(warn_after)}")


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():,.0f} s"


def dead_letters(tally: Tally, max_percent: float) -> CheckResult:
    """Check the share of dead letters. `tally`: of the period to check, or of the whole.

    Dead letters that were redriven or discarded no longer count: the pipeline heals. The totals do not name them, so at most as many of the
    period's dead letters are open as of all.
    """
    read = sum(leg.rows_in for leg in tally.of_kind(PROCESS))
    rejected = tally.dead_letters.rows_in
    left = min(rejected, tally.dead_letters.waiting)
    percent = 100 * left / read if read else 0.0
    facts: Facts = {"records": read, "dead letters": rejected, "percent": round(percent, 4), "open dead letters": left}
    message = f"{left:,} of {read:,} records are open dead letters ({percent:.2f} %); {rejected:,} were rejected"
    findings = [] if percent <= max_percent else [_fault("dead_letters", message, "extra", left)]
    return CheckResult("dead_letters", facts, findings, message)


def schema_drift(faults: Sequence[str], additional: Sequence[str], missing_positions: Sequence[str]) -> CheckResult:
    """Check that the table's columns fit the mapping.

    `additional`: columns that the mapping does not fill; `missing_positions`: position columns that the table lacks. Neither is a fault.
    """
    facts: Facts = {"faults": len(faults), "columns that the mapping does not fill": ", ".join(additional) or "none"}
    facts["missing position columns"] = ", ".join(missing_positions) or "none"
    message = f"the table does not fit the mapping: {'; '.join(faults)}"
    findings = [_fault("schema_drift", message, count=len(faults), examples=[{"fault": fault} for fault in faults])] if faults else []
    return CheckResult("schema_drift", facts, findings, "the columns fit the mapping")


@dataclass(frozen=True)
class ViewSum:
    """The sum of a view's target, the rows of the table before and after it was added up, and the number of rows that were being inserted.

    `total` is None if it cannot be compared; `reason` says why.
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
        """Whether it is even without the rows that were being inserted."""
        return self.total is None or self.rows_before <= self.total <= self.rows_after


def views(sums: Sequence[ViewSum]) -> CheckResult:
    """Check that each view that can be compared adds up to the rows of the table."""
    facts: Facts = {"views": len(sums)}
    facts |= {f"total of {one.table}": one.total for one in sums if one.total is not None}
    uneven = [one for one in sums if not one.is_even]
    message = "; ".join(f"{one.table} adds up to {one.total:,}, the table has {one.rows_before:,} rows" for one in uneven)
    if any(one.total is not None and one.total < one.rows_before for one in uneven):
        message += "; a view lacks the rows that are older than itself until you insert them"
    compared = sum(one.total is not None for one in sums)
    unclear = [f"{one.table}: the difference may be rows that are being inserted" for one in sums if one.is_even and not one.is_clear]
    not_evaluated = "; ".join([*(f"{one.table}: {one.reason}" for one in sums if one.total is None), *unclear])
    findings = [_fault("views", message, count=len(uneven))] if uneven else []
    return CheckResult("views", facts, findings, f"{compared} of {len(sums)} views compared, all complete", not_evaluated)


def insert_window(tokens: Sequence[tuple[str, int]], min_tokens: int) -> CheckResult:
    """Check that tables remember enough insert tokens. `tokens`: the number of them by table."""
    short = [f"{table} remembers {count:,}" for table, count in tokens if count < min_tokens]
    findings = [_fault("insert_window", f"{'; '.join(short)}; {min_tokens:,} are required", count=len(short))] if short else []
    facts: Facts = {f"tokens of {table}": count for table, count in tokens}
    return CheckResult("insert_window", facts, findings, f"every table remembers at least {min_tokens:,} insert tokens")


@dataclass(frozen=True)
class VerifiedHour:
    """The newest verification of one hour: whether nothing differed, its summary, and whether every row of it was explained."""

    hour: str
    is_match: bool
    summary: str
    is_proven: bool = True


@dataclass(frozen=True)
class Hours:
    """The hours of the period to check: the newest verification of each, and hours with records that were due and not verified (`missed`).

    An hour is due by `VERIFIED_AFTER`.
    """

    newest: Sequence[VerifiedHour] = ()
    missed: Sequence[str] = ()


def verification(hours: Hours, first_arrival: datetime | None, now: datetime) -> CheckResult:
    """Check that the hours were verified and match. `first_arrival`: of the records of the period to check."""
    newest, missed = hours.newest, hours.missed
    differing = [one for one in newest if not one.is_match]
    facts: Facts = {"hours verified": len(newest), "hours that differ": len(differing), "hours missed": len(missed)}
    unproven = [one for one in newest if not one.is_proven]
    first_due = first_arrival and first_arrival.replace(minute=0, second=0, microsecond=0) + VERIFIED_AFTER
    findings, not_evaluated, success = [], "", f"{len(newest)} verified hours match"
    if differing:
        findings.append(_hours_fault(f"{len(differing)} of {len(newest)} verified hours differ: {_keys(differing)}", differing, "error"))
    elif unproven:
        message = f"{len(unproven)} of {len(newest)} verified hours are not proven: {_keys(unproven)}; verify them again"
        findings.append(_hours_fault(message, unproven, "warning"))
    elif missed:
        message = f"{len(missed)} hours with records were not verified: {', '.join(missed)}; launch a backfill of the missing hours"
        findings.append(_fault("verification", message, "missing", len(missed), severity="warning"))
    elif not newest and (first_due is None or now < first_due):
        not_evaluated, success = "the first hour", "no hour with records is due for verification yet"
    elif not newest:
        message = "no hour was verified; switch the schedule on, or disable this check"
        findings.append(_fault("verification", message, "missing", severity="warning"))
    return CheckResult("verification", facts, findings, success, not_evaluated)


def _hours_fault(message: str, hours: Sequence[VerifiedHour], severity: Severity) -> Finding:
    examples = [{"hour": one.hour, "found": one.summary} for one in hours]
    return _fault("verification", message, "different", len(hours), examples, severity)


def _keys(hours: Sequence[VerifiedHour]) -> str:
    return ", ".join(one.hour for one in hours)
