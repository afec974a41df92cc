"""The report of a verification, and one report for several that cover neighboring ranges."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar

from pipelines.proof.report import Finding, Gap, Report

UNCONFIRMED = "raw frames of the range whose rows the sink has not confirmed yet: verify again"
WAITING_RECORDS = "records on raw that process has not read, by the ledger: verify again"
WAITING_ROWS = "rows on out that the sink has not confirmed, by the ledger: verify again"
WAITING = (UNCONFIRMED, WAITING_RECORDS, WAITING_ROWS)
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

    @property
    def is_whole(self) -> bool:
        """Whether the same verification could compare no more later.

        False where the sink had not confirmed all of the range yet, or records may still arrive in it.
        """
        return all(gap.what not in (*WAITING, OPEN) for gap in self.not_proven)

    def heading(self) -> Iterator[str]:
        if self.arrivals is None or self.sequences is None:
            yield f"pipeline {self.pipeline}, table {self.table}: the sink has confirmed no rows of this range"
        else:
            since, until = (f"{arrival:%Y-%m-%d %H:%M:%S.%f} UTC" for arrival in self.arrivals)
            first, last = self.sequences
            yield f"pipeline {self.pipeline}, table {self.table}: arrivals {since} to {until}, raw sequences {first}..{last}"
            yield ", ".join(f"{name} {count:,}" for name, count in self.counts.items())
        same = [checksum.column for checksum in self.checksums if checksum.expected == checksum.found]
        if same:
            yield f"same checksum on both sides: {', '.join(same)}"


def add_up(parts: Sequence[Verification], examples: int) -> Verification:
    """Return one verification for several of neighboring ranges, in their order: counts and checksums add up, the first examples stay."""
    ranges = [part for part in parts if part.arrivals and part.sequences]
    first, last = (ranges[0], ranges[-1]) if ranges else (parts[0], parts[0])
    counts: Counter[str] = Counter()
    findings: dict[tuple[str, str, str | None], Finding] = {}
    for part in parts:
        counts.update(part.counts)
        for finding in part.findings:
            key = (finding.place, finding.kind, finding.column)
            before = findings.get(key, replace(finding, count=0, examples=()))
            both = [*before.examples, *finding.examples][:examples]
            findings[key] = replace(before, count=before.count + finding.count, examples=both)
    return Verification(
        first.pipeline,
        dict(counts),
        [*findings.values()],
        _gaps_added_up(gap for part in parts for gap in part.not_proven),
        _gaps_added_up(gap for part in parts for gap in part.not_compared),
        first.table,
        (first.arrivals[0], last.arrivals[1]) if first.arrivals and last.arrivals else None,
        (first.sequences[0], last.sequences[1]) if first.sequences and last.sequences else None,
        _checksums_added_up(parts),
    )


def _checksums_added_up(parts: Iterable[Verification]) -> list[Checksum]:
    sums: Counter[tuple[str, str]] = Counter()
    for checksum in (checksum for part in parts for checksum in part.checksums):
        sums.update({(checksum.column, "expected"): int(checksum.expected, 16), (checksum.column, "found"): int(checksum.found, 16)})
    columns = dict.fromkeys(column for column, _ in sums)
    return [Checksum(column, hex_sum(sums[column, "expected"]), hex_sum(sums[column, "found"])) for column in columns]


def _gaps_added_up(gaps: Iterable[Gap]) -> list[Gap]:
    """Join the gaps of one kind; their counts add up."""
    by_kind: dict[str, Gap] = {}
    for gap in gaps:
        before = by_kind.get(gap.what)
        count = gap.count if before is None or gap.count is None else (before.count or 0) + gap.count
        by_kind[gap.what] = Gap(gap.what, count)
    return [*by_kind.values()]


def hex_sum(of_hashes: int) -> str:
    """Return the sum modulo 2^64, as a checksum is written."""
    return f"{of_hashes & (1 << 64) - 1:016x}"
