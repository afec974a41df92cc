"""The report of a verification."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar

from pipelines.proof.report import Report

UNCONFIRMED = "raw frames of the range whose rows the sink has not confirmed yet: verify again"
WAITING_RECORDS = "records on raw that process has not read, by the ledger: verify again"
WAITING_ROWS = "rows on out that the sink has not confirmed, by the ledger: verify again"
UNCONFIRMED_LEFTS = "rows of left records that something later has made appear, and that the sink has not confirmed: verify again"
WAITING_LEFTS = "left records of the range that wait in the join, and may still get a row: verify again once their windows have ended"
EARLY_LEFTS = "left records that waited when the ledger was read, and have a row or a dead letter by now: verify again"
WAITING_DEAD_LETTERS = "dead letters that their table has not confirmed yet: verify again"
WAITING = (UNCONFIRMED, WAITING_RECORDS, WAITING_ROWS, UNCONFIRMED_LEFTS, WAITING_LEFTS, EARLY_LEFTS, WAITING_DEAD_LETTERS)
OPEN = "records that may still arrive in the range, because the clock of NATS is behind the clock of this host: verify again"


@dataclass(frozen=True)
class Checksum:
    """The checksum of one column over all rows of the range: the sum of a hash of position and value, as 16 hexadecimal digits.

    It is comparable within one verification only: the hash is that of the DuckDB release that computed it.
    """

    column: str
    expected: str
    found: str


@dataclass
class Verification(Report):
    """The report of one verification.

    The range: arrivals (aware UTC, both inclusive) and raw sequences (inclusive) of the frames whose records were compared; None if there
    was nothing to compare. `counts`: records read for it (`records`), their expected outcomes (`rows`, `copies`, `rejected`, `refused`;
    `abandoned` if rows were abandoned), and rows found in the table (`found`).
    """

    clean_means: ClassVar[str] = "ClickHouse holds the rows that the records require"

    table: str = ""
    arrivals: tuple[datetime, datetime] | None = None
    sequences: tuple[int, int] | None = None
    checksums: list[Checksum] = field(default_factory=list)

    @classmethod
    def together(cls, reports: "Mapping[str, Verification]") -> "Verification":
        """Return the reports of all sinks of a pipeline, by the ids of these, as one: names are followed by the id."""
        (first, *others) = reports.values()
        if not others:
            return first
        whole = cls(first.pipeline, table=", ".join(report.table for report in reports.values()))
        spans = [(report.arrivals, report.sequences) for report in reports.values() if report.arrivals and report.sequences]
        if spans:
            arrivals, sequences = zip(*spans, strict=True)
            whole.arrivals = min(one[0] for one in arrivals), max(one[1] for one in arrivals)
            whole.sequences = min(one[0] for one in sequences), max(one[1] for one in sequences)
        for sink, report in reports.items():
            whole.counts |= {f"{name} ({sink})": count for name, count in report.counts.items()}
            whole.findings += [replace(one, place=f"{one.place} ({sink})") for one in report.findings]
            whole.not_proven += [replace(gap, what=f"{gap.what} ({sink})") for gap in report.not_proven]
            whole.not_compared += [replace(gap, what=f"{gap.what} ({sink})") for gap in report.not_compared]
            whole.checksums += [replace(one, column=f"{one.column} ({sink})") for one in report.checksums]
        return whole

    @property
    def is_whole(self) -> bool:
        """Whether the same verification could compare no more later.

        False where the sink had not confirmed all of the range yet, or records may still arrive in it.
        """
        return not any(gap.what.startswith((*WAITING, OPEN)) for gap in self.not_proven)

    def heading(self) -> Iterator[str]:
        if self.arrivals is None or self.sequences is None:
            yield f"pipeline {self.pipeline}, table {self.table}: the sink has confirmed no rows of this range"
        else:
            since, until = (f"{arrival:%Y-%m-%d %H:%M:%S.%f} UTC" for arrival in self.arrivals)
            first, last = self.sequences
            yield f"pipeline {self.pipeline}, table {self.table}: arrivals {since} to {until}, raw sequences {first}..{last}"
            for sink, names in _by_sink(self.counts).items():
                yield _of(sink) + ", ".join(f"{name} {self.counts[full]:,}" for name, full in names)
        same = [checksum.column for checksum in self.checksums if checksum.expected == checksum.found]
        for sink, names in _by_sink(same).items():
            yield f"{_of(sink)}same checksum on both sides: {', '.join(name for name, _ in names)}"


def _by_sink(names: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
    """Return (name, name with the id of its sink) by that id, as `Verification.together` has joined them; empty for a single sink."""
    found: dict[str, list[tuple[str, str]]] = {}
    for full in names:
        name, _, sink = full.removesuffix(")").partition(" (")
        found.setdefault(sink, []).append((name, full))
    return found


def _of(sink: str) -> str:
    return f"{sink}: " if sink else ""
