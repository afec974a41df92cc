"""What an audit has found, for people and machines."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


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
    each place holds. `not_proven`: what can no longer be told, or not by this audit, and of how many records, where that is known.
    """

    pipeline: str
    ranges: dict[str, Any] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    not_proven: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.findings

    def find(self, seam: str, kind: str, count: int, examples: Sequence[dict[str, Any]]) -> None:
        if count:
            self.findings.append(Finding(seam, kind, count, examples))

    def cannot_prove(self, what: str, count: int | None = None) -> None:
        if count != 0:
            self.not_proven.append({"what": what, "count": count})

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"pipeline": self.pipeline, "clean": self.is_clean, **{k: v for k, v in asdict(self).items() if k != "pipeline"}}

    def lines(self) -> Iterator[str]:
        """In words."""
        yield f"pipeline {self.pipeline}: {', '.join(f'{name} {count:,}' for name, count in self.records.items())}"
        for name, found in self.ranges.items():
            told = found if isinstance(found, dict) else {"": found}
            yield f"judged: {name}: " + ", ".join(f"{part} {_range(first, last)}".strip() for part, (first, last) in told.items())
        for gap in self.not_proven:
            yield f"not proven: {gap['what']}" + (f" ({gap['count']:,} records)" if gap["count"] is not None else "")
        for finding in self.findings:
            yield f"{finding.kind.upper()} {finding.seam}: {finding.count:,}"
            yield from (f"  {_told(example)}" for example in finding.examples)
            if finding.count > len(finding.examples):
                yield f"  and {finding.count - len(finding.examples):,} more"
        yield "clean: every record that was judged is accounted for, once" if self.is_clean else "NOT clean"


def _range(first: int, last: int) -> str:
    return f"{first}..{last}" if first <= last else "none"


def _told(example: dict[str, Any]) -> str:
    parts = []
    if "topic" in example:
        parts.append(f"{example['topic']}/{example['partition']}/{example['offset']}")
    if "position" in example:
        parts.append(f"raw position {example['position']}")
    return ", ".join([*parts, *([str(example["found"])] if example.get("found") else [])])
