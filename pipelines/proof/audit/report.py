"""What an audit has found, for people and machines."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["clean", "not proven", "not clean"]
_VERDICTS: dict[Verdict, str] = {
    "clean": "clean: every record that was judged is accounted for, once",
    "not proven": "NOT PROVEN: no record is missing, doubled or extra, and the lines above say what nothing explains yet",
    "not clean": "NOT clean",
}


@dataclass(frozen=True)
class Finding:
    """`count` faults of one kind at one seam. The first of them are in `examples`, each with its coordinates as far as they are known:
    `topic`, `partition`, `offset`, `position` (raw), and `found`, in words.
    """

    seam: str
    kind: str
    count: int
    examples: Sequence[dict[str, Any]]


@dataclass
class Audited:
    """`ranges`: what was judged, first and last, both inclusive; the last is below the first where there was nothing. `records`: how many
    each place holds. `not_proven`: records and rows that were judged and that nothing explains yet, and how many. `not_judged`: what lies
    outside of the ranges, or what this audit does not look at, and of how many records, where that is known.
    """

    pipeline: str
    ranges: dict[str, Any] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    not_proven: list[dict[str, Any]] = field(default_factory=list)
    not_judged: list[dict[str, Any]] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """Name the outcome: `clean` only when no fault was found and every record that was judged is explained."""
        if self.findings:
            return "not clean"
        return "not proven" if self.not_proven else "clean"

    @property
    def is_clean(self) -> bool:
        return self.verdict == "clean"

    def find(self, seam: str, kind: str, count: int, examples: Sequence[dict[str, Any]]) -> None:
        if count:
            self.findings.append(Finding(seam, kind, count, examples))

    def cannot_prove(self, what: str, count: int) -> None:
        """Note records or rows that nothing explains; none with a `count` of 0."""
        if count:
            self.not_proven.append({"what": what, "count": count})

    def leaves_out(self, what: str, count: int | None = None) -> None:
        """Note what is not judged; nothing with a `count` of 0."""
        if count != 0:
            self.not_judged.append({"what": what, "count": count})

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"pipeline": self.pipeline, "verdict": self.verdict, **{k: v for k, v in asdict(self).items() if k != "pipeline"}}

    def lines(self) -> Iterator[str]:
        """In words."""
        yield f"pipeline {self.pipeline}: {', '.join(f'{name} {count:,}' for name, count in self.records.items())}"
        for name, found in self.ranges.items():
            told = found if isinstance(found, dict) else {"": found}
            yield f"judged: {name}: " + ", ".join(f"{part} {_range(first, last)}".strip() for part, (first, last) in told.items())
        for kind, gaps in (("not judged", self.not_judged), ("not proven", self.not_proven)):
            yield from (f"{kind}: {gap['what']}" + (f" ({gap['count']:,} records)" if gap["count"] is not None else "") for gap in gaps)
        for finding in self.findings:
            yield f"{finding.kind.upper()} {finding.seam}: {finding.count:,}"
            yield from (f"  {_told(example)}" for example in finding.examples)
            if finding.count > len(finding.examples):
                yield f"  and {finding.count - len(finding.examples):,} more"
        yield _VERDICTS[self.verdict]


def _range(first: int, last: int) -> str:
    return f"{first}..{last}" if first <= last else "none"


def _told(example: dict[str, Any]) -> str:
    parts = []
    if "topic" in example:
        parts.append(f"{example['topic']}/{example['partition']}/{example['offset']}")
    if "position" in example:
        parts.append(f"raw position {example['position']}")
    return ", ".join([*parts, *([str(example["found"])] if example.get("found") else [])])
