"""What a verification has found, for people and machines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

Place = Literal["schema", "rows", "dead letters", "streams"]
Verdict = Literal["match", "not proven", "mismatch"]
UNCONFIRMED = "raw frames of the range whose rows the sink has not confirmed yet: verify again"
WAITING_RECORDS = "records on raw that process has not read, as the ledger tells it: verify again"
WAITING_ROWS = "rows on out that the sink has not confirmed, as the ledger tells it: verify again"
OPEN = "records that may still arrive in the range, as the clock of NATS is behind this host's: verify again"
Kind = Literal["missing", "extra", "doubled", "different"]

_VERDICTS: dict[Verdict, str] = {
    "match": "match: ClickHouse holds what the records call for",
    "not proven": "NOT PROVEN: nothing that was compared differs, and the lines above say what nothing explains yet",
    "mismatch": "MISMATCH",
}


@dataclass(frozen=True)
class Checksum:
    """Of one column over all rows of the range: the sum of a hash of position and value, as 16 hexadecimal digits.

    Comparable within one verification only: the hash is that of the DuckDB release that computed it.
    """

    column: str
    expected: str
    found: str


@dataclass(frozen=True)
class Finding:
    """`count` faults of one kind; `column` where it is one column that differs.

    The first of them, by position, are in `examples`, each with what is known of `topic`, `partition`, `offset`, `position` (raw sequence
    and ordinal), and, in words, what was `expected` and `found`.
    """

    place: Place
    kind: Kind
    count: int
    column: str | None = None
    examples: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Gap:
    """Something that could not be proved or was not compared; of how many records, where that is known."""

    what: str
    count: int | None = None


@dataclass(frozen=True)
class Verification:
    """The range: arrivals (aware UTC, both inclusive) and raw sequences (inclusive) of the frames whose records were compared; None where
    there was nothing to compare. `counts`: records read for it (`records`), what must become of them (`rows`, `copies`, `rejected`,
    `refused`; `abandoned` where rows were given up), and rows found in the table (`found`).

    `not_proven`: records and rows that belong to the range and that nothing explains yet. `not_compared`: what lies outside of the range
    that can be proved, and values that were left out; no row is unexplained because of it.
    """

    pipeline: str
    table: str
    arrivals: tuple[datetime, datetime] | None = None
    sequences: tuple[int, int] | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    checksums: Sequence[Checksum] = ()
    findings: Sequence[Finding] = ()
    not_proven: Sequence[Gap] = ()
    not_compared: Sequence[Gap] = ()

    @property
    def verdict(self) -> Verdict:
        """Name the outcome: `mismatch` when something differs, `match` only when nothing does and every row of the range is explained."""
        if self.findings:
            return "mismatch"
        return "not proven" if self.not_proven else "match"

    @property
    def is_match(self) -> bool:
        return self.verdict == "match"

    @property
    def is_whole(self) -> bool:
        """False where the sink had not confirmed all of the range yet, or nothing, or records may still arrive in it: the same verification
        later compares more.
        """
        return all(gap.what not in (UNCONFIRMED, WAITING_RECORDS, WAITING_ROWS, OPEN) for gap in self.not_proven)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"verdict": self.verdict, **asdict(self)}

    def lines(self) -> Iterator[str]:
        """In words, without the examples."""
        if self.arrivals is None or self.sequences is None:
            yield f"pipeline {self.pipeline}, table {self.table}: no rows that the sink has confirmed lie in this range"
        else:
            since, until = (f"{one:%Y-%m-%d %H:%M:%S.%f} UTC" for one in self.arrivals)
            first, last = self.sequences
            yield f"pipeline {self.pipeline}, table {self.table}: arrivals {since} to {until}, raw sequences {first}..{last}"
            yield ", ".join(f"{name} {count:,}" for name, count in self.counts.items())
        same = [one.column for one in self.checksums if one.expected == one.found]
        if same:
            yield f"same checksum on both sides: {', '.join(same)}"
        for told, gaps in (("not compared", self.not_compared), ("not proven", self.not_proven)):
            yield from (f"{told}: {gap.what}" + (f" ({gap.count:,})" if gap.count is not None else "") for gap in gaps)
        for one in self.findings:
            yield f"{one.kind.upper()} {one.place}" + (f", column {one.column}" if one.column else "") + f": {one.count:,}"
        yield _VERDICTS[self.verdict]
