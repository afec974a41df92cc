"""The report of a proof: one `Finding`, one `Verdict`, and one rendering each for the terminal, JSON and Dagster's page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Literal

Kind = Literal["missing", "extra", "doubled", "different"]
Severity = Literal["error", "warning"]


class Verdict(StrEnum):
    """The outcome of a proof: CLEAN only where nothing differs and nothing is left unexplained."""

    CLEAN = "clean"
    NOT_PROVEN = "not proven"
    DIFFERS = "differs"


EXIT_CODES = {Verdict.CLEAN: 0, Verdict.NOT_PROVEN: 3, Verdict.DIFFERS: 4}
"""Exit codes of the commands `audit` and `verify`.

1 is a command that could not do its work, 2 a file or an option that cannot be used.
"""
RESIDUE_EXIT_CODE = 5
"""Exit code of `tally` if the ledger's own numbers do not add up."""

_LOST_ROWS = "launch `put_back_missing`, which inserts them again (docs/dagster-control.md)"
_FOREIGN_ROWS = "keep the rows of other writers in another table (docs/dagster.md)"
_REMEDIES = {
    ("out -> table", "missing"): _LOST_ROWS,
    ("rows", "missing"): _LOST_ROWS,
    ("out -> table", "extra"): _FOREIGN_ROWS,
    ("rows", "extra"): _FOREIGN_ROWS,
    ("schema", "different"): "change the table back, or correct the mapping",
    ("schema", "missing"): "add the column, or take it out of the mapping",
}


@dataclass(frozen=True)
class Finding:
    """`count` faults of one kind in one place: a hop of the audit, a part of the verification, or a check.

    `examples` are the first of them, each with the known parts of `topic`, `partition`, `offset`, `position` (raw sequence and ordinal),
    `expected` and `found`. `message`: the fault as a sentence, if place and kind do not describe it.
    """

    place: str
    kind: Kind
    count: int
    column: str | None = None
    examples: Sequence[Mapping[str, Any]] = ()
    message: str = ""
    severity: Severity = "error"

    @property
    def remedy(self) -> str:
        """The next step; empty if only the examples show it."""
        return _REMEDIES.get((self.place.partition(" (")[0], self.kind), "")

    @property
    def title(self) -> str:
        return f"{self.kind} {self.place}" + (f", column {self.column}" if self.column else "")

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per example, as Dagster's page shows them."""
        where = {"place": self.place, "kind": self.kind, "count": self.count}
        where |= {"column": self.column} if self.column else {}
        return [{**where, **example} for example in self.examples]


@dataclass(frozen=True)
class Gap:
    """Records or rows that were not proved or not compared, and their number, if known."""

    what: str
    count: int | None = None

    def __str__(self) -> str:
        return self.what + (f" ({self.count:,})" if self.count is not None else "")


@dataclass
class Report:
    """The result of one proof. Each proof adds its ranges in a subclass.

    `not_proven`: records and rows of the range without an explanation so far. `not_compared`: records outside of the range, and values that
    were left out; it leaves no row unexplained.
    """

    clean_means: ClassVar[str] = "every record is in exactly one place"

    pipeline: str
    counts: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    not_proven: list[Gap] = field(default_factory=list)
    not_compared: list[Gap] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        if self.findings:
            return Verdict.DIFFERS
        return Verdict.NOT_PROVEN if self.not_proven else Verdict.CLEAN

    @property
    def is_clean(self) -> bool:
        return self.verdict is Verdict.CLEAN

    def find(self, place: str, kind: Kind, count: int, examples: Sequence[Mapping[str, Any]] = (), column: str | None = None) -> None:
        """Add a finding; none with a `count` of 0."""
        if count:
            self.findings.append(Finding(place, kind, count, column, examples))

    def cannot_prove(self, what: str, count: int | None = None) -> None:
        """Note records or rows that nothing explains; none with a `count` of 0."""
        if count != 0:
            self.not_proven.append(Gap(what, count))

    def leave_out(self, what: str, count: int | None = None) -> None:
        """Note records or values that were not compared; nothing with a `count` of 0."""
        if count != 0:
            self.not_compared.append(Gap(what, count))

    def examples(self) -> list[dict[str, Any]]:
        return [row for finding in self.findings for row in finding.rows()]

    def plain(self) -> dict[str, Any]:
        findings = [{**asdict(finding), "remedy": finding.remedy} for finding in self.findings]
        return {"verdict": self.verdict.value, **asdict(self), "findings": findings}

    def lines(self) -> Iterator[str]:
        """Yield the report in sentences, without the examples."""
        yield from self.heading()
        yield from (f"not compared: {gap}" for gap in self.not_compared)
        yield from (f"not proven: {gap}" for gap in self.not_proven)
        for finding in self.findings:
            yield f"{finding.kind.upper()}{finding.title.removeprefix(finding.kind)}: {finding.count:,}"
            if finding.remedy:
                yield f"what to do: {finding.remedy}"
        yield {
            Verdict.CLEAN: f"clean: {self.clean_means}",
            Verdict.NOT_PROVEN: "NOT PROVEN: nothing differs, and nothing explains yet what the lines above name",
            Verdict.DIFFERS: "DIFFERS",
        }[self.verdict]

    def heading(self) -> Iterator[str]:
        yield f"pipeline {self.pipeline}: {', '.join(f'{name} {count:,}' for name, count in self.counts.items())}"
