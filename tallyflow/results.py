"""What the methods of a pipeline give: frozen dataclasses, each with its rows as an Arrow table or a pandas frame."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pandas as pd
import pyarrow as pa

from pipelines.preview.run import Preview as PreviewRun
from pipelines.proof.report import Finding, Gap, Report, Verdict
from pipelines.protocol.tally import Tally as LedgerTally

_FINDINGS = pa.schema(
    [("place", pa.string()), ("kind", pa.string()), ("count", pa.int64()), ("column", pa.string()), ("example", pa.string())]
)
_TALLIES = pa.schema(
    [
        ("leg", pa.string()),
        ("rows_in", pa.int64()),
        ("outcome", pa.string()),
        ("rows", pa.int64()),
        ("waiting", pa.int64()),
        ("residue", pa.int64()),
    ]
)
_LEGS = pa.schema(
    [
        ("leg", pa.string()),
        ("state", pa.string()),
        ("waiting", pa.int64()),
        ("rows_in", pa.int64()),
        ("rows_out", pa.int64()),
        ("rows_per_second", pa.float64()),
        ("message", pa.string()),
    ]
)
_OUTCOMES = pa.schema(
    [
        ("value", pa.string()),
        ("outcome", pa.string()),
        ("step", pa.string()),
        ("code", pa.string()),
        ("column", pa.string()),
        ("reason", pa.string()),
        ("rows", pa.int64()),
    ]
)


class Frame(ABC):
    """A result with rows."""

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table, its columns the same however few rows there are."""

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas frame."""
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame


@dataclass(frozen=True)
class Outcome:
    """What became of one record: `outcome` at the last `step` that it reached, as `Seen` of a preview says it.

    `code`, `column` and `reason`: those of the dead letter, empty without one. `rows`: its rows for the tables, by column.
    """

    value: bytes | None
    outcome: str
    step: str
    code: str = ""
    column: str | None = None
    reason: str = ""
    rows: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Preview(Frame):
    """The outcomes of records, in their order."""

    outcomes: tuple[Outcome, ...]

    @classmethod
    def of(cls, found: PreviewRun) -> "Preview":
        lasts = ((record.value, record.last) for record in found.records)
        return cls(tuple(Outcome(value, s.outcome, s.step, s.code, s.column, s.reason, s.rows) for value, s in lasts))

    @property
    def counts(self) -> dict[str, int]:
        """The number of records by outcome."""
        return {one: sum(each.outcome == one for each in self.outcomes) for one in sorted({each.outcome for each in self.outcomes})}

    @property
    def rows(self) -> tuple[Mapping[str, Any], ...]:
        """The rows of all records that become some."""
        return tuple(row for each in self.outcomes if each.outcome == "row" for row in each.rows)

    def to_arrow(self) -> pa.Table:
        """Return a row per record; `value` as text, with U+FFFD for what is no UTF-8, `rows` their number."""
        return pa.Table.from_pylist(
            [
                {
                    "value": None if each.value is None else each.value.decode(errors="replace"),
                    **{name: getattr(each, name) for name in ("outcome", "step", "code", "column", "reason")},
                    "rows": len(each.rows) if each.outcome == "row" else 0,
                }
                for each in self.outcomes
            ],
            _OUTCOMES,
        )


@dataclass(frozen=True)
class Run:
    """A run that ended by itself: how long it took, and what it reported, a line each."""

    took: timedelta
    lines: tuple[str, ...]


@dataclass(frozen=True)
class LegStatus:
    """One leg of a running pipeline; `rows_per_second` is None before there is a rate."""

    leg: str
    state: str
    waiting: int
    rows_in: int
    rows_out: int
    rows_per_second: float | None
    message: str


@dataclass(frozen=True)
class Status(Frame):
    """A running pipeline: its legs in the order of the data, and the records that wait before all of them."""

    pipeline: str
    is_ready: bool
    is_healthy: bool
    uptime: timedelta
    legs: tuple[LegStatus, ...]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Status":
        legs = tuple(
            LegStatus(
                name,
                leg["state"],
                leg["waiting"],
                leg["totals"].get("rows_in", 0),
                leg["totals"].get("rows_out", 0),
                leg["rows_per_second"],
                leg["message"],
            )
            for name, leg in found["legs"].items()
        )
        return cls(found["pipeline"], found["ready"], found["healthy"], timedelta(seconds=found["uptime_seconds"]), legs)

    @property
    def lag_records(self) -> int:
        return sum(leg.waiting for leg in self.legs)

    def to_arrow(self) -> pa.Table:
        """Return a row per leg."""
        return pa.Table.from_pylist([vars(leg) for leg in self.legs], _LEGS)


@dataclass(frozen=True)
class LegTally:
    """One leg's account, in rows; `residue` is 0 unless there is a defect."""

    leg: str
    rows_in: int
    outcomes: Mapping[str, int]
    waiting: int
    residue: int


@dataclass(frozen=True)
class Tally(Frame):
    """What each leg counted, the last entry being that of the dead letters; `residue` is 0 if every event is accounted for."""

    pipeline: str
    legs: tuple[LegTally, ...]
    residue: int

    @classmethod
    def of(cls, pipeline: str, found: LedgerTally) -> "Tally":
        every = (*found.legs, found.dead_letters)
        return cls(pipeline, tuple(LegTally(s.leg, s.rows_in, s.outcomes, s.waiting, s.residue) for s in every), found.residue)

    def to_arrow(self) -> pa.Table:
        """Return a row per leg and outcome; the figures of the leg are in each of its rows."""
        rows = [
            {"leg": s.leg, "rows_in": s.rows_in, "outcome": outcome, "rows": count, "waiting": s.waiting, "residue": s.residue}
            for s in self.legs
            for outcome, count in s.outcomes.items()
        ]
        return pa.Table.from_pylist(rows, _TALLIES)


@dataclass(frozen=True)
class Proof(Frame):
    """The result of `audit` or `verify`. CLEAN only if nothing differs and every row is explained."""

    verdict: Verdict
    counts: Mapping[str, int]
    findings: tuple[Finding, ...]
    not_proven: tuple[Gap, ...]
    not_compared: tuple[Gap, ...]
    lines: tuple[str, ...] = field(repr=False)
    """The report in sentences, as the command prints it."""

    @classmethod
    def of(cls, report: Report) -> "Proof":
        gaps = tuple(report.not_proven), tuple(report.not_compared)
        return cls(report.verdict, report.counts, tuple(report.findings), *gaps, tuple(report.lines()))

    @property
    def is_clean(self) -> bool:
        return self.verdict is Verdict.CLEAN

    def to_arrow(self) -> pa.Table:
        """Return a row per example of a finding, as JSON, and one for a finding without examples."""
        rows = [
            {"place": s.place, "kind": s.kind, "count": s.count, "column": s.column, "example": example}
            for s in self.findings
            for example in (*(json.dumps(dict(each), default=str) for each in s.examples), *(() if s.examples else (None,)))
        ]
        return pa.Table.from_pylist(rows, _FINDINGS)
