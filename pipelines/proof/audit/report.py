"""The report of an audit."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pipelines.proof.report import Report


@dataclass
class AuditReport(Report):
    """The report of one audit. `counts`: the number of records in each place.

    `ranges`: the compared ranges, first and last, both inclusive; the last is below the first if nothing was compared.
    """

    clean_means: ClassVar[str] = "every record that was compared is accounted for, once"

    ranges: dict[str, Any] = field(default_factory=dict)

    def heading(self) -> Iterator[str]:
        yield from super().heading()
        for name, ends in self.ranges.items():
            parts = ends if isinstance(ends, dict) else {"": ends}
            yield f"compared: {name}: " + ", ".join(f"{part} {_range_text(*part_ends)}".strip() for part, part_ends in parts.items())


def _range_text(first: int, last: int) -> str:
    return f"{first}..{last}" if first <= last else "none"
