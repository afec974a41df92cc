"""Reports and tallies as tables on a terminal, for the command line and the demo."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipelines.proof.report import Finding, Report
from pipelines.protocol.tally import Tally


def show_report(console: Console, report: Report, margin: str = "") -> None:
    """Print a table of examples for each finding, then the report's lines behind `margin`."""
    for finding in report.findings:
        if finding.examples:
            console.print(examples_table(finding))
    for line in report.lines():
        console.print(margin + line, markup=False, highlight=False, soft_wrap=True)


def examples_table(finding: Finding) -> Table:
    """Return the examples of a finding: the position of each, its expected and its actual content."""
    shown = f"{len(finding.examples):,} of {finding.count:,}" if finding.count > len(finding.examples) else f"{finding.count:,}"
    table = Table("Kafka", "raw position", "expected", "found", title=f"{finding.title}: {shown}")
    for example in finding.examples:
        kafka = f"{example['topic']}/{example['partition']}/{example['offset']}" if example.get("topic") is not None else ""
        table.add_row(*(escape(str(text)) for text in (kafka, *(example.get(name, "") for name in ("position", "expected", "found")))))
    return table


def tally_table(pipeline: str, tally: Tally) -> Table:
    """Return a row per leg and outcome: the input, its outcomes, the waiting rows, and the residue, which is 0 unless there is a defect."""
    balance = "every event is accounted for" if tally.residue == 0 else f"{tally.residue:,} events are NOT accounted for"
    summary = f"by the ledger, {balance}; `tallyflow audit` proves it"
    title = f"tally of {pipeline}" + (f" since {tally.since:%Y-%m-%d %H:%M:%S} UTC" if tally.since else "")
    table = Table("leg", "in", "outcome", "rows", "waiting before it", "residue", title=title, caption=summary)
    for leg in (*tally.legs, tally.dead_letters):
        outcomes = list(leg.outcomes.items())
        for index, (outcome, rows) in enumerate(outcomes):
            is_first = index == 0
            waiting = f"{leg.waiting:,}" + (" (a plan is open)" if leg.has_open_plan else "")
            table.add_row(
                leg.leg if is_first else "",
                (f"{leg.rows_in:,}" + (f", and {leg.made:,} made by a function" if leg.made else "")) if is_first else "",
                outcome,
                f"{rows:,}",
                waiting if is_first and leg in tally.with_upstream else "",
                f"{leg.residue:,}" if is_first else "",
                end_section=index == len(outcomes) - 1,
            )
    return table
