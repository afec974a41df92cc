"""Reports of proofs as Dagster's pages show them: a sentence, numbers that are plotted, and the first faults as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from pipelines.proof.report import Verdict
from pipelines.proof.verification.result import OPEN, Verification


def summary(report: Verification) -> str:
    """Return in a sentence what differs, or that nothing does."""
    if report.verdict is Verdict.DIFFERS:
        return "; ".join(" ".join(filter(None, (f"{one.count:,}", one.kind, one.place, one.column))) for one in report.findings)
    if report.is_clean:
        return f"{report.counts.get('rows', 0):,} rows match" if report.sequences else "nothing to compare in this range"
    if any(gap.what == OPEN for gap in report.not_proven):
        return "this hour has not ended yet by the clock of NATS; verify it again"
    if not report.is_whole:
        return "the sink has not confirmed all of this hour yet; verify it again"
    return "not proven: " + "; ".join(map(str, report.not_proven))


def report_metadata(report: Verification) -> dict[str, Any]:
    """Return the numbers that are plotted, what was not proved, and what the table's check reads: `is_match`, `is_proven` and `summary`.

    `is_match`: nothing that was compared differs; `is_proven`: every row of the range is explained.
    """
    return {
        **report.counts,
        "differences": sum(finding.count for finding in report.findings),
        "is_match": not report.findings,
        "is_proven": not report.not_proven,
        "summary": summary(report),
        "not proved": "; ".join(gap.what for gap in report.not_proven) or "nothing",
        # A list, whose lines are wrapped: the page cuts off what is wider than it.
        "report": dg.MetadataValue.md("\n".join(f"- {line}" for line in report.lines())),
    }


def examples_metadata(examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a Markdown table of rows that need not have the same keys; nothing where there is no row."""
    if not examples:
        return {}
    columns = list(dict.fromkeys(name for example in examples for name in example))
    lines = [columns, ["---"] * len(columns), *([str(example.get(name, "")) for name in columns] for example in examples)]
    text = "\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines)
    return {"examples": dg.MetadataValue.md(text)}
